"""Configuration of `transformer_seq2seq`: the Transformer encoder-decoder.

A recipe's `model` section holds these fields; the docstring below a field is its help text.
"""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


@strict
class TransformerSeq2SeqConfig(PreTrainedConfig):
    """An encoder-decoder of self-attention, cross-attention and feed-forward layers."""

    model_type = "transformer_seq2seq"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (the name and type are transformers')
    attribute_map = {"num_hidden_layers": "encoder_layers"}  # noqa: RUF012

    vocab_size: int = 8000
    """Number of tokens of the source; of the target too, unless `separate_vocabularies` is set."""

    separate_vocabularies: bool = False
    """Whether source and target have a vocabulary each (the target's tokenizer is saved beside the source's)."""

    decoder_vocab_size: int | None = None
    """Number of tokens of the target; by default `vocab_size`."""

    hidden_size: int = 256
    """Width of the model, and of its word embeddings."""

    encoder_layers: int = 3
    """Number of encoder layers."""

    decoder_layers: int = 3
    """Number of decoder layers."""

    num_attention_heads: int = 4
    """Number of heads of each attention; it must divide `hidden_size`."""

    intermediate_size: int = 1024
    """Width between the two linear maps of a layer's feed-forward part."""

    hidden_act: Literal["relu", "gelu", "swiglu"] = "relu"
    """Activation of the feed-forward part; `swiglu` gates it with a third linear map (Shazeer, 2020)."""

    norm: Literal["pre", "post"] = "pre"
    """Layer norm before each sublayer and once at the end (`pre`: trains stably), or after each sublayer (`post`: as in
    the original paper, and a bit better where it trains)."""

    max_position_embeddings: int | None = None
    """Number of learned position embeddings: longer sequences are refused. By default positions are sinusoids, which
    have no limit."""

    scale_embedding: bool = True
    """Multiply word embeddings by the square root of `hidden_size`, so that positions do not drown them."""

    tie_word_embeddings: bool = True
    """Use one matrix for the decoder's word embeddings and the output layer."""

    share_encoder_decoder_embeddings: bool = True
    """Use one matrix for the word embeddings of source and target; needs one vocabulary."""

    dropout: float | int = 0.1
    """Dropout on the output of each sublayer."""

    embedding_dropout: float | int | None = None
    """Dropout on word embeddings with their positions; by default `dropout`."""

    attention_dropout: float | int = 0.0
    """Dropout on attention weights."""

    activation_dropout: float | int = 0.0
    """Dropout inside the feed-forward part."""

    initializer_range: float | int | None = None
    """Standard deviation of the initial word embeddings; by default 1 / √hidden_size."""

    use_cache: bool = True
    """Keep keys and values between the steps of `generate()`."""

    is_encoder_decoder: bool = True
    """Always true: tells transformers how to generate."""

    bos_token_id: int | None = 0
    """Id of START."""

    pad_token_id: int | None = 1
    """Id of PAD."""

    eos_token_id: int | list[int] | None = 2
    """Id of the end marker."""

    decoder_start_token_id: int | None = 0
    """Id that the decoder starts from."""

    def __post_init__(self, **kwargs: Any) -> None:
        # never left empty: `get_text_config(decoder=True)` of transformers copies decoder_… fields over the plain ones
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        super().__post_init__(**kwargs)
        self._check_values()

    @property
    def input_dropout(self) -> float:
        """Dropout on word embeddings with their positions: `embedding_dropout` if it is set, otherwise `dropout`."""
        return self.dropout if self.embedding_dropout is None else self.embedding_dropout

    def tiny_sizes(self, width: int) -> dict[str, Any]:
        """Fields of a tiny model with the same choices but no randomness, `hidden_size` becoming `width`."""
        return {
            "encoder_layers": min(2, self.encoder_layers),
            "decoder_layers": min(2, self.decoder_layers),
            "intermediate_size": 2 * width,
            "embedding_dropout": None,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
        }

    @classmethod
    def bounds(cls) -> dict[str, tuple[float, float]]:
        """The smallest and the largest value of each number. The largest are far beyond what is trained: they keep a
        typing error from building layers for hours."""
        sizes = dict.fromkeys(("hidden_size", "intermediate_size", "num_attention_heads"), (1, 2**20))
        # as deep as the deepest Transformers (Wang et al., 2022)
        layers = dict.fromkeys(("encoder_layers", "decoder_layers"), (1, 1000))
        counts = dict.fromkeys(("vocab_size", "decoder_vocab_size", "max_position_embeddings"), (1, 2**31 - 1))
        names = ("dropout", "embedding_dropout", "attention_dropout", "activation_dropout")
        return sizes | layers | counts | dict.fromkeys(names, (0, 1)) | {"initializer_range": (0, 1e6)}

    def _check_values(self) -> None:
        """Raise ValueError for values that no model can have, with what to change."""
        for name, (low, high) in self.bounds().items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                limit = f"at most {high}" if value > high else f"at least {low}"
                raise ValueError(f"{name} must be {limit}, not {value}")
        for name in ("dropout", "embedding_dropout", "attention_dropout", "activation_dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name} is a probability below 1, not {value}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} does not divide hidden_size={self.hidden_size}"
            )
        if self.max_position_embeddings is None and self.hidden_size % 2:
            raise ValueError(f"sinusoidal positions need an even hidden_size, not {self.hidden_size}")
        if self.share_encoder_decoder_embeddings and self.separate_vocabularies:
            raise ValueError(
                "share_encoder_decoder_embeddings needs one vocabulary for both sides: set "
                "share_encoder_decoder_embeddings=false"
            )
        if not self.separate_vocabularies and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"decoder_vocab_size={self.decoder_vocab_size} differs from vocab_size={self.vocab_size}: "
                "set separate_vocabularies too"
            )


__all__ = ["TransformerSeq2SeqConfig"]
