"""The recurrent decoder: cells, attention over the encoder's states, and a readout of each state.

It has two paths with the same result. The fused path runs each layer over the whole target; it needs all inputs
beforehand, so it is taken unless a step reads what the step before it has computed: an attended context at the input,
tokens fed back by scheduled sampling, or a state that masked tokens must not change.

    step                   fused path: all positions at once          step-wise path: position t
    ────────────────────   ────────────────────────────────────────   ──────────────────────────────────────────
    1 previous state       (after 3: the outputs of the query layer,  context = attend(h[t−1])
      queries the source    shifted by one position)
            │
    2 input                x = [embeddings ; fixed context]           x = [embedding ; context or fed-back state]
            │
    3 cells                nn.LSTM, nn.GRU or nn.RNN, by layer        h[t] = lstm_cell …, by layer
            │
    4 current state        context = attend(outputs)                  context = attend(h[t])
      queries the source
            │
    5 state                top = tanh(W [outputs ; context])          top = tanh(W [h[t] ; context])
            │
    6 readout              tanh(W [top ; context ; embeddings])       tanh(W [top ; context ; embedding])

Which steps there are, the configuration decides: `attention_query` chooses between 1 and 4, `context_to` decides where
the context enters (2, upper layers of 3, 5, 6).

Shapes in comments: batch, target and source (positions), embedding (width of a decoder input), hidden (width of a
decoder state), layers (of the decoder), heads, key_size and encoder_size (width of the encoder's output). A beam search
may pass several rows of the target for each row of the source.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions, ModelOutput
from transformers.utils.generic import can_return_tuple

from .attention import SCORES, Attention, AttentionMemory
from .configuration_rnn_seq2seq import RNNDecoderConfig
from .recurrent import (
    Dropout,
    RecurrentCache,
    RecurrentPreTrainedModel,
    add_noise,
    cell_step,
    left_align_index,
    recurrent_layer,
    run_with_state,
    state_of,
)

State = dict[str, Tensor]
"""The state of the decoder by name: `hidden` and, for an LSTM, `cell` (batch, layers, hidden each); with input feeding
also `feed` (batch, feed size), which enters the input of the next step."""

Feedback = Callable[[Tensor, Tensor], Tensor]
"""`feedback(readout, true_input)` → the next input: what the model has just predicted, or the true one. All are
(batch, width)."""

# ---- what an encoder hands over --------------------------------------------------------------------------------------


@dataclass
class RNNEncoderOutput(ModelOutput):
    """What an encoder passes to the decoder. Every tensor is batch-first, so that beams can be expanded."""

    last_hidden_state: Tensor | None = None  # (batch, source, encoder_size)
    final_hidden: Tensor | None = None  # (batch, encoder layers, encoder_size)
    final_cell: Tensor | None = None  # (batch, encoder layers, encoder_size), LSTM only
    memory_keys: Tensor | None = None  # (batch, source, key_size), with attention
    memory_values: Tensor | None = None  # (batch, source, encoder_size), with attention
    memory_mask: Tensor | None = None  # (batch, source), where states do not correspond to tokens of the source
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None  # always None; generate() of transformers reads it


class RNNEncoder(nn.Module):
    """Base of the encoders: puts what they compute into the form that the decoder takes."""

    config: RNNDecoderConfig
    memory: AttentionMemory | None

    def encoded(
        self,
        states: Tensor,
        hidden: Tensor,
        cell: Tensor | None,
        memory_mask: Tensor | None = None,
        hidden_states: Sequence[Tensor] = (),
        output_hidden_states: bool | None = None,
    ) -> RNNEncoderOutput:
        """The output of the encoder, with keys and values if there is attention.

        Args:
            states: One state for each position of the source, (batch, source, encoder_size).
            hidden, cell: Final states of the layers, (batch, encoder layers, encoder_size); only an LSTM has a `cell`.
            memory_mask: True where there is a state to attend to, (batch, source); it replaces the decoder's
                `encoder_attention_mask` where states do not correspond to tokens of the source.
            hidden_states: Input and outputs of the layers, for `output_hidden_states`.
            output_hidden_states: Whether to return them; by default as in the config.
        """
        keys, values = (None, None) if self.memory is None else self.memory(states)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return RNNEncoderOutput(
            last_hidden_state=states,
            final_hidden=hidden,
            final_cell=cell,
            memory_keys=keys,
            memory_values=values,
            memory_mask=memory_mask,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
        )


class RNNPreTrainedModel(RecurrentPreTrainedModel):
    """Base of all models with the recurrent decoder."""

    config: RNNDecoderConfig

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Attention):
            module.init_weights()
        else:
            super()._init_weights(module)


def attention_memory(config: RNNDecoderConfig) -> AttentionMemory | None:
    """The module that projects an encoder's states to keys and values; None without attention."""
    if not config.uses_attention:
        return None
    return AttentionMemory(
        config.attention, config.encoder_size, config.key_size, config.attention_layers, config.attention_values
    )


