"""Model classes of kit: one flat folder without imports from the rest of kit, because its files are uploaded with a
model. transformers collects them by following `from .module import name`, also inside functions, within one folder.

Some code here repeats on purpose. As in transformers, each modeling file spells out its `forward`, so that it reads
from top to bottom without its neighbors. And what a Transformer shares with recurrent models is copied, marked `Copied
from` and compared by a test: a shared file would upload recurrent code with every Transformer.
"""

# ruff: noqa: F403 (as in transformers: each module lists its public classes in `__all__`)

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers: at run time, `__getattr__` imports these classes when they are first used
    from kit.models.configuration_hred import *
    from kit.models.configuration_rnn_captioner import *
    from kit.models.configuration_rnn_forecaster import *
    from kit.models.configuration_rnn_lm import *
    from kit.models.configuration_rnn_seq2seq import *
    from kit.models.configuration_transformer_seq2seq import *
    from kit.models.modeling_hred import *
    from kit.models.modeling_rnn_captioner import *
    from kit.models.modeling_rnn_forecaster import *
    from kit.models.modeling_rnn_lm import *
    from kit.models.modeling_rnn_seq2seq import *
    from kit.models.modeling_transformer_seq2seq import *

MODELS = {
    "rnn_seq2seq": "RNNSeq2Seq",
    "transformer_seq2seq": "TransformerSeq2Seq",
    "rnn_lm": "RNNLM",
    "rnn_captioner": "RNNCaptioner",
    "hred": "HRED",
    "rnn_forecaster": "RNNForecaster",
}
"""Prefix of the class names of each model type: `<prefix>Config` is in `configuration_<type>.py`, the model classes are
in `modeling_<type>.py`."""


def config_class(model_type: str) -> type[Any]:
    """The configuration class of a model type of kit. Imports no model code."""
    return getattr(importlib.import_module(f"kit.models.configuration_{model_type}"), f"{MODELS[model_type]}Config")


def register_models() -> None:
    """Register the configurations and models with the Auto classes of transformers.

    Which Auto class loads a model is stated at the end of its modeling file, by `register_for_auto_class`.
    """
    import transformers

    for model_type in MODELS:
        config = config_class(model_type)
        transformers.AutoConfig.register(model_type, config, exist_ok=True)
        module = importlib.import_module(f"kit.models.modeling_{model_type}")
        for model in (getattr(module, name) for name in module.__all__):
            auto_class = vars(model).get("_auto_class")  # set by `register_for_auto_class`
            if auto_class is not None:
                getattr(transformers, auto_class).register(config, model, exist_ok=True)


def __getattr__(name: str) -> Any:
    """Import a class when it is first used: a recipe is checked with config classes alone, and model code takes seconds
    to import."""
    for model_type, stem in MODELS.items():
        if name == f"{stem}Config":
            return config_class(model_type)
        if name.startswith(stem):
            return getattr(importlib.import_module(f"kit.models.modeling_{model_type}"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
