"""The subject of a proof: a model, a batch, and copies of the model in float64 or tiny."""

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from kit.data.batching.ragged import IGNORE_INDEX
from kit.data.text.tokenizer import Tokenizers
from kit.models import MODELS
from kit.pipelines.dialogue import reads_turns
from kit.training.objective import Batch, decoder_inputs, source_of

MAX_EXAMPLES = 8
MAX_LENGTH = 32
TURNS = 3
"""Rows, tokens and turns of a proof's batch. Proofs run in float64 and are about exactness, not about averages."""


@torch.no_grad()
def logits_of(model: PreTrainedModel, inputs: Batch) -> Tensor:
    """The logits (batch, target, vocabulary) of a model for these inputs, without gradients."""
    return model(**inputs, use_cache=False).logits


@dataclass(frozen=True)
class Subject:
    """A model with a right-padded batch of at least four examples: `input_ids`, `attention_mask`, `labels`, or for
    images of one size `pixel_values` instead of the first two.

    For a hierarchical model the first two are (batch, turns, tokens).
    """

    model: PreTrainedModel
    batch: Batch
    seed: int = 0
    tokenizers: Tokenizers | None = None
    max_new_tokens: int = 12

    @cached_property
    def exact(self) -> PreTrainedModel:
        """A copy in float64 on the CPU in evaluation mode, where errors stand out from rounding.

        It generates with default settings, whatever the model was saved with.
        """
        model = copy.deepcopy(self.model).to("cpu", torch.float64).eval()
        if not model.can_generate():
            return model
        saved = model.generation_config
        model.generation_config = GenerationConfig(
            bos_token_id=saved.bos_token_id,
            eos_token_id=saved.eos_token_id,
            pad_token_id=saved.pad_token_id,
            decoder_start_token_id=saved.decoder_start_token_id if model.config.is_encoder_decoder else None,
        )
        return model

    @cached_property
    def decoder_input_ids(self) -> Tensor:
        """The labels, shifted right as the model shifts them."""
        return decoder_inputs(self.exact, self.batch["labels"])

    @cached_property
    def logits_alone(self) -> Tensor:
        """The logits of each example computed alone without padding; rows are padded with zeros afterwards."""
        length = self.batch["labels"].shape[1]
        rows = []
        for row, target in enumerate(self.decoder_input_ids):
            example = trimmed(self.batch, slice(row, row + 1))
            target = target[None, : example["labels"].shape[1]]
            read: Batch = {name: example[name] for name in ("input_ids", "pixel_values") if name in example}
            if "input_ids" in example and example["input_ids"].dim() == 3:  # turns of a dialogue have different lengths
                read["attention_mask"] = example["attention_mask"]
            logits = logits_of(self.exact, {**read, "decoder_input_ids": target})[0]
            rows.append(torch.nn.functional.pad(logits, (0, 0, 0, length - len(logits))))
        return torch.stack(rows)  # (batch, target, vocabulary)

    def inputs(self) -> Batch:
        """The inputs of `forward` for the logits of the batch."""
        return {**self.source(), "decoder_input_ids": self.decoder_input_ids}

    def source(self) -> Batch:
        """The inputs of `generate`."""
        return source_of(self.batch)

    def tiny_copy(self, vocabulary: int, width: int) -> PreTrainedModel:
        """A new tiny model with the same class and architecture, in float64, without dropout."""
        config = tiny_config(self.model.config, vocabulary, width)
        return type(self.model)(config).double().eval()


def is_seq2seq(subject: Subject) -> bool:
    """An encoder-decoder that generates."""
    return bool(subject.model.config.is_encoder_decoder) and subject.model.can_generate()


def is_recurrent(subject: Subject) -> bool:
    """An encoder-decoder with a recurrent state, which can also run cell by cell."""
    return is_seq2seq(subject) and subject.model._is_stateful


def reads_text(subject: Subject) -> bool:
    """A recurrent encoder-decoder whose source is text, which can be padded on either side."""
    return is_recurrent(subject) and "input_ids" in subject.batch


def can_be_padded(subject: Subject) -> bool:
    """An encoder-decoder whose source can be padded: text, or images that no backbone of transformers reads, which
    would take no mask."""
    pads_images = getattr(subject.model.config, "backbone_config", None) is None
    return is_seq2seq(subject) and ("input_ids" in subject.batch or pads_images)


def is_kit_model(subject: Subject) -> bool:
    """An encoder-decoder of kit: its loss accepts `num_items_in_batch`, and its config has `tiny_sizes`."""
    return is_seq2seq(subject) and subject.model.config.model_type in MODELS


