"""What the configurations of all models with the recurrent decoder have in common."""

from collections.abc import Iterator
from dataclasses import field
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

ATTENTION_SCORES = ("dot", "general", "keyed", "additive", "scaled_dot", "rbf")
PROJECTED_SCORES = ("keyed", "additive", "scaled_dot", "rbf")
PLACES = ("input", "state", "readout", "next_layer")

Cell = Literal["rnn", "lstm", "gru"]
AttentionKind = Literal["none", "fixed", "dot", "general", "keyed", "additive", "scaled_dot", "rbf"]


@strict
class RNNDecoderConfig(PreTrainedConfig):
    """A decoder of recurrent cells, without attention, with a fixed context or with attention over an encoder's states.

    What kind of encoder that is, and what the decoder reads and writes, is for the classes below it to say.
    """

    handover = "mlp"  # a field where there is a choice
    width_of_encoder = "encoder_hidden_size"  # the field that makes the encoder's output wider

    hidden_size: int = 256
    """Width of the decoder's state."""

    decoder_layers: int = 1
    """Number of recurrent layers of the decoder."""

    cell: Cell = "lstm"
    """Kind of recurrent cell: `rnn` (tanh), `lstm` or `gru`."""

    attention: AttentionKind = "additive"
    """What the decoder sees of the source: `none` (its first state only), `fixed` (the encoder's final state at
    each step), or attention with the score `dot`, `general` (bilinear), `keyed` (product of two sigmoid
    layers), `additive` (Bahdanau), `scaled_dot` (projected, as in the Transformer) or `rbf` (distance)."""

    attention_size: int | None = None
    """Width of projected keys and queries, all heads together; by default `hidden_size`. Only for the scores
    `keyed`, `additive`, `scaled_dot` and `rbf`."""

    attention_heads: int = 1
    """Number of attention heads."""

    attention_layers: int = 1
    """Number of sigmoid layers that make keys and queries; only for the score `keyed`."""

    attention_values: bool = False
    """Attend over learned values instead of the encoder's states themselves."""

    attention_query: Literal["previous", "current"] = "previous"
    """State that asks: the `previous` one, so that the context takes part in this step's cell (Bahdanau), or the
    `current` one (Luong)."""

    context_to: list[str] = field(default_factory=lambda: ["input", "readout"])
    """Where the context goes, one or several of: `input` (of the cell; with a `current` query, of the next
    step), `state` (joined to the state: tanh(W [state; context]) takes the state's place), `readout`
    (beside the state), `next_layer` (the input of the layers above the first)."""

    dropout: float | int = 0.0
    """Dropout on embeddings, between layers and before the output layer."""

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.check_combination()

    @property
    def encoder_size(self) -> int:
        """Width of the encoder's output, and so of an attended context."""
        raise NotImplementedError

    @property
    def decoder_input_size(self) -> int:
        """Width of what the decoder reads at each step, without the context."""
        raise NotImplementedError

    @property
    def readout_size(self) -> int:
        """Width of what the output layer sees."""
        return self.hidden_size

    @property
    def has_target_words(self) -> bool:
        """Whether the decoder has word vectors of its own."""
        return False

    @property
    def sees_last_input(self) -> bool:
        """Whether the output layer also sees what the decoder has read last."""
        return False

    @property
    def uses_attention(self) -> bool:
        """Whether a context is computed anew for each output."""
        return self.attention in ATTENTION_SCORES

    @property
    def key_size(self) -> int:
        """Width of keys and queries, all heads together."""
        if self.attention in PROJECTED_SCORES:
            return self.attention_size or self.hidden_size
        return self.hidden_size

    def check_combination(self) -> None:
        """Refuse values and combinations that make no sense, each with a message that says what to change."""
        for complaints in (self.wrong_values(), self.contradictions()):  # the second does arithmetic with the first
            for complaint in complaints:
                raise ValueError(complaint)

    def wrong_values(self) -> Iterator[str]:
        """What is wrong with single fields."""
        yield from self.too_small("hidden_size", "decoder_layers", "attention_heads", "attention_size")
        yield from self.no_probability("dropout")
        if self.dropout == 1:
            yield "dropout=1 would erase everything: it must be below 1"

    def too_small(self, *names: str) -> Iterator[str]:
        """Complaints about sizes below 1."""
        for name in names:
            value = getattr(self, name)
            if value is not None and value < 1:
                yield f"{name} must be at least 1, not {value}"

    def no_probability(self, *names: str) -> Iterator[str]:
        """Complaints about numbers outside of [0, 1]."""
        for name in names:
            value = getattr(self, name)
            if not 0 <= value <= 1:
                yield f"{name} is a probability: it must lie in [0, 1], not {value}"

    def contradictions(self) -> Iterator[str]:
        """What is wrong with fields together."""
        unknown = [place for place in self.context_to if place not in PLACES]
        if unknown:
            yield f"context_to: {unknown} not known; the places are {', '.join(PLACES)}"
        if len(set(self.context_to)) < len(self.context_to):
            yield f"context_to names a place twice: {self.context_to}"
        if self.attention == "none" and self.context_to:
            yield (
                f"attention=none has no context to put at {self.context_to}: set context_to=[] or choose "
                "attention=fixed"
            )
        if self.attention != "none" and not self.context_to:
            yield f"attention={self.attention} computes a context, but context_to is empty: name one of {PLACES}"
        if "next_layer" in self.context_to and self.decoder_layers == 1:
            yield "context_to has next_layer, but the decoder has a single layer: set decoder_layers=2 or more"
        yield from self._attention_contradictions()

    def _attention_contradictions(self) -> Iterator[str]:
        uses, heads = self.uses_attention, self.attention_heads
        for name, default in (("attention_heads", 1), ("attention_values", False), ("attention_query", "previous")):
            if not uses and getattr(self, name) != default:
                yield f"{name}={getattr(self, name)} has no effect with attention={self.attention}: leave it out"
        if self.attention_size is not None and self.attention not in PROJECTED_SCORES:
            yield f"attention_size has no effect with attention={self.attention}: it projects nothing"
        if self.attention_layers < 1:
            yield f"attention_layers must be at least 1, not {self.attention_layers}"
        if self.attention_layers != 1 and self.attention != "keyed":
            yield f"attention_layers has no effect with attention={self.attention}: only keyed has layers"
        if self.attention == "dot" and self.encoder_size != self.hidden_size:
            yield (
                f"attention=dot compares states of equal width, but the encoder's is {self.encoder_size} and the "
                f"decoder's {self.hidden_size}; change {self.width_of_encoder} (or attention=general)"
            )
        for part, size in (("encoder output", self.encoder_size), ("keys", self.key_size)):
            if uses and size % heads != 0:
                yield f"attention_heads={heads} does not divide the width of the {part}, {size}"


