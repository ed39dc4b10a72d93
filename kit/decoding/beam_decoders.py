"""The decoder side of a search: next-token logits of every beam while beams branch and sentences finish.

Beams share the encoder states of their source if the model supports it: these are neither repeated nor reordered.
"""

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

ADDITIVE = ("eager", "sdpa")
"""Attention implementations that accept a separate mask for each query."""


class BeamDecoder(Protocol):
    """What the search requires of a model."""

    def prefill(self, prompts: Tensor) -> Tensor:
        """Logits (sentences, vocabulary) after the prompts (sentences, length), which all beams share."""

    def step(self, written: Tensor, parents: Tensor) -> Tensor:
        """Logits (sentences, beams, vocabulary) after the tokens of each beam, `written` (sentences, beams, length).

        Only the last token is new; `parents` (sentences, beams) are the beams of the previous step it extends.
        """

    def keep(self, sentences: Tensor) -> None:
        """Keep only the sentences at these positions (number,) of the batch; the others are finished."""


def beam_decoder(model: PreTrainedModel, beams: int, inputs: dict[str, Any]) -> BeamDecoder:
    """The fastest decoder for a model.

    `inputs` are those that `generate()` has prepared, in which every tensor is repeated for each beam.
    """
    # classes of transformers have no layout: each beam is a row with its copy of the source
    layout = getattr(model, "beam_layout", None)
    if layout == "positions" and model.config._attn_implementation in ADDITIVE:
        return BeamsAsPositions(model, beams, inputs)
    return BeamsAsRows(model, beams, inputs, share_source=layout is not None)


