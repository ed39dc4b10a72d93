"""The class that a model was saved by."""

from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedConfig


def architecture(config: PreTrainedConfig) -> str:
    """The name of the class that saved the model, such as "GPT2LMHeadModel"; empty if the configuration has none."""
    return (getattr(config, "architectures", None) or [""])[0]


def is_saved_as(config: PreTrainedConfig, auto_class: Any) -> bool:
    """Whether the model was saved by the class that an auto class loads for its type."""
    classes = auto_class._model_mapping.get(type(config), ())
    return architecture(config) in [each.__name__ for each in (classes if isinstance(classes, tuple) else (classes,))]


def is_causal_lm(config: PreTrainedConfig) -> bool:
    """Whether the model is a causal language model."""
    return architecture(config).endswith("ForCausalLM") or is_saved_as(config, AutoModelForCausalLM)