@strict
class RNNTextDecoderConfig(RNNDecoderConfig):
    """A recurrent decoder that writes text."""

    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (the name and type are transformers')
    share_embeddings = False  # fields where the encoder reads text too
    separate_vocabularies = False

    vocab_size: int = 8000
    """Number of tokens."""

    decoder_vocab_size: int | None = None
    """Number of tokens of the target; by default `vocab_size`."""

    embedding_size: int | None = None
    """Width of the word vectors; by default `hidden_size`."""

    readout_embedding: bool = False
    """Let the readout see the embedding of the previous token too."""

    tie_word_embeddings: bool = False
    """Use one matrix for the decoder's word vectors and the output layer."""

    embedding_noise: float | int = 0.0
    """Standard deviation of Gaussian noise added to the embeddings while training."""

    scheduled_sampling: float | int = 0.0
    """Probability of feeding back the model's own prediction instead of the true token while training: 0 is
    teacher forcing, 1 pure autoregression."""

    feedback: Literal["argmax", "sample"] = "argmax"
    """What scheduled sampling feeds back: the most probable token, or one sampled from the distribution."""

    initializer_range: float | int = 0.1
    """Standard deviation of the first word vectors."""

    use_cache: bool = True
    """Keep the decoder's state between the steps of `generate()`."""

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
        # transformers copies decoder_… fields over the plain ones when it asks for one side: never leave it empty
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        super().__post_init__(**kwargs)

    @property
    def word_vector_size(self) -> int:
        """Width of the word vectors."""
        return self.embedding_size or self.hidden_size

    @property
    def decoder_input_size(self) -> int:
        return self.word_vector_size

    @property
    def readout_size(self) -> int:
        # a tied output layer is as wide as a word vector
        return self.word_vector_size if self.tie_word_embeddings else self.hidden_size

    @property
    def has_target_words(self) -> bool:
        return not self.share_embeddings

    @property
    def sees_last_input(self) -> bool:
        return self.readout_embedding

    def tiny_sizes(self, width: int) -> dict[str, Any]:
        """Fields of a tiny model with the same choices but no randomness, `hidden_size` becoming `width`: sizes that
        are equal stay equal, the others stay different."""
        return {
            "embedding_size": None if self.embedding_size in (None, self.hidden_size) else width + 1,
            "attention_size": None if self.attention_size is None else 2 * width,
            "embedding_noise": 0.0,
            "scheduled_sampling": 0.0,
            "feedback": "argmax",
        }

    def wrong_values(self) -> Iterator[str]:
        yield from super().wrong_values()
        yield from self.too_small("vocab_size", "decoder_vocab_size", "embedding_size")
        yield from self.no_probability("scheduled_sampling")
        if self.embedding_noise < 0:
            yield f"embedding_noise must not be negative, not {self.embedding_noise}"

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        if self.feedback != "argmax" and self.scheduled_sampling == 0:
            yield f"feedback={self.feedback} has no effect without scheduled_sampling"
        if not self.separate_vocabularies and self.decoder_vocab_size != self.vocab_size:
            yield from self.unequal_vocabularies()

    def unequal_vocabularies(self) -> Iterator[str]:
        """The complaint about two vocabularies where there is one."""
        yield (
            f"decoder_vocab_size={self.decoder_vocab_size} differs from vocab_size={self.vocab_size}: "
            "this model has one vocabulary"
        )


__all__ = ["RNNDecoderConfig", "RNNTextDecoderConfig"]
