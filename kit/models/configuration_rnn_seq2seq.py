"""Configuration of `rnn_seq2seq`, and what the configurations of all models with the recurrent decoder share.

    RNNDecoderConfig            the decoder: cells and attention, whatever it reads and writes
    └─ RNNTextDecoderConfig     a decoder that writes text
       └─ RNNSeq2SeqConfig      with a recurrent encoder that reads text

A recipe's `model` section holds these fields; the docstring below a field is its help text.
"""

from collections.abc import Iterator
from dataclasses import field
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

CONTEXT_DESTINATIONS = ("input", "state", "readout", "next_layer")

Cell = Literal["rnn", "lstm", "gru"]

# the smallest and the largest value of each field; see `RNNDecoderConfig.bounds`
SIZES = dict.fromkeys(
    (
        "hidden_size", "embedding_size", "encoder_hidden_size", "attention_size", "num_attention_heads",
        "utterance_hidden_size", "context_hidden_size", "feature_size", "value_size", "cnn_channels",
    ),
    (1, 2**20),
) | {"context_size": (0, 2**20), "num_channels": (1, 1000), "image_size": (1, 2**14)}  # fmt: skip
LAYERS = dict.fromkeys(
    ("encoder_layers", "decoder_layers", "utterance_layers", "context_layers", "attention_layers"), (1, 1000)
) | {"cnn_blocks": (0, 1000)}
COUNTS = dict.fromkeys(("vocab_size", "decoder_vocab_size", "horizon"), (1, 2**31 - 1))
PROBABILITIES = dict.fromkeys(("dropout", "scheduled_sampling"), (0, 1))
NOISE = dict.fromkeys(("embedding_noise", "input_noise", "initializer_range"), (0, 1e6)) | {"min_scale": (1e-30, 1e6)}


