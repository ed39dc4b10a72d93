"""The recurrent encoder-decoder as a `PreTrainedModel`.

    source tokens ─► Encoder ─► states, keys and values, final state
                                   │                        │ StateHandover
    START + target ─► Decoder: cells + Attention ◄──────────┘
                                   └─► Readout ─► lm_head ─► logits

The decoder runs as fused layers over the whole target wherever no input waits for the last attention, and as a
loop of cells otherwise; both give the same result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import ModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from .attention import Attention, AttentionMemory
from .configuration_rnn_seq2seq import RNNSeq2SeqConfig
from .recurrent import (
    RecurrentCache,
    cell_step,
    gather_time,
    initialize_recurrent,
    read_padded,
    real_tokens_first,
    recurrent_layer,
    run_layer,
)

State = dict[str, Tensor]


def shift_right(labels: Tensor, start: int, pad: int) -> Tensor:
    """Decoder input of the labels: START, then each label but the last; ignored labels (−100) become PAD."""
    shifted = labels.new_full(labels.shape, start)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == -100, pad)


@dataclass
class RNNEncoderOutput(ModelOutput):
    """What the decoder needs of the source. Every tensor is batch-first, so that beams can be expanded."""

    last_hidden_state: Tensor | None = None  # (batch, source, encoder_size)
    final_hidden: Tensor | None = None  # (batch, layers, encoder_size)
    final_cell: Tensor | None = None  # (batch, layers, encoder_size), LSTM only
    keys: Tensor | None = None  # (batch, source, key_size), with attention
    values: Tensor | None = None  # (batch, source, encoder_size), with attention
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None  # none: the name is there because transformers reads it


@dataclass
class RNNDecoderOutput(ModelOutput):
    """One entry per target position in each tensor."""

    last_hidden_state: Tensor | None = None  # (batch, target, readout size): what the output layer sees
    past_key_values: RecurrentCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None  # one of (batch, heads, target, source)


class RNNSeq2SeqPreTrainedModel(PreTrainedModel):
    config: RNNSeq2SeqConfig
    config_class = RNNSeq2SeqConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    # a state does not hold its past, so assisted decoding cannot take tokens back: transformers then refuses it
    _is_stateful = True
    supports_gradient_checkpointing = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.RNNBase):
            initialize_recurrent(module)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, Attention):
            if module.score == "additive":
                init.xavier_uniform_(module.energy)
            elif module.score == "rbf":
                init.zeros_(module.log_precision)
        else:
            super()._init_weights(module)


class RNNSeq2SeqEncoder(RNNSeq2SeqPreTrainedModel):
    """Reads the source; padding, on either side, changes nothing."""

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.word_vector_size, config.pad_token_id)
        self.layers = nn.ModuleList(
            recurrent_layer(
                config.cell,
                config.word_vector_size if i == 0 else config.encoder_size,
                config.encoder_hidden_size,
                config.bidirectional,
            )
            for i in range(config.encoder_layers)
        )
        self.memory = (
            AttentionMemory(
                config.attention,
                config.encoder_size,
                config.key_size,
                config.attention_layers,
                config.attention_values,
            )
            if config.uses_attention
            else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> RNNEncoderOutput:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("the encoder needs exactly one of input_ids and inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        x = self.dropout(add_noise(inputs_embeds, self.config, self.training))  # (batch, source, embedding)
        if attention_mask is None:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        else:
            mask = attention_mask.bool()
        # an empty row is read as one token: what it gives is masked by whoever made it
        lengths = mask.sum(1).clamp(min=1).cpu()
        order = real_tokens_first(mask, self.config.reverse_source)
        if order is None:
            in_source_order: Callable[[Tensor], Tensor] = lambda y: y  # noqa: E731
        else:
            x, back = gather_time(x, order), order.argsort(dim=1)
            in_source_order = lambda y: gather_time(y, back)  # noqa: E731

        hidden_states, hiddens, cells = [in_source_order(x)], [], []
        for i, layer in enumerate(self.layers):
            if i > 0:
                x = self.dropout(x)
            x, hidden, cell = read_padded(layer, x, lengths)  # (batch, source, encoder_size)
            hidden_states.append(in_source_order(x))
            hiddens.append(hidden)
            cells.append(cell)
        keys, values = (None, None) if self.memory is None else self.memory(hidden_states[-1])
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return RNNEncoderOutput(
            last_hidden_state=hidden_states[-1],
            final_hidden=torch.stack(hiddens, dim=1),
            final_cell=torch.stack(cells, dim=1) if self.config.cell == "lstm" else None,
            keys=keys,
            values=values,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
        )


def add_noise(embeddings: Tensor, config: RNNSeq2SeqConfig, training: bool) -> Tensor:
    """Embedding noise, a regulariser of training."""
    if not training or config.embedding_noise == 0:
        return embeddings
    return embeddings + config.embedding_noise * torch.randn_like(embeddings)


class StateHandover(nn.Module):
    """The decoder's first state from the encoder's final one."""

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__()
        self.layers = config.decoder_layers
        size = config.decoder_layers * config.hidden_size
        through_mlp = config.handover == "mlp"
        self.hidden = nn.Linear(config.encoder_size, size) if through_mlp else None
        self.cell = nn.Linear(config.encoder_size, size) if through_mlp and config.cell == "lstm" else None

    def forward(self, encoded: RNNEncoderOutput) -> State:
        hidden, cell = encoded.final_hidden, encoded.final_cell  # (batch, encoder layers, encoder_size)
        if hidden is None:
            raise ValueError(
                "encoder_outputs has no final_hidden: the decoder starts from the encoder's final state, so pass "
                "what this model's own encoder returned"
            )
        if self.hidden is not None:  # from the top layer to all decoder layers
            hidden = torch.tanh(self.hidden(hidden[:, -1])).unflatten(-1, (self.layers, -1))
            cell = None if self.cell is None else self.cell(cell[:, -1]).unflatten(-1, (self.layers, -1))
        state = {"hidden": hidden}  # (batch, decoder layers, hidden)
        return state if cell is None else {**state, "cell": cell}


class Readout(nn.Module):
    """What the output layer sees: the state, with the context and the previous embedding beside it on request."""

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__()
        self.sees_context = "readout" in config.context_to
        self.sees_embedding = config.readout_embedding
        size = config.hidden_size + self.sees_context * config.encoder_size
        size += self.sees_embedding * config.word_vector_size
        # a tied output layer is as wide as a word vector
        self.size = config.word_vector_size if config.tie_word_embeddings else config.hidden_size
        self.join = nn.Linear(size, self.size) if size != self.size or self.sees_context else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, state: Tensor, context: Tensor | None, embedding: Tensor) -> Tensor:
        seen = [state]  # (batch, target, hidden)
        if self.sees_context:
            assert context is not None
            seen.append(context)
        if self.sees_embedding:
            seen.append(embedding)
        if self.join is None:
            return self.dropout(state)
        return self.dropout(torch.tanh(self.join(torch.cat(seen, dim=-1))))


class RNNSeq2SeqDecoder(RNNSeq2SeqPreTrainedModel):
    """Writes the target, one token after the other; all tokens at once where nothing forbids it."""

    stepwise = False
    """Always loop over cells, also where fused layers would do: for the proof that both are equal."""

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        places = config.context_to
        self.has_context = config.attention != "none"
        self.asks_before = config.attention_query == "previous"
        # what enters the first cell beside the embedding: this step's context, or what the last step fed back
        self.feeds_back = "input" in places and config.uses_attention and not self.asks_before
        self.loops = "input" in places and config.uses_attention
        # the context must be known before the layers that take it in
        self.query_layer = 0 if "next_layer" in places else config.decoder_layers - 1
        # with `state`, what is fed back is the joined state, as in Luong's input feeding
        self.feed_size = config.hidden_size if "state" in places else config.encoder_size
        extra = 0
        if "input" in places:
            extra = self.feed_size if self.feeds_back else config.encoder_size
        above = config.hidden_size + ("next_layer" in places) * config.encoder_size
        self.embed_tokens = (
            None
            if config.share_embeddings
            else nn.Embedding(config.decoder_vocab_size, config.word_vector_size, config.pad_token_id)
        )
        self.layers = nn.ModuleList(
            recurrent_layer(config.cell, config.word_vector_size + extra if i == 0 else above, config.hidden_size)
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
        self.join = nn.Linear(config.hidden_size + config.encoder_size, config.hidden_size) if "state" in places else None
        self.handover = StateHandover(config)
        self.readout = Readout(config)
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

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
        feed_back: Callable[[Tensor, Tensor], Tensor] | None = None,
        **kwargs: Any,
    ) -> RNNDecoderOutput:
        """`feed_back(readout, true embedding)` makes the next input from this step's readout (scheduled sampling)."""
        embeds = self.dropout(add_noise(inputs_embeds, self.config, self.training))  # (batch, target, embedding)
        batch, length = embeds.shape[:2]
        state = self._first_state(encoder_outputs, past_key_values, embeds)
        source = _Source(encoder_outputs, encoder_attention_mask)
        mask = None
        if attention_mask is not None:
            mask = attention_mask[:, -length:].bool()
            # padding behind the last token cannot reach any token before it, so only holes and left padding count
            mask = mask if real_tokens_first(mask) is not None else None

        steps = self.stepwise or self.loops or feed_back is not None or mask is not None
        run = self._run_steps if steps else self._run_fused
        readout, trace, state = run(embeds, source, state, mask, feed_back)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
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

    def _first_state(self, encoded: RNNEncoderOutput, cache: RecurrentCache | None, embeds: Tensor) -> State:
        if cache is not None and cache.get_seq_length() > 0:
            return {name: tensor.to(embeds.device) for name, tensor in cache.state.items()}
        state = self.handover(encoded)
        if self.feeds_back:
            state["feed"] = embeds.new_zeros(embeds.shape[0], self.feed_size)
        return state

    def _attend(self, query: Tensor, source: "_Source") -> tuple[Tensor | None, Tensor | None]:
        """Context (batch, queries, encoder_size) and weights of queries (batch, queries, hidden)."""
        if not self.has_context:
            return None, None
        if self.attention is None:
            return source.fixed.unsqueeze(1).expand(-1, query.shape[1], -1), None
        return self.attention(query, source.keys, source.values, source.mask)

    def _run_fused(
        self, embeds: Tensor, source: "_Source", state: State, mask: None, feed_back: None
    ) -> tuple[Tensor, "_Trace", State]:
        """All target positions at once, layer by layer."""
        context, weights = self._attend(embeds, source) if self.attention is None else (None, None)
        x = embeds
        if "input" in self.config.context_to:  # a fixed context: an attended one would need the loop
            x = torch.cat([embeds, context], dim=-1)
        hiddens, cells, outputs = [], [], []
        for i, layer in enumerate(self.layers):
            if i > 0:
                x = self.dropout(outputs[-1])
                if "next_layer" in self.config.context_to:
                    x = torch.cat([x, context], dim=-1)
            first = state["hidden"][:, i]
            output, hidden, cell = run_layer(layer, x, first, state["cell"][:, i] if "cell" in state else None)
            if self.attention is not None and i == self.query_layer:
                asking = torch.cat([first.unsqueeze(1), output[:, :-1]], dim=1) if self.asks_before else output
                context, weights = self._attend(asking, source)
            outputs.append(output)  # (batch, target, hidden)
            hiddens.append(hidden)
            cells.append(cell)
        top = self._join(outputs[-1], context)
        new_state = {"hidden": torch.stack(hiddens, dim=1)}
        if "cell" in state:
            new_state["cell"] = torch.stack(cells, dim=1)
        return self.readout(top, context, embeds), _Trace(outputs, weights), new_state

    def _run_steps(
        self,
        embeds: Tensor,
        source: "_Source",
        state: State,
        mask: Tensor | None,
        feed_back: Callable[[Tensor, Tensor], Tensor] | None,
    ) -> tuple[Tensor, "_Trace", State]:
        """One target position after the other."""
        tops, contexts, weights, read, inputs = [], [], [], [], []
        outputs: list[list[Tensor]] = [[] for _ in self.layers]
        for t in range(embeds.shape[1]):
            embed = embeds[:, t]  # (batch, embedding)
            if feed_back is not None and t > 0:
                embed = feed_back(read[-1], embed)
            new, top, context, weight = self._step(embed, source, state)
            if mask is not None:  # a masked token leaves the state as it was
                new = {k: torch.where(mask[:, t].view(-1, *[1] * (v.dim() - 1)), v, state[k]) for k, v in new.items()}
            state = new
            for i, layer_outputs in enumerate(outputs):
                layer_outputs.append(state["hidden"][:, i])
            inputs.append(embed)
            tops.append(top)
            contexts.append(context)
            weights.append(weight)
            if feed_back is not None:
                read.append(self.readout(top, context, embed))
        context = torch.stack(contexts, dim=1) if self.has_context else None  # (batch, target, encoder_size)
        if feed_back is not None:
            readout = torch.stack(read, dim=1)
        else:  # one large product instead of many small ones
            readout = self.readout(torch.stack(tops, dim=1), context, torch.stack(inputs, dim=1))
        trace = _Trace(
            [torch.stack(layer_outputs, dim=1) for layer_outputs in outputs],
            torch.cat(weights, dim=2) if self.attention is not None else None,  # (batch, heads, target, source)
        )
        return readout, trace, state

    def _step(
        self, embed: Tensor, source: "_Source", state: State
    ) -> tuple[State, Tensor, Tensor | None, Tensor | None]:
        """New state, top state (with `state`: joined to the context), context and attention weights of one token."""
        context, weights = None, None

        def ask(hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
            attended, weights = self._attend(hidden.unsqueeze(1), source)
            return None if attended is None else attended.squeeze(1), weights

        if self.attention is None or self.asks_before:
            context, weights = ask(state["hidden"][:, self.query_layer])
        x = embed
        if "input" in self.config.context_to:
            x = torch.cat([embed, state["feed"] if self.feeds_back else context], dim=-1)
        hiddens, cells = [], []
        for i, layer in enumerate(self.layers):
            if i > 0:
                x = self.dropout(hiddens[-1])
                if "next_layer" in self.config.context_to:
                    x = torch.cat([x, context], dim=-1)
            cell = state["cell"][:, i] if "cell" in state else None
            hidden, cell = cell_step(layer, x, state["hidden"][:, i], cell)
            if self.attention is not None and not self.asks_before and i == self.query_layer:
                context, weights = ask(hidden)
            hiddens.append(hidden)
            cells.append(cell)
        new = {"hidden": torch.stack(hiddens, dim=1)}
        if "cell" in state:
            new["cell"] = torch.stack(cells, dim=1)
        top = self._join(hiddens[-1], context)  # (batch, hidden)
        if self.feeds_back:
            new["feed"] = context if self.join is None else top
        return new, top, context, weights

    def _join(self, state: Tensor, context: Tensor | None) -> Tensor:
        if self.join is None:
            return state
        return torch.tanh(self.join(torch.cat([state, context], dim=-1)))


class _Source:
    """The source as the decoder sees it at every step."""

    def __init__(self, encoded: RNNEncoderOutput, attention_mask: Tensor | None):
        self.keys, self.values = encoded.keys, encoded.values
        self.fixed = encoded.final_hidden[:, -1]  # (batch, encoder_size)
        self.mask = None if attention_mask is None else attention_mask.bool()


@dataclass
class _Trace:
    hiddens: list[Tensor]  # per layer (batch, target, hidden)
    weights: Tensor | None  # (batch, heads, target, source)


class RNNSeq2SeqModel(RNNSeq2SeqPreTrainedModel):
    """Encoder and decoder, without the output layer."""

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self.encoder = RNNSeq2SeqEncoder(config)
        self.decoder = RNNSeq2SeqDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value

    @property
    def target_embeddings(self) -> nn.Embedding:
        """The word vectors of the target."""
        return self.encoder.embed_tokens if self.decoder.embed_tokens is None else self.decoder.embed_tokens

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: RNNEncoderOutput | None = None,
        past_key_values: RecurrentCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        outputs = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                return_dict=True,
                **outputs,
            )
        elif isinstance(encoder_outputs, tuple):
            raise ValueError("encoder_outputs must be what this model's encoder returns with return_dict=True")
        if (decoder_input_ids is None) == (decoder_inputs_embeds is None):
            raise ValueError("the decoder needs exactly one of decoder_input_ids and decoder_inputs_embeds")
        if decoder_inputs_embeds is None:
            decoder_inputs_embeds = self.target_embeddings(decoder_input_ids)
        decoded = self.decoder(
            inputs_embeds=decoder_inputs_embeds,
            encoder_outputs=encoder_outputs,
            encoder_attention_mask=attention_mask,
            attention_mask=decoder_attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            feed_back=kwargs.get("feed_back"),
            return_dict=True,
            **outputs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            past_key_values=decoded.past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
        )


