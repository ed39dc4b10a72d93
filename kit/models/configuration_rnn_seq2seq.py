"""Configuration of `rnn_seq2seq`: every choice that makes one recurrent encoder-decoder differ from another."""

from dataclasses import field
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

ATTENTION_SCORES = ("dot", "general", "keyed", "additive", "scaled_dot", "rbf")
PROJECTED_SCORES = ("keyed", "additive", "scaled_dot", "rbf")


@strict
class RNNSeq2SeqConfig(PreTrainedConfig):
    """An encoder-decoder of recurrent cells, without attention, with a fixed context or with attention."""

    model_type = "rnn_seq2seq"
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

    embedding_size: int | None = None
    """Width of the word vectors; by default `hidden_size`."""

    hidden_size: int = 256
    """Width of the decoder's state."""

    encoder_hidden_size: int | None = None
    """Width of the encoder's state in one direction; by default such that the encoder's output, both directions
    side by side, is `hidden_size` wide."""

    encoder_layers: int = 1
    """Number of recurrent layers of the encoder."""

    decoder_layers: int = 1
    """Number of recurrent layers of the decoder."""

    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    """Kind of recurrent cell: `rnn` (tanh), `lstm` or `gru`."""

    bidirectional: bool = True
    """Read the source in both directions."""

    reverse_source: bool = False
    """Read the source from its end: the classic trick for models without attention."""

    handover: Literal["copy", "mlp"] = "mlp"
    """How the encoder's final state becomes the decoder's first: `copy` layer by layer, or through an `mlp`."""

    attention: Literal["none", "fixed", "dot", "general", "keyed", "additive", "scaled_dot", "rbf"] = "additive"
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

    readout_embedding: bool = False
    """Let the readout see the embedding of the previous token too."""

    tie_word_embeddings: bool = False
    """Use one matrix for the decoder's word vectors and the output layer."""

    share_embeddings: bool = False
    """Use one matrix for the word vectors of source and target; needs one vocabulary."""

    dropout: float | int = 0.0
    """Dropout on embeddings, between layers and before the output layer."""

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
        # transformers copies decoder_… and encoder_… fields over the plain ones when it asks for one side, so
        # these two are never left empty
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        if self.encoder_hidden_size is None:
            self.encoder_hidden_size = self.hidden_size // 2 if self.bidirectional else self.hidden_size
        super().__post_init__(**kwargs)
        self.check_combination()

    @property
    def uses_attention(self) -> bool:
        """Whether a context is computed anew for each output token."""
        return self.attention in ATTENTION_SCORES

    @property
    def word_vector_size(self) -> int:
        """Width of the word vectors."""
        return self.embedding_size or self.hidden_size

    @property
    def encoder_size(self) -> int:
        """Width of the encoder's output, and so of an attended context."""
        assert self.encoder_hidden_size is not None
        return self.encoder_hidden_size * (2 if self.bidirectional else 1)

    @property
    def key_size(self) -> int:
        """Width of keys and queries, all heads together."""
        if self.attention in PROJECTED_SCORES:
            return self.attention_size or self.hidden_size
        return self.hidden_size

    def check_combination(self) -> None:
        """Refuse combinations that make no sense, each with a message that says what to change."""
        for complaint in self._complaints():
            raise ValueError(complaint)

    def _complaints(self) -> list[str]:
        found = []

        def refuse_if(condition: bool, message: str) -> None:
            if condition:
                found.append(message)

        places = ("input", "state", "readout", "next_layer")
        for name in ("vocab_size", "hidden_size", "encoder_layers", "decoder_layers", "attention_heads"):
            refuse_if(getattr(self, name) < 1, f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("embedding_size", "encoder_hidden_size", "attention_size", "decoder_vocab_size"):
            value = getattr(self, name)
            refuse_if(value is not None and value < 1, f"{name} must be at least 1, not {value}")
        for name in ("dropout", "scheduled_sampling"):
            value = getattr(self, name)
            refuse_if(not 0 <= value <= 1, f"{name} is a probability: it must lie in [0, 1], not {value}")
        refuse_if(self.dropout == 1, "dropout=1 would erase everything: it must be below 1")
        refuse_if(self.embedding_noise < 0, f"embedding_noise must not be negative, not {self.embedding_noise}")
        if found:  # what follows does arithmetic with these
            return found

        unknown = [place for place in self.context_to if place not in places]
        refuse_if(bool(unknown), f"context_to: {unknown} not known; the places are {', '.join(places)}")
        refuse_if(
            len(set(self.context_to)) < len(self.context_to),
            f"context_to names a place twice: {self.context_to}",
        )
        refuse_if(
            self.attention == "none" and bool(self.context_to),
            f"attention=none has no context to put at {self.context_to}: set context_to=[] or choose attention=fixed",
        )
        refuse_if(
            self.attention != "none" and not self.context_to,
            f"attention={self.attention} computes a context, but context_to is empty: name at least one of {places}",
        )
        refuse_if(
            "next_layer" in self.context_to and self.decoder_layers == 1,
            "context_to has next_layer, but the decoder has a single layer: set decoder_layers=2 or more",
        )
        self._refuse_attention(refuse_if)
        if self.handover == "copy":
            refuse_if(
                self.encoder_layers != self.decoder_layers,
                f"handover=copy goes layer by layer: encoder_layers={self.encoder_layers} and "
                f"decoder_layers={self.decoder_layers} must be equal (or handover=mlp)",
            )
            refuse_if(
                self.encoder_size != self.hidden_size,
                f"handover=copy needs an encoder output as wide as the decoder: {self.encoder_size} is not "
                f"{self.hidden_size}; change encoder_hidden_size (or handover=mlp)",
            )
        refuse_if(
            self.feedback != "argmax" and self.scheduled_sampling == 0,
            f"feedback={self.feedback} has no effect without scheduled_sampling",
        )
        refuse_if(
            self.share_embeddings and self.separate_vocabularies,
            "share_embeddings needs one vocabulary for both sides, but separate_vocabularies is set",
        )
        refuse_if(
            not self.separate_vocabularies and self.decoder_vocab_size != self.vocab_size,
            f"decoder_vocab_size={self.decoder_vocab_size} differs from vocab_size={self.vocab_size}: "
            "set separate_vocabularies too",
        )
        return found

    def _refuse_attention(self, refuse_if: Any) -> None:
        uses, heads = self.uses_attention, self.attention_heads
        for name, default in (
            ("attention_heads", 1),
            ("attention_values", False),
            ("attention_query", "previous"),
        ):
            refuse_if(
                not uses and getattr(self, name) != default,
                f"{name}={getattr(self, name)} has no effect with attention={self.attention}: leave it out",
            )
        refuse_if(
            self.attention_size is not None and self.attention not in PROJECTED_SCORES,
            f"attention_size has no effect with attention={self.attention}: it projects nothing",
        )
        refuse_if(self.attention_layers < 1, f"attention_layers must be at least 1, not {self.attention_layers}")
        refuse_if(
            self.attention_layers != 1 and self.attention != "keyed",
            f"attention_layers has no effect with attention={self.attention}: only keyed has layers",
        )
        refuse_if(
            self.attention == "dot" and self.encoder_size != self.hidden_size,
            f"attention=dot compares states of equal width, but the encoder's is {self.encoder_size} and the "
            f"decoder's {self.hidden_size}; change encoder_hidden_size (or attention=general)",
        )
        for name, size in (("encoder output", self.encoder_size), ("keys", self.key_size)):
            refuse_if(
                uses and size % heads != 0,
                f"attention_heads={heads} does not divide the width of the {name}, {size}",
            )


__all__ = ["RNNSeq2SeqConfig"]