@strict
class RNNDecoderConfig(PreTrainedConfig):
    """A decoder of recurrent cells, without attention, with a fixed context or with attention over an encoder's states.

    Subclasses say what kind of encoder that is, and what the decoder reads and writes.
    """

    bridge = "mlp"  # a field where there is a choice
    encoder_width_field: ClassVar[str] = "encoder_hidden_size"
    """The field that changes `encoder_size`, for messages."""

    hidden_size: int = 256
    """Width of the decoder's state."""

    decoder_layers: int = 1
    """Number of recurrent layers of the decoder."""

    cell: Cell = "lstm"
    """Kind of recurrent cell: `rnn` (tanh), `lstm` or `gru`."""

    attention: str = "additive"
    """What the decoder sees of the source: `none` (its initial state only), `fixed` (the encoder's final state at each
    step), or attention with the score `dot`, `general` (bilinear), `keyed` (product of two sigmoid layers), `additive`
    (Bahdanau), `scaled_dot` (projected, as in the Transformer) or `rbf` (distance)."""

    attention_size: int | None = None
    """Width of projected keys and queries, all heads together; by default `hidden_size`. Only for the scores `keyed`,
    `additive`, `scaled_dot` and `rbf`."""

    num_attention_heads: int = 1
    """Number of attention heads."""

    attention_layers: int = 1
    """Number of sigmoid layers that make keys and queries; only for the score `keyed`."""

    attention_values: bool = False
    """Attend over learned projections of the encoder's states instead of the states themselves."""

    attention_query: Literal["previous", "current"] = "previous"
    """State that queries the source: the `previous` one, so that the context enters this step's cell (Bahdanau), or the
    `current` one (Luong)."""

    context_to: list[str] = field(default_factory=lambda: ["input", "readout"])
    """Where the context goes, one or several of: `input` (of the cell; with a `current` query, of the next step),
    `state` (tanh(W [state; context]) replaces the state), `readout` (concatenated to the state), `next_layer` (the
    input of the layers above the first)."""

    dropout: float | int = 0.0
    """Dropout on embeddings, between layers and before the output layer."""

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        for problems in (self.invalid_values(), self.conflicts()):  # the second does arithmetic with the first
            for problem in problems:
                raise ValueError(problem)

    @classmethod
    def bounds(cls) -> dict[str, tuple[float, float]]:
        """The smallest and the largest value of each number, also of those in lists. The largest are far beyond what is
        trained: they keep a typing error from building layers for hours."""
        known = {**SIZES, **LAYERS, **COUNTS, **PROBABILITIES, **NOISE}
        return {name: limits for name, limits in known.items() if name in cls.__dataclass_fields__}

    @classmethod
    def field_choices(cls) -> dict[str, tuple[str, ...]]:
        """The valid names of text fields whose names are registered elsewhere: attention scores."""
        from .attention import SCORES

        return {"attention": ("none", "fixed", *SCORES)}

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
        """Width of the output layer's input."""
        return self.hidden_size

    @property
    def has_target_embeddings(self) -> bool:
        """Whether the decoder has its own word embeddings."""
        return False

    @property
    def readout_sees_input(self) -> bool:
        """Whether the output layer also sees what the decoder has just read."""
        return False

    @property
    def uses_attention(self) -> bool:
        """Whether each target position computes its own context."""
        return self.attention not in ("none", "fixed")

    @property
    def key_size(self) -> int:
        """Width of keys and queries, all heads together."""
        return (self.attention_size or self.hidden_size) if self._score_has("projects") else self.hidden_size

    def _score_has(self, flag: str) -> bool:
        """Whether there is attention with a score that has this flag."""
        from .attention import SCORES

        return self.uses_attention and getattr(SCORES[self.attention], flag)

    def invalid_values(self) -> Iterator[str]:
        """Messages about values that no model can have."""
        for name, choices in self.field_choices().items():
            if getattr(self, name) not in choices:
                yield f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)}"
        for name, (low, high) in self.bounds().items():
            value = getattr(self, name)
            for number in value if isinstance(value, list) else [value]:
                if number is not None and not low <= number <= high:
                    yield f"{name} must be {f'at most {high}' if number > high else f'at least {low}'}, not {number}"
        if self.dropout == 1:
            yield "dropout=1 would erase everything: it must be below 1"

    def conflicts(self) -> Iterator[str]:
        """Messages about valid values that do not fit together, each with what to change."""
        unknown = [name for name in self.context_to if name not in CONTEXT_DESTINATIONS]
        if unknown:
            yield f"context_to: {unknown} unknown; expected one or several of {', '.join(CONTEXT_DESTINATIONS)}"
        if len(set(self.context_to)) < len(self.context_to):
            yield f"context_to has an item twice: {self.context_to}"
        if self.attention == "none" and self.context_to:
            yield (
                f"attention=none has no context to send to {self.context_to}: set context_to=[] or choose "
                "attention=fixed"
            )
        if self.attention != "none" and not self.context_to:
            yield (
                f"attention={self.attention} computes a context, but context_to is empty: choose one or several of "
                f"{', '.join(CONTEXT_DESTINATIONS)}"
            )
        if "next_layer" in self.context_to and self.decoder_layers == 1:
            yield "context_to has next_layer, but the decoder has a single layer: set decoder_layers=2 or more"
        yield from self._attention_conflicts()

    def _attention_conflicts(self) -> Iterator[str]:
        """Messages about attention fields without effect, and about widths that do not fit."""
        from .attention import SCORES

        uses, heads = self.uses_attention, self.num_attention_heads
        for name, default in (("num_attention_heads", 1), ("attention_values", False), ("attention_query", "previous")):
            if not uses and getattr(self, name) != default:
                yield f"{name}={getattr(self, name)} has no effect with attention={self.attention}: leave it out"
        if self.attention_size is not None and not self._score_has("projects"):
            yield f"attention_size has no effect with attention={self.attention}: it projects nothing"
        if self.attention_layers < 1:
            yield f"attention_layers must be at least 1, not {self.attention_layers}"
        if self.attention_layers != 1 and not self._score_has("has_layers"):
            layered = " and ".join(name for name, score in SCORES.items() if score.has_layers)
            yield f"attention_layers has no effect with attention={self.attention}: only {layered} has layers"
        if self._score_has("needs_equal_widths") and self.encoder_size != self.hidden_size:
            yield (
                f"attention={self.attention} compares states of equal width, but the encoder's is {self.encoder_size} "
                f"and the decoder's {self.hidden_size}; change {self.encoder_width_field} (or attention=general)"
            )
        for name, size in (("encoder output", self.encoder_size), ("keys", self.key_size)):
            if uses and size % heads != 0:
                yield f"num_attention_heads={heads} does not divide the width of the {name}, {size}"


