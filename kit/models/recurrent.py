"""Recurrent cells, their state as a `Cache`, and reading of padded sequences: shared by all recurrent models."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import initialization as init
from transformers.cache_utils import Cache, CacheLayerMixin

LAYER_CLASSES = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def recurrent_layer(cell: str, input_size: int, hidden_size: int, bidirectional: bool = False) -> nn.RNNBase:
    """One fused recurrent layer, batch first."""
    return LAYER_CLASSES[cell](input_size, hidden_size, batch_first=True, bidirectional=bidirectional)


def cell_step(layer: nn.Module, x: Tensor, hidden: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """One time step with the weights of a fused layer.

    x (batch, input), hidden and cell (batch, hidden) → the new hidden and cell; `cell` is an LSTM's only.
    """
    weights: Any = (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0)
    if isinstance(layer, nn.LSTM):
        assert cell is not None
        return torch.lstm_cell(x, (hidden, cell), *weights)
    step = torch.gru_cell if isinstance(layer, nn.GRU) else torch.rnn_tanh_cell
    return step(x, hidden, *weights), None


def run_layer(layer: nn.Module, x: Tensor, hidden: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """All time steps at once: x (batch, time, input) → outputs (batch, time, hidden), last hidden, last cell."""
    if isinstance(layer, nn.LSTM):
        assert cell is not None
        outputs, (h, c) = layer(x, (hidden.unsqueeze(0).contiguous(), cell.unsqueeze(0).contiguous()))
        return outputs, h[0], c[0]
    outputs, h = layer(x, hidden.unsqueeze(0).contiguous())
    return outputs, h[0], None


def initialize_recurrent(layer: nn.RNNBase) -> None:
    """Xavier for the input, orthogonal for the recurrence, gate by gate; zero biases, but one for an LSTM's
    forget gate, so that a new model remembers."""
    for name, parameter in layer.named_parameters():
        if getattr(parameter, "_is_hf_initialized", False):
            continue  # loaded from a checkpoint: the slices below would not carry this mark
        gates = parameter.chunk(parameter.shape[0] // layer.hidden_size)
        for gate in gates:
            if name.startswith("weight_ih"):
                init.xavier_uniform_(gate)
            elif name.startswith("weight_hh"):
                init.orthogonal_(gate)
            else:
                init.zeros_(gate)
        if isinstance(layer, nn.LSTM) and name.startswith("bias_ih"):
            init.ones_(gates[1])


def real_tokens_first(mask: Tensor, reverse: bool = False) -> Tensor | None:
    """Index (batch, time) that brings the real tokens of each row to the front, in order or reversed.

    None when they are there already: the usual case of right padding.
    """
    if not reverse and not (mask[:, 1:] > mask[:, :-1]).any():
        return None
    position = torch.arange(mask.shape[1], device=mask.device)
    rank = (-position if reverse else position).expand_as(mask)
    return torch.where(mask, rank, rank.max() + 1 + position).argsort(dim=1)


def gather_time(x: Tensor, index: Tensor) -> Tensor:
    """Take x (batch, time, width) in the order of index (batch, time)."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def read_padded(layer: nn.Module, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run a layer over right-padded rows so that padding changes nothing.

    x (batch, time, input), lengths (batch,) on the CPU → outputs (batch, time, directions · hidden), zero at padding,
    and the final hidden and cell (batch, directions · hidden) of each row's last real token.
    """
    if bool((lengths == x.shape[1]).all()):  # nothing padded: the fused kernels are faster on plain tensors
        outputs, final = layer(x)
    else:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        packed_outputs, final = layer(packed)
        outputs, _ = pad_packed_sequence(packed_outputs, batch_first=True, total_length=x.shape[1])
    hidden, cell = final if isinstance(layer, nn.LSTM) else (final, None)

    def join(state: Tensor) -> Tensor:  # (directions, batch, hidden) → (batch, directions · hidden)
        return state.transpose(0, 1).flatten(1)

    return outputs, join(hidden), None if cell is None else join(cell)


def read_on(
    layer: nn.Module,
    x: Tensor,
    lengths: Tensor | None,
    hidden: Tensor,
    cell: Tensor,
    weight_dropout: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run a one-directional layer over right-padded rows, going on from a state.

    x (batch, time, input), hidden and cell (batch, hidden; `cell` is an LSTM's only) → outputs (batch, time, hidden)
    and the state after each row's last real token; `lengths` (batch,) is None where nothing is padded.
    """
    is_lstm = isinstance(layer, nn.LSTM)
    first = hidden.unsqueeze(0).contiguous()
    state: Any = (first, cell.unsqueeze(0).contiguous()) if is_lstm else first
    with dropped_recurrence(layer, weight_dropout):
        if lengths is None:
            outputs, final = layer(x, state)
        else:
            # a row without a real token is read as one token, and keeps its state
            packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
            packed_outputs, final = layer(packed, state)
            outputs, _ = pad_packed_sequence(packed_outputs, batch_first=True, total_length=x.shape[1])
    new_hidden, new_cell = (final[0][0], final[1][0]) if is_lstm else (final[0], None)
    if lengths is not None:
        read = (lengths > 0).unsqueeze(1)
        new_hidden = torch.where(read, new_hidden, hidden)
        new_cell = None if new_cell is None else torch.where(read, new_cell, cell)
    return outputs, new_hidden, new_cell


