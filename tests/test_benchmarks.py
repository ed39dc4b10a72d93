"""The benchmarks still fit the code that they measure: each can be loaded, and makes what it measures."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from kit.tasks.families.seq2seq.inference import Translator

FOLDER = Path(__file__).parents[1] / "benchmarks"
BENCHMARKS = sorted(path for path in FOLDER.glob("*.py") if path.stem != "steps")  # which two of them share


def benchmark(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_can_be_started(path: Path, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr("sys.argv", [path.name, "--help"])
    with pytest.raises(SystemExit) as ended:
        benchmark(path).main()
    assert ended.value.code == 0
    assert path.name in capsys.readouterr().out


def test_the_model_of_the_memory_benchmark_writes(tmp_path: Path) -> None:
    memory = benchmark(FOLDER / "generate_memory.py")
    memory.make_model(tmp_path / "model")
    memory.make_lines(tmp_path / "in.txt", 3)
    lines = (tmp_path / "in.txt").read_text(encoding="utf-8").splitlines()
    outputs = list(Translator(tmp_path / "model").translate(lines))
    assert len(outputs) == len(lines) == 3
