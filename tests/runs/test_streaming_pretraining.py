"""Pretraining on a stream with three kills reads the examples of the uninterrupted run, once each and in order."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support.recipes import write_recipe

SHARDS = (23, 0, 9, 28)
MODELS = {
    "causal_lm": {"type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16},
    "masked_lm": {
        "type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    },
}  # fmt: skip
SECTIONS = {
    "tokenizer": {"train": "word", "min_frequency": 1, "vocab_size": 500},
    "data": {"path": "corpus", "streaming": True, "buffer_size": 25, "block_size": 16},
    "train": {"max_steps": 36, "tokens_per_batch": 48, "learning_rate": 1e-2, "logging_steps": 1, "save_steps": 4},
    "eval": {"steps": 0, "examples": 0},
}

# `kit train` in forked processes, some of which are killed; imports happen once.
# What each step is given is written down on the way into it.
KILLER = """
import json, os, signal, sys, time
from pathlib import Path
import kit.runs.train
from kit.cli import main
from kit.training.loop import Loop

step = Loop._step
def seen(self, batches, totals):
    rows = [{name: tensor.tolist() for name, tensor in batch.items()} for _, batch in batches]
    with open(self.folder / "seen.jsonl", "a") as file:
        file.write(json.dumps([self.progress.step, rows]) + "\\n")
    return step(self, batches, totals)
Loop._step = seen

for name, kill_at in (("unbroken", None), ("broken", 5), ("broken", 15), ("broken", 26), ("broken", None)):
    log = Path(name, "metrics.jsonl")
    child = os.fork()
    if child == 0:
        sys.argv = ["kit", "train", sys.argv[1], "--output", name, "--resume"]
        main()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if kill_at and log.exists() and log.read_bytes().count(b"\\n") >= kill_at:
            os.kill(child, signal.SIGKILL)
            kill_at = None
        time.sleep(0.001)
    print("ended with", os.waitstatus_to_exitcode(status), flush=True)
"""


def steps_of(run: Path) -> list[list[dict[str, list[list[int]]]]]:
    """The batches of each step; steps repeated after a kill count once."""
    steps = dict(json.loads(line) for line in (run / "seen.jsonl").read_text().splitlines())
    assert sorted(steps) == list(range(len(steps)))
    return [steps[step] for step in sorted(steps)]


@pytest.mark.soak
@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
def test_stream_killed_three_times_resumes_bit_identically(task: str, tmp_path: Path) -> None:
    corpus, first = tmp_path / "corpus", 0
    corpus.mkdir()
    for shard, size in enumerate(SHARDS):
        rows = [json.dumps({"text": f"doc{n} " + "and so on " * (n % 4)}) for n in range(first, first + size)]
        name = f"train-{shard:05d}-of-{len(SHARDS):05d}.jsonl"
        (corpus / name).write_text("".join(f"{row}\n" for row in rows) or "\n", encoding="utf-8")
        first += size
    (corpus / "validation.jsonl").write_text('{"text": "and so on and so on"}\n')
    recipe = write_recipe(tmp_path, task, model=MODELS[task], **SECTIONS)
    done = subprocess.run(
        [sys.executable, "-c", KILLER, recipe.name],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    codes = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("ended with")]
    assert codes == ["0", "-9", "-9", "-9", "0"], done.stderr
    assert done.stderr.count("resuming at step") == 3

    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert steps_of(broken) == steps_of(unbroken)
    mine, theirs = (load_file(run / "model" / "model.safetensors") for run in (broken, unbroken))
    assert all(mine[name].equal(theirs[name]) for name in theirs)

    vocabulary = json.loads((unbroken / "model" / "tokenizer.json").read_text())["model"]["vocab"]
    documents = {vocabulary[f"▁doc{number}"]: number for number in range(sum(SHARDS))}
    read = [number for step in steps_of(unbroken) for number in documents_in(step, task, documents)]
    epochs = [read[start : start + len(documents)] for start in range(0, len(read), len(documents))]
    assert len(epochs) > 2
    for epoch in epochs[:-1]:
        assert sorted(epoch) == list(range(len(documents)))
    assert len(set(epochs[-1])) == len(epochs[-1])
    assert epochs[0] != epochs[1] != sorted(epochs[1])


def documents_in(step: list[dict[str, list[list[int]]]], task: str, documents: dict[int, int]) -> list[int]:
    """The documents that a step reads, by the one word of each that no other has."""
    numbers = []
    for batch in step:
        for tokens, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            if task == "causal_lm":
                words = labels
            else:  # at a masked position, the label is the original token
                words = [token if label < 0 else label for token, label in zip(tokens, labels, strict=True)]
            numbers += [documents[word] for word in words if word in documents]
    return numbers
