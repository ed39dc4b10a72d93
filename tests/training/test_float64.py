"""Training and evaluation need no float64 on the device, which Apple GPUs do not have.

`tests/runs/test_loss_trajectories.py` has a run of every task; here are choices that take other paths.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from support.float64 import WithoutFloat64, forbid_float64
from support.recipes import make_recipe

import kit.runs.train
from kit import RecipeError, train
from kit.runs.train import build_accelerator

CHOICES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "transformer": (
        "translation",
        {
            "model": {
                "type": "transformer_seq2seq", "hidden_size": 16, "num_attention_heads": 2, "encoder_layers": 1,
                "decoder_layers": 1,
            },
        },
        ["eval.num_beams=2", "train.label_smoothing_factor=0.1", "train.ema_decay=0.9", "train.micro_batches=2"],
    ),
    "class weights": ("classification", {}, ["data.class_weights=balanced", "train.label_smoothing_factor=0.1"]),
    "regression": ("classification", {"eval": {"metrics": ["mse"]}}, []),
    "variance": ("forecasting", {}, ["model.loss=gaussian"]),
    "carried state": (
        "causal_lm",
        {"model": {"type": "rnn_lm", "hidden_size": 16, "embedding_size": 8}},
        ["data.carry_state=true"],
    ),
}  # fmt: skip


@pytest.fixture
def numbers(tmp_path: Path) -> dict[str, Any]:
    """Data for a regression."""
    for split, rows in (("train", 40), ("validation", 8), ("test", 8)):
        lines = (json.dumps({"text": "ab" * (row % 9 + 1), "label": row / 7}) for row in range(rows))
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return {"path": str(tmp_path), "problem_type": "regression"}


@pytest.mark.parametrize("choice", CHOICES)
def test_no_step_and_no_evaluation_has_a_float64_tensor(
    choice: str, numbers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = forbid_float64(monkeypatch)
    monkeypatch.setattr(kit.runs.train, "finish", lambda *arguments: {})
    task, sections, overrides = CHOICES[choice]
    overrides = [*overrides, "train.max_steps=2", "train.save_steps=2", "eval.steps=0"]
    data = numbers if choice == "regression" else None
    train(make_recipe(tmp_path, task, data, overrides, **sections), tmp_path / "run")
    assert checked == ["loop"]


def test_the_simulated_device_has_no_float64() -> None:
    with WithoutFloat64():
        torch.ones(2).sum()
        for create in (lambda: torch.ones(2).double(), lambda: torch.tensor(1.0, dtype=torch.float64)):
            with pytest.raises(TypeError, match="creates a float64 tensor"):
                create()


def test_float64_weights_are_refused_on_apple_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe(tmp_path, "classification", overrides=["train.dtype=float64"])
    build_accelerator(recipe)
    monkeypatch.setattr(Accelerator, "device", torch.device("mps"))
    with pytest.raises(RecipeError, match=r"train.dtype=float64 .* ACCELERATE_USE_CPU=true"):
        build_accelerator(recipe)
