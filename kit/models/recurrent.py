"""What all recurrent models share, in the order of this file:

    dropout and noise         `Dropout`, `add_noise`
    labels and loss           `shift_right`, `cross_entropy`
    recurrent layers          `recurrent_stack`; `cell_step`, one time step of a layer
    padded sequences          `run_stack` from zeros, `run_with_state` from a state: padding changes nothing
    state in `generate()`     `RecurrentCache`; `DecodingStep`, for `torch.export`
    base of the models        `RecurrentPreTrainedModel`, `RecurrentGenerationMixin`

It is one file, because every recurrent model is uploaded with all of it, in as few files as possible.

Shapes in comments: batch, time (positions of a sequence), hidden (width of a state in one direction), layers of a
stack, and width, the last dimension of anything else.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, CacheLayerMixin

# ---- dropout and noise -----------------------------------------------------------------------------------------------

DROPOUT_STEPS = 2**16
"""Number of values of the 16-bit random numbers behind `fast_dropout`: probabilities are rounded to 1/65,536."""


def fast_dropout(x: Tensor, p: float) -> Tensor:
    """Dropout with probability p. On a CPU, one draw of 64 bits decides for four elements.

    There, torch draws one random number per element, one after the other, which took a tenth of a training step. These
    draws come from torch's default generator, too, so that seeds keep their meaning.
    """
    dropped = round(p * DROPOUT_STEPS)
    if dropped == 0:
        return x
    if x.device.type != "cpu" or dropped == DROPOUT_STEPS or torch.compiler.is_compiling():
        return nn.functional.dropout(x, p)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - DROPOUT_STEPS // 2
    return x * keep.to(x.dtype).mul_(DROPOUT_STEPS / (DROPOUT_STEPS - dropped))


class Dropout(nn.Dropout):
    """`nn.Dropout` with `fast_dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        return fast_dropout(x, self.p) if self.training else x


def add_noise(x: Tensor, std: float, training: bool) -> Tensor:
    """x plus Gaussian noise with this standard deviation while training; otherwise x."""
    return x + std * torch.randn_like(x) if training and std > 0 else x


def float_dtype(module: nn.Module) -> torch.dtype:
    """The dtype in which a module computes: float32 if dynamic quantization has left no floating-point parameter."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


# ---- labels and loss -------------------------------------------------------------------------------------------------


def shift_right(labels: Tensor, start: int, pad: int) -> Tensor:
    """Decoder input of the labels: START, then each label but the last; ignored labels (−100) become PAD."""
    shifted = labels.new_full(labels.shape, start)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == -100, pad)


def cross_entropy(logits: Tensor, labels: Tensor, num_items: Tensor | int | None = None) -> Tensor:
    """Cross-entropy of labels (−100 is ignored), summed and divided by `num_items`, or by the number of labels."""
    # half precision is summed in float32; float64 stays float64
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    labels = labels.flatten().to(logits.device)
    total = nn.functional.cross_entropy(logits.flatten(0, 1), labels, ignore_index=-100, reduction="sum")
    return total / ((labels != -100).sum() if num_items is None else num_items)


# ---- recurrent layers ------------------------------------------------------------------------------------------------

LAYER_CLASSES = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def recurrent_layer(cell: str, input_size: int, hidden_size: int, bidirectional: bool = False) -> nn.RNNBase:
    """One fused recurrent layer, batch first."""
    return LAYER_CLASSES[cell](input_size, hidden_size, batch_first=True, bidirectional=bidirectional)


def recurrent_stack(
    cell: str, input_size: int, hidden_size: int, layers: int, bidirectional: bool = False
) -> nn.ModuleList:
    """Recurrent layers on top of each other; with two directions, each layer reads both of the one below."""
    width = hidden_size * (2 if bidirectional else 1)
    return nn.ModuleList(
        recurrent_layer(cell, input_size if i == 0 else width, hidden_size, bidirectional) for i in range(layers)
    )


def initialize_recurrent(layer: nn.RNNBase) -> None:
    """Initialize each gate: Xavier for the weights of the input, orthogonal for those of the state, zero biases.

    The forget gate of an LSTM has a bias of one, so that a new model remembers (Jozefowicz et al., 2015).
    """
    for name, parameter in layer.named_parameters():
        # transformers marks what it has loaded from a checkpoint; the chunks below would not carry this mark
        if getattr(parameter, "_is_hf_initialized", False):
            continue
        gates = parameter.chunk(parameter.shape[0] // layer.hidden_size)
        for gate in gates:
            if name.startswith("weight_ih"):
                init.xavier_uniform_(gate)
            elif name.startswith("weight_hh"):
                init.orthogonal_(gate)
            else:
                init.zeros_(gate)
        if isinstance(layer, nn.LSTM) and name.startswith("bias_ih"):
            init.ones_(gates[1])  # torch orders the gates of an LSTM as input, forget, cell, output


def cell_step(layer: nn.Module, x: Tensor, hidden: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """One time step with the weights of a fused layer.

    x (batch, input), hidden and cell (batch, hidden) → the new hidden and cell; only an LSTM has a `cell`.
    """
    # adapters of peft, quantized weights and the hooks of accelerate act only where the module itself is called
    if not isinstance(layer, nn.RNNBase) or hasattr(layer, "_hf_hook"):
        return run_with_state(layer, x.unsqueeze(1), None, hidden, cell)[1:]
    weights = (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0)
    return weighted_step(layer, x, hidden, cell, weights)


def weighted_step(
    layer: nn.RNNBase, x: Tensor, hidden: Tensor, cell: Tensor | None, weights: Any
) -> tuple[Tensor, Tensor | None]:
    """`cell_step` with these weights: those of input and state and the two biases, of one direction of the layer."""
    if isinstance(layer, nn.LSTM):
        assert cell is not None
        return torch.lstm_cell(x, (hidden, cell), *weights)
    step = torch.gru_cell if isinstance(layer, nn.GRU) else torch.rnn_tanh_cell
    return step(x, hidden, *weights), None


# ---- padded sequences ------------------------------------------------------------------------------------------------


def left_align_index(mask: Tensor, reverse: bool = False) -> Tensor | None:
    """Index (batch, time) that moves the real tokens of each row to the front, in order or reversed.

    None when they are there already: the usual case of right padding.
    """
    # a graph cannot depend on values: there, also tokens in the right place are moved
    if not reverse and not torch.compiler.is_exporting() and not (mask[:, 1:] > mask[:, :-1]).any():
        return None
    position = torch.arange(mask.shape[1], device=mask.device)
    rank = (-position if reverse else position).expand_as(mask)
    return torch.where(mask, rank, rank.max() + 1 + position).argsort(dim=1)


def gather_time(x: Tensor, index: Tensor | None) -> Tensor:
    """x (batch, time, width) in the order of index (batch, time); None keeps the order."""
    return x if index is None else x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def last_real_step(x: Tensor, mask: Tensor) -> Tensor:
    """The last step (batch, width) of x (batch, time, width) where mask (batch, time) is true; the first if none is."""
    position = torch.arange(mask.shape[1], device=mask.device)
    return x[torch.arange(x.shape[0], device=x.device), (position * mask).argmax(1)]


def run_packed(layer: nn.Module, x: Tensor, lengths: Tensor | None, state: Any = None) -> tuple[Tensor, Any]:
    """Run a layer over right-padded rows, from a state or from zeros.

    Returns the outputs, zero at padding, and the final state, as a layer of torch does.
    `lengths` (batch,) are on the CPU, or None where nothing is padded: the fused kernels are faster on plain tensors.
    """
    if torch.compiler.is_exporting():
        return run_scanned(layer, x, lengths, state)
    if lengths is None:
        return layer(x, state)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    packed_outputs, final = layer(packed, state)
    return pad_packed_sequence(packed_outputs, batch_first=True, total_length=x.shape[1])[0], final


def run_scanned(layer: Any, x: Tensor, lengths: Tensor | None, state: Any) -> tuple[Tensor, Any]:
    """`run_packed` as a graph for sequences of any length, for `torch.export`, which can trace neither packed sequences
    nor the loop within the fused kernels."""
    from torch._higher_order_ops.scan import scan  # has no public name yet

    if not isinstance(layer, nn.RNNBase):
        raise ValueError(f"cannot export a {type(layer).__name__}: merge the adapter first")
    mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    if lengths is not None:
        mask = torch.arange(x.shape[1], device=x.device) < lengths.to(x.device).unsqueeze(1)  # (batch, time)
    steps = (x.transpose(0, 1), mask.t().unsqueeze(-1))  # (time, batch, …)
    outputs, finals = [], []
    for direction in range(2 if layer.bidirectional else 1):
        names = (f"{name}_l0{'_reverse' * direction}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        weights = [getattr(layer, name) for name in names]
        if state is None:
            zeros = x.new_zeros(x.shape[0], layer.hidden_size)
            carried = [zeros, zeros.clone()] if isinstance(layer, nn.LSTM) else [zeros]
        else:  # (directions, batch, hidden) each
            carried = [part[direction] for part in (state if isinstance(state, tuple) else (state,))]

        def step(carried: list[Tensor], inputs: tuple[Tensor, Tensor], weights: Any = weights) -> Any:
            x, real = inputs  # (batch, input), (batch, 1)
            new = weighted_step(layer, x, carried[0], carried[1] if len(carried) == 2 else None, weights)
            after = [torch.where(real, now, before) for now, before in zip(new, carried, strict=False)]
            return after, torch.where(real, after[0], 0.0)

        if x.shape[1] == 1:
            final, output = step(carried, (steps[0][0], steps[1][0]))
            output = output.unsqueeze(0)
        else:
            final, output = scan(step, carried, steps, reverse=bool(direction))
        outputs.append(output.transpose(0, 1))  # (batch, time, hidden)
        finals.append(final)
    hidden, *cell = (torch.stack(parts) for parts in zip(*finals, strict=True))  # (directions, batch, hidden)
    return torch.cat(outputs, dim=-1), (hidden, *cell) if cell else hidden


def run_padded(layer: nn.Module, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run a layer over right-padded rows so that padding changes nothing.

    x (batch, time, input), lengths (batch,) on the CPU → outputs (batch, time, directions · hidden), zero at padding,
    and the final hidden and cell (batch, directions · hidden) of each row's last real token.
    """
    is_padded = torch.compiler.is_exporting() or bool((lengths < x.shape[1]).any())
    outputs, final = run_packed(layer, x, lengths if is_padded else None)
    hidden, cell = final if isinstance(final, tuple) else (final, None)

    def join(state: Tensor) -> Tensor:  # (directions, batch, hidden) → (batch, directions · hidden)
        return state.transpose(0, 1).flatten(1)

    return outputs, join(hidden), None if cell is None else join(cell)


@dataclass
class StackOutput:
    """The states of a stack of layers over a batch of sequences."""

    states: list[Tensor]  # the input and the outputs of each layer: (batch, time, width) each
    hidden: Tensor  # (batch, layers, width), after the last real step
    cell: Tensor | None  # the same, LSTM only


def run_stack(layers: nn.ModuleList, dropout: nn.Module, x: Tensor, mask: Tensor, reverse: bool = False) -> StackOutput:
    """Run layers over x (batch, time, input) where mask (batch, time) is true, in order or from the end.

    Padding, on either side, changes nothing. Each state stays at the position of its input, in both orders. `dropout`
    is applied between layers.
    """
    # torch packs no empty sequence: an empty row is read as one step, which whoever reads the result masks
    lengths = mask.sum(1).clamp(min=1).cpu()
    order = left_align_index(mask, reverse)
    inverse = None if order is None else order.argsort(dim=1)
    states, hiddens, cells = [x], [], []
    for i, layer in enumerate(layers):
        # each layer reads the state that is returned, not a copy from before it was put in order: a gradient reaches it
        x = gather_time(states[-1], order)
        if i > 0:
            x = dropout(x)
        x, hidden, cell = run_padded(layer, x, lengths)  # (batch, time, width)
        states.append(gather_time(x, inverse))
        hiddens.append(hidden)
        if cell is not None:
            cells.append(cell)
    return StackOutput(states, torch.stack(hiddens, dim=1), torch.stack(cells, dim=1) if cells else None)


def run_with_state(
    layer: nn.Module,
    x: Tensor,
    lengths: Tensor | None,
    hidden: Tensor,
    cell: Tensor | None,
    weight_dropout: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Continue a one-directional layer from a state, over right-padded rows.

    x (batch, time, input), hidden and cell (batch, hidden; only an LSTM has a `cell`) → outputs (batch, time, hidden)
    and the state after each row's last real token; `lengths` (batch,) is None where nothing is padded.
    """
    state: Any = hidden.unsqueeze(0).contiguous()
    if cell is not None:  # not by the class of the layer, which an adapter of peft may wrap
        state = (state, cell.unsqueeze(0).contiguous())
    # torch packs no empty sequence: a row without a real token is read as one, and keeps its state
    packed_lengths = None if lengths is None else lengths.clamp(min=1).cpu()
    with dropped_recurrent_weights(layer, weight_dropout):
        outputs, final = run_packed(layer, x, packed_lengths, state)
    new_hidden, new_cell = (final[0], None) if cell is None else (final[0][0], final[1][0])
    if lengths is not None:
        has_tokens = (lengths > 0).unsqueeze(1)
        new_hidden = torch.where(has_tokens, new_hidden, hidden)
        new_cell = None if new_cell is None else torch.where(has_tokens, new_cell, cell)
    return outputs, new_hidden, new_cell


@contextmanager
def dropped_recurrent_weights(layer: Any, probability: float) -> Iterator[None]:
    """Context manager: DropConnect on the weights from state to state inside the block (Merity et al., 2018)."""
    if probability == 0:
        yield
        return
    if not hasattr(layer, "_flat_weights"):
        raise ValueError("weight_dropout drops weights that an adapter changes: set it to 0, or do not adapt the layer")
    # torch's fused kernels read this list, so the parameters themselves stay untouched. It is changed in place: a new
    # one would be set on the wrapper of a layer that peft trains in full, not on the layer.
    flat, weights = layer._flat_weights, list(layer._flat_weights)
    flat[:] = [
        nn.functional.dropout(weight, probability) if name.startswith("weight_hh") else weight
        for name, weight in zip(layer._flat_weights_names, weights, strict=True)
    ]
    try:
        yield
    finally:
        flat[:] = weights


# ---- the state in `generate()` ---------------------------------------------------------------------------------------


class RecurrentCacheLayer(CacheLayerMixin):
    """The state of a recurrent decoder as named batch-first tensors.

    To `generate()` it is a single layer, however many the decoder has. A state has no time axis: it does not grow and
    cannot be cropped.
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
        """Does nothing: the model moves the small state to its device when it reads it."""


class RecurrentCache(Cache):
    """The state of a recurrent decoder in the form of transformers' `Cache`, as `past_key_values` of `generate()`."""

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


def state_of(cache: Any) -> dict[str, Tensor]:
    """The state in `past_key_values`, empty if that is None. Raises ValueError for a cache of keys and values."""
    if cache is None:
        return {}
    # not by its class: a model that is loaded with the code in its folder has a `RecurrentCache` of its own
    if not hasattr(cache, "state"):
        raise ValueError(
            f"past_key_values is a {type(cache).__name__}, for keys and values, but this model carries a recurrent "
            "state: pass what the model returned as past_key_values, or leave it out"
        )
    return cache.state


class DecodingStep(nn.Module):
    """One decoding step of a recurrent model as a function of tensors, for `torch.export`: a graph takes no cache."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(
        self, token: Tensor, state: dict[str, Tensor], encoder_outputs: Any = None, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Read one token.

        Args:
            token: The new token of each row, (batch, 1).
            state: The state that the step before returned; empty before the first token.
            encoder_outputs: What the encoder returned; for an encoder-decoder only.
            attention_mask: The mask that the encoder received, (batch, source).

        Returns:
            The logits of the next token (batch, vocabulary), and the state after this one.
        """
        cache = RecurrentCache()
        cache.store(state, 0)
        inputs: dict[str, Any] = {"input_ids": token}
        if encoder_outputs is not None:
            inputs = {"decoder_input_ids": token, "encoder_outputs": encoder_outputs}
        if attention_mask is not None:
            inputs["attention_mask"] = attention_mask
        outputs = self.model(**inputs, past_key_values=cache, use_cache=True)
        return outputs.logits[:, -1], outputs.past_key_values.state


# ---- the base of recurrent models ------------------------------------------------------------------------------------


class RecurrentPreTrainedModel(PreTrainedModel):
    """Base of all recurrent models: initial weights, and the code that is saved with a model."""

    base_model_prefix = "model"
    main_input_name = "input_ids"
    # assisted decoding would have to take tokens back, and a state does not hold its past: transformers then refuses
    _is_stateful = True
    supports_gradient_checkpointing = False

    auto_model: ClassVar[str | None] = None
    """Name of the class in the same file that `AutoModel` loads; None if there is none."""

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.RNNBase):
            initialize_recurrent(module)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        else:
            super()._init_weights(module)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save the model. If its code is saved too, `auto_map` also gets the class without a head for `AutoModel`:
        transformers lists only the saved class."""
        if self._auto_class is not None and self.auto_model is not None:
            reference = f"{type(self).__module__.rpartition('.')[2]}.{self.auto_model}"
            self.config.auto_map = {**(getattr(self.config, "auto_map", None) or {}), "AutoModel": reference}
        super().save_pretrained(*args, **kwargs)


class RecurrentGenerationMixin:
    """How `generate()` carries the state of a recurrent model. List it before `GenerationMixin`."""

    config: Any

    # a loss takes `num_items_in_batch`; without this mark the Trainer believes it only of a forward with **kwargs
    accepts_loss_kwargs = True

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Use a recurrent state instead of keys and values."""
        if generation_config.cache_implementation is not None:
            raise ValueError("cache_implementation is for keys and values: a recurrent decoder has a state")
        cache = model_kwargs.get("past_key_values")
        if cache is not None:
            cache._is_user_defined = True  # as transformers marks a cache that it must not reset
        elif generation_config.use_cache:
            model_kwargs["past_key_values"] = RecurrentCache()

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: RecurrentCache | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Skip the tokens that the state has read; transformers does so only if a mask covers all tokens.

        transformers looks for `inputs_embeds` in this signature before it takes them for a prompt.
        """
        mask_name = "decoder_attention_mask" if self.config.is_encoder_decoder else "attention_mask"
        tokens_read = 0 if past_key_values is None else past_key_values.get_seq_length()
        if next_sequence_length is None and kwargs.get(mask_name) is None and input_ids.shape[1] > tokens_read:
            next_sequence_length = input_ids.shape[1] - tokens_read
        return super().prepare_inputs_for_generation(  # type: ignore[misc]
            input_ids,
            next_sequence_length=next_sequence_length,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
