"""The keys of recipes that pretrain language models: on documents, without any labels."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le, Lt
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from kit.recipe.base import Recipe
from kit.recipe.inputs import OF_CELLS, DataSection
from kit.recipe.training import EvalSection

Share = Annotated[float, Gt(0), Lt(1)]


class TextData(DataSection):
    """The text: where it is, what a document is, and how it is cut into blocks."""

    joins_paragraphs: ClassVar[bool] = True

    text: str = "text"
    """Column of the text: a document, or the list of its paragraphs."""

    documents: Literal["row", "blank_line", "file"] = "row"
    """What a document is: a row of the data (of a .txt file, a line), what stands between blank lines of .txt files, or
    a whole .txt file."""

    block_size: Annotated[int, Gt(7)] = 128
    """Number of tokens in an example."""

    validation_share: Share | None = None
    """Share of the training text, at its end, that is held out for validation; for text in few documents, where
    validation_size cannot choose."""

    test_share: Share | None = None
    """Share of the training text, at its end, that is held out for the test."""

    workers: PositiveInt = 1
    """Number of processes that cut the text into tokens; the result does not depend on it. A few seconds of text are
    done sooner by one."""

    cache: bool = True
    """Keep the text as tokens on disk for later runs, in $HF_HOME/kit, or the folder that KIT_CACHE names."""

    @property
    def text_columns(self) -> dict[str, str]:
        return {self.text: "text"}

    def without_effect(self) -> dict[str, str]:
        idle = super().without_effect()
        if self.streaming:
            idle |= dict.fromkeys(("workers", "cache"), "with data.streaming, which prepares text while training")
        if self.documents != "row":
            idle |= dict.fromkeys(OF_CELLS, f"on texts without columns (data.documents: {self.documents})")
        return idle

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        for split in ("validation", "test"):
            if getattr(self, f"{split}_share") is not None and getattr(self, f"{split}_size") is not None:
                yield f"{split}_share", f"it is given beside data.{split}_size, but only one can hold. Take one away."
        if (self.validation_share or 0) + (self.test_share or 0) >= 1:
            yield "validation_share", "with data.test_share it is all of the text: nothing is left to train on."
        if self.documents != "row" and self.path.startswith("builtin:"):
            yield "documents", "the rows of built-in data are documents already. Leave it out."

    def needing_all_data(self) -> list[str]:
        given = {
            "documents": self.documents != "row",
            "validation_share": self.validation_share is not None,
            "test_share": self.test_share is not None,
        }
        return super().needing_all_data() + [name for name, there in given.items() if there]


class CausalData(TextData):
    """The text: where it is, what a document is, and how it is cut into blocks."""

    separate_documents: bool = False
    """No token sees what stands before its own document, though a block holds several; false lets the model read on
    over the end of a document, which is marked."""

    carry_state: bool = False
    """Read the text in order, in as many streams as a step has blocks, and let a recurrent model go on from the state
    in which it left the block before: it remembers more than a block (truncated backpropagation through time)."""

    def needing_all_data(self) -> list[str]:
        return super().needing_all_data() + ["carry_state"] * self.carry_state


class MaskedData(TextData):
    """The text: where it is, what a document is, how it is cut into examples, and what of them is masked."""

    pairs: Literal["none", "next_sentence", "sentence_order"] = "none"
    """Whether examples are two segments: of which the second follows or comes from another document (next_sentence, as
    in BERT), or which stand in their order or not (sentence_order, as in ALBERT). Otherwise blocks are packed full."""

    pair_passes: PositiveInt = 5
    """How often the training text is cut into pairs, each time in another way; an epoch has them all."""

    language: str = "en"
    """Language whose rules split documents into sentences; with data.pairs."""

    mask_probability: Annotated[float, Gt(0), Le(0.5)] = 0.15
    """Share of the tokens that the model has to predict. They are chosen anew each time a text is seen; 80 % of them
    are masked, 10 % become a random token and 10 % stay."""

    whole_words: bool = False
    """Choose all tokens of a word or none, so that a part of a word does not give away the rest."""

    def without_effect(self) -> dict[str, str]:
        idle = super().without_effect()
        if self.pairs == "none":
            idle |= dict.fromkeys(("pair_passes", "language"), "without data.pairs")
        return idle


class MaskedEval(EvalSection):
    """Evaluation: when. Loss, perplexity and accuracy are always measured."""

    metrics: list[Literal["masked_accuracy", "pair_accuracy"]] = []  # type: ignore[assignment]  # noqa: RUF012
    """Figures that may select the best step besides the loss; they are measured in any case."""

    select_by: Literal["loss", "masked_accuracy", "pair_accuracy"] = "loss"
    """What makes a checkpoint the best one."""


class CausalEval(EvalSection):
    """Evaluation: when, and how samples are written. Loss and perplexity are always measured."""

    metrics: list[Literal["bits_per_byte"]] = []  # type: ignore[assignment]  # noqa: RUF012
    """Figures that may select the best step besides the loss; they are measured in any case."""

    select_by: Literal["loss", "bits_per_byte"] = "loss"
    """What makes a checkpoint the best one."""

    prompt_tokens: NonNegativeInt = 8
    """Length of the beginnings of validation blocks that the samples go on from; 0 lets them start from nothing."""

    max_new_tokens: PositiveInt = 60
    """Length of a sample, in tokens."""

    temperature: PositiveFloat = 0.8
    """How adventurous samples are: 1 follows the model's probabilities, less prefers what is likely."""

    top_p: Annotated[float, Gt(0), Le(1)] = 0.95
    """Samples draw from the likeliest tokens that together have this probability."""


class LanguageModelRecipe(Recipe):
    """What recipes of masked and of causal language models have in common."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        for name, plain in (("label_smoothing_factor", 0.0), ("normalize_by", "tokens")):
            if getattr(self.train, name) != plain:
                yield f"train.{name}", f"it has no effect on {self.task}. Leave it out."


class MaskedLMRecipe(LanguageModelRecipe):
    """Fill in what is masked, as BERT learns."""

    mapping: ClassVar[str | None] = "MODEL_FOR_MASKED_LM_MAPPING_NAMES"

    task: Literal["masked_lm"]
    """Fill in masked tokens, and tell whether two segments belong together: BERT's pretraining."""

    data: MaskedData
    """The text: where it is and what to use of it."""

    eval: MaskedEval = MaskedEval()
    """Evaluation: when."""


class CausalLMRecipe(LanguageModelRecipe):
    """Predict the next token, as GPT learns."""

    own_types: ClassVar[tuple[str, ...]] = ("rnn_lm",)
    mapping: ClassVar[str | None] = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
    adapters: ClassVar[tuple[str, ...]] = ("lora", "dora", "ia3")

    task: Literal["causal_lm"]
    """Predict the next token: GPT's pretraining, and recurrent language models."""

    data: CausalData
    """The text: where it is and what to use of it."""

    eval: CausalEval = CausalEval()
    """Evaluation: when, and how samples are written."""


__all__ = ["CausalLMRecipe", "MaskedLMRecipe", "TextData"]
