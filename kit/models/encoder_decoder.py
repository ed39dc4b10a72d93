"""What every encoder-decoder of kit has in common: the way from tokens to logits and loss, and its vocabularies."""

from typing import Any, Literal

from torch import Tensor, nn
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from .recurrent import cross_entropy, shift_right


class EncoderDecoderBody:
    """A model with `encoder` and `decoder`, each with `embed_tokens` (the decoder's is None where both share one)."""

    encoder: Any
    decoder: Any

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value

    @property
    def target_embeddings(self) -> nn.Embedding:
        """The word vectors of the target."""
        return self.encoder.embed_tokens if self.decoder.embed_tokens is None else self.decoder.embed_tokens

    def checked(self, encoder_outputs: Any) -> Any:
        """Encoder outputs that were given, in the form that the decoder needs."""
        return encoder_outputs

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        decoder_arguments: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                return_dict=True,
                **kwargs,
            )
        else:
            encoder_outputs = self.checked(encoder_outputs)
        if (decoder_input_ids is None) == (decoder_inputs_embeds is None):
            raise ValueError("the decoder needs exactly one of decoder_input_ids and decoder_inputs_embeds")
        if decoder_inputs_embeds is None:
            decoder_inputs_embeds = self.target_embeddings(decoder_input_ids)
        decoded = self.decoder(
            inputs_embeds=decoder_inputs_embeds,
            encoder_outputs=encoder_outputs,
            attention_mask=decoder_attention_mask,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
            **(decoder_arguments or {}),
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            past_key_values=decoded.past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class EncoderDecoderHead:
    """A body (`model`) with its output layer (`lm_head`): train it with `labels`, decode with `generate()`."""

    config: Any
    model: Any
    lm_head: nn.Linear

    beam_layout: Literal["rows", "positions"] = "rows"
    """What a search may make of its beams, which share the states of their source: several rows of the decoder for one
    of the encoder, or target positions of one row."""

    def tied_weights(self) -> dict[str, str]:
        """Which matrix the output layer shares, when it does."""
        owner = "encoder" if self.config.share_embeddings else "decoder"
        return {"lm_head.weight": f"model.{owner}.embed_tokens.weight"}

    def decoder_arguments(self) -> dict[str, Any]:
        """What else the decoder is given."""
        return {}

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
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
            decoder_arguments=self.decoder_arguments(),
            return_dict=True,
            **kwargs,
        )
        logits = self.lm_head(outputs.last_hidden_state)  # (batch, target, vocabulary)
        return Seq2SeqLMOutput(
            loss=None if labels is None else cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the source's word vectors, and the target's with them where there is one vocabulary."""
        old = self.model.get_input_embeddings()
        new = self._resized(old, new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.model.set_input_embeddings(new)
        if not self.config.separate_vocabularies:
            self._resize_target(new.weight.shape[0], mean_resizing)
        return new

    def resize_decoder_token_embeddings(self, new_num_tokens: int, mean_resizing: bool = True) -> nn.Embedding:
        """Resize the target's word vectors and the output layer; for models with two vocabularies."""
        if not self.config.separate_vocabularies:
            raise ValueError("source and target share one vocabulary: use resize_token_embeddings")
        self._resize_target(new_num_tokens, mean_resizing)
        self.tie_weights()  # type: ignore[attr-defined]
        return self.model.decoder.embed_tokens

    def _resize_target(self, size: int, mean_resizing: bool) -> None:
        decoder = self.model.decoder
        if decoder.embed_tokens is not None:
            decoder.embed_tokens = self._resized(decoder.embed_tokens, size, None, mean_resizing)
        self.lm_head = self._get_resized_lm_head(  # type: ignore[attr-defined]
            self.lm_head, size, mean_resizing=mean_resizing
        )
        self.config.decoder_vocab_size = size

    def _resized(self, old: nn.Embedding, size: int | None, multiple: int | None, mean_resizing: bool) -> nn.Embedding:
        new = self._get_resized_embeddings(old, size, multiple, mean_resizing)  # type: ignore[attr-defined]
        return new.requires_grad_(old.weight.requires_grad)
