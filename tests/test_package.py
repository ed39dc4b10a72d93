"""The package as users get it: light to import, complete in the wheel, silent about how it was built."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import kit
from kit.recipe.catalog import shipped_recipes
from kit.tasks.registry import load_recipe

ROOT = Path(__file__).parents[1]


def test_importing_kit_is_light() -> None:
    heavy = "torch, transformers, datasets, evaluate, matplotlib, pydantic"
    script = f"import kit, kit.cli, sys; print([m for m in '{heavy}'.split(', ') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in kit.__all__:
        assert getattr(kit, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        kit.nothing  # noqa: B018


def test_the_wheel_holds_recipes_and_cards(tmp_path: Path) -> None:
    # without isolation: the build must not need the network
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for recipe in (ROOT / "recipes").rglob("*.yaml"):
        assert f"kit/recipes/{recipe.relative_to(ROOT / 'recipes')}" in names
    for card in (ROOT / "model_cards").glob("*.md"):
        assert f"kit/model_cards/{card.name}" in names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads_and_says_what_it_measured(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.measured
    text = shipped_recipes()[name].read_text(encoding="utf-8")
    assert re.match(r"# .+\n#   kit train recipes/\S+\.yaml", text), "a recipe begins with what it is and its command"


def test_the_project_speaks_only_of_itself() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    for name in listed.stdout.split():
        path = ROOT / name
        if path.is_file() and not name.startswith("tests/"):
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not re.search(r"(?<![\w.])/(root|home|work)/", text), name
