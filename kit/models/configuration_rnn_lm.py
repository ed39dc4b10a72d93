"""Configuration of `rnn_lm`: a recurrent language model. A recipe's `model` section holds these fields."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


@strict
class RNNLMConfig(PreTrainedConfig):
    """Word embeddings, recurrent layers and an output layer that predicts the next token."""

    model_type = "rnn_lm"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (the name and type are transformers')

    vocab_size: int = 8000
    """Number of tokens."""

    embedding_size: int | None = None
    """Width of the word embeddings; by default `hidden_size`."""

    hidden_size: int = 256
    """Width of the state of each layer."""

    num_hidden_layers: int = 2
    """Number of recurrent layers."""

    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    """Kind of recurrent cell: `rnn` (tanh), `lstm` or `gru`."""

    tie_word_embeddings: bool = True
    """Use one matrix for the word embeddings and the output layer; where their widths differ, the state is projected to
    the width of the word embeddings first."""

    dropout: float | int = 0.0
    """Dropout before the output layer, the same units at every position of a text."""

    input_dropout: float | int | None = None
    """Dropout on word embeddings, the same units at every position of a text; by default `dropout`."""

    layer_dropout: float | int | None = None
    """Dropout between the recurrent layers, the same units at every position of a text; by default `dropout`."""

    word_dropout: float | int = 0.0
    """Share of the vocabulary whose word embeddings are zero in a batch, wherever they occur."""

    weight_dropout: float | int = 0.0
    """Dropout on the weights from state to state (DropConnect), the same at every position."""

    initializer_range: float | int = 0.1
    """Standard deviation of the initial word embeddings."""

    use_cache: bool = True
    """Keep the state between the steps of `generate()`."""

    bos_token_id: int | None = 0
    """Id of START."""

    pad_token_id: int | None = 1
    """Id of PAD."""

    eos_token_id: int | list[int] | None = 2
    """Id of the end marker."""

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._check_values()

    @property
    def word_embedding_size(self) -> int:
        """Width of the word embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def output_size(self) -> int:
        """Width of the output layer's input."""
        return self.word_embedding_size if self.tie_word_embeddings else self.hidden_size

    @property
    def effective_input_dropout(self) -> float:
        """Dropout on word embeddings: `input_dropout` if it is set, otherwise `dropout`."""
        return self.dropout if self.input_dropout is None else self.input_dropout

    @property
    def effective_layer_dropout(self) -> float:
        """Dropout between layers: `layer_dropout` if it is set, otherwise `dropout`."""
        return self.dropout if self.layer_dropout is None else self.layer_dropout

    @classmethod
    def bounds(cls) -> dict[str, tuple[float, float]]:
        """The smallest and the largest value of each number. The largest are far beyond what is trained: they keep a
        typing error from building layers for hours."""
        probabilities = ("dropout", "input_dropout", "layer_dropout", "word_dropout", "weight_dropout")
        return {
            "vocab_size": (1, 2**31 - 1),
            "embedding_size": (1, 2**20),
            "hidden_size": (1, 2**20),
            "num_hidden_layers": (1, 1000),
            "initializer_range": (0, 1e6),
            **dict.fromkeys(probabilities, (0, 1)),
        }

    def _check_values(self) -> None:
        """Raise ValueError for values that no model can have."""
        for name, (low, high) in self.bounds().items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                limit = f"at most {high}" if value > high else f"at least {low}"
                raise ValueError(f"{name} must be {limit}, not {value}")
        for name in ("dropout", "input_dropout", "layer_dropout", "word_dropout", "weight_dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name} is a probability below 1, not {value}")


__all__ = ["RNNLMConfig"]
