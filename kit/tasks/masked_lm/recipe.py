"""The recipe of masked language modeling, with or without sentence pairs."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le

from kit.recipe.section import PositiveInt
from kit.recipe.training import EvalSection
from kit.tasks.families.language_modeling.recipe import LanguageModelRecipe, TextData

MaskedMetric = Literal["masked_accuracy", "pair_accuracy"]


class MaskedData(TextData):
    """Location, documents, segmentation and masking of the text."""

    encoding_keys: ClassVar[tuple[str, ...]] = ("language", "mlm_probability", "whole_word_mask")

    pairs: Literal["none", "next_sentence", "sentence_order"] = "none"
    """Whether examples are pairs of segments: the second follows the first or comes from another document
    (next_sentence, as in BERT), or the two are in order or swapped (sentence_order, as in ALBERT). With none, blocks
    are packed full of text."""

    pair_passes: PositiveInt = 5
    """Number of times the training text is split into pairs, differently each time; an epoch includes all of them."""

    language: str = "en"
    """Language whose rules split documents into sentences; only with data.pairs."""

    mlm_probability: Annotated[float, Gt(0), Le(0.5)] = 0.15
    """Fraction of the tokens to predict, chosen again each time a text is seen: 80% of them are masked, 10% are
    replaced by a random token and 10% are left unchanged."""

    whole_word_mask: bool = False
    """Whole-word masking: mask all tokens of a word or none, so that its other tokens do not give it away."""

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        if self.pairs == "none":
            ineffective |= dict.fromkeys(("pair_passes", "language"), "without data.pairs")
        return ineffective


class MaskedEval(EvalSection[MaskedMetric]):
    """Frequency of evaluation. Loss, perplexity and accuracy are always reported."""

    evaluation_keys: ClassVar[tuple[str, ...]] = ("examples",)
    reports_all_metrics: ClassVar[bool] = True

    metrics: list[MaskedMetric] = []  # noqa: RUF012 (pydantic copies it)
    """Metrics, besides the loss, that can select the best checkpoint; they are always reported."""


class MaskedLMRecipe(LanguageModelRecipe):
    """Masked language modeling: predict masked tokens, as BERT does."""

    mapping: ClassVar[str | None] = "MODEL_FOR_MASKED_LM_MAPPING_NAMES"
    pipeline_tag: ClassVar[str] = "fill-mask"
    starting_recipe: ClassVar[str] = "bert_mlm_tiny"
    learns: ClassVar[str] = "masked tokens"
    suggested_score: ClassVar[float] = 0.7
    auto_class: ClassVar[str] = "AutoModelForMaskedLM"

    task: Literal["masked_lm"]
    """Masked language modeling: predict masked tokens and, optionally, whether two segments belong together, as in
    BERT."""

    data: MaskedData
    """Location, documents, segmentation and masking of the text."""

    eval: MaskedEval = MaskedEval()
    """Frequency of evaluation."""
