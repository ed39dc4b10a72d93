"""The token cache: equal results for any number of processes, reuse, and recovery from corrupt files."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.recipes import make_recipe

from kit.data.batching import token_cache as token_cache
from kit.data.batching.token_cache import cached_arrays, chunk_texts, map_in_chunks
from kit.runs.prepare import prepare
from kit.system.console import Reporter

QUIET = Reporter(quiet=True)
LSTM = {"type": "rnn_lm", "hidden_size": 8}
BERT = {"type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "causal": ("causal_lm", LSTM, {}),
    "masked": ("masked_lm", BERT, {}),
    "pairs": ("masked_lm", BERT, {"pairs": "next_sentence"}),
}


def write_texts(folder: Path) -> Path:
    path = folder / "texts.jsonl"
    rows = [{"text": f"Text {n} begins. It has number {n * n}.\n\nIt ends, as {n % 7} others do."} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def recipe_of(folder: Path, kind: str, *overrides: str) -> Any:
    task, model, more = KINDS[kind]
    data = {"path": str(write_texts(folder)), "block_size": 32, "validation_size": 3, **more}
    tokenizer = {"train": "wordpiece", "vocab_size": 200, "min_frequency": 1}
    train = {"max_steps": 1, "batch_size": 2}
    return make_recipe(folder, task, data, overrides, model=model, tokenizer=tokenizer, train=train, eval={})


def arrays_of(recipe: Any) -> dict[str, bytes]:
    prepared = prepare(recipe)
    arrays = {split: prepared.task.arrays(encoded.examples) for split, encoded in prepared.encoded.items()}
    return {f"{split} {name}": array.tobytes() for split, by_name in arrays.items() for name, array in by_name.items()}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "prepared"


@given(texts=st.lists(st.text(max_size=12), max_size=30), max_texts=st.integers(1, 5), room=st.integers(1, 20))
@settings(max_examples=80, deadline=None)
def test_chunks_contain_every_text_once_in_order(texts: list[str], max_texts: int, room: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_cache, "MAX_CHUNK_TEXTS", max_texts)
        patch.setattr(token_cache, "MAX_CHUNK_CHARACTERS", room)
        chunks = list(chunk_texts(iter(texts)))
    assert [text for chunk in chunks for text in chunk] == texts
    assert all(1 <= len(chunk) <= max_texts and sum(map(len, chunk[:-1])) < room for chunk in chunks)


def test_several_processes_equal_one_and_report_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_cache, "MAX_CHUNK_TEXTS", 3)
    texts = [str(number) * (number % 5) for number in range(50)]
    counted: list[int] = []
    results = [list(map_in_chunks(texts, json.dumps, workers, counted.append)) for workers in (1, 3)]
    assert results[0] == results[1]
    assert sum(counted) == 2 * len(texts)


@pytest.mark.parametrize("kind", KINDS)
def test_cached_arrays_equal_computed_ones(
    kind: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = arrays_of(recipe_of(tmp_path, kind, "data.cache=false"))
    assert not cache.exists()
    assert arrays_of(recipe_of(tmp_path, kind)) == without
    files = {file: file.stat().st_mtime_ns for file in cache.glob("*.safetensors")}
    assert len(files) == 2

    def never(*_: object) -> None:
        raise AssertionError("it was prepared again")

    monkeypatch.setattr(token_cache, "chunk_texts", never)
    assert arrays_of(recipe_of(tmp_path, kind)) == without
    assert {file: file.stat().st_mtime_ns for file in cache.glob("*.safetensors")} == files


@pytest.mark.soak
def test_spawned_processes_equal_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split into sentences, the most difficult case to reassemble."""
    monkeypatch.setattr(token_cache, "MAX_CHUNK_TEXTS", 7)
    single, parallel = (
        arrays_of(recipe_of(tmp_path, "pairs", "data.cache=false", f"data.num_proc={n}")) for n in (1, 2)
    )
    assert single == parallel


@pytest.mark.parametrize(
    "change", ["data.block_size=16", "data.pair_passes=2", "data.seed=1", "tokenizer.vocab_size=150", "text"]
)
def test_other_settings_or_texts_have_other_keys(change: str, tmp_path: Path, cache: Path) -> None:
    first = arrays_of(recipe_of(tmp_path, "pairs"))
    recipe = recipe_of(tmp_path, "pairs", *([change] if change != "text" else []))
    if change == "text":
        path = tmp_path / "texts.jsonl"
        path.write_text(path.read_text(encoding="utf-8").replace("Text 5 ", "Text five "), encoding="utf-8")
    second = arrays_of(recipe)
    assert second != first
    assert second == arrays_of(recipe.with_values("data", cache=False))


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_a_corrupt_file_is_computed_again(damage: str, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def make(number: int) -> dict[str, np.ndarray]:
        computed.append(number)
        return {"a": np.arange(number, dtype=np.int32), "none": np.empty(0, dtype=np.int64)}

    computed: list[int] = []
    for number in (100, 7):
        cached_arrays({"number": number}, lambda number=number: make(number), QUIET)  # type: ignore[misc]
    files = sorted(cache.glob("*.safetensors"), key=lambda file: file.stat().st_size)
    content = bytearray(files[1].read_bytes())
    if damage == "flip":
        content[-5] ^= 1
    changed = {"flip": bytes(content), "cut": bytes(content[:-9]), "empty": b"", "swap": files[0].read_bytes()}
    files[1].write_bytes(changed[damage])
    for _ in range(2):
        arrays = cached_arrays({"number": 100}, lambda: make(100), Reporter())
        assert arrays["a"].tolist() == list(range(100))
        assert arrays["none"].shape == (0,)
    assert computed == [100, 7, 100]
    assert capfd.readouterr().err.count("is corrupt") == 1
    assert not list(cache.glob(".tmp-*"))


TOGETHER = """
import sys, time
from pathlib import Path
import numpy as np
from kit.data.batching.token_cache import cached_arrays
from kit.system.console import Reporter

def make():
    with open("made", "a") as file:
        file.write("made\\n")
    time.sleep(1)
    return {"a": np.arange(1000)}

print(cached_arrays({"for": "both"}, make, Reporter())["a"].sum())
"""


def test_of_two_concurrent_runs_one_computes_and_the_other_waits(tmp_path: Path, cache: Path) -> None:
    runs = [
        subprocess.Popen([sys.executable, "-c", TOGETHER], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [run.communicate(timeout=120)[0].strip() for run in runs] == ["499500"] * 2
    assert (tmp_path / "made").read_text() == "made\n"


def test_an_unwritable_cache_is_reported_and_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "file"))
    assert cached_arrays({}, lambda: {"a": np.arange(3)}, Reporter())["a"].tolist() == [0, 1, 2]
    assert "prepared text is not cached" in capfd.readouterr().err
