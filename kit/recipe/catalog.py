"""The recipes and model card templates that ship with kit, in a wheel or a source tree."""

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from kit.errors import KitError, RecipeError, did_you_mean
from kit.recipe.document import printable, read_text, read_yaml

Figure = int | float | str
"""A value in the section `measured`."""

_PACKAGE = Path(__file__).resolve().parents[1]
ACCELERATE = "accelerate"
"""The folder next to the recipes that holds Accelerate configurations: hardware, which a recipe never describes."""


def recipes_folder() -> Path:
    """The folder of the shipped recipes, with one subfolder per kind of task."""
    return _shipped("recipes")


def model_cards_folder() -> Path:
    """The folder of the model card templates."""
    return _shipped("model_cards")


def shipped_recipes() -> dict[str, Path]:
    """The shipped recipes by name ("translation/dates_rnn"), sorted."""
    folder = recipes_folder()
    paths = (path for path in sorted(folder.rglob("*.yaml")) if path.parent.name != ACCELERATE)
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def recipe_exists(name: str) -> bool:
    """Whether a path or name refers to an existing file or a shipped recipe."""
    try:
        return find_recipe(name).is_file()
    except RecipeError:
        return False


NOT_RECIPES = re.compile(r"\.(csv|tsv|txt|jsonl|parquet|arrow|feather|xlsx|conll|npz)(\.gz)?$", re.IGNORECASE)
DATA_HINT = "If it is data, `kit data {path}` prints the command that trains on it."


def find_recipe(path_or_name: str | Path) -> Path:
    """The file that a path or name refers to: an existing file, or else a shipped recipe.

    A shipped recipe can be given by its full name ("translation/dates_rnn"), its short name ("dates_rnn"), or its path
    in the source tree ("recipes/translation/dates_rnn.yaml"). Raises RecipeError if nothing or more than one recipe
    matches.
    """
    path = Path(path_or_name)
    shown = printable(path_or_name)
    if _is_file(path):
        if NOT_RECIPES.search(shown):
            raise RecipeError(f"{shown} is not a recipe. {DATA_HINT.format(path=shown)}")
        return path

    recipes = shipped_recipes()
    name = shown.replace("\\", "/").removeprefix("./").removeprefix("recipes/")
    name = name.removesuffix(".yaml").removesuffix(".yml")
    matches = [full for full in recipes if name in (full, full.rpartition("/")[2])]
    if len(matches) == 1:
        return recipes[matches[0]]
    if matches:
        raise RecipeError(
            f'the recipe name "{shown}" is ambiguous: it matches {", ".join(matches)}. Use one of these names.'
        )
    if shown and _is_folder(path):
        raise RecipeError(
            f"{shown} is a folder; name the recipe file in it, for example {shown}/recipe.yaml. "
            f"{DATA_HINT.format(path=shown)}"
        )
    known = [full.rpartition("/")[2] for full in recipes] + list(recipes)
    hint = did_you_mean(name, known) or " `kit recipes` lists the shipped recipes."
    raise RecipeError(f'no recipe "{shown}": there is no such file, and no shipped recipe has this name.{hint}')


def _shipped(folder: str) -> Path:
    # a wheel contains the folder inside the package, a source tree next to it
    for candidate in (_PACKAGE / folder, _PACKAGE.parent / folder):
        if candidate.is_dir():
            return candidate
    raise KitError(f'this installation of kit is missing its folder "{folder}": reinstall kit.')


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # for example, a name that is too long for the file system
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


@dataclass(frozen=True)
class RecipeRow:
    """A shipped recipe, as `kit recipes` lists it."""

    name: str
    path: Path
    header: list[str]
    """The comment at the top: a title, then commands and remarks."""
    task: str
    needs_download: bool
    """Whether it trains on data, or starts from a model, that does not come with kit."""
    measured: dict[str, Figure]
    """Results of a real run; empty if there are none."""
    reason: str
    """Why there are no results; empty if there are some."""

    @property
    def short_name(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def title(self) -> str:
        return next(iter(self.header), "")

    @property
    def minutes(self) -> float | None:
        """Duration of the measured run, including evaluation."""
        value = self.measured.get("minutes")
        return float(value) if isinstance(value, int | float) else None

    def headline(self) -> str:
        """The most important result: the first metric, of the test split if there is one, or else the loss."""
        names = [name for split in ("test_", "validation_") for name in self.measured if name.startswith(split)]
        # only if there is nothing else
        last = ("loss", "perplexity", "examples", "size", "tokens", "words_without_tokens", "null_threshold")
        name = min(names, key=lambda name: last.count(name.partition("_")[2]), default="")
        return f"{name.partition('_')[2].replace('_', ' ')} {self.measured[name]}" if name else ""

    def details(self) -> str:
        """All about the recipe, as text."""
        width = max(map(len, self.measured), default=0)
        measured = [f"  {name:<{width}}  {value}" for name, value in self.measured.items()] or [f"  {self.reason}"]
        return "\n".join([self.name, *(f"  {line}".rstrip() for line in self.header), "", "measured:", *measured])

    def as_json(self) -> dict[str, object]:
        """The same as values."""
        return {
            "name": self.name,
            "task": self.task,
            "title": self.title,
            "needs_download": self.needs_download,
            "measured": self.measured or None,
        }


def list_recipes() -> list[RecipeRow]:
    """The shipped recipes, sorted by name."""
    return [_row(name, path) for name, path in shipped_recipes().items()]


def recipe_row(path_or_name: str) -> RecipeRow:
    """What `kit recipes` shows of one recipe. Raises RecipeError if there is none."""
    path = find_recipe(path_or_name)
    names = {path: name for name, path in shipped_recipes().items()}
    return _row(names.get(path, printable(path_or_name)), path)


def _row(name: str, path: Path) -> RecipeRow:
    text = read_text(path)
    recipe = _mapping(read_yaml(text, str(path)).value)
    comments = takewhile(lambda line: line.startswith("#"), text.split("\n"))
    measured = _mapping(recipe.get("measured")) or {"none": "not measured yet"}
    pretrained = [_mapping(recipe.get(section)).get("pretrained") for section in ("model", "tokenizer")]
    data = str(_mapping(recipe.get("data")).get("path", ""))
    return RecipeRow(
        name=name,
        path=path,
        header=[line.removeprefix("#").removeprefix(" ").rstrip() for line in comments],
        task=str(recipe.get("task", "")),
        needs_download=any(pretrained) or not data.startswith("builtin:"),
        measured={} if "none" in measured else measured,
        reason=str(measured.get("none", "")),
    )


def _mapping(value: Any) -> dict[str, Any]:
    """A section; empty for anything else, since any file can be named and only training validates it."""
    return value if isinstance(value, dict) else {}
