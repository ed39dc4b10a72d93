"""No collective call waits for a process that is busy: NCCL would abort it after 10 minutes."""

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import PartialState
from support.processes import in_processes
from support.recipes import make_recipe

import kit.runs.finish
from kit import train
from kit.data.streaming.stream import Stream
from kit.tasks.families.language_modeling.task import LanguageModelingTask
from kit.training.checkpoint import Checkpoint, Checkpoints

BUSY: dict[str, tuple[Any, str]] = {
    "tokenizer": (LanguageModelingTask, "build_tokenizers"),
    "sample": (Stream, "sample"),
    "checkpoint": (Checkpoints, "save"),
    "artifacts": (kit.runs.finish, "write_artifacts"),
    "integrity": (Checkpoint, "integrity_error"),
}
"""Work of the main process that takes long with much data or a large model, and where it is done."""

COLLECTIVES = ("all_reduce", "barrier", "broadcast", "all_gather", "all_gather_object", "broadcast_object_list")


def slow_down(name: str, seconds: float, log: list[tuple[str, float, float]]) -> None:
    """Make this work take longer on the main process."""
    owner, attribute = BUSY[name]
    plain: Callable[..., Any] = getattr(owner, attribute)

    def slow(*arguments: Any, **settings: Any) -> Any:
        began = time.monotonic()
        if os.environ["RANK"] == "0":
            time.sleep(seconds)
        result = plain(*arguments, **settings)
        log.append((name, began, time.monotonic()))
        return result

    setattr(owner, attribute, slow)


def record_collectives(log: list[tuple[str, float, float]]) -> None:
    for name in COLLECTIVES:
        plain = getattr(torch.distributed, name)

        def recorded(*arguments: Any, plain: Any = plain, name: str = name, **settings: Any) -> Any:
            began = time.monotonic()
            result = plain(*arguments, **settings)
            log.append((name, began, time.monotonic()))
            return result

        setattr(torch.distributed, name, recorded)


def train_slowly(recipe: Any, output: Path, seconds: float, resume: bool) -> None:
    work: list[tuple[str, float, float]] = []
    collectives: list[tuple[str, float, float]] = []
    for name in BUSY:
        slow_down(name, seconds, work)
    record_collectives(collectives)
    train(recipe, output, resume)
    log = {"work": work, "collectives": collectives}
    (output.parent / f"log-{os.environ['RANK']}.json").write_text(json.dumps(log), encoding="utf-8")


@pytest.fixture
def streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for split, count in (("train", 40), ("validation", 6)):
        lines = [f"line {i} of {split}, followed by line {i + 1}." for i in range(count)]
        (corpus / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = {"path": str(corpus), "streaming": True, "buffer_size": 25, "block_size": 16}
    train = {"max_steps": 4, "tokens_per_batch": 256, "save_steps": 2, "micro_batches": 2}
    return make_recipe(tmp_path, "causal_lm", data, train=train, eval={"steps": 2, "examples": 0})


def test_no_collective_waits_while_the_main_process_works(streamed: Any, tmp_path: Path) -> None:
    seconds = 0.4
    for resume in (False, True):
        if resume:
            (tmp_path / "run" / "results.json").unlink()
        in_processes(2, train_slowly, streamed, tmp_path / "run", seconds, resume)
        logs = [json.loads((tmp_path / f"log-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
        expected = {"checkpoint", "artifacts", "integrity", *([] if resume else ["tokenizer", "sample"])}
        assert {name for name, *_ in logs[0]["work"]} == expected
        waits = [
            f"{collective} waits {overlap:.2f} s for {work}"
            for work, began, ended in logs[0]["work"]
            for collective, entered, left in logs[1]["collectives"]
            if (overlap := min(ended, left) - max(began, entered)) > seconds / 2
        ]
        assert waits == []
        assert len(logs[1]["collectives"]) > 8


def train_with_short_timeout(recipe: Any, output: Path, name: str) -> None:
    PartialState(timeout=timedelta(seconds=5))
    slow_down(name, 10, [])
    train(recipe, output)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["tokenizer", "sample", "checkpoint"])
def test_a_timeout_of_five_seconds_outlives_ten_seconds_of_work(name: str, streamed: Any, tmp_path: Path) -> None:
    in_processes(2, train_with_short_timeout, streamed.with_values("train", max_steps=2), tmp_path / "run", name)
    assert (tmp_path / "run" / "results.json").is_file()
