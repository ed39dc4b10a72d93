"""Models of kit's own: one flat folder, because that is what travels with a model to the Hub."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForTimeSeriesPrediction,
)

from kit.models.configuration_hred import HREDConfig
from kit.models.configuration_rnn_captioner import RNNCaptionerConfig
from kit.models.configuration_rnn_forecaster import RNNForecasterConfig
from kit.models.configuration_rnn_lm import RNNLMConfig
from kit.models.configuration_rnn_seq2seq import RNNSeq2SeqConfig
from kit.models.configuration_transformer_seq2seq import TransformerSeq2SeqConfig
from kit.models.modeling_hred import HREDForConditionalGeneration, HREDModel
from kit.models.modeling_rnn_captioner import RNNCaptionerForConditionalGeneration, RNNCaptionerModel
from kit.models.modeling_rnn_forecaster import RNNForecasterForPrediction
from kit.models.modeling_rnn_lm import RNNLMForCausalLM, RNNLMModel
from kit.models.modeling_rnn_seq2seq import RNNSeq2SeqForConditionalGeneration, RNNSeq2SeqModel
from kit.models.modeling_transformer_seq2seq import (
    TransformerSeq2SeqEncoderModel,
    TransformerSeq2SeqForConditionalGeneration,
    TransformerSeq2SeqModel,
)


def register_models() -> None:
    """Make transformers' Auto classes know these models."""
    AutoConfig.register(HREDConfig.model_type, HREDConfig, exist_ok=True)
    AutoModel.register(HREDConfig, HREDModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(HREDConfig, HREDForConditionalGeneration, exist_ok=True)
    AutoConfig.register(RNNCaptionerConfig.model_type, RNNCaptionerConfig, exist_ok=True)
    AutoModel.register(RNNCaptionerConfig, RNNCaptionerModel, exist_ok=True)
    AutoModelForImageTextToText.register(RNNCaptionerConfig, RNNCaptionerForConditionalGeneration, exist_ok=True)
    AutoConfig.register(RNNForecasterConfig.model_type, RNNForecasterConfig, exist_ok=True)
    AutoModelForTimeSeriesPrediction.register(RNNForecasterConfig, RNNForecasterForPrediction, exist_ok=True)
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
    "HREDConfig",
    "HREDForConditionalGeneration",
    "HREDModel",
    "RNNCaptionerConfig",
    "RNNCaptionerForConditionalGeneration",
    "RNNCaptionerModel",
    "RNNForecasterConfig",
    "RNNForecasterForPrediction",
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
