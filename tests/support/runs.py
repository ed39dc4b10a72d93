"""Reading and comparing run folders."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file


def losses(run: Path) -> list[float]:
    """The training losses in the log, in order."""
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    return [entry["train_loss"] for entry in entries if "train_loss" in entry]


def results(run: Path) -> dict:
    return json.loads((run / "results.json").read_text(encoding="utf-8"))


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def weight_bytes(run: Path) -> dict[str, bytes]:
    """The weights as bytes: they are equal only if every bit is."""
    return {name: tensor.numpy().tobytes() for name, tensor in weights(run).items()}


def assert_same_weights(run: Path, other: Path, tolerance: float) -> None:
    actual, expected = weights(run), weights(other)
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=tolerance, atol=tolerance)


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def rewind(run: Path, step: int) -> None:
    """Turn a finished run into one that was killed after the checkpoint of `step`."""
    (run / "results.json").unlink()
    for checkpoint in (run / "checkpoints").glob("step-*"):
        if int(checkpoint.name[5:]) > step:
            shutil.rmtree(checkpoint)
    assert (run / "checkpoints" / f"step-{step}").is_dir()