# ---- into and out of the decoder's state -----------------------------------------------------------------------------


def concat_present(*parts: Tensor | None) -> Tensor:
    """The parts that are not None, concatenated along the last dimension."""
    present = [part for part in parts if part is not None]
    return present[0] if len(present) == 1 else torch.cat(present, dim=-1)


def stack_state(hiddens: list[Tensor], cells: list[Tensor | None]) -> State:
    """The state of all layers, (batch, layers, hidden) each, from (batch, hidden) of each layer."""
    state = {"hidden": torch.stack(hiddens, dim=1)}
    present = [cell for cell in cells if cell is not None]
    return {**state, "cell": torch.stack(present, dim=1)} if present else state


class StateBridge(nn.Module):
    """Turns the encoder's final state into the decoder's initial one.

    With `bridge: copy`, layer i starts from that of layer i. With `bridge: mlp`, all layers start from that of the top
    layer: the hidden state through a tanh layer, the cell of an LSTM, which has no bounds, through a linear one.
    """

    def __init__(self, config: RNNDecoderConfig):
        super().__init__()
        self.layers = config.decoder_layers
        size = config.decoder_layers * config.hidden_size
        uses_mlp = config.bridge == "mlp"
        self.hidden = nn.Linear(config.encoder_size, size) if uses_mlp else None
        self.cell = nn.Linear(config.encoder_size, size) if uses_mlp and config.cell == "lstm" else None

    def forward(self, encoder_outputs: RNNEncoderOutput) -> State:
        hidden, cell = encoder_outputs.final_hidden, encoder_outputs.final_cell  # (batch, encoder layers, encoder_size)
        if self.hidden is not None:  # from the top layer of the encoder to all layers of the decoder
            hidden = torch.tanh(self.hidden(hidden[:, -1])).unflatten(-1, (self.layers, -1))
            cell = None if self.cell is None else self.cell(cell[:, -1]).unflatten(-1, (self.layers, -1))
        state = {"hidden": hidden}  # (batch, layers, hidden)
        return state if cell is None else {**state, "cell": cell}


class Readout(nn.Module):
    """Turns the decoder's state into the output layer's input.

    It is the state itself, or a tanh layer over the state and, where they are asked for, the context (`context_to:
    [readout]`) and the decoder's input (`readout_embedding`). A tied output layer of another width needs it, too.
    """

    def __init__(self, config: RNNDecoderConfig):
        super().__init__()
        self.sees_context = "readout" in config.context_to
        self.sees_input = config.readout_sees_input
        size = config.hidden_size + self.sees_context * config.encoder_size
        size += self.sees_input * config.decoder_input_size
        self.size = config.readout_size
        self.projection = nn.Linear(size, self.size) if size != self.size or self.sees_context else None
        self.dropout = Dropout(config.dropout)

    def forward(self, state: Tensor, context: Tensor | None, embedding: Tensor) -> Tensor:
        if self.projection is None:
            return self.dropout(state)  # (…, hidden)
        x = concat_present(state, context if self.sees_context else None, embedding if self.sees_input else None)
        return self.dropout(torch.tanh(self.projection(x)))  # (…, size)


