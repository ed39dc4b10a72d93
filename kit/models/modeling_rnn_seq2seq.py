"""The recurrent encoder-decoder as a `PreTrainedModel`.

source tokens ─► Encoder ─► states, keys and values, final state
                               │                        │ StateHandover
START + target ─► Decoder: cells + Attention ◄──────────┘
                               └─► Readout ─► lm_head ─► logits
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init

from .attention import Attention
from .configuration_rnn_seq2seq import RNNSeq2SeqConfig
from .encoder_decoder import EncoderDecoderBody, EncoderDecoderHead
from .recurrent import RecurrentGeneration, initialize_recurrent
from .rnn_decoder import RNNSeq2SeqDecoder
from .rnn_encoder import RNNEncoderOutput, RNNSeq2SeqEncoder


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


class RNNSeq2SeqModel(EncoderDecoderBody, RNNSeq2SeqPreTrainedModel):
    """Encoder and decoder, without the output layer."""

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self.encoder = RNNSeq2SeqEncoder(config)
        self.decoder = RNNSeq2SeqDecoder(config)
        self.post_init()

    def checked(self, encoder_outputs: Any) -> RNNEncoderOutput:
        if isinstance(encoder_outputs, tuple) or "final_hidden" not in encoder_outputs:
            raise ValueError(
                "encoder_outputs must be what this model's encoder returns with return_dict=True: the decoder starts "
                "from the final state in it"
            )
        return encoder_outputs


class RNNSeq2SeqForConditionalGeneration(
    EncoderDecoderHead, RecurrentGeneration, RNNSeq2SeqPreTrainedModel, GenerationMixin
):
    """The encoder-decoder with its output layer: train it with `labels`, decode with `generate()`."""

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self._tied_weights_keys = self.tied_weights()
        self.model = RNNSeq2SeqModel(config)
        self.lm_head = nn.Linear(self.model.decoder.readout.size, config.decoder_vocab_size)
        self.post_init()

    def decoder_arguments(self) -> dict[str, Any]:
        samples = self.training and self.config.scheduled_sampling > 0
        return {"feed_back": self._feed_back} if samples else {}

    @torch.no_grad()
    def _predicted_token(self, readout: Tensor) -> Tensor:
        logits = self.lm_head(readout)  # (batch, vocabulary)
        if self.config.feedback == "argmax":
            return logits.argmax(-1)
        return torch.multinomial(logits.float().softmax(-1), 1).squeeze(-1)

    def _feed_back(self, readout: Tensor, true_embedding: Tensor) -> Tensor:
        """Scheduled sampling: the embedding of the model's own token in place of some true ones."""
        own = self.model.target_embeddings(self._predicted_token(readout))  # (batch, embedding)
        own = self.model.decoder.disturbed(own)
        chosen = torch.rand(own.shape[0], 1, device=own.device) < self.config.scheduled_sampling
        return torch.where(chosen, own, true_embedding)


RNNSeq2SeqConfig.register_for_auto_class()
RNNSeq2SeqModel.register_for_auto_class("AutoModel")
RNNSeq2SeqForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["RNNSeq2SeqForConditionalGeneration", "RNNSeq2SeqModel", "RNNSeq2SeqPreTrainedModel"]
