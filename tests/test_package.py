"""The package as users get it: light to import, complete in the wheel, silent about how it was built."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kit.recipe.catalog import shipped_recipes
from kit.tasks.registry import load_recipe

ROOT = Path(__file__).parents[1]


def test_importing_kit_is_light() -> None:
    heavy = "torch, transformers, datasets, evaluate, matplotlib, pydantic"
    script = f"import kit, kit.cli, sys; print([m for m in '{heavy}'.split(', ') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built from this source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    # without isolation: the build must not need the network
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


def listed_files(*folders: str) -> list[str]:
    """The files that git lists."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_the_wheel_holds_kit_recipes_and_cards_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = set(listed_files("kit"))
    assert expected <= names
    assert "kit/py.typed" in names
    for folder in ("recipes", "model_cards"):
        files = {f"kit/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert {name for name in files if name.endswith((".yaml", ".md"))} <= names
        expected |= files
    assert names - expected == set()


@pytest.mark.slow
def test_the_wheel_works_without_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
    small = ["data.sizes={train: 200, validation: 10, test: 10}", "data.languages=[en]", "eval.steps=0"]
    program = f"""
import sys, kit, kit.cli
print(kit.__file__)
for command in (["recipes"], ["train", "dates_rnn", "train.max_steps=5", *{small!r}, "--output", "run"]):
    sys.argv = ["kit", *command]
    try:
        kit.cli.main()
    except SystemExit as ended:
        assert not ended.code, ended.code
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'site' / 'kit' / '__init__.py'}\n")
    assert "dates_rnn" in done.stdout
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert (tmp_path / "run" / "README.md").is_file()


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads_and_has_figures(name: str) -> None:
    assert load_recipe(name).measured


def test_the_project_speaks_only_of_itself() -> None:
    for name in listed_files():
        path = ROOT / name
        if path.is_file() and not name.startswith("tests/"):
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not re.search(r"(?<![\w.])/(root|home|work)/", text), name
