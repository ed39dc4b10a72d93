"""Freezing and learning rates by layer, on the real parameter names of several kinds of encoders."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.labeling_runs import TINY, recipe, write_rows
from transformers import AutoConfig, AutoModelForSequenceClassification

from kit import RecipeError, train
from kit.pretrained.adapters import parameter_counts
from kit.tasks.families.labeling.objectives import ClassificationObjective
from kit.tasks.families.labeling.recipe import LabelingTrain
from kit.training.layerwise import freeze, learning_rates
from kit.training.optim import build_optimizer

SMALL: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 8},
    "roberta": {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 8},
    "electra": {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "embedding_size": 4},
    "distilbert": {"dim": 8, "n_layers": 3, "n_heads": 2, "hidden_dim": 8},
    "gpt2": {"n_embd": 8, "n_layer": 3, "n_head": 2, "pad_token_id": 0},
    "modernbert": {
        "hidden_size": 8,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "pad_token_id": 0,
    },
}
BEGINNINGS = {  # of the names of what is below the layers, and of the layers
    "bert": (("bert.embeddings.",), "bert.encoder.layer."),
    "roberta": (("roberta.embeddings.",), "roberta.encoder.layer."),
    "electra": (("electra.embeddings.", "electra.embeddings_project."), "electra.encoder.layer."),
    "distilbert": (("distilbert.embeddings.",), "distilbert.transformer.layer."),
    "gpt2": (("transformer.wte.", "transformer.wpe."), "transformer.h."),
    "modernbert": (("model.embeddings.",), "model.layers."),
}


def tiny_model(kind: str) -> Any:
    config = AutoConfig.for_model(kind, vocab_size=20, **SMALL[kind])
    return AutoModelForSequenceClassification.from_config(config)


def section(**values: Any) -> LabelingTrain:
    return LabelingTrain(max_steps=1, batch_size=1, learning_rate=1e-3, **values)


def expected_depth(kind: str, name: str) -> int:
    below, layers = BEGINNINGS[kind]
    if name.startswith(below):
        return 0
    return int(name.removeprefix(layers).split(".")[0]) + 1 if name.startswith(layers) else 4


@pytest.mark.parametrize("kind", SMALL)
def test_each_parameter_has_the_rate_of_its_layer(kind: str) -> None:
    model = tiny_model(kind)
    optimizer = build_optimizer(
        ClassificationObjective(model, "single_label_classification"), section(layer_decay=0.5, weight_decay=0.1)
    )
    names = {parameter: name for name, parameter in model.named_parameters()}
    seen = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.1 if parameter.dim() >= 2 else 0.0)
            seen[names[parameter]] = group["lr"]
    rates = {0: 1e-3 / 8, 1: 1e-3 / 4, 2: 1e-3 / 2, 3: 1e-3, 4: 1e-3}
    assert seen == {name: pytest.approx(rates[expected_depth(kind, name)]) for name in names.values()}
    assert optimizer.param_groups[0]["lr"] == 1e-3  # the one that is logged
    assert learning_rates(model, section()) == dict.fromkeys(names.values(), 1e-3)


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("frozen", ["embeddings", 2, 3])
def test_frozen_layers_are_below_trained_layers(kind: str, frozen: Any) -> None:
    model = tiny_model(kind)
    freeze(model, section(freeze=frozen))
    highest = 0 if frozen == "embeddings" else frozen
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (expected_depth(kind, name) > highest), name


@pytest.mark.parametrize(
    ("kind", "sizes", "reason"),
    [
        ("albert", {"num_hidden_layers": 3, "hidden_size": 8, "num_attention_heads": 2}, "has 3, its module lists"),
        ("bart", {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "encoder_attention_heads": 2,
                  "decoder_attention_heads": 2}, "an encoder and a decoder"),
    ],
)  # fmt: skip
def test_model_with_unknown_layers_is_rejected(kind: str, sizes: dict[str, int], reason: str) -> None:
    config = AutoConfig.for_model(kind, vocab_size=20, pad_token_id=1, **sizes)
    model = AutoModelForSequenceClassification.from_config(config)
    for key, values in (("train.freeze", {"freeze": 1}), ("train.layer_decay", {"layer_decay": 0.9})):
        ask = freeze if key == "train.freeze" else learning_rates
        with pytest.raises(RecipeError, match=f"{key}: .*{reason}"):
            ask(model, section(**values))


def test_frozen_layers_are_bit_identical(tmp_path: Path) -> None:
    rows = [{"text": "ab cd"[: 1 + i % 5], "label": "xy"[i % 2]} for i in range(40)]
    data = {"path": str(write_rows(tmp_path / "data", train=rows, validation=rows[:4]))}
    model = {**TINY, "num_hidden_layers": 3}
    base = train(recipe(tmp_path / "a", "classification", data, model=model), tmp_path / "base").folder
    settings = {"freeze": 2, "layer_decay": 0.5, "ema_decay": 0.5}
    layerwise_recipe = recipe(tmp_path / "b", "classification", data, model={"pretrained": str(base)}, train=settings)
    run = train(layerwise_recipe, tmp_path / "run")
    before, after = (load_file(folder / "model" / "model.safetensors") for folder in (base, run.folder))
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert {name for name in before if expected_depth("bert", name) <= 2} <= same
    moved = {name for name in before if expected_depth("bert", name) > 2 and not name.endswith("key.bias")}
    assert not moved & same
    assert run.results["trained_parameters"] == sum(
        before[name].numel() for name in before if expected_depth("bert", name) > 2
    )
    with pytest.raises(RecipeError, match="the model has 3 layers, not 4"):
        train(layerwise_recipe.with_values("train", freeze=4), tmp_path / "again")


def test_trained_parameters_are_counted() -> None:
    model = tiny_model("bert")
    total = sum(parameter.numel() for parameter in model.parameters())
    assert parameter_counts(model) == (total, total)
    freeze(model, section(freeze="embeddings"))
    embeddings = sum(parameter.numel() for parameter in model.bert.embeddings.parameters())
    assert parameter_counts(model) == (total - embeddings, total)
