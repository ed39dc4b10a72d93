"""The recurrent language model, with the regularization of AWD-LSTM (Merity et al., 2018).

    tokens ─► word embeddings ─► recurrent layers ─► (projection) ─► lm_head ─► logits of the next token
                                    ▲      │
                                    └ state ┘  carried from one call to the next in a `RecurrentCache`

Shapes in comments: batch, time (positions of a text), embedding (width of a word embedding), hidden (width of a state),
and vocabulary.
"""

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from .configuration_rnn_lm import RNNLMConfig
from .recurrent import (
    RecurrentCache,
    RecurrentGenerationMixin,
    RecurrentPreTrainedModel,
    cross_entropy,
    gather_time,
    left_align_index,
    recurrent_stack,
    run_with_state,
    state_of,
)


class RNNLMPreTrainedModel(RecurrentPreTrainedModel):
    """Base class of the models with a `RNNLMConfig`."""

    config: RNNLMConfig
    config_class = RNNLMConfig
    auto_model = "RNNLMModel"


class LockedDropout(nn.Module):
    """Variational dropout: drops the same units at every position of a row (Gal and Ghahramani, 2016)."""

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, width)
        if not self.training or self.probability == 0:
            return x
        return x * nn.functional.dropout(x.new_ones(x.shape[0], 1, x.shape[2]), self.probability)


class RNNLMModel(RNNLMPreTrainedModel):
    """Word embeddings and recurrent layers, without the output layer. Padding, on either side, changes nothing."""

    def __init__(self, config: RNNLMConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.word_embedding_size, config.pad_token_id)
        self.layers = recurrent_stack(
            config.cell, config.word_embedding_size, config.hidden_size, config.num_hidden_layers
        )
        needs_projection = config.output_size != config.hidden_size
        self.projection = nn.Linear(config.hidden_size, config.output_size) if needs_projection else nn.Identity()
        self.input_dropout = LockedDropout(config.effective_input_dropout)
        self.layer_dropout = LockedDropout(config.effective_layer_dropout)
        self.output_dropout = LockedDropout(config.dropout)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPast:
        """States (batch, time, output size) of input_ids (batch, time), which come after what `past_key_values` has
        read. attention_mask (batch, past + time) is 1 at real tokens.

        `output_attentions` has no effect: `generate()` and PEFT pass it to every model.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("the model needs exactly one of input_ids and inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self._embed(input_ids)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        batch, time = inputs_embeds.shape[:2]
        lengths = order = None
        if attention_mask is not None and (torch.compiler.is_exporting() or not bool(attention_mask[:, -time:].all())):
            mask = attention_mask[:, -time:].bool()  # the mask may cover what the state has read, too
            lengths, order = mask.sum(1), left_align_index(mask)
        inverse = None if order is None else order.argsort(dim=1)

        x = gather_time(self.input_dropout(inputs_embeds), order)  # (batch, time, embedding)
        hidden_states = [inputs_embeds]
        before = state_of(past_key_values)
        state: dict[str, Tensor] = {}
        zeros = x.new_zeros(batch, self.config.hidden_size)
        for i, layer in enumerate(self.layers):
            if i > 0:  # the state that is returned, not a copy from before it was put in order: a gradient reaches it
                x = self.layer_dropout(gather_time(hidden_states[-1], order))
            x, hidden, cell = run_with_state(
                layer,
                x,
                lengths,
                before.get(f"hidden_{i}", zeros),
                before.get(f"cell_{i}", zeros) if self.config.cell == "lstm" else None,
                self.config.weight_dropout if self.training else 0.0,
            )  # (batch, time, hidden)
            state[f"hidden_{i}"] = hidden
            if cell is not None:
                state[f"cell_{i}"] = cell
            hidden_states.append(gather_time(x, inverse))
        if use_cache or past_key_values is not None:
            past_key_values = RecurrentCache() if past_key_values is None else past_key_values
            past_key_values.store(state, time)
        return BaseModelOutputWithPast(
            last_hidden_state=self.projection(self.output_dropout(hidden_states[-1])),
            past_key_values=past_key_values,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
        )

    def _embed(self, input_ids: Tensor) -> Tensor:
        """Word embeddings (batch, time, embedding); word dropout zeroes a word wherever it occurs in the batch."""
        embeddings = self.embed_tokens(input_ids)
        if not self.training or self.config.word_dropout == 0:
            return embeddings
        keep = nn.functional.dropout(embeddings.new_ones(self.config.vocab_size, 1), self.config.word_dropout)
        return embeddings * keep[input_ids]


class RNNLMForCausalLM(RecurrentGenerationMixin, RNNLMPreTrainedModel, GenerationMixin):
    """The language model with its output layer: train it with `labels`, continue texts with `generate()`."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: RNNLMConfig):
        super().__init__(config)
        self.model = RNNLMModel(config)
        self.lm_head = nn.Linear(config.output_size, config.vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutputWithPast:
        """Predict each next token.

        Args:
            input_ids: Tokens, (batch, time), which come after those that `past_key_values` has read.
            attention_mask: 1 at real tokens, 0 at padding on either side, (batch, past + time).
            past_key_values: State to continue from.
            inputs_embeds: Word embeddings instead of the ids.
            labels: The same tokens as `input_ids`, −100 where they are ignored: the model shifts them.
            logits_to_keep: How many positions from the end get logits (0: all), or which.
            num_items_in_batch: Divisor of the summed loss; by default the number of labels.

        Returns:
            `CausalLMOutputWithPast` with logits (batch, time, vocabulary) and, with `labels`, the loss of predicting
            each label from the tokens before it.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, positions])  # (batch, time, vocabulary)
        loss = None
        if labels is not None:
            loss = cross_entropy(logits[:, :-1], labels[:, 1:], num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=outputs.past_key_values, hidden_states=outputs.hidden_states
        )


RNNLMConfig.register_for_auto_class()
RNNLMModel.register_for_auto_class("AutoModel")
RNNLMForCausalLM.register_for_auto_class("AutoModelForCausalLM")

__all__ = ["RNNLMForCausalLM", "RNNLMModel", "RNNLMPreTrainedModel"]
