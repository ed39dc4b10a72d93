"""The scripts beside the recipes and the benchmarks, loaded as modules or run as `python script.py` does."""

import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "recipes" / "scripts", ROOT / "benchmarks")


def script_path(name: str) -> Path:
    (path,) = (folder / f"{name}.py" for folder in FOLDERS if (folder / f"{name}.py").is_file())
    return path


def script(name: str) -> ModuleType:
    """A script as a module: its parts can be called and its sizes be changed."""
    spec = importlib.util.spec_from_file_location(name, script_path(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_script(name: str, *arguments: object) -> None:
    """Run a script within this process; `run_main` runs one that was loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        runpy.run_path(str(script_path(name)), run_name="__main__")


def run_main(module: ModuleType, *arguments: object) -> None:
    """Call `main()` of a loaded script, which reads the command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{module.__name__}.py", *map(str, arguments)])
        module.main()


def write_parallel_text(folder: Path, words: dict[str, tuple[str, ...]], test_rows: int = 8) -> Path:
    """Parallel text of four words in each language, in the splits of Multi30k."""
    folder.mkdir()
    for split, rows in (("train", 60), ("val", 8), ("test_2016_flickr", test_rows)):
        for language, vocabulary in words.items():
            lines = (" ".join(vocabulary[n * step % 4] for step in range(1, 4 + n % 9)) for n in range(rows))
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    return folder
