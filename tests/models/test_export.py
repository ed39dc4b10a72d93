"""torch.export of recurrent models: an encoder for any batch and length, and one step of the decoder with its state."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.model_classes import RECURRENT, STEPWISE, batch_of, source_of, tiny_model
from torch import Tensor, nn
from torch.export import AdditionalInputs, export
from transformers import PreTrainedModel

from kit.models.modeling_rnn_forecaster import ForecastStep
from kit.models.recurrent import DecodingStep

CHOICES: dict[str, dict[str, Any]] = {
    "rnn_seq2seq": {**STEPWISE, "bidirectional": True, "encoder_layers": 2, "reverse_source": True},
    "rnn_lm": {"layers": 2},
    "rnn_captioner": STEPWISE,
    "hred": {**STEPWISE, "cell": "gru"},
    "rnn_forecaster": {**STEPWISE, "cell": "rnn", "loss": "gaussian"},
}
SIZES = [(3, 1), (5, 2), (4, 3)]
"""Rows of a batch, and how often its rows are repeated one after the other; a graph is traced with the first two."""

Inputs = dict[str, Any]


def source_inputs(model: PreTrainedModel, rows: int, repeats: int) -> Inputs:
    """What an encoder, or a language model, reads, padded on both sides of rows where the model pads."""
    source = source_of(batch_of(model.config.model_type, rows))
    if model.main_input_name == "past_values":
        values = torch.cat([source["past_values"], source["past_context"]], dim=-1).repeat(1, repeats, 1)
        return {"x": values, "mask": torch.arange(values.shape[1]) >= torch.arange(rows).unsqueeze(1)}
    if model.main_input_name == "pixel_values":
        return {"pixel_values": source["pixel_values"].repeat(1, 1, repeats, repeats)}
    longer = {name: x.repeat_interleave(repeats, dim=-1) for name, x in source.items()}
    return {name: torch.cat([x[:1].flip(-1), x[1:]]) for name, x in longer.items()}


def step_inputs(model: PreTrainedModel, rows: int, repeats: int) -> Inputs:
    """What a step reads after another one."""
    source = source_inputs(model, rows, repeats)
    token = torch.arange(rows).unsqueeze(1) % 9 + 3
    if model.config.model_type == "rnn_lm":
        inputs: Inputs = {"token": token}
    elif model.config.model_type == "rnn_forecaster":
        inputs = {
            "value": torch.randn(rows, 2),
            "context": torch.randn(rows, 1),
            "encoder_outputs": model.encoder(**source),
        }
    else:
        inputs = {"token": token, "encoder_outputs": model.get_encoder()(**source)}
        if model.config.model_type == "rnn_seq2seq":
            inputs["attention_mask"] = source["attention_mask"]
    state = step_module(model)(**inputs, state={})[-1]
    return {**inputs, "state": state}


def source_module(model: PreTrainedModel) -> nn.Module:
    if model.config.model_type == "rnn_lm":
        return model.model
    return model.encoder if model.config.model_type == "rnn_forecaster" else model.get_encoder()


def step_module(model: PreTrainedModel) -> nn.Module:
    return ForecastStep(model) if model.config.model_type == "rnn_forecaster" else DecodingStep(model)


def leaves(output: Any) -> list[Tensor]:
    """All tensors of an output; a graph returns no cache."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


PARTS: dict[str, tuple[Callable[..., nn.Module], Callable[..., Inputs]]] = {
    "source": (source_module, source_inputs),
    "step": (step_module, step_inputs),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "model_type", [pytest.param(name, marks=[] if name == "rnn_seq2seq" else pytest.mark.soak) for name in RECURRENT]
)
@torch.no_grad()
def test_an_exported_part_computes_the_same_for_any_batch_and_length(model_type: str, part: str) -> None:
    model = tiny_model(model_type, use_cache=False, **CHOICES[model_type])
    make_module, make_inputs = PARTS[part]
    module, inputs = make_module(model), [make_inputs(model, *size) for size in SIZES]
    shapes = AdditionalInputs()
    shapes.add((), inputs[1])
    program = export(module, (), inputs[0], dynamic_shapes=shapes).module()
    for example in inputs:
        actual, expected = leaves(program(**example)), leaves(module(**example))
        assert len(actual) == len(expected) > 0
        for tensor, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(tensor, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_type", [name for name in RECURRENT if name != "rnn_forecaster"])
@torch.no_grad()
def test_exported_steps_equal_generate(model_type: str) -> None:
    model = tiny_model(model_type, **CHOICES[model_type])
    source = source_of(batch_of(model_type))
    step, inputs = DecodingStep(model), {}
    if model_type == "rnn_lm":
        source = {"input_ids": source["input_ids"][:, :1]}
        tokens = [source["input_ids"]]
    else:
        inputs = {"encoder_outputs": model.get_encoder()(**source)}
        if model_type == "rnn_seq2seq":
            inputs["attention_mask"] = source["attention_mask"]
        tokens = [torch.full((3, 1), model.config.decoder_start_token_id)]
    state: dict[str, Tensor] = {}
    for _ in range(4):
        logits, state = step(tokens[-1], state, **inputs)
        tokens.append(logits.argmax(-1, keepdim=True))
    written = model.generate(**source, max_new_tokens=4, eos_token_id=None)
    assert torch.equal(torch.cat(tokens, dim=1), written)


@torch.no_grad()
def test_steps_of_a_forecast_are_those_of_predict() -> None:
    model = tiny_model("rnn_forecaster", **CHOICES["rnn_forecaster"])
    model.normalization.mean.fill_(3.0)
    model.context_normalization.scale.fill_(2.0)
    batch = source_of(batch_of("rnn_forecaster"))
    forecast = model.predict(**batch)
    encoded, last = model._encode(batch["past_values"], None, batch["past_context"])
    value, state, step = model.normalization.inverse(last), {}, ForecastStep(model)
    for t in range(3):
        value, scale, state = step(value, batch["future_context"][:, t], state, encoded)
        torch.testing.assert_close(value, forecast.predictions[:, t])
        torch.testing.assert_close(scale, forecast.scales[:, t])


def test_an_adapter_is_merged_before_an_export() -> None:
    config = LoraConfig(target_modules=[], target_parameters=["model.layers.0.weight_hh_l0"])
    model = get_peft_model(tiny_model("rnn_lm"), config).eval()
    inputs = {"input_ids": torch.ones(2, 5, dtype=torch.long), "use_cache": False}
    with pytest.raises(ValueError, match="cannot export a ParamWrapper: merge the adapter first"):
        export(model.base_model.model.model, (), inputs)