def select(inputs: Any, rows: Tensor | slice) -> dict[str, Any]:
    """The inputs with only these rows of every tensor, including the tensors inside `encoder_outputs`."""

    def select_rows(name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[rows]
        return type(value)(**select(value, rows)) if name == "encoder_outputs" else value

    return {name: select_rows(name, value) for name, value in inputs.items()}


class BeamsAsRows:
    """A `BeamDecoder` in which each beam is a row of the batch, with its own copy of the source unless the model can
    share it."""

    def __init__(self, model: PreTrainedModel, beams: int, inputs: dict[str, Any], share_source: bool):
        self.model, self.beams, self.share_source = model, beams, share_source
        self.inputs = inputs

    def prefill(self, prompts: Tensor) -> Tensor:
        """As in `BeamDecoder`; a prompt is read once and its cache repeated for the beams."""
        expanded = self.inputs
        self.inputs = select(expanded, slice(None, None, self.beams))
        logits = self._logits(prompts, is_first_iteration=True)  # (sentences, vocabulary)
        if self.beams > 1:
            cache = self.inputs["past_key_values"]
            cache.batch_repeat_interleave(self.beams)
            if not self.share_source:
                self.inputs = {**expanded, "past_key_values": cache}
        return logits

    def step(self, written: Tensor, parents: Tensor) -> Tensor:
        if self.beams > 1:
            cache = self.inputs["past_key_values"]
            growing = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
            growing.reorder_cache(self._rows(torch.arange(len(parents), device=parents.device), parents))
        return self._logits(written.flatten(0, 1), next_sequence_length=1).unflatten(0, written.shape[:2])

    def keep(self, sentences: Tensor) -> None:
        rows = self._rows(sentences, torch.arange(self.beams, device=sentences.device).expand(len(sentences), -1))
        self.inputs = select(self.inputs, sentences if self.share_source else rows)
        self.inputs["past_key_values"].batch_select_indices(rows)

    def _rows(self, sentences: Tensor, beams: Tensor) -> Tensor:
        """Row numbers in the batch of beams (sentences, beams), flattened."""
        return (sentences[:, None] * self.beams + beams).flatten()

    def _logits(self, tokens: Tensor, **options: Any) -> Tensor:
        """Logits (rows, vocabulary) after the last of these tokens (rows, length); updates the cache."""
        prepared = self.model.prepare_inputs_for_generation(tokens, **options, **self.inputs)
        outputs = self.model(**prepared, return_dict=True)
        self.inputs = self.model._update_model_kwargs_for_generation(outputs, self.inputs, is_encoder_decoder=True)
        return outputs.logits[:, -1]


class BeamsAsPositions:
    """A `BeamDecoder` in which all beams of a sentence share one row, at the same target position, and each attends
    only to its ancestors.

    Keys and values of a token stay where they were first written: when beams branch, only the mask changes. Beams soon
    share most of their past, so few tokens are stored twice.
    """

    prune_every = 4
    """Steps between prunings, which remove tokens that no beam attends to anymore. Each one copies the whole cache:
    measured on a CPU, every step is 5 % slower than every 2 to 8 steps, which take the same time."""

    def __init__(self, model: PreTrainedModel, beams: int, inputs: dict[str, Any]):
        self.model, self.beams = model, beams
        source = select(inputs, slice(None, None, beams))
        self.memory, mask = source["encoder_outputs"].last_hidden_state, source.get("attention_mask")
        self.memory_mask = None if mask is None else self._additive(mask.bool()[:, None, None])
        self.self_attention_cache = Cache(layer_class_to_replicate=PreallocatedLayer)
        self.cache = EncoderDecoderCache(self.self_attention_cache, DynamicCache(config=model.config))

    def prefill(self, prompts: Tensor) -> Tensor:
        # additive mask: 0 where a beam attends to a key, the lowest number elsewhere (sentences, beams, keys)
        self.mask_by_beam = torch.zeros(
            len(prompts), self.beams, prompts.shape[1], dtype=self.model.dtype, device=prompts.device
        )
        self.self_mask = self._additive(
            torch.eye(self.beams, dtype=torch.bool, device=prompts.device)
        )  # (beams, beams)
        self.prune_at = prompts.shape[1] + self.prune_every * self.beams
        outputs = self.model(
            decoder_input_ids=prompts,
            encoder_outputs=(self.memory,),
            attention_mask=self.memory_mask,
            past_key_values=self.cache,
            use_cache=True,
        )
        return outputs.logits[:, -1]

    def step(self, written: Tensor, parents: Tensor) -> Tensor:
        self.mask_by_beam = self.mask_by_beam.gather(
            1, parents.unsqueeze(-1).expand(-1, -1, self.mask_by_beam.shape[-1])
        )
        if self.beams > 1 and self.mask_by_beam.shape[-1] >= self.prune_at:
            self._keep(torch.arange(len(parents), device=parents.device))
        self.mask_by_beam = torch.cat([self.mask_by_beam, self.self_mask.expand(len(parents), -1, -1)], dim=-1)
        mask = self.mask_by_beam.unsqueeze(1) if self.beams > 1 else None
        return self.model.sibling_beam_logits(
            written[..., -1], written.shape[-1] - 1, mask, self.memory, self.memory_mask, self.cache
        )

    def keep(self, sentences: Tensor) -> None:
        self.memory = self.memory[sentences]
        self.memory_mask = None if self.memory_mask is None else self.memory_mask[sentences]
        self.cache.cross_attention_cache.batch_select_indices(sentences)
        self._keep(sentences)

    def _keep(self, sentences: Tensor) -> None:
        """Keep these sentences in the cache of the target, and of their tokens those that a beam still attends to."""
        mask_by_beam = self.mask_by_beam[sentences]
        alive = (mask_by_beam == 0).any(1)  # (sentences, keys)
        max_tokens = int(alive.sum(1).max())
        tokens = alive.byte().argsort(dim=1, descending=True, stable=True)[:, :max_tokens]
        self.mask_by_beam = mask_by_beam.gather(2, tokens.unsqueeze(1).expand(-1, self.beams, -1))
        self.prune_at = max_tokens + self.prune_every * self.beams
        for layer in self.self_attention_cache.layers:
            layer.keep(sentences, tokens)

    def _additive(self, visible: Tensor) -> Tensor:
        """A mask to add to attention scores: 0 where `visible` is true, the lowest number elsewhere."""
        lowest = torch.finfo(self.model.dtype).min
        return torch.zeros(visible.shape, dtype=self.model.dtype, device=visible.device).masked_fill(~visible, lowest)


class PreallocatedLayer(DynamicLayer):
    """Keys and values of one layer in preallocated buffers, so that a step copies only the new token.

    A full buffer is replaced by one of twice the size, so that growing copies each token about once more.
    """

    min_capacity = 64
    """Tokens in the smallest buffer."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values (sentences, heads, new tokens, d); returns all of them."""
        new = [key_states.transpose(1, 2), value_states.transpose(1, 2)]  # (sentences, tokens, heads, d)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._fill([part[:, :0] for part in new])
        begin = self.keys.shape[2]
        end = begin + key_states.shape[2]
        if end > self.buffers[0].shape[1]:
            self._fill([buffer[:, :begin] for buffer in self.buffers], 2 * end)
        for buffer, part in zip(self.buffers, new, strict=True):
            buffer[:, begin:end] = part
        self._set_length(end)
        return self.keys, self.values

    def keep(self, sentences: Tensor, tokens: Tensor) -> None:
        """Keep these sentences (number,), and of each the tokens at these positions (number, tokens), in this order."""
        rows = (sentences.unsqueeze(1) * self.buffers[0].shape[1] + tokens).flatten()
        selected = [buffer.flatten(0, 1).index_select(0, rows).unflatten(0, tokens.shape) for buffer in self.buffers]
        self._fill(selected, 2 * tokens.shape[1])

    def _fill(self, parts: list[Tensor], capacity: int = 0) -> None:
        """Copy parts (sentences, tokens, heads, d) into new buffers with at least this capacity in tokens."""
        self.buffers = []
        for part in parts:
            buffer = part.new_empty(len(part), max(capacity, self.min_capacity), *part.shape[2:])
            buffer[:, : part.shape[1]] = part
            self.buffers.append(buffer)
        self._set_length(part.shape[1])

    def _set_length(self, tokens: int) -> None:
        self.keys, self.values = (buffer[:, :tokens].transpose(1, 2) for buffer in self.buffers)