def tiny_config(config: Any, vocabulary: int, width: int) -> Any:
    """The configuration with a small vocabulary and small sizes, without dropout and noise; other choices stay."""
    multiple = 2 * config.num_attention_heads  # the width of each of two directions must be divisible by the heads
    width = -(-width // multiple) * multiple
    changes = {
        "vocab_size": vocabulary,
        "decoder_vocab_size": vocabulary,
        "hidden_size": width,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 0,
        "dropout": 0.0,
    }
    return type(config).from_dict({**config.to_dict(), **changes, **config.tiny_sizes(width)})


def end_markers(model: PreTrainedModel) -> list[int]:
    """The ids of the tokens that end a hypothesis, according to the generation config."""
    end = model.generation_config.eos_token_id
    return end if isinstance(end, list) else [end]


def random_batch(
    model: PreTrainedModel, seed: int, examples: int = MAX_EXAMPLES, longest_source: int = 9, longest_target: int = 7
) -> Batch:
    """A random batch for a model: sources (tokens, turns of tokens, or images) and `labels` of many lengths.

    Special tokens occur only as padding and at the end of each target. The same seed gives the same batch.
    """
    random = torch.Generator().manual_seed(seed)
    generation, ends = model.generation_config, end_markers(model)
    special = {generation.bos_token_id, generation.pad_token_id, generation.decoder_start_token_id, *ends}

    def tokens(vocabulary: int, length: int) -> Tensor:
        usable = torch.tensor([token for token in range(vocabulary) if token not in special])
        return usable[torch.randint(len(usable), (examples, length), generator=random)]

    def lengths(longest: int) -> Tensor:
        drawn = torch.randint(2, longest + 1, (examples,), generator=random)
        drawn[0] = longest
        return drawn.unsqueeze(1)

    vocabulary = model.get_input_embeddings().num_embeddings
    source = tokens(vocabulary, longest_source)
    target = tokens(model.get_output_embeddings().weight.shape[0], longest_target)
    mask = torch.arange(longest_source) < lengths(longest_source)
    if reads_turns(model.config):  # (examples, turns, tokens), of one turn or more
        source = torch.stack([source, *(tokens(vocabulary, longest_source) for _ in range(TURNS - 1))], dim=1)
        others = [torch.arange(longest_source) < lengths(longest_source) for _ in range(TURNS - 1)]
        turns = lengths(TURNS) - torch.arange(examples).unsqueeze(1) % 2
        mask = torch.stack([mask, *others], dim=1) & (torch.arange(TURNS) < turns).unsqueeze(-1)
    position, last = torch.arange(longest_target), lengths(longest_target) - 1
    labels = target.masked_fill(position == last, ends[0]).masked_fill(position > last, IGNORE_INDEX)
    if model.main_input_name == "pixel_values":
        shape = (examples, model.config.num_channels, model.config.image_size, model.config.image_size)
        return {"pixel_values": torch.randn(shape, generator=random, dtype=torch.float64), "labels": labels}
    input_ids = source.masked_fill(~mask, generation.pad_token_id)
    return {"input_ids": input_ids, "attention_mask": mask.long(), "labels": labels}


def trimmed(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch, without the columns (and turns) that are padding in all of these rows."""
    part = {name: tensor[rows] for name, tensor in batch.items()}
    length = int((part["labels"] != IGNORE_INDEX).sum(1).max())
    if "pixel_values" in part:
        return {**part, "labels": part["labels"][:, :length]}
    real = part["attention_mask"].bool()
    width = slice(int(real.flatten(0, -2).any(0).sum()))
    used = (slice(None), width) if real.dim() == 2 else (slice(None), slice(int(real.any(-1).any(0).sum())), width)
    return {
        "input_ids": part["input_ids"][used],
        "attention_mask": part["attention_mask"][used],
        "labels": part["labels"][:, :length],
    }


def small_batch(batch: Batch, limit: int | None = None) -> Batch:
    """The first examples of a right-padded batch on the CPU, truncated so that every proof is fast.

    Examples repeat if there are fewer than four, because some proofs split a batch in four. Half of `limit`, the
    number of positions, is reserved for padding.
    """
    max_length = min(MAX_LENGTH, (limit or 2 * MAX_LENGTH) // 2)
    rows = torch.arange(max(4, min(MAX_EXAMPLES, len(batch["labels"])))) % len(batch["labels"])
    truncated: Batch = {
        name: batch[name].cpu()[rows, :max_length][..., :max_length]
        for name in ("input_ids", "attention_mask", "labels")
        if name in batch
    }
    if "pixel_values" in batch:
        truncated["pixel_values"] = batch["pixel_values"].cpu()[rows].double()
    return trimmed(truncated, slice(None))
