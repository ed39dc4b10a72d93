"""The recipes and model card templates that ship with kit, in a wheel or in a source tree."""

from dataclasses import dataclass
from pathlib import Path

from kit.errors import KitError, RecipeError, did_you_mean
from kit.recipe.document import printable, read_text, read_yaml

Figure = int | float | str
"""A value of the section `measured`."""

_PACKAGE = Path(__file__).resolve().parents[1]
ACCELERATE = "accelerate"
"""The folder beside the recipes that holds configurations of Accelerate: hardware, which recipes do not speak of."""


def recipes_folder() -> Path:
    """The folder of the shipped recipes, with one folder per task in it."""
    return _shipped("recipes")


def model_cards_folder() -> Path:
    """The folder of the model card templates."""
    return _shipped("model_cards")


def shipped_recipes() -> dict[str, Path]:
    """The shipped recipes by name ("translation/dates_rnn"), sorted."""
    folder = recipes_folder()
    found = (path for path in sorted(folder.rglob("*.yaml")) if path.parent.name != ACCELERATE)
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in found}


def names_recipe(name: str) -> bool:
    """Whether a name is that of a file or of a shipped recipe."""
    try:
        return find_recipe(name).is_file()
    except RecipeError:
        return False


def find_recipe(path_or_name: str | Path) -> Path:
    """The file that is meant: a file of the user's own, or else a shipped recipe.

    A shipped recipe is named in full ("translation/dates_rnn"), in short ("dates_rnn") or by its path in the
    source tree ("recipes/translation/dates_rnn.yaml").
    """
    path = Path(path_or_name)
    given = printable(path_or_name)
    if _is_file(path):
        return path

    recipes = shipped_recipes()
    name = given.replace("\\", "/").removeprefix("./").removeprefix("recipes/")
    name = name.removesuffix(".yaml").removesuffix(".yml")
    found = [full for full in recipes if name in (full, full.rpartition("/")[2])]
    if len(found) == 1:
        return recipes[found[0]]
    if found:
        raise RecipeError(f'the recipe name "{given}" has several meanings: {", ".join(found)}. Give one of them.')
    if given and _is_folder(path):
        raise RecipeError(f"{given} is a folder; give the recipe file in it, for example {given}/recipe.yaml.")
    known = [full.rpartition("/")[2] for full in recipes] + list(recipes)
    hint = did_you_mean(name, known) or " `kit recipes` lists the shipped ones."
    raise RecipeError(f'no recipe "{given}": there is no such file, and no shipped recipe has this name.{hint}')


def _shipped(folder: str) -> Path:
    # a wheel carries the folder inside the package, a source tree beside it
    for place in (_PACKAGE / folder, _PACKAGE.parent / folder):
        if place.is_dir():
            return place
    raise KitError(f'this installation of kit lacks its folder "{folder}": install it again.')


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a name that is too long for the file system
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


@dataclass(frozen=True)
class RecipeRow:
    """A shipped recipe as `kit recipes` lists it."""

    name: str
    path: Path
    title: str
    task: str
    measured: dict[str, Figure]
    """Figures of a real run; empty if there are none."""
    reason: str
    """Why there are no figures; empty if there are some."""

    def headline(self) -> str:
        """The figures that one looks for first: metrics of the test split, and how long it took on what."""
        told = [
            f"{name} {value}"
            for name, value in self.measured.items()
            if name.startswith("test_") and name.removeprefix("test_") not in ("loss", "perplexity", "examples")
        ]
        if "minutes" in self.measured:
            told.append(f"{self.measured['minutes']} minutes")
        return ", ".join([*told, *(str(self.measured[key]) for key in ("hardware",) if key in self.measured)])


def list_recipes() -> list[RecipeRow]:
    """The shipped recipes, by name."""
    rows = []
    for name, path in shipped_recipes().items():
        text = read_text(path)
        value = read_yaml(text, str(path)).value
        recipe = value if isinstance(value, dict) else {}
        comments = (line.strip("# \t") for line in text.splitlines() if line.startswith("#"))
        measured = recipe.get("measured") or {"none": "not measured yet"}
        rows.append(
            RecipeRow(
                name=name,
                path=path,
                title=next((comment for comment in comments if comment), ""),
                task=str(recipe.get("task", "")),
                measured={} if "none" in measured else measured,
                reason=str(measured.get("none", "")),
            )
        )
    return rows


def copy_recipe(name: str, destination: str | Path) -> Path:
    """Copy a recipe to a file, or into a folder under its own name; what exists is never overwritten."""
    source = find_recipe(name)
    target = Path(destination)
    if target.is_dir():
        target = target / source.name
    try:
        with open(target, "xb") as file:
            file.write(source.read_bytes())
    except FileExistsError:
        raise RecipeError(f"{printable(target)} exists already: give another name, or remove it first.") from None
    except (OSError, ValueError) as error:
        raise RecipeError(f"{printable(target)} cannot be written: {error}") from None
    return target
