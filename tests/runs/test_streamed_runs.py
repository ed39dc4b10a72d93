"""Runs that stream their data: kills, several processes, unreadable lines, and the dry run."""

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import RunKit
from support.processes import in_processes
from support.runs import losses, weight_bytes
from support.streams import write_corpus

from kit import load_recipe, train
from kit.errors import DataError, RecipeError
from kit.runs.prepare import prepare


@pytest.fixture
def stream_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe that streams a corpus of four shards, one of them empty, in the working folder."""
    monkeypatch.chdir(tmp_path)
    return write_corpus(tmp_path)


# `kit train` in child processes, the first of which are killed; forked, so that imports happen only once
KILLER = """
import os, signal, sys, time
from pathlib import Path
import kit.runs.train
from kit.cli import main

log = Path(sys.argv[1], "metrics.jsonl")
for kill_at in (9, 24, 40, None):
    child = os.fork()
    if child == 0:
        sys.argv = ["kit", "train", "translation.yaml", "--output", str(log.parent), "--resume"]
        main()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if kill_at and log.exists() and log.read_bytes().count(b"\\n") >= kill_at:
            os.kill(child, signal.SIGKILL)
            kill_at = None
        time.sleep(0.001)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the recipe that was never stopped."""
    folder = tmp_path_factory.mktemp("unbroken")
    recipe = load_recipe(write_corpus(folder))
    return train(recipe.with_values("data", path=str(folder / "corpus")), folder / "run").folder


def test_three_kills_and_resumes_are_bit_identical(stream_recipe: Path, tmp_path: Path, unbroken: Path) -> None:
    killer = [sys.executable, "-c", KILLER, "broken"]
    done = subprocess.run(killer, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    codes = [line for line in done.stdout.splitlines() if line.removeprefix("-").isdigit()]
    assert codes == ["-9", "-9", "-9", "0"], done.stderr
    assert done.stderr.count("resuming at step") == 3
    assert weight_bytes(tmp_path / "broken") == weight_bytes(unbroken)
    assert losses(tmp_path / "broken") == losses(unbroken)
    results = [json.loads((run / "results.json").read_text()) for run in (tmp_path / "broken", unbroken)]
    assert results[0]["data"] == results[1]["data"]
    assert results[0]["train"]["epochs"] == results[1]["train"]["epochs"] > 2
    assert results[0]["data"]["left_out"]["max_length"] > 0


def test_two_processes_give_the_result_of_one(stream_recipe: Path, tmp_path: Path) -> None:
    recipe = load_recipe(stream_recipe, ["train.micro_batches=2", "train.max_steps=40", "eval.steps=0"])
    single = train(recipe, tmp_path / "one")
    in_processes(2, train, recipe, tmp_path / "two")
    results = json.loads((tmp_path / "two" / "results.json").read_text())
    assert results["train"]["processes"] == 2
    assert results["data"] == single.results["data"]
    assert losses(tmp_path / "two") == pytest.approx(losses(single.folder), rel=1e-5)
    states = [
        json.loads((run / "checkpoints" / "step-40" / "state.json").read_text())["plan"]
        for run in (single.folder, tmp_path / "two")
    ]
    assert states[0] == states[1]


def test_a_run_stopped_by_an_unreadable_line_can_be_resumed(
    stream_recipe: Path, tmp_path: Path, unbroken: Path, kit_here: RunKit
) -> None:
    shard = tmp_path / "corpus" / "train-00003-of-00004.jsonl"
    whole = shard.read_text(encoding="utf-8")
    shard.write_text(whole[:-3] + "!\n}", encoding="utf-8")  # same size, so the fingerprint does not change
    stopped = kit_here("train", stream_recipe, "--output", "broken")
    assert stopped.returncode == 2
    assert "train-00003-of-00004.jsonl, line 110" in stopped.stderr
    assert "kit train … --resume" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    shard.write_text(whole, encoding="utf-8")
    resumed = kit_here("train", stream_recipe, "--output", "broken", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    # from the step where the data ended, not from the last multiple of train.save_steps
    at = int(re.search(r"resuming at step (\d+)", resumed.stderr)[1])
    assert at % 7
    assert weight_bytes(tmp_path / "broken") == weight_bytes(unbroken)
    assert threading.active_count() == 1 or all(thread.name != "stream" for thread in threading.enumerate())


def test_the_dry_run_shows_the_first_buffer_of_training(stream_recipe: Path) -> None:
    prepared = prepare(load_recipe(stream_recipe, ["train.micro_batches=2"]))
    head = prepared.first_buffer()
    make, make_head = prepared.make_batch, head.make_batch
    for number in range(head.plan.steps_per_epoch):
        for mine, theirs in zip(prepared.plan.step(number), head.plan.step(number), strict=True):
            batch, other = make(mine, np.random.default_rng(0)), make_head(theirs, np.random.default_rng(0))
            assert all(batch[name].equal(other[name]) for name in batch)
    prepared.plan.close()
    assert prepared.dropped == head.dropped


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["train.max_steps=null", "train.num_train_epochs=2"], "the number of steps in an epoch is unknown"),
        (["data.max_length=null"], "Set the maximum length"),
        (["data.drop_duplicates=true"], "data.drop_duplicates: it needs all training data in memory"),
        (["data.streaming=false"], "data.buffer_size: it has no effect without data.streaming"),
        (["tokenizer.train=bpe", "tokenizer.bpe_dropout=0.1"], "tokenizer.bpe_dropout: it needs all"),
        (["data.path=builtin:dates"], "data.streaming: built-in data is generated in memory"),
    ],
)
def test_keys_that_do_not_apply_to_streams_are_rejected(stream_recipe: Path, keys: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(stream_recipe, keys)


def test_a_batch_too_small_for_the_longest_text_is_rejected_at_once(stream_recipe: Path) -> None:
    with pytest.raises(DataError, match=r"Set train\.tokens_per_batch to 130 or more"):
        prepare(load_recipe(stream_recipe, ["train.micro_batches=10"]))


def test_the_recipe_for_many_gpus_streams_a_folder_with_the_layout_of_the_hub(tmp_path: Path) -> None:
    for split, count in {"train": 3, "validation": 1, "test": 1}.items():
        for shard in range(count):
            texts = [{"de": f"Satz {shard} {n}", "en": f"sentence {shard} {n}"} for n in range(40)]
            file = tmp_path / f"{split}-{shard:05d}-of-{count:05d}.parquet"
            pq.write_table(pa.table({"translation": texts}), file)
    small = ["model.hidden_size=8", "model.intermediate_size=8", "model.num_attention_heads=2"]
    prepared = prepare(load_recipe("wmt", [f"data.path={tmp_path}", "data.name=null", *small]))
    parts = prepared.plan.step(0)
    batch = prepared.make_batch(parts[0], np.random.default_rng(0))
    prepared.plan.close()
    assert len(batch["input_ids"]) == 120
    assert prepared.total_steps == 100_000
    assert "stream of 3 shards, 200,000 rows at a time" in "".join(prepared.summary())
