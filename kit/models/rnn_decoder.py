"""The recurrent decoder: cells, attention over the source, and the readout of each state.

It runs as fused layers over the whole target wherever no input waits for the last attention, and as a loop of cells
otherwise; both give the same result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import ModelOutput
from transformers.utils.generic import can_return_tuple

from .attention import Attention
from .configuration_rnn_decoder import RNNDecoderConfig
from .dropout import Dropout
from .recurrent import RecurrentCache, cell_step, real_tokens_first, recurrent_layer, run_layer
from .rnn_memory import RNNEncoderOutput, add_noise

State = dict[str, Tensor]
FeedBack = Callable[[Tensor, Tensor], Tensor]


def beside(*parts: Tensor | None) -> Tensor:
    """What there is of the parts, side by side along the last axis."""
    present = [part for part in parts if part is not None]
    return present[0] if len(present) == 1 else torch.cat(present, dim=-1)


def stack_state(hiddens: list[Tensor], cells: list[Tensor | None]) -> State:
    """The state of all layers, (batch, layers, hidden) each, from those of the single layers."""
    state = {"hidden": torch.stack(hiddens, dim=1)}
    held = [cell for cell in cells if cell is not None]
    return {**state, "cell": torch.stack(held, dim=1)} if held else state


@dataclass
class RNNDecoderOutput(ModelOutput):
    """One entry per target position in each tensor."""

    last_hidden_state: Tensor | None = None  # (batch, target, readout size): what the output layer sees
    past_key_values: RecurrentCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None  # none: a recurrent decoder does not attend to itself
    cross_attentions: tuple[Tensor, ...] | None = None  # one of (batch, heads, target, source)


class _Source:
    """The source as the decoder sees it at every step. The beams of a search share theirs: one for several rows."""

    def __init__(self, encoded: RNNEncoderOutput, attention_mask: Tensor | None):
        self.keys, self.values = encoded.keys, encoded.values
        self.fixed = encoded.final_hidden[:, -1]  # (batch, encoder_size)
        mask = attention_mask if encoded.memory_mask is None else encoded.memory_mask
        self.mask = None if mask is None else mask.bool()  # (batch, source)


@dataclass
class _Step:
    """One token: the state after it, the top state (with `state`: joined to the context), context and weights."""

    state: State
    top: Tensor  # (batch, hidden)
    context: Tensor | None  # (batch, encoder_size)
    weights: Tensor | None  # (batch, heads, 1, source)


@dataclass
class _Trace:
    hiddens: list[Tensor]  # per layer (batch, target, hidden)
    weights: Tensor | None  # (batch, heads, target, source)


def target_words(config: Any) -> nn.Embedding | None:
    """The decoder's own word vectors, where it writes text and does not share those of the encoder."""
    if not config.has_target_words:
        return None
    return nn.Embedding(config.decoder_vocab_size, config.word_vector_size, config.pad_token_id)


class StateHandover(nn.Module):
    """The decoder's first state from the encoder's final one."""

    def __init__(self, config: RNNDecoderConfig):
        super().__init__()
        self.layers = config.decoder_layers
        size = config.decoder_layers * config.hidden_size
        through_mlp = config.handover == "mlp"
        self.hidden = nn.Linear(config.encoder_size, size) if through_mlp else None
        self.cell = nn.Linear(config.encoder_size, size) if through_mlp and config.cell == "lstm" else None

    def forward(self, encoded: RNNEncoderOutput) -> State:
        hidden, cell = encoded.final_hidden, encoded.final_cell  # (batch, encoder layers, encoder_size)
        if self.hidden is not None:  # from the top layer to all decoder layers
            hidden = torch.tanh(self.hidden(hidden[:, -1])).unflatten(-1, (self.layers, -1))
            cell = None if self.cell is None else self.cell(cell[:, -1]).unflatten(-1, (self.layers, -1))
        state = {"hidden": hidden}  # (batch, decoder layers, hidden)
        return state if cell is None else {**state, "cell": cell}


class Readout(nn.Module):
    """What the output layer sees: the state, with the context and the previous embedding beside it on request."""

    def __init__(self, config: RNNDecoderConfig):
        super().__init__()
        self.sees_context = "readout" in config.context_to
        self.sees_embedding = config.sees_last_input
        size = config.hidden_size + self.sees_context * config.encoder_size
        size += self.sees_embedding * config.decoder_input_size
        self.size = config.readout_size
        self.join = nn.Linear(size, self.size) if size != self.size or self.sees_context else None
        self.dropout = Dropout(config.dropout)

    def forward(self, state: Tensor, context: Tensor | None, embedding: Tensor) -> Tensor:
        if self.join is None:
            return self.dropout(state)  # (…, hidden)
        seen = beside(state, context if self.sees_context else None, embedding if self.sees_embedding else None)
        return self.dropout(torch.tanh(self.join(seen)))  # (…, size)


