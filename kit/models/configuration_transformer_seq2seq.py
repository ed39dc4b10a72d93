"""Configuration of `transformer_seq2seq`: the Transformer for sequence-to-sequence learning."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


@strict
class TransformerSeq2SeqConfig(PreTrainedConfig):
    """An encoder-decoder of self-attention, cross-attention and feed-forward layers."""

    model_type = "transformer_seq2seq"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (the name and type are transformers')
    attribute_map = {  # noqa: RUF012
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "attention_heads",
    }

    vocab_size: int = 8000
    """Number of tokens of the source; of the target too, unless `separate_vocabularies` is set."""

    separate_vocabularies: bool = False
    """Whether source and target have a vocabulary each (the target's tokenizer is saved beside the source's)."""

    decoder_vocab_size: int | None = None
    """Number of tokens of the target; by default `vocab_size`."""

    hidden_size: int = 256
    """Width of the model, and of its word vectors."""

    encoder_layers: int = 3
    """Number of encoder layers."""

    decoder_layers: int = 3
    """Number of decoder layers."""

    attention_heads: int = 4
    """Number of heads of each attention; it must divide `hidden_size`."""

    feed_forward_size: int = 1024
    """Width between the two linear maps of a layer's feed-forward part."""

    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    """Non-linearity of the feed-forward part; `swiglu` gates it by a third linear map."""

    norm: Literal["pre", "post"] = "pre"
    """Layer norm before each part and once at the end (`pre`: trains stably), or after each part (`post`: as in the
    original paper, and a bit better where it trains)."""

    positions: Literal["sinusoid", "learned"] = "sinusoid"
    """How a position is told: by sines and cosines of any length, or by learned vectors up to `max_positions`."""

    max_positions: int = 512
    """Number of learned positions: longer sequences are refused. Sinusoids have no limit."""

    scale_embedding: bool = True
    """Multiply word vectors by the square root of `hidden_size`, so that positions do not drown them."""

    tie_word_embeddings: bool = True
    """Use one matrix for the decoder's word vectors and the output layer."""

    share_embeddings: bool = True
    """Use one matrix for the word vectors of source and target; needs one vocabulary."""

    dropout: float | int = 0.1
    """Dropout on what each part of a layer adds."""

    embedding_dropout: float | int | None = None
    """Dropout on word vectors with their positions; by default `dropout`."""

    attention_dropout: float | int = 0.0
    """Dropout on attention weights."""

    activation_dropout: float | int = 0.0
    """Dropout inside the feed-forward part."""

    initializer_range: float | int | None = None
    """Standard deviation of the first word vectors; by default 1 / √hidden_size."""

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
        # transformers copies decoder_… fields over the plain ones when it asks for that side: never left empty
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        super().__post_init__(**kwargs)
        self.check_combination()

    @property
    def first_dropout(self) -> float:
        """Dropout on word vectors with their positions."""
        return self.dropout if self.embedding_dropout is None else self.embedding_dropout

    def tiny_sizes(self, width: int) -> dict[str, Any]:
        """Fields of a tiny model with the same choices but no randomness, `hidden_size` becoming `width`."""
        return {
            "encoder_layers": min(2, self.encoder_layers),
            "decoder_layers": min(2, self.decoder_layers),
            "feed_forward_size": 2 * width,
            "embedding_dropout": None,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
        }

    def check_combination(self) -> None:
        """Refuse combinations that make no sense, each with a message that says what to change."""
        sizes = (
            "vocab_size",
            "hidden_size",
            "encoder_layers",
            "decoder_layers",
            "attention_heads",
            "feed_forward_size",
        )
        for name in (*sizes, "max_positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("dropout", "embedding_dropout", "attention_dropout", "activation_dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name} is a probability below 1, not {value}")
        if self.hidden_size % self.attention_heads:
            raise ValueError(f"attention_heads={self.attention_heads} does not divide hidden_size={self.hidden_size}")
        if self.positions == "sinusoid" and self.hidden_size % 2:
            raise ValueError(f"positions=sinusoid needs an even hidden_size, not {self.hidden_size}")
        if self.share_embeddings and self.separate_vocabularies:
            raise ValueError("share_embeddings needs one vocabulary for both sides: set share_embeddings=false")
        if not self.separate_vocabularies and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"decoder_vocab_size={self.decoder_vocab_size} differs from vocab_size={self.vocab_size}: "
                "set separate_vocabularies too"
            )


__all__ = ["TransformerSeq2SeqConfig"]
