"""Tiny models of every type of kit, and a batch for each."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kit import models
from kit.models import MODELS, config_class

SIZES: dict[str, dict[str, Any]] = {
    "rnn_seq2seq": {"vocab_size": 12, "hidden_size": 8, "embedding_size": 6},
    "transformer_seq2seq": {
        "vocab_size": 12, "hidden_size": 8, "encoder_layers": 2, "decoder_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 16, "dropout": 0.0,
    },
    "rnn_lm": {"vocab_size": 12, "hidden_size": 8, "embedding_size": 6},
    "rnn_captioner": {
        "vocab_size": 12, "hidden_size": 8, "embedding_size": 6, "image_size": 12, "cnn_channels": [4, 6],
    },
    "hred": {"vocab_size": 12, "hidden_size": 8, "embedding_size": 6},
    "rnn_forecaster": {"value_size": 2, "context_size": 1, "hidden_size": 8, "horizon": 3},
}  # fmt: skip

HEADS = {
    "rnn_seq2seq": "ForConditionalGeneration",
    "transformer_seq2seq": "ForConditionalGeneration",
    "rnn_lm": "ForCausalLM",
    "rnn_captioner": "ForConditionalGeneration",
    "hred": "ForConditionalGeneration",
    "rnn_forecaster": "ForPrediction",
}
TEXT = [model_type for model_type in HEADS if model_type not in ("rnn_captioner", "rnn_forecaster")]
"""Types that read text."""

WRITERS = [model_type for model_type in HEADS if model_type != "rnn_forecaster"]
"""Types that write text."""

RECURRENT = [model_type for model_type in HEADS if model_type != "transformer_seq2seq"]

FUSED: dict[str, Any] = {"attention_query": "current", "context_to": ["readout"]}
"""The choices with which a decoder runs each layer over the whole target at once."""

STEPWISE: dict[str, Any] = {"attention": "additive", "context_to": ["input", "readout"]}
"""The choices with which a decoder runs step by step."""


def tiny_model(model_type: str, head: str | None = None, **choices: Any) -> PreTrainedModel:
    """A random model of a type in evaluation mode: with its output layer, or with another end of its class name."""
    torch.manual_seed(0)
    model_class = getattr(models, MODELS[model_type] + (HEADS[model_type] if head is None else head))
    model: PreTrainedModel = model_class(config_class(model_type)(**{**SIZES[model_type], **choices})).eval()
    with torch.no_grad():  # far from uniform, so that comparisons mean something
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def batch_of(model_type: str, rows: int = 3) -> dict[str, Tensor]:
    """Inputs and targets of a forward pass; text is padded on the right, and some dialogues have fewer turns."""
    random = torch.Generator().manual_seed(1)

    def tokens(*shape: int) -> Tensor:
        return torch.randint(3, 12, shape, generator=random)

    if model_type == "rnn_forecaster":
        shapes = {"past_values": (7, 2), "past_context": (7, 1), "future_values": (3, 2), "future_context": (3, 1)}
        return {name: torch.randn(rows, *shape, generator=random) for name, shape in shapes.items()}
    if model_type == "rnn_captioner":
        return {"pixel_values": torch.randn(rows, 3, 12, 12, generator=random), "labels": tokens(rows, 5)}
    lengths = 6 - torch.arange(rows) % 3
    mask = (torch.arange(6) < lengths.unsqueeze(1)).long()
    ids = tokens(rows, 6)
    if model_type == "hred":
        mask = torch.stack([mask, mask * (torch.arange(rows) % 2).unsqueeze(1)], dim=1)
        ids = torch.stack([ids, tokens(rows, 6)], dim=1)
    source = {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}
    labels = source["input_ids"].masked_fill(mask == 0, -100) if model_type == "rnn_lm" else tokens(rows, 5)
    return {**source, "labels": labels}


def source_of(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The part of a batch that `generate()` or `predict()` reads."""
    return {name: tensor for name, tensor in batch.items() if name not in ("labels", "future_values")}


def result_of(model: PreTrainedModel, batch: dict[str, Tensor], **options: Any) -> Tensor:
    """Logits or predictions of a forward pass."""
    output = model(**batch, **options)
    return output.predictions if model.main_input_name == "past_values" else output.logits


def written_by(model: PreTrainedModel, batch: dict[str, Tensor], **options: Any) -> Tensor:
    """The tokens that a model generates, or its forecast."""
    if model.main_input_name == "past_values":
        return model.predict(**source_of(batch)).predictions
    return model.generate(**source_of(batch), **{"max_new_tokens": 4, "eos_token_id": None, **options})