class RNNSeq2SeqDecoder(nn.Module):
    """Writes the target, one token after the other; all tokens at once where nothing forbids it."""

    stepwise = False
    """Always loop over cells, also where fused layers would do: for the proof that both are equal."""

    def __init__(self, config: RNNDecoderConfig):
        super().__init__()
        self.config = config
        places = config.context_to
        self.has_context = config.attention != "none"
        self.asks_before = config.attention_query == "previous"
        # what enters the first cell beside the embedding: this step's context, or what the last step fed back
        self.to_input, self.to_next_layer = "input" in places, "next_layer" in places
        self.feeds_back = self.to_input and config.uses_attention and not self.asks_before
        self.loops = self.to_input and config.uses_attention
        # the context must be known before the layers that take it in
        self.query_layer = 0 if self.to_next_layer else config.decoder_layers - 1
        # with `state`, what is fed back is the joined state, as in Luong's input feeding
        self.feed_size = config.hidden_size if "state" in places else config.encoder_size
        extra = 0
        if self.to_input:
            extra = self.feed_size if self.feeds_back else config.encoder_size
        above = config.hidden_size + self.to_next_layer * config.encoder_size
        self.embed_tokens = target_words(config)
        self.layers = nn.ModuleList(
            recurrent_layer(config.cell, config.decoder_input_size + extra if i == 0 else above, config.hidden_size)
            for i in range(config.decoder_layers)
        )
        self.attention = (
            Attention(
                config.attention,
                config.hidden_size,
                config.key_size,
                config.attention_heads,
                config.attention_layers,
            )
            if config.uses_attention
            else None
        )
        self.join = (
            nn.Linear(config.hidden_size + config.encoder_size, config.hidden_size) if "state" in places else None
        )
        self.handover = StateHandover(config)
        self.readout = Readout(config)
        self.dropout = Dropout(config.dropout)

    @can_return_tuple
    def forward(
        self,
        inputs_embeds: Tensor,
        encoder_outputs: RNNEncoderOutput,
        encoder_attention_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        feed_back: FeedBack | None = None,
        **kwargs: Any,
    ) -> RNNDecoderOutput:
        """`feed_back(readout, true embedding)` makes the next input from this step's readout (scheduled sampling)."""
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        embeds = self.disturbed(inputs_embeds)  # (batch, target, embedding)
        length = embeds.shape[1]
        state = self._first_state(encoder_outputs, past_key_values, embeds)
        source = _Source(encoder_outputs, encoder_attention_mask)
        mask = None
        if attention_mask is not None:
            mask = attention_mask[:, -length:].bool()
            # padding behind the last token cannot reach any token before it, but it does reach a state that is kept
            if mask.all() or (not use_cache and real_tokens_first(mask) is None):
                mask = None

        steps = self.stepwise or self.loops or feed_back is not None or mask is not None
        if steps:
            readout, trace, state = self._run_steps(embeds, source, state, mask, feed_back)
        else:
            readout, trace, state = self._run_fused(embeds, source, state)
        if use_cache:
            past_key_values = RecurrentCache() if past_key_values is None else past_key_values
            past_key_values.store(state, length)
        wants_hidden = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        wants_weights = self.config.output_attentions if output_attentions is None else output_attentions
        return RNNDecoderOutput(
            last_hidden_state=readout,
            past_key_values=past_key_values if use_cache else None,
            hidden_states=(embeds, *trace.hiddens) if wants_hidden else None,
            cross_attentions=(trace.weights,) if wants_weights and trace.weights is not None else None,
        )

    def disturbed(self, embeds: Tensor) -> Tensor:
        """Embeddings as training sees them: with noise and dropout."""
        return self.dropout(add_noise(embeds, self.config.embedding_noise, self.training))

    def _first_state(self, encoded: RNNEncoderOutput, cache: RecurrentCache | None, embeds: Tensor) -> State:
        if cache is not None and cache.get_seq_length() > 0:
            return {name: tensor.to(embeds.device) for name, tensor in cache.state.items()}
        state = self.handover(encoded)
        if self.feeds_back:
            state["feed"] = embeds.new_zeros(embeds.shape[0], self.feed_size)
        return state

    def _attend(self, query: Tensor, source: _Source) -> tuple[Tensor | None, Tensor | None]:
        """Context (batch, queries, encoder_size) and weights of queries (batch, queries, hidden)."""
        if not self.has_context:
            return None, None
        rows, queries = query.shape[:2]
        beams = rows // len(source.fixed)
        if self.attention is None:
            return source.fixed.repeat_interleave(beams, dim=0).unsqueeze(1).expand(-1, queries, -1), None
        if beams == 1:
            return self.attention(query, source.keys, source.values, source.mask)
        together = query.reshape(-1, beams * queries, query.shape[-1])  # the beams as further queries of their source
        context, weights = self.attention(together, source.keys, source.values, source.mask)
        weights = (
            weights.unflatten(2, (beams, queries)).transpose(1, 2).flatten(0, 1)
        )  # (batch, heads, queries, source)
        return context.reshape(rows, queries, -1), weights

    def _run_fused(self, embeds: Tensor, source: _Source, state: State) -> tuple[Tensor, _Trace, State]:
        """All target positions at once, layer by layer."""
        context, weights = self._attend(embeds, source) if self.attention is None else (None, None)
        # only a fixed context can be at the input here: an attended one would need the loop
        x = beside(embeds, context if self.to_input else None)
        hiddens: list[Tensor] = []
        cells: list[Tensor | None] = []
        outputs: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            if i > 0:
                x = beside(self.dropout(outputs[-1]), context if self.to_next_layer else None)
            first = state["hidden"][:, i]
            output, hidden, cell = run_layer(layer, x, first, state["cell"][:, i] if "cell" in state else None)
            if self.attention is not None and i == self.query_layer:
                asking = torch.cat([first.unsqueeze(1), output[:, :-1]], dim=1) if self.asks_before else output
                context, weights = self._attend(asking, source)
            outputs.append(output)  # (batch, target, hidden)
            hiddens.append(hidden)
            cells.append(cell)
        top = self._join(outputs[-1], context)
        return self.readout(top, context, embeds), _Trace(outputs, weights), stack_state(hiddens, cells)

    def _run_steps(
        self, embeds: Tensor, source: _Source, state: State, mask: Tensor | None, feed_back: FeedBack | None
    ) -> tuple[Tensor, _Trace, State]:
        """One target position after the other."""
        steps: list[_Step] = []
        read: list[Tensor] = []
        for t in range(embeds.shape[1]):
            embed = embeds[:, t]  # (batch, embedding)
            if feed_back is not None and t > 0:
                embed = feed_back(read[-1], embed)
            step = self._step(embed, source, state)
            if mask is not None:  # a masked token leaves the state as it was
                step.state = {
                    name: torch.where(mask[:, t].view(-1, *[1] * (new.dim() - 1)), new, state[name])
                    for name, new in step.state.items()
                }
            state = step.state
            steps.append(step)
            if feed_back is not None:
                read.append(self.readout(step.top, step.context, embed))
        if feed_back is not None:
            readout = torch.stack(read, dim=1)
        else:  # one large product instead of many small ones
            contexts = [step.context for step in steps if step.context is not None]
            context = torch.stack(contexts, dim=1) if contexts else None  # (batch, target, encoder_size)
            readout = self.readout(torch.stack([step.top for step in steps], dim=1), context, embeds)
        hiddens = [torch.stack([step.state["hidden"][:, i] for step in steps], dim=1) for i in range(len(self.layers))]
        weights = [step.weights for step in steps if step.weights is not None]
        # (batch, heads, target, source)
        return readout, _Trace(hiddens, torch.cat(weights, dim=2) if weights else None), state

    def _step(self, embed: Tensor, source: _Source, state: State) -> _Step:
        """One token."""

        def ask(hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
            attended, weights = self._attend(hidden.unsqueeze(1), source)
            return None if attended is None else attended.squeeze(1), weights

        context, weights = None, None
        if self.attention is None or self.asks_before:
            context, weights = ask(state["hidden"][:, self.query_layer])
        fed = state["feed"] if self.feeds_back else context
        x = beside(embed, fed if self.to_input else None)
        hiddens: list[Tensor] = []
        cells: list[Tensor | None] = []
        for i, layer in enumerate(self.layers):
            if i > 0:
                x = beside(self.dropout(hiddens[-1]), context if self.to_next_layer else None)
            cell = state["cell"][:, i] if "cell" in state else None
            hidden, cell = cell_step(layer, x, state["hidden"][:, i], cell)
            if self.attention is not None and not self.asks_before and i == self.query_layer:
                context, weights = ask(hidden)
            hiddens.append(hidden)
            cells.append(cell)
        new, top = stack_state(hiddens, cells), self._join(hiddens[-1], context)  # top (batch, hidden)
        if self.feeds_back:
            assert context is not None
            new["feed"] = context if self.join is None else top
        return _Step(new, top, context, weights)

    def _join(self, state: Tensor, context: Tensor | None) -> Tensor:
        if self.join is None:
            return state
        return torch.tanh(self.join(beside(state, context)))