# ---- the decoder -----------------------------------------------------------------------------------------------------


class _Source:
    """The source as each step of the decoder sees it."""

    def __init__(self, encoder_outputs: RNNEncoderOutput, attention_mask: Tensor | None):
        self.keys, self.values = encoder_outputs.memory_keys, encoder_outputs.memory_values
        self.fixed_context = encoder_outputs.final_hidden[:, -1]  # (batch, encoder_size)
        mask = attention_mask if encoder_outputs.memory_mask is None else encoder_outputs.memory_mask
        self.mask = None if mask is None else mask.bool()  # (batch, source)


@dataclass
class _Step:
    """The result of one step of the step-wise path."""

    state: State
    top: Tensor  # (batch, hidden): the top layer's state, joined with the context on request
    context: Tensor | None  # (batch, encoder_size)
    weights: Tensor | None  # (batch, heads, 1, source)


@dataclass
class _Trace:
    """What a path has computed on the way, for `output_hidden_states` and `output_attentions`."""

    hiddens: list[Tensor]  # (batch, target, hidden) for each layer
    weights: Tensor | None  # (batch, heads, target, source)


class RNNDecoder(nn.Module):
    """Decodes the target from an encoder's output, by the fused or the step-wise path."""

    stepwise = False
    """Always take the step-wise path: `kit verify` compares the two."""

    def __init__(self, config: RNNDecoderConfig):
        super().__init__()
        self.config = config
        self.query_is_previous_state = config.attention_query == "previous"
        self.context_to_input = "input" in config.context_to
        self.context_to_next_layer = "next_layer" in config.context_to
        # a context that is known only after the cells enters the input of the next step (Luong's input feeding)
        self.input_feeding = self.context_to_input and config.uses_attention and not self.query_is_previous_state
        # with `state` in context_to, the joined state is fed, as in the paper; otherwise the context
        self.feed_size = config.hidden_size if "state" in config.context_to else config.encoder_size
        # the context must be known before the layers that read it
        self.query_layer = 0 if self.context_to_next_layer else config.decoder_layers - 1

        context_size = self.feed_size if self.input_feeding else config.encoder_size
        input_size = config.decoder_input_size + self.context_to_input * context_size
        upper_size = config.hidden_size + self.context_to_next_layer * config.encoder_size
        # initial weights follow the order of construction
        self.embed_tokens = self._target_embeddings(config)
        self.layers = nn.ModuleList(
            recurrent_layer(config.cell, input_size if i == 0 else upper_size, config.hidden_size)
            for i in range(config.decoder_layers)
        )
        self.attention: Attention | None = None
        if config.uses_attention:
            self.attention = SCORES[config.attention](
                config.hidden_size, config.key_size, config.num_attention_heads, config.attention_layers
            )
        self.combine = (
            nn.Linear(config.hidden_size + config.encoder_size, config.hidden_size)
            if "state" in config.context_to
            else None
        )
        self.bridge = StateBridge(config)
        self.readout = Readout(config)
        self.dropout = Dropout(config.dropout)

    @staticmethod
    def _target_embeddings(config: Any) -> nn.Embedding | None:
        """None for a decoder of numbers, and for one that shares the encoder's word embeddings."""
        if not config.has_target_embeddings:
            return None
        return nn.Embedding(config.decoder_vocab_size, config.word_embedding_size, config.pad_token_id)

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
        feedback: Feedback | None = None,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode the target.

        Args:
            inputs_embeds: Inputs of the decoder, (batch, target, embedding).
            encoder_outputs: What the encoder returned.
            encoder_attention_mask: 1 at the positions of the source that attention may see, (batch, source).
            attention_mask: 0 where an input leaves the state unchanged, (batch, past + target).
            past_key_values: The state to continue from; by default, that of the bridge.
            use_cache: Return the state after the last input; by default as in the config, but not in training.
            feedback: Makes each input but the first one, instead of `inputs_embeds` alone (scheduled sampling).

        Returns:
            The readouts (batch, target, readout size) as `last_hidden_state`, and `cross_attentions`, one tensor
            (batch, heads, target, source) for the single layer that attends.
        """
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        embeds = self.regularize(inputs_embeds)  # (batch, target, embedding)
        state = self._initial_state(encoder_outputs, past_key_values, embeds)
        source = _Source(encoder_outputs, encoder_attention_mask)
        mask = self._state_mask(attention_mask, embeds.shape[1], use_cache)

        reads_attention = self.context_to_input and self.attention is not None
        if self.stepwise or reads_attention or feedback is not None or mask is not None:
            readout, trace, state = self._run_steps(embeds, source, state, mask, feedback)
        else:
            readout, trace, state = self._run_fused(embeds, source, state)

        if use_cache:
            past_key_values = RecurrentCache() if past_key_values is None else past_key_values
            past_key_values.store(state, embeds.shape[1])
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=readout,
            past_key_values=past_key_values if use_cache else None,
            hidden_states=(embeds, *trace.hiddens) if output_hidden_states else None,
            cross_attentions=(trace.weights,) if output_attentions and trace.weights is not None else None,
        )

    def regularize(self, embeds: Tensor) -> Tensor:
        """Embeddings with noise and dropout while training."""
        return self.dropout(add_noise(embeds, self.config.embedding_noise, self.training))

    def _initial_state(self, encoder_outputs: RNNEncoderOutput, cache: RecurrentCache | None, embeds: Tensor) -> State:
        """The state in the cache or, before the first token, the one that the bridge makes."""
        before = state_of(cache)
        if before:
            return {name: tensor.to(embeds.device) for name, tensor in before.items()}
        state = self.bridge(encoder_outputs)
        if self.input_feeding:
            state["feed"] = embeds.new_zeros(embeds.shape[0], self.feed_size)
        return state

    def _state_mask(self, attention_mask: Tensor | None, length: int, use_cache: bool) -> Tensor | None:
        """The mask (batch, target) of the tokens that change the state; None where it makes no difference."""
        if attention_mask is None:
            return None
        mask = attention_mask[:, -length:].bool()
        # right padding cannot reach any token before it, but it does reach a state that is kept
        return None if mask.all() or (not use_cache and left_align_index(mask) is None) else mask

    def _run_fused(self, embeds: Tensor, source: _Source, state: State) -> tuple[Tensor, _Trace, State]:
        """All target positions at once, layer by layer."""
        # without attention, the queries only count: the context is the same for each
        context, weights = self._attend(embeds, source) if self.attention is None else (None, None)
        # 2. input: embeddings, and a fixed context (an attended one at the input takes the step-wise path)
        x = concat_present(embeds, context if self.context_to_input else None)  # (batch, target, input)
        hiddens: list[Tensor] = []
        cells: list[Tensor | None] = []
        outputs: list[Tensor] = []
        # 3. cells
        for i, layer in enumerate(self.layers):
            if i > 0:
                x = concat_present(self.dropout(outputs[-1]), context if self.context_to_next_layer else None)
            first = state["hidden"][:, i]  # (batch, hidden)
            cell = state["cell"][:, i] if "cell" in state else None
            output, hidden, cell = run_with_state(layer, x, None, first, cell)
            # 1. or 4. queries: the states before each position, or those at it
            if self.attention is not None and i == self.query_layer:
                query = output
                if self.query_is_previous_state:
                    query = torch.cat([first.unsqueeze(1), output[:, :-1]], dim=1)
                context, weights = self._attend(query, source)  # (batch, target, encoder_size)
            outputs.append(output)  # (batch, target, hidden)
            hiddens.append(hidden)
            cells.append(cell)
        # 5. state
        top = self._combine(outputs[-1], context)  # (batch, target, hidden)
        # 6. readout
        return self.readout(top, context, embeds), _Trace(outputs, weights), stack_state(hiddens, cells)

    def _run_steps(
        self, embeds: Tensor, source: _Source, state: State, mask: Tensor | None, feedback: Feedback | None
    ) -> tuple[Tensor, _Trace, State]:
        """One target position after the other."""
        steps: list[_Step] = []
        readouts: list[Tensor] = []
        for t in range(embeds.shape[1]):
            embed = embeds[:, t]  # (batch, embedding)
            if feedback is not None and t > 0:
                embed = feedback(readouts[-1], embed)
            step = self._step(embed, source, state)
            if mask is not None:  # a masked token leaves the state unchanged
                step.state = {
                    name: torch.where(mask[:, t].view(-1, *[1] * (new.dim() - 1)), new, state[name])
                    for name, new in step.state.items()
                }
            state = step.state
            steps.append(step)
            if feedback is not None:
                readouts.append(self.readout(step.top, step.context, embed))
        # 6. readout: all positions in one product, unless feedback needed them one by one
        if feedback is not None:
            readout = torch.stack(readouts, dim=1)  # (batch, target, readout size)
        else:
            contexts = [step.context for step in steps if step.context is not None]
            context = torch.stack(contexts, dim=1) if contexts else None  # (batch, target, encoder_size)
            readout = self.readout(torch.stack([step.top for step in steps], dim=1), context, embeds)
        hiddens = [torch.stack([step.state["hidden"][:, i] for step in steps], dim=1) for i in range(len(self.layers))]
        weights = [step.weights for step in steps if step.weights is not None]
        return readout, _Trace(hiddens, torch.cat(weights, dim=2) if weights else None), state

    def _step(self, embed: Tensor, source: _Source, state: State) -> _Step:
        """Steps 1 to 5 for one token: embed (batch, embedding)."""

        def attend(hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
            context, weights = self._attend(hidden.unsqueeze(1), source)
            return None if context is None else context.squeeze(1), weights

        context, weights = None, None
        # 1. the previous state queries the source, or the context is fixed
        if self.attention is None or self.query_is_previous_state:
            context, weights = attend(state["hidden"][:, self.query_layer])
        # 2. input
        extra = state["feed"] if self.input_feeding else context
        x = concat_present(embed, extra if self.context_to_input else None)  # (batch, input)
        # 3. cells
        hiddens: list[Tensor] = []
        cells: list[Tensor | None] = []
        for i, layer in enumerate(self.layers):
            if i > 0:
                x = concat_present(self.dropout(hiddens[-1]), context if self.context_to_next_layer else None)
            cell = state["cell"][:, i] if "cell" in state else None
            hidden, cell = cell_step(layer, x, state["hidden"][:, i], cell)  # (batch, hidden)
            # 4. the current state queries the source
            if self.attention is not None and not self.query_is_previous_state and i == self.query_layer:
                context, weights = attend(hidden)
            hiddens.append(hidden)
            cells.append(cell)
        # 5. state
        new, top = stack_state(hiddens, cells), self._combine(hiddens[-1], context)  # top (batch, hidden)
        if self.input_feeding:
            assert context is not None
            new["feed"] = context if self.combine is None else top
        return _Step(new, top, context, weights)

    def _attend(self, query: Tensor, source: _Source) -> tuple[Tensor | None, Tensor | None]:
        """Context (batch, queries, encoder_size) and weights (batch, heads, queries, source) of query (batch, queries,
        hidden)."""
        if self.config.attention == "none":
            return None, None
        rows, queries = query.shape[:2]
        beams = rows // source.fixed_context.shape[0]
        if self.attention is None:
            return source.fixed_context.repeat_interleave(beams, dim=0).unsqueeze(1).expand(-1, queries, -1), None
        if beams == 1:
            return self.attention(query, source.keys, source.values, source.mask)
        # beams share their source: they are further queries of its row
        query = query.reshape(-1, beams * queries, query.shape[-1])
        context, weights = self.attention(query, source.keys, source.values, source.mask)
        weights = weights.unflatten(2, (beams, queries)).transpose(1, 2).flatten(0, 1)
        return context.reshape(rows, queries, -1), weights

    def _combine(self, state: Tensor, context: Tensor | None) -> Tensor:
        """tanh(W [state; context]), Luong's attentional state, if `context_to` has `state`; otherwise the state."""
        return state if self.combine is None else torch.tanh(self.combine(concat_present(state, context)))
