"""Configuration of `hred`: the hierarchical recurrent encoder-decoder for dialogue."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_rnn_seq2seq import RNNTextDecoderConfig


@strict
class HREDConfig(RNNTextDecoderConfig):
    """An encoder of utterances, an encoder of the turns they make, and the decoder of `rnn_seq2seq` for the answer."""

    model_type = "hred"
    reads_turns: ClassVar[bool] = True
    """Inputs are (batch, turns, tokens): the turns of a dialogue are read one by one."""
    encoder_width_field: ClassVar[str] = "context_hidden_size"
    attribute_map = {"num_hidden_layers": "context_layers"}  # noqa: RUF012

    utterance_hidden_size: int | None = None
    """Width of the utterance encoder's state in one direction; by default such that an utterance, both directions
    concatenated, is `hidden_size` wide."""

    utterance_layers: int = 1
    """Number of recurrent layers that read the tokens of an utterance."""

    bidirectional: bool = True
    """Read each utterance in both directions; turns are always read in order."""

    context_hidden_size: int | None = None
    """Width of the state of the context encoder, which reads the turns; by default `hidden_size`."""

    context_layers: int = 1
    """Number of recurrent layers that read the turns."""

    include_utterances: bool = True
    """Concatenate each utterance's own vector to the state of the context encoder after it, for attention and for the
    decoder's initial state. Without it the decoder sees turns through the context encoder alone, as in the original
    paper (Serban et al., 2016)."""

    share_encoder_decoder_embeddings: bool = True
    """Use one matrix for the word embeddings of the dialogue and of the answer."""

    def __post_init__(self, **kwargs: Any) -> None:
        if self.context_hidden_size is None:
            self.context_hidden_size = self.hidden_size
        if self.utterance_hidden_size is None:
            self.utterance_hidden_size = self.hidden_size // 2 if self.bidirectional else self.hidden_size
        super().__post_init__(**kwargs)

    @property
    def utterance_width(self) -> int:
        """Width of the vector of an utterance, both directions concatenated."""
        return self.utterance_hidden_size * (2 if self.bidirectional else 1)

    @property
    def encoder_size(self) -> int:
        return self.context_hidden_size + self.include_utterances * self.utterance_width

    def tiny_sizes(self, width: int) -> dict[str, Any]:
        return {
            **super().tiny_sizes(width),
            "utterance_hidden_size": width // (2 if self.bidirectional else 1),
            "context_hidden_size": width if self.context_hidden_size == self.hidden_size else 2 * width,
        }


__all__ = ["HREDConfig"]
