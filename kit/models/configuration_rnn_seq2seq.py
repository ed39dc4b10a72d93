"""Configuration of `rnn_seq2seq`: every choice that makes one recurrent encoder-decoder differ from another."""

from collections.abc import Iterator
from typing import Any, Literal

from huggingface_hub.dataclasses import strict

from .configuration_rnn_decoder import ATTENTION_SCORES, RNNTextDecoderConfig


@strict
class RNNSeq2SeqConfig(RNNTextDecoderConfig):
    """An encoder-decoder of recurrent cells, without attention, with a fixed context or with attention."""

    model_type = "rnn_seq2seq"
    attribute_map = {  # noqa: RUF012
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "attention_heads",
    }

    vocab_size: int = 8000
    """Number of tokens of the source; of the target too, unless `separate_vocabularies` is set."""

    separate_vocabularies: bool = False
    """Whether source and target have a vocabulary each (the target's tokenizer is saved beside the source's)."""

    encoder_hidden_size: int | None = None
    """Width of the encoder's state in one direction; by default such that the encoder's output, both directions
    side by side, is `hidden_size` wide."""

    encoder_layers: int = 1
    """Number of recurrent layers of the encoder."""

    bidirectional: bool = True
    """Read the source in both directions."""

    reverse_source: bool = False
    """Read the source from its end: the classic trick for models without attention."""

    handover: Literal["copy", "mlp"] = "mlp"
    """How the encoder's final state becomes the decoder's first: `copy` layer by layer, or through an `mlp`."""

    share_embeddings: bool = False
    """Use one matrix for the word vectors of source and target; needs one vocabulary."""

    def __post_init__(self, **kwargs: Any) -> None:
        if self.encoder_hidden_size is None:  # never left empty either: it too could be copied over a plain one
            self.encoder_hidden_size = self.hidden_size // 2 if self.bidirectional else self.hidden_size
        super().__post_init__(**kwargs)

    @property
    def encoder_size(self) -> int:
        assert self.encoder_hidden_size is not None
        return self.encoder_hidden_size * (2 if self.bidirectional else 1)

    def tiny_sizes(self, width: int) -> dict[str, Any]:
        size = width if self.encoder_size == self.hidden_size else 2 * width
        return {**super().tiny_sizes(width), "encoder_hidden_size": size // (2 if self.bidirectional else 1)}

    def wrong_values(self) -> Iterator[str]:
        yield from super().wrong_values()
        yield from self.too_small("encoder_layers", "encoder_hidden_size")

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        if self.handover == "copy" and self.encoder_layers != self.decoder_layers:
            yield (
                f"handover=copy goes layer by layer: encoder_layers={self.encoder_layers} and "
                f"decoder_layers={self.decoder_layers} must be equal (or handover=mlp)"
            )
        if self.handover == "copy" and self.encoder_size != self.hidden_size:
            yield (
                f"handover=copy needs an encoder output as wide as the decoder: {self.encoder_size} is not "
                f"{self.hidden_size}; change encoder_hidden_size (or handover=mlp)"
            )
        if self.share_embeddings and self.separate_vocabularies:
            yield "share_embeddings needs one vocabulary for both sides, but separate_vocabularies is set"

    def unequal_vocabularies(self) -> Iterator[str]:
        yield (
            f"decoder_vocab_size={self.decoder_vocab_size} differs from vocab_size={self.vocab_size}: "
            "set separate_vocabularies too"
        )


__all__ = ["ATTENTION_SCORES", "RNNSeq2SeqConfig"]
