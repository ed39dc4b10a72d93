"""The recurrent encoder-decoder as a `PreTrainedModel`.

source tokens ─► Encoder ─► states, keys and values, final state
                               │                        │ StateHandover
START + target ─► Decoder: cells + Attention ◄──────────┘
                               └─► Readout ─► lm_head ─► logits
"""

from torch import nn
from transformers import GenerationMixin

from .configuration_rnn_seq2seq import RNNSeq2SeqConfig
from .rnn_decoder import RNNSeq2SeqDecoder
from .rnn_encoder import RNNSeq2SeqEncoder
from .rnn_pretrained import RNNPreTrainedModel
from .rnn_writer import RNNWriterBody, RNNWriterHead


class RNNSeq2SeqPreTrainedModel(RNNPreTrainedModel):
    config: RNNSeq2SeqConfig
    config_class = RNNSeq2SeqConfig
    main_input_name = "input_ids"


class RNNSeq2SeqModel(RNNWriterBody, RNNSeq2SeqPreTrainedModel):
    """Encoder and decoder, without the output layer."""

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self.encoder = RNNSeq2SeqEncoder(config)
        self.decoder = RNNSeq2SeqDecoder(config)
        self.post_init()


class RNNSeq2SeqForConditionalGeneration(RNNWriterHead, RNNSeq2SeqPreTrainedModel, GenerationMixin):
    """The encoder-decoder with its output layer: train it with `labels`, decode with `generate()`."""

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self._tied_weights_keys = self.tied_weights()
        self.model = RNNSeq2SeqModel(config)
        self.lm_head = nn.Linear(self.model.decoder.readout.size, config.decoder_vocab_size)
        self.post_init()


RNNSeq2SeqConfig.register_for_auto_class()
RNNSeq2SeqModel.register_for_auto_class("AutoModel")
RNNSeq2SeqForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["RNNSeq2SeqForConditionalGeneration", "RNNSeq2SeqModel", "RNNSeq2SeqPreTrainedModel"]
