"""The decoder side of a search: logits of the next token of every beam, as sentences go on, branch and leave.

Beams share the states of their source wherever the model can: these are neither repeated nor reordered.
"""

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

ADDITIVE = ("eager", "sdpa")
"""Kinds of attention that take a mask of their own for each query."""


class BeamDecoder(Protocol):
    """What a search needs of a model."""

    def first(self, prompts: Tensor) -> Tensor:
        """Logits (sentences, vocabulary) after the prompts (sentences, length), which all beams have in common."""

    def step(self, written: Tensor, parents: Tensor) -> Tensor:
        """Logits (sentences, beams, vocabulary) after what each beam has written (sentences, beams, length), its last
        token being new; `parents` (sentences, beams) are the beams of the last step that it goes on from."""

    def keep(self, sentences: Tensor) -> None:
        """Let all other sentences leave."""


def beam_decoder(model: PreTrainedModel, beams: int, inputs: dict[str, Any]) -> BeamDecoder:
    """The leanest one for a model, from the inputs that `generate()` prepared: every tensor repeated for each beam."""
    # transformers' own classes have no layout: their beams are rows with a source each
    layout = getattr(model, "beam_layout", None)
    if layout == "positions" and model.config._attn_implementation in ADDITIVE:
        return BeamsAsPositions(model, beams, inputs)
    return BeamsAsRows(model, beams, inputs, share_source=layout is not None)