class RNNSeq2SeqForConditionalGeneration(RNNSeq2SeqPreTrainedModel, GenerationMixin):
    """The encoder-decoder with its output layer: train it with `labels`, decode with `generate()`."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self.model = RNNSeq2SeqModel(config)
        if config.share_embeddings:
            self._tied_weights_keys = {"lm_head.weight": "model.encoder.embed_tokens.weight"}
        self.lm_head = nn.Linear(self.model.decoder.readout.size, config.decoder_vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: RNNEncoderOutput | None = None,
        past_key_values: RecurrentCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits (batch, target, vocabulary), and with `labels` (batch, target; −100 is ignored) the loss.

        `num_items_in_batch` is what the summed loss is divided by, when a step is more than this batch.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        samples = self.training and self.config.scheduled_sampling > 0
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            feed_back=self._feed_back if samples else None,
            return_dict=True,
        )
        logits = self.lm_head(outputs.last_hidden_state)  # (batch, target, vocabulary)
        loss = None if labels is None else self._loss(logits, labels, num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
        )

    @staticmethod
    def _loss(logits: Tensor, labels: Tensor, num_items: Tensor | int | None) -> Tensor:
        # half precision is summed in float32; float64 stays what it is
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        total = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten().to(logits.device), ignore_index=-100, reduction="sum"
        )
        if num_items is None:
            num_items = (labels != -100).sum().to(total.device)
        return total / num_items

    @torch.no_grad()
    def _predicted_token(self, readout: Tensor) -> Tensor:
        logits = self.lm_head(readout)  # (batch, vocabulary)
        if self.config.feedback == "argmax":
            return logits.argmax(-1)
        return torch.multinomial(logits.float().softmax(-1), 1).squeeze(-1)

    def _feed_back(self, readout: Tensor, true_embedding: Tensor) -> Tensor:
        """Scheduled sampling: the embedding of the model's own token in place of some true ones."""
        own = self.model.target_embeddings(self._predicted_token(readout))  # (batch, embedding)
        chosen = torch.rand(own.shape[0], 1, device=own.device) < self.config.scheduled_sampling
        return torch.where(chosen, own, true_embedding)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)

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

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the source's word vectors, and the target's with them where there is one vocabulary."""
        source = self._get_resized_embeddings(
            self.get_input_embeddings(), new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        source.requires_grad_(self.get_input_embeddings().weight.requires_grad)
        self.set_input_embeddings(source)
        if not self.config.separate_vocabularies:
            self._resize_target(source.weight.shape[0], mean_resizing)
        return self.get_input_embeddings()

    def resize_decoder_token_embeddings(self, new_num_tokens: int, mean_resizing: bool = True) -> nn.Embedding:
        """Resize the target's word vectors and the output layer; for models with two vocabularies."""
        if not self.config.separate_vocabularies:
            raise ValueError("source and target share one vocabulary: use resize_token_embeddings")
        self._resize_target(new_num_tokens, mean_resizing)
        self.tie_weights()
        return self.model.target_embeddings

    def _resize_target(self, size: int, mean_resizing: bool) -> None:
        if self.model.decoder.embed_tokens is not None:
            old = self.model.decoder.embed_tokens
            self.model.decoder.embed_tokens = self._get_resized_embeddings(old, size, None, mean_resizing)
            self.model.decoder.embed_tokens.requires_grad_(old.weight.requires_grad)
        self.lm_head = self._get_resized_lm_head(self.lm_head, size, mean_resizing=mean_resizing)
        self.config.decoder_vocab_size = size


RNNSeq2SeqConfig.register_for_auto_class()
RNNSeq2SeqModel.register_for_auto_class("AutoModel")
RNNSeq2SeqForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["RNNSeq2SeqForConditionalGeneration", "RNNSeq2SeqModel", "RNNSeq2SeqPreTrainedModel"]