@contextmanager
def dropped_recurrence(layer: Any, probability: float) -> Iterator[None]:
    """Within the block the layer leaves out some of its weights from state to state (DropConnect)."""
    if probability == 0:
        yield
        return
    weights = layer._flat_weights
    layer._flat_weights = [
        nn.functional.dropout(weight, probability) if name.startswith("weight_hh") else weight
        for name, weight in zip(layer._flat_weights_names, weights, strict=True)
    ]
    try:
        yield
    finally:
        layer._flat_weights = weights


class RecurrentCacheLayer(CacheLayerMixin):
    """The state of a recurrent decoder, as named batch-first tensors.

    It is one layer to `generate()`, however many the decoder has: a state has no time axis, so nothing grows, and
    nothing can be cropped.
    """

    is_croppable = False
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.state: dict[str, Tensor] = {}
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise TypeError("a recurrent state has no keys and values: use RecurrentCache.store")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise TypeError("a recurrent state has no keys and values: use RecurrentCache.store")

    def store(self, state: dict[str, Tensor], new_tokens: int) -> None:
        """Replace the state by the one after `new_tokens` more tokens."""
        self.state = state
        self.length += new_tokens
        self.is_initialized = True

    def _apply(self, change: Callable[[Tensor], Tensor]) -> None:
        self.state = {name: change(tensor) for name, tensor in self.state.items()}

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._apply(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._apply(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._apply(lambda tensor: tensor[indices])

    def reset(self) -> None:
        self.state, self.length, self.is_initialized = {}, 0, False

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise ValueError("a recurrent state cannot go back: it does not hold its past")

    def offload(self) -> None:
        self._apply(lambda tensor: tensor.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Nothing to do: the model moves the small state to its device when it reads it."""


class RecurrentCache(Cache):
    """What a recurrent decoder hands from one `generate()` step to the next."""

    def __init__(self) -> None:
        super().__init__(layers=[RecurrentCacheLayer()])

    @property
    def state(self) -> dict[str, Tensor]:
        """The named state tensors, (batch, …); empty before the first token."""
        return self.layers[0].state

    def store(self, state: dict[str, Tensor], new_tokens: int) -> None:
        """Replace the state by the one after `new_tokens` more tokens."""
        self.layers[0].store(state, new_tokens)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        yield tuple(self.state.values())


class RecurrentGeneration:
    """How `generate()` carries the state of a recurrent model: list it before `GenerationMixin`."""

    config: Any

    @property
    def mask_of_written(self) -> str:
        """The argument that masks what has been written so far."""
        return "decoder_attention_mask" if self.config.is_encoder_decoder else "attention_mask"

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """A recurrent state instead of keys and values."""
        if generation_config.cache_implementation is not None:
            raise ValueError("cache_implementation is for keys and values: a recurrent decoder has a state")
        given = model_kwargs.get("past_key_values")
        if given is not None:
            given._is_user_defined = True  # as transformers marks a cache that it must not reset
        elif generation_config.use_cache:
            model_kwargs["past_key_values"] = RecurrentCache()

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: RecurrentCache | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Leave out the tokens that a given state has seen, which transformers does only if there is a mask of all."""
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        unmasked = kwargs.get(self.mask_of_written) is None
        if next_sequence_length is None and unmasked and input_ids.shape[1] > seen:
            next_sequence_length = input_ids.shape[1] - seen
        return super().prepare_inputs_for_generation(  # type: ignore[misc]
            input_ids, next_sequence_length=next_sequence_length, past_key_values=past_key_values, **kwargs
        )