def select(inputs: Any, rows: Tensor | slice) -> dict[str, Any]:
    """The inputs of some rows. Encoder outputs are named tensors too."""

    def chosen(name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[rows]
        return type(value)(**select(value, rows)) if name == "encoder_outputs" else value

    return {name: chosen(name, value) for name, value in inputs.items()}


class BeamsAsRows:
    """Each beam is a row of the batch, and has its own row of the source too unless the model lets them share it."""

    def __init__(self, model: PreTrainedModel, beams: int, inputs: dict[str, Any], share_source: bool):
        self.model, self.beams, self.share_source = model, beams, share_source
        self.inputs = inputs

    def first(self, prompts: Tensor) -> Tensor:
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
        """Row of each beam (sentences, beams), in one line."""
        return (sentences[:, None] * self.beams + beams).flatten()

    def _logits(self, tokens: Tensor, **how: Any) -> Tensor:
        prepared = self.model.prepare_inputs_for_generation(tokens, **how, **self.inputs)
        outputs = self.model(**prepared, return_dict=True)
        self.inputs = self.model._update_model_kwargs_for_generation(outputs, self.inputs, is_encoder_decoder=True)
        return outputs.logits[:, -1]


class BeamsAsPositions:
    """All beams of a sentence are in one row, at the same target position, and each sees only its own ancestors.

    The keys and values of a token stay where they were first written: when beams branch, only the mask changes. Beams
    soon have most of their past in common, so that few tokens are kept twice.
    """

    forget_after = 4
    """Steps after which tokens that no beam descends from any more are looked for."""

    def __init__(self, model: PreTrainedModel, beams: int, inputs: dict[str, Any]):
        self.model, self.beams = model, beams
        own = select(inputs, slice(None, None, beams))
        self.memory, mask = own["encoder_outputs"].last_hidden_state, own.get("attention_mask")
        self.memory_mask = None if mask is None else self._additive(mask.bool()[:, None, None])
        self.bank = Cache(layer_class_to_replicate=PreallocatedLayer)
        self.cache = EncoderDecoderCache(self.bank, DynamicCache(config=model.config))

    def first(self, prompts: Tensor) -> Tensor:
        # 0 where a beam sees a key, the lowest number elsewhere: (sentences, beams, keys)
        self.seen = torch.zeros(
            len(prompts), self.beams, prompts.shape[1], dtype=self.model.dtype, device=prompts.device
        )
        self.itself = self._additive(torch.eye(self.beams, dtype=torch.bool, device=prompts.device))  # (beams, beams)
        self.forget_at = prompts.shape[1] + self.forget_after * self.beams
        outputs = self.model(
            decoder_input_ids=prompts,
            encoder_outputs=(self.memory,),
            attention_mask=self.memory_mask,
            past_key_values=self.cache,
            use_cache=True,
        )
        return outputs.logits[:, -1]

    def step(self, written: Tensor, parents: Tensor) -> Tensor:
        self.seen = self.seen.gather(1, parents.unsqueeze(-1).expand(-1, -1, self.seen.shape[-1]))
        if self.beams > 1 and self.seen.shape[-1] >= self.forget_at:
            self._keep(torch.arange(len(parents), device=parents.device))
        self.seen = torch.cat([self.seen, self.itself.expand(len(parents), -1, -1)], dim=-1)
        mask = self.seen.unsqueeze(1) if self.beams > 1 else None
        return self.model.sibling_beam_logits(
            written[..., -1], written.shape[-1] - 1, mask, self.memory, self.memory_mask, self.cache
        )

    def keep(self, sentences: Tensor) -> None:
        self.memory = self.memory[sentences]
        self.memory_mask = None if self.memory_mask is None else self.memory_mask[sentences]
        self.cache.cross_attention_cache.batch_select_indices(sentences)
        self._keep(sentences)

    def _keep(self, sentences: Tensor) -> None:
        """Keep of some sentences the tokens that a beam still sees."""
        seen = self.seen[sentences]
        alive = (seen == 0).any(1)  # (sentences, keys)
        most = int(alive.sum(1).max())
        tokens = alive.byte().argsort(dim=1, descending=True, stable=True)[:, :most]
        self.seen = seen.gather(2, tokens.unsqueeze(1).expand(-1, self.beams, -1))
        self.forget_at = most + self.forget_after * self.beams
        for layer in self.bank.layers:
            layer.keep(sentences, tokens)

    def _additive(self, visible: Tensor) -> Tensor:
        lowest = torch.finfo(self.model.dtype).min
        return torch.zeros(visible.shape, dtype=self.model.dtype, device=visible.device).masked_fill(~visible, lowest)


class PreallocatedLayer(DynamicLayer):
    """Keys and values of one layer with room behind them, so that a step copies only what is new."""

    least_room = 64

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """All keys and values (sentences, heads, tokens, d), the new ones at the end."""
        new = [key_states.transpose(1, 2), value_states.transpose(1, 2)]  # (sentences, tokens, heads, d)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._fill([part[:, :0] for part in new])
        begin = self.keys.shape[2]
        end = begin + key_states.shape[2]
        if end > self.rooms[0].shape[1]:
            self._fill([room[:, :begin] for room in self.rooms], 2 * end)
        for room, part in zip(self.rooms, new, strict=True):
            room[:, begin:end] = part
        self._show(end)
        return self.keys, self.values

    def keep(self, sentences: Tensor, tokens: Tensor) -> None:
        """Keep of some sentences (number,) some tokens each (number, tokens)."""
        places = (sentences.unsqueeze(1) * self.rooms[0].shape[1] + tokens).flatten()
        kept = [room.flatten(0, 1).index_select(0, places).unflatten(0, tokens.shape) for room in self.rooms]
        self._fill(kept, 2 * tokens.shape[1])

    def _fill(self, parts: list[Tensor], most: int = 0) -> None:
        """Take parts (sentences, tokens, heads, d) into new rooms for at most so many tokens."""
        self.rooms = []
        for part in parts:
            room = part.new_empty(len(part), max(most, self.least_room), *part.shape[2:])
            room[:, : part.shape[1]] = part
            self.rooms.append(room)
        self._show(part.shape[1])

    def _show(self, tokens: int) -> None:
        self.keys, self.values = (room[:, :tokens].transpose(1, 2) for room in self.rooms)
