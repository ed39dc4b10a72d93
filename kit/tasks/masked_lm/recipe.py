"""The recipe of masked language modeling, with or without sentence pairs."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le
from pydantic import PositiveInt

from kit.recipe.training import EvalSection
from kit.tasks.families.language_modeling.recipe import LanguageModelRecipe, TextData


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


class MaskedLMRecipe(LanguageModelRecipe):
    """Fill in what is masked, as BERT learns."""

    mapping: ClassVar[str | None] = "MODEL_FOR_MASKED_LM_MAPPING_NAMES"
    pipeline_tag: ClassVar[str] = "fill-mask"
    auto_class: ClassVar[str] = "AutoModelForMaskedLM"

    task: Literal["masked_lm"]
    """Fill in masked tokens, and tell whether two segments belong together: BERT's pretraining."""

    data: MaskedData
    """The text: where it is and what to use of it."""

    eval: MaskedEval = MaskedEval()
    """Evaluation: when."""
