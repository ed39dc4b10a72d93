"""Adapters of peft on every kind of module: each has gradients, and what it computes is what merging it gives."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from kit.models import (
    HREDConfig,
    HREDForConditionalGeneration,
    RNNCaptionerConfig,
    RNNCaptionerForConditionalGeneration,
    RNNForecasterConfig,
    RNNForecasterForPrediction,
    RNNLMConfig,
    RNNLMForCausalLM,
    RNNSeq2SeqConfig,
    RNNSeq2SeqForConditionalGeneration,
    TransformerSeq2SeqConfig,
    TransformerSeq2SeqForConditionalGeneration,
)
from kit.verify.generation import perturb_parameters
from kit.verify.subject import random_batch

SMALL = {"vocab_size": 11, "hidden_size": 4, "embedding_size": 3}
HEADS = {"vocab_size": 11, "hidden_size": 8, "num_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
RESNET = {"model_type": "resnet", "embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 1], "layer_type": "basic"}
UNTIED = {"tie_word_embeddings": False, "layers": 2, "dropout": 0.2, "word_dropout": 0.3}

MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "seq2seq": (RNNSeq2SeqForConditionalGeneration, RNNSeq2SeqConfig, {**SMALL, "dropout": 0.2}),
    "seq2seq, cell by cell": (
        RNNSeq2SeqForConditionalGeneration,
        RNNSeq2SeqConfig,
        {**SMALL, "cell": "gru", "attention": "rbf", "context_to": ["input"]},
    ),
    "dialogue": (HREDForConditionalGeneration, HREDConfig, SMALL),
    "captioner": (RNNCaptionerForConditionalGeneration, RNNCaptionerConfig, {**SMALL, "cnn_channels": [4, 6]}),
    "captioner with a backbone": (
        RNNCaptionerForConditionalGeneration,
        RNNCaptionerConfig,
        {**SMALL, "cell": "rnn", "backbone_config": RESNET},
    ),
    "transformer": (
        TransformerSeq2SeqForConditionalGeneration,
        TransformerSeq2SeqConfig,
        {**HEADS, "intermediate_size": 8, "max_position_embeddings": 16, "dropout": 0.2, "tie_word_embeddings": False},
    ),
    "language model": (RNNLMForCausalLM, RNNLMConfig, {**SMALL, **UNTIED}),
    "language model of GRUs": (RNNLMForCausalLM, RNNLMConfig, {**SMALL, **UNTIED, "cell": "gru"}),
    "forecaster": (
        RNNForecasterForPrediction,
        RNNForecasterConfig,
        {"value_size": 2, "context_size": 1, "hidden_size": 4, "horizon": 3},
    ),
}


def built(name: str, **changes: Any) -> PreTrainedModel:
    """A model in float64, with every parameter perturbed."""
    model_class, config_class, values = MODELS[name]
    torch.manual_seed(0)
    model = model_class(config_class(**{**values, **changes})).double()
    perturb_parameters(model)
    return model


def batch_for(model: PreTrainedModel) -> dict[str, Tensor]:
    torch.manual_seed(1)
    kind = model.config.model_type
    if kind == "rnn_forecaster":
        sizes = {"values": 2, "context": 1}
        return {
            f"{when}_{what}": torch.randn(3, 4, n).double() for when in ("past", "future") for what, n in sizes.items()
        }
    if kind == "rnn_lm":
        ids = torch.randint(3, 11, (3, 6))
        return {"input_ids": ids, "labels": ids}
    if kind == "rnn_captioner":
        return {"pixel_values": torch.randn(2, 3, 16, 16).double(), "labels": torch.randint(3, 11, (2, 5))}
    return random_batch(model, 0, examples=4)


def adaptations(model: PreTrainedModel) -> Iterator[tuple[str, dict[str, Any]]]:
    """Everything that peft can adapt or train in full: supported modules, any module, any matrix."""
    some_linear = next(name for name, module in model.named_modules() if isinstance(module, nn.Linear))
    for name, module in model.named_modules():
        parameters = dict(module.named_parameters(recurse=False))
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv2d):
            yield f"LoRA on {name}", {"target_modules": [name]}
        if parameters and name != some_linear:
            yield f"{name} in full", {"target_modules": [some_linear], "modules_to_save": [name]}
        if matrices := [f"{name}.{parameter}" for parameter, value in parameters.items() if value.dim() == 2]:
            yield f"LoRA on {', '.join(matrices)}", {"target_modules": [], "target_parameters": matrices}


def loss_of(model: nn.Module, batch: dict[str, Tensor], training: bool) -> Tensor:
    torch.manual_seed(2)
    return model.train(training)(**batch).loss


def without_gradient(model: PeftModel) -> list[str]:
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    ]


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_module_can_be_adapted(name: str) -> None:
    model = built(name)
    batch = batch_for(model)
    plain = loss_of(model, batch, False)
    for label, settings in adaptations(model):
        adapted = get_peft_model(copy.deepcopy(model), LoraConfig(r=2, init_lora_weights=False, **settings))
        with torch.no_grad():
            for part, parameter in adapted.named_parameters():
                if "modules_to_save" in part:
                    parameter.add_(0.1)
        training = loss_of(adapted, batch, True)
        training.backward()
        assert without_gradient(adapted) == [], label
        evaluated = loss_of(adapted, batch, False)
        assert abs(evaluated.item() - plain.item()) > 1e-9, label
        merged = adapted.merge_and_unload(safe_merge=True)
        assert type(merged) is type(model)
        # first the evaluation: training moves the statistics of a batch normalization
        assert torch.allclose(loss_of(merged, batch, False), evaluated, rtol=1e-9), label
        assert torch.allclose(loss_of(merged, batch, True), training, rtol=1e-9), label


def test_a_layer_that_is_trained_in_full_drops_its_recurrent_weights() -> None:
    model = built("language model", dropout=0.0, word_dropout=0.0, weight_dropout=0.5)
    batch = batch_for(model)
    settings: dict[str, Any] = {"target_modules": ["lm_head"], "modules_to_save": ["model.layers.0"]}
    adapted = get_peft_model(copy.deepcopy(model), LoraConfig(r=2, **settings))  # at first, an adapter changes nothing
    for training in (True, False):
        assert torch.equal(loss_of(adapted, batch, training), loss_of(model, batch, training))
    assert not torch.equal(loss_of(model, batch, True), loss_of(model, batch, False))


def test_weight_dropout_of_adapted_weights_is_refused() -> None:
    model = built("language model", weight_dropout=0.5)
    adapted = get_peft_model(model, LoraConfig(target_modules=[], target_parameters=["model.layers.0.weight_hh_l0"]))
    with pytest.raises(ValueError, match="weight_dropout drops weights that an adapter changes"):
        loss_of(adapted, batch_for(model), True)
