"""Contracts of transformers, torch and accelerate, for every model class, or the reason why one does not apply.

Export is in `test_export.py`, adapters of peft on every kind of module in `test_adapted_modules.py`.
"""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from support.model_classes import (
    FUSED,
    HEADS,
    RECURRENT,
    STEPWISE,
    WRITERS,
    batch_of,
    result_of,
    source_of,
    tiny_model,
    written_by,
)
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import ModelOutput

PATHS: dict[str, list[dict[str, Any]]] = {
    **{model_type: [STEPWISE, {"attention": "additive", **FUSED}] for model_type in RECURRENT},
    "rnn_lm": [{}],
    "transformer_seq2seq": [{}, {"max_position_embeddings": 16}],
}
"""Choices with which a forward pass takes each of its paths."""

EVERY_PATH = [
    (model_type, {**choices, **cell})
    for model_type in HEADS
    for choices, cell in product(
        PATHS[model_type], [{"cell": cell} for cell in ("rnn", "lstm", "gru")] if model_type in RECURRENT else [{}]
    )
]
every_path = pytest.mark.parametrize(
    ("model_type", "choices"), EVERY_PATH, ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x.values()))
)
every_type = pytest.mark.parametrize("model_type", HEADS)

NOT_APPLICABLE = {
    "inputs_embeds": {"rnn_captioner": "reads images", "rnn_forecaster": "reads numbers"},
    "resizing": {"rnn_forecaster": "has no vocabulary"},
    "static cache": {
        **dict.fromkeys(RECURRENT, "carries a state of constant size"),
        "rnn_forecaster": "does not generate tokens",
    },
}
"""Contracts that some model classes cannot have, with the reason; all others hold for all classes."""


def types_with(contract: str) -> Any:
    """Parametrizes a test by the model types that have a contract."""
    return pytest.mark.parametrize(
        "model_type", [model_type for model_type in HEADS if model_type not in NOT_APPLICABLE[contract]]
    )


# ---- precision -------------------------------------------------------------------------------------------------------


@every_path
@pytest.mark.parametrize("padded", [True, False])
def test_a_model_trains_and_writes_in_bf16(model_type: str, choices: dict[str, Any], padded: bool) -> None:
    model, batch = tiny_model(model_type, **choices), batch_of(model_type)
    if not padded:
        batch.pop("attention_mask", None)
    expected = result_of(model, batch)
    feedback = {"sampling_probability": 0.5} if model_type in RECURRENT and model_type != "rnn_lm" else {}
    with torch.autocast("cpu", torch.bfloat16):
        actual = result_of(model, batch)
        written_by(model, batch)
        loss = model.train()(**batch, **feedback).loss
    assert loss.dtype == torch.float32
    torch.testing.assert_close(actual.float(), expected, rtol=0.1, atol=0.1)
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# ---- outputs ---------------------------------------------------------------------------------------------------------


@every_type
def test_outputs_are_dictionaries_and_trees(model_type: str) -> None:
    model, batch = tiny_model(model_type), batch_of(model_type)
    outputs: list[ModelOutput] = [model(**batch)]
    if model_type in WRITERS and model_type != "rnn_lm":
        outputs.append(model.get_encoder()(**source_of(batch)))
    for output in outputs:
        assert not set(vars(type(output)).get("__dataclass_fields__", ())) & set(dir(dict))
        assert list(dict(output)) == [name for name, _ in output.items()]
        leaves, structure = torch.utils._pytree.tree_flatten(output)
        rebuilt = torch.utils._pytree.tree_unflatten(leaves, structure)
        assert isinstance(rebuilt, type(output))
        assert list(rebuilt.keys()) == list(output.keys())


@pytest.mark.parametrize(
    ("model_type", "choices"),
    [
        *((model_type, {}) for model_type in HEADS if model_type != "rnn_forecaster"),
        ("rnn_seq2seq", {"reverse_source": True, "encoder_layers": 2}),
    ],
)
@pytest.mark.parametrize("left", [False, True])
def test_gradients_reach_the_hidden_states_that_are_returned(
    model_type: str, choices: dict[str, Any], left: bool
) -> None:
    model, batch = tiny_model(model_type, **choices), batch_of(model_type)
    if left:
        batch = {name: x.flip(-1) if name in ("input_ids", "attention_mask") else x for name, x in batch.items()}
    output = model(**batch, output_hidden_states=True)
    states = output.hidden_states if model_type == "rnn_lm" else output.encoder_hidden_states
    for state in states:
        state.retain_grad()
    output.loss.backward()
    assert all(state.grad is not None and state.grad.abs().sum() > 0 for state in states)


# ---- inputs ----------------------------------------------------------------------------------------------------------


@types_with("inputs_embeds")
@pytest.mark.parametrize("beams", [1, 3])
def test_inputs_embeds_equal_input_ids(model_type: str, beams: int) -> None:
    model, batch = tiny_model(model_type), batch_of(model_type)
    if model_type == "rnn_lm":  # a text is continued at its end
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
    embeds = {**batch, "inputs_embeds": model.get_input_embeddings()(batch["input_ids"])}
    del embeds["input_ids"]
    assert torch.equal(result_of(model, embeds), result_of(model, batch))
    expected = written_by(model, batch, num_beams=beams)
    actual = written_by(model, embeds, num_beams=beams)
    assert torch.equal(actual, expected[:, -actual.shape[1] :])
    assert actual.shape[1] >= 4


