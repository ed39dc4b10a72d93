"""Recipe keys shared by tasks whose models generate text by beam search."""

from typing import Annotated, Any, ClassVar, Generic, Literal

from kit.evaluation.metrics.choice import or_registered
from kit.recipe.base import Recipe, UsesTokenizer
from kit.recipe.section import Beams, LengthPenalty, NewTokens, NonNegativeInt
from kit.recipe.training import (
    EvalSection,
    LabelSmoothingKey,
    Metric,
    NormalizationKey,
    ScheduledSamplingKeys,
    TrainSection,
)

TextMetric = Annotated[
    Literal[
        "bleu", "chrf", "chrfpp", "ter", "rouge1", "rouge2", "rougeL", "rougeLsum", "exact_match", "token_accuracy"
    ],
    or_registered("text"),
]


class Seq2SeqTrain(ScheduledSamplingKeys, NormalizationKey, LabelSmoothingKey, TrainSection):
    """Duration, batch size, optimizer, learning rate and loss of training."""


class Seq2SeqEval(EvalSection[Metric], Generic[Metric]):
    """Frequency and metrics of evaluation, and beam search."""

    search_keys: ClassVar[tuple[str, ...]] = (
        "num_beams", "length_penalty", "max_new_tokens", "early_stopping", "no_repeat_ngram_size",
    )  # fmt: skip
    evaluation_keys: ClassVar[tuple[str, ...]] = ("examples", "group_by", "lowercase", "bleu_tokenize", *search_keys)

    num_beams: Beams = 1
    """Number of beams in the final evaluation and in the saved model; 1 is greedy search."""

    num_beams_while_training: Beams = 1
    """Number of beams in evaluations during training; 1 (greedy search) is fastest."""

    length_penalty: LengthPenalty = 1.0
    """Exponent of the length by which a beam's score is divided: values above 0 favor longer output, values below 0
    shorter. 1 scores a beam by the mean log-probability of its tokens."""

    max_new_tokens: NewTokens = 128
    """Maximum number of output tokens; longer output is truncated."""

    early_stopping: bool | Literal["never"] = False
    """When beam search stops: true at num_beams finished outputs, false when better ones are unlikely, never when
    better ones are impossible."""

    no_repeat_ngram_size: NonNegativeInt = 0
    """Length of the n-grams that may not occur twice in an output; 0 allows repetition."""

    lowercase: bool = False
    """Ignore case in bleu, chrf and chrfpp; their signatures tell."""

    bleu_tokenize: Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"] | None = None
    """sacrebleu's tokenizer for bleu; by default zh for translation into Chinese, ja-mecab for Japanese (with the extra
    ja), and 13a for everything else."""

    group_by: list[str] = []  # noqa: RUF012
    """Also report metrics by group: by a column of the data, such as language, or by "length" (of the source)."""

    @property
    def metric_options(self) -> dict[str, dict[str, Any]]:
        """The options of each metric that has options, by metric."""
        case = {"lowercase": True} if self.lowercase else {}
        tokenize = {} if self.bleu_tokenize is None else {"tokenize": self.bleu_tokenize}
        return {"bleu": {**case, **tokenize}, "chrf": case, "chrfpp": case}

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        if not {"bleu", "chrf", "chrfpp"} & {*self.metrics}:
            ineffective["lowercase"] = "without bleu, chrf or chrfpp in eval.metrics"
        if "bleu" not in self.metrics:
            ineffective["bleu_tokenize"] = "without bleu in eval.metrics"
        return ineffective

    def unused_in_evaluation(self) -> dict[str, str]:
        unused = super().unused_in_evaluation()
        if self.metrics:
            unused["examples"] = "with eval.metrics, which need all outputs"
        elif not self.examples:
            unused |= dict.fromkeys(self.search_keys, "without eval.metrics and with eval.examples: 0")
        if self.num_beams == 1:
            unused["early_stopping"] = "with eval.num_beams: 1"
        return unused


class Seq2SeqRecipe(UsesTokenizer, Recipe):
    """The sections of tasks whose models generate text by beam search."""

    @property
    def target_language(self) -> str | None:
        """The language code of all targets, if the recipe names one."""
        return None

    train: Seq2SeqTrain
    """Duration, batch size, optimizer, learning rate and loss of training."""

    eval: Seq2SeqEval[Any] = Seq2SeqEval[Any]()
    """Frequency and metrics of evaluation, and beam search."""


class TextToTextEval(Seq2SeqEval[TextMetric]):
    """Frequency and metrics of evaluation, and beam search."""


class TextToTextRecipe(Seq2SeqRecipe):
    """The sections of tasks that turn a text into another one."""

    pipeline_tag: ClassVar[str] = "text2text-generation"
    hub_tags: ClassVar[tuple[str, ...]] = ("seq2seq",)
    auto_class: ClassVar[str] = "AutoModelForSeq2SeqLM"

    eval: TextToTextEval = TextToTextEval()
    """Frequency and metrics of evaluation, and beam search."""