@strict
class RNNTextDecoderConfig(RNNDecoderConfig):
    """A recurrent decoder that writes text."""

    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (the name and type are transformers')
    share_encoder_decoder_embeddings = False  # fields where the encoder reads text too
    separate_vocabularies = False

    vocab_size: int = 8000
    """Number of tokens."""

    decoder_vocab_size: int | None = None
    """Number of tokens of the target; by default `vocab_size`."""

    embedding_size: int | None = None
    """Width of the word embeddings; by default `hidden_size`."""

    readout_embedding: bool = False
    """Let the readout see the embedding of the previous token too."""

    tie_word_embeddings: bool = False
    """Use one matrix for the decoder's word embeddings and the output layer."""

    embedding_noise: float | int = 0.0
    """Standard deviation of Gaussian noise added to the embeddings while training."""

    scheduled_sampling: float | int = 0.0
    """Probability of feeding back the model's own prediction instead of the true token while training: 0 is teacher
    forcing, 1 pure autoregression."""

    feedback: Literal["argmax", "sample"] = "argmax"
    """What scheduled sampling feeds back: the most probable token, or one sampled from the distribution."""

    initializer_range: float | int = 0.1
    """Standard deviation of the initial word embeddings."""

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
        # never left empty: `get_text_config(decoder=True)` of transformers copies decoder_… fields over the plain ones
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        super().__post_init__(**kwargs)

    @property
    def word_embedding_size(self) -> int:
        """Width of the word embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def decoder_input_size(self) -> int:
        return self.word_embedding_size

    @property
    def readout_size(self) -> int:
        # a tied output layer is as wide as a word embedding
        return self.word_embedding_size if self.tie_word_embeddings else self.hidden_size

    @property
    def has_target_embeddings(self) -> bool:
        return not self.share_encoder_decoder_embeddings

    @property
    def readout_sees_input(self) -> bool:
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

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.feedback != "argmax" and self.scheduled_sampling == 0:
            yield f"feedback={self.feedback} has no effect without scheduled_sampling"
        if not self.separate_vocabularies and self.decoder_vocab_size != self.vocab_size:
            yield (
                f"decoder_vocab_size={self.decoder_vocab_size} differs from vocab_size={self.vocab_size}: "
                f"{self.how_vocabularies_may_differ}"
            )

    @property
    def how_vocabularies_may_differ(self) -> str:
        """The end of the message about two vocabulary sizes."""
        return "this model has one vocabulary"


@strict
class RNNSeq2SeqConfig(RNNTextDecoderConfig):
    """An encoder-decoder of recurrent cells, without attention, with a fixed context or with attention."""

    model_type = "rnn_seq2seq"
    attribute_map = {"num_hidden_layers": "encoder_layers"}  # noqa: RUF012

    vocab_size: int = 8000
    """Number of tokens of the source; of the target too, unless `separate_vocabularies` is set."""

    separate_vocabularies: bool = False
    """Whether source and target have a vocabulary each (the target's tokenizer is saved beside the source's)."""

    encoder_hidden_size: int | None = None
    """Width of the encoder's state in one direction; by default such that the encoder's output, both directions
    concatenated, is `hidden_size` wide."""

    encoder_layers: int = 1
    """Number of recurrent layers of the encoder."""

    bidirectional: bool = True
    """Read the source in both directions."""

    reverse_source: bool = False
    """Read the source from its end, which helps models without attention (Sutskever et al., 2014)."""

    bridge: Literal["copy", "mlp"] = "mlp"
    """How the encoder's final state becomes the decoder's first: `copy` layer by layer, or through an `mlp`."""

    share_encoder_decoder_embeddings: bool = False
    """Use one matrix for the word embeddings of source and target; needs one vocabulary."""

    def __post_init__(self, **kwargs: Any) -> None:
        # never left empty either: `get_text_config(encoder=True)` of transformers would copy it over `hidden_size`
        if self.encoder_hidden_size is None:
            self.encoder_hidden_size = self.hidden_size // 2 if self.bidirectional else self.hidden_size
        super().__post_init__(**kwargs)

    @property
    def encoder_size(self) -> int:
        assert self.encoder_hidden_size is not None
        return self.encoder_hidden_size * (2 if self.bidirectional else 1)

    def tiny_sizes(self, width: int) -> dict[str, Any]:
        size = width if self.encoder_size == self.hidden_size else 2 * width
        return {**super().tiny_sizes(width), "encoder_hidden_size": size // (2 if self.bidirectional else 1)}

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.bridge == "copy" and self.encoder_layers != self.decoder_layers:
            yield (
                f"bridge=copy works layer by layer: encoder_layers={self.encoder_layers} and "
                f"decoder_layers={self.decoder_layers} must be equal (or bridge=mlp)"
            )
        if self.bridge == "copy" and self.encoder_size != self.hidden_size:
            yield (
                f"bridge=copy needs an encoder output as wide as the decoder: {self.encoder_size} is not "
                f"{self.hidden_size}; change encoder_hidden_size (or bridge=mlp)"
            )
        if self.share_encoder_decoder_embeddings and self.separate_vocabularies:
            yield (
                "share_encoder_decoder_embeddings needs one vocabulary for both sides, but separate_vocabularies is set"
            )

    @property
    def how_vocabularies_may_differ(self) -> str:
        return "set separate_vocabularies too"


__all__ = ["RNNDecoderConfig", "RNNSeq2SeqConfig", "RNNTextDecoderConfig"]