@pytest.mark.parametrize("shape", [None, (1, 1), (2, 12, 12), (2, 1, 12, 12)])
def test_a_captioner_needs_an_image(shape: tuple[int, ...] | None) -> None:
    model = tiny_model("rnn_captioner")
    inputs = {} if shape is None else {"pixel_values": torch.zeros(shape)}
    with pytest.raises(ValueError, match=r"needs pixel_values \(batch, 3, height, width\), got a tensor of shape"):
        model.generate(**inputs, max_new_tokens=3)


# ---- caches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", [model_type for model_type in WRITERS if model_type in RECURRENT])
def test_a_recurrent_model_refuses_a_cache_of_keys_and_values(model_type: str) -> None:
    model, batch = tiny_model(model_type), source_of(batch_of(model_type))
    for cache in (DynamicCache(), EncoderDecoderCache(DynamicCache(), DynamicCache())):
        with pytest.raises(ValueError, match=f"past_key_values is a {type(cache).__name__}"):
            model.generate(**batch, past_key_values=cache, max_new_tokens=3)
        target = {} if model_type == "rnn_lm" else {"decoder_input_ids": torch.zeros(3, 1, dtype=torch.long)}
        with pytest.raises(ValueError, match="carries a recurrent state"):
            model(**batch, **target, past_key_values=cache)


@torch.no_grad()
def test_a_transformer_takes_a_cache_for_self_attention_alone() -> None:
    model, batch = tiny_model("transformer_seq2seq"), batch_of("transformer_seq2seq")
    expected = written_by(model, batch)
    assert torch.equal(written_by(model, batch, past_key_values=DynamicCache()), expected)
    cache, source = DynamicCache(), source_of(batch)
    for t in range(expected.shape[1] - 1):
        logits = model(**source, decoder_input_ids=expected[:, t : t + 1], past_key_values=cache, use_cache=True).logits
        whole = model(**source, decoder_input_ids=expected[:, : t + 1]).logits
        torch.testing.assert_close(logits[:, -1], whole[:, -1])


@types_with("static cache")
@pytest.mark.parametrize("choices", [{}, {"max_position_embeddings": 16}], ids=["sinusoids", "learned positions"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_static_cache_generates_the_same(model_type: str, choices: dict[str, Any], beams: int) -> None:
    model, batch = tiny_model(model_type, **choices), batch_of(model_type)
    options = {"num_beams": beams, "max_new_tokens": 6}
    expected = written_by(model, batch, **options)
    assert torch.equal(written_by(model, batch, cache_implementation="static", **options), expected)


@pytest.mark.parametrize("model_type", [model_type for model_type in WRITERS if model_type in RECURRENT])
def test_a_static_cache_of_a_recurrent_model_is_refused(model_type: str) -> None:
    with pytest.raises(ValueError, match="cache_implementation is for keys and values"):
        written_by(tiny_model(model_type), batch_of(model_type), cache_implementation="static")


# ---- weights ---------------------------------------------------------------------------------------------------------


@types_with("resizing")
@pytest.mark.parametrize("size", [15, 9])
def test_a_resized_vocabulary_keeps_its_weights(model_type: str, size: int) -> None:
    """Ids of the batch are below 9 where words are removed."""
    model, batch = tiny_model(model_type), batch_of(model_type)
    batch = {name: x.clamp(max=8) if name in ("input_ids", "labels") else x for name, x in batch.items()}
    expected = result_of(model, batch)
    resized = model.resize_token_embeddings(size, mean_resizing=False)
    assert resized.num_embeddings == model.config.vocab_size == size
    assert model.get_input_embeddings() is resized
    actual = result_of(model, batch)
    assert actual.shape[-1] == size
    common = min(size, 12)
    torch.testing.assert_close(actual[..., :common], expected[..., :common])
    assert written_by(model, batch).max() < size


@every_path
@pytest.mark.parametrize("kind", ["cpu", "disk", "device_map"])
@torch.no_grad()
def test_offloaded_model_computes_the_same(model_type: str, choices: dict[str, Any], kind: str, tmp_path: Path) -> None:
    """The hooks of accelerate load the weights of a module when it is called, and only then."""
    model, batch = tiny_model(model_type, **choices), batch_of(model_type)
    if model_type != "rnn_lm":  # without a mask, an encoder creates one on the device of its inputs
        batch = {name: x for name, x in batch.items() if name != "attention_mask"}
    expected, expected_writing = result_of(model, batch), written_by(model, batch)
    if kind == "cpu":
        cpu_offload(model, execution_device="cpu")
    elif kind == "disk":
        disk_offload(model, tmp_path, execution_device="cpu")
    else:
        model.save_pretrained(tmp_path / "model")
        size = sum(parameter.nbytes for parameter in model.parameters())
        placement = {"device_map": "auto", "max_memory": {"cpu": size // 2}, "offload_folder": tmp_path}
        model = type(model).from_pretrained(tmp_path / "model", **placement).eval()
    assert any(parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(result_of(model, batch), expected)
    torch.testing.assert_close(written_by(model, batch), expected_writing)


@every_path
@pytest.mark.filterwarnings("ignore:torch.ao.quantization", "ignore:torch.quantize_per_tensor")
@torch.no_grad()
def test_a_dynamically_quantized_model_computes_almost_the_same(model_type: str, choices: dict[str, Any]) -> None:
    model, batch = tiny_model(model_type, **choices), batch_of(model_type)
    expected = result_of(model, batch)
    layers = {nn.Linear, nn.LSTM, nn.GRU}
    quantized = torch.ao.quantization.quantize_dynamic(model, layers)
    assert not any(type(module) in layers for module in quantized.modules())
    actual = result_of(quantized, batch)
    assert 0 < (actual - expected).abs().mean() < 0.1 * expected.abs().mean()
    assert written_by(quantized, batch).shape == written_by(model, batch).shape
