"""Where the recipes and model card templates that come with kit are: in a wheel and in a source tree."""

from pathlib import Path

from kit.errors import KitError, RecipeError, did_you_mean
from kit.recipe.document import printable

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
