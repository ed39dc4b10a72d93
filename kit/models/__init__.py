"""Models of kit's own: one flat folder, because that is what travels with a model to the Hub."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from kit.models.configuration_rnn_lm import RNNLMConfig
from kit.models.configuration_rnn_seq2seq import RNNSeq2SeqConfig
from kit.models.configuration_transformer_seq2seq import TransformerSeq2SeqConfig
from kit.models.modeling_rnn_lm import RNNLMForCausalLM, RNNLMModel
from kit.models.modeling_rnn_seq2seq import RNNSeq2SeqForConditionalGeneration, RNNSeq2SeqModel
from kit.models.modeling_transformer_seq2seq import (
    TransformerSeq2SeqEncoderModel,
    TransformerSeq2SeqForConditionalGeneration,
    TransformerSeq2SeqModel,
)


def register_models() -> None:
    """Make transformers' Auto classes know these models."""
    AutoConfig.register(RNNLMConfig.model_type, RNNLMConfig, exist_ok=True)
    AutoModel.register(RNNLMConfig, RNNLMModel, exist_ok=True)
    AutoModelForCausalLM.register(RNNLMConfig, RNNLMForCausalLM, exist_ok=True)
    AutoConfig.register(RNNSeq2SeqConfig.model_type, RNNSeq2SeqConfig, exist_ok=True)
    AutoModel.register(RNNSeq2SeqConfig, RNNSeq2SeqModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(RNNSeq2SeqConfig, RNNSeq2SeqForConditionalGeneration, exist_ok=True)
    AutoConfig.register(TransformerSeq2SeqConfig.model_type, TransformerSeq2SeqConfig, exist_ok=True)
    AutoModel.register(TransformerSeq2SeqConfig, TransformerSeq2SeqEncoderModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(TransformerSeq2SeqConfig, TransformerSeq2SeqForConditionalGeneration, exist_ok=True)


__all__ = [
    "RNNLMConfig",
    "RNNLMForCausalLM",
    "RNNLMModel",
    "RNNSeq2SeqConfig",
    "RNNSeq2SeqForConditionalGeneration",
    "RNNSeq2SeqModel",
    "TransformerSeq2SeqConfig",
    "TransformerSeq2SeqEncoderModel",
    "TransformerSeq2SeqForConditionalGeneration",
    "TransformerSeq2SeqModel",
    "register_models",
]
