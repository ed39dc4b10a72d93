"""The recipe of text classification: one label, several labels, or a number per text or text pair."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MinLen

from kit.evaluation.metrics import METRICS
from kit.evaluation.metrics.choice import or_registered
from kit.recipe.section import Fraction, PositiveFloat
from kit.recipe.suggestion import MAX_LABELS, DataSample, Suggestion
from kit.recipe.training import EvalSection
from kit.tasks.families.labeling.recipe import LabelingData, LabelingRecipe, TruncationKey

LabelMetric = Annotated[
    Literal[
        "accuracy", "f1", "f1_macro", "f1_micro", "f1_weighted", "precision", "precision_macro", "precision_micro",
        "precision_weighted", "recall", "recall_macro", "recall_micro", "recall_weighted", "matthews", "roc_auc",
        "pearson", "spearman", "mse",
    ],
    or_registered("labels", "scores", "numbers"),
]  # fmt: skip

LABEL_NAMES = (
    "label", "labels", "class", "category", "intent", "sentiment", "target", "score", "rating", "stars", "emotion",
    "topic", "genre", "similarity",
)  # fmt: skip
"""Usual names of a column of labels."""
RARE, MAX_NAMED = 10, 50
"""Examples below which a label is rare, and the number of labels that a suggestion names."""
SINGLE_LABEL_METRICS = ("f1", "precision", "recall", "matthews")
"""Metrics that are not defined for examples with several labels."""


class ClassificationData(TruncationKey, LabelingData):
    """Location, columns and labels of the data."""

    text_keys: ClassVar[tuple[str, ...]] = ("text", "text_pair")
    value_keys: ClassVar[tuple[str, ...]] = ("label",)
    encoding_keys: ClassVar[tuple[str, ...]] = ("label_names", "label_separator")
    prediction_keys: ClassVar[tuple[str, ...]] = text_keys

    text: str = "text"
    """Column of the text."""

    text_pair: str | None = None
    """Column of a second text, for labels of text pairs, such as paraphrase or entailment."""

    label: str = "label"
    """Column of the label: a name, a number or, if a text can have several labels, a list of them."""

    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] = (
        "single_label_classification"
    )
    """What the model predicts: one of several labels, any number of labels (multi_label_classification), or a number
    (regression)."""

    label_names: Annotated[list[str], MinLen(1)] | None = None
    """Label names; numeric labels are indices into this list, from 0. By default the class labels that a Hub dataset or
    parquet file names or, if it names none, all labels in the training data, sorted."""

    label_separator: Annotated[str, MinLen(1)] | None = None
    """Separator between the labels of a text, in files whose cells cannot hold lists; multi_label_classification
    only."""

    class_weights: Literal["balanced"] | dict[str, PositiveFloat] | None = None
    """Weight of each label in the loss, such as {spam: 5.0}; labels that are not listed have weight 1. balanced weights
    all labels equally, however rare they are. Reported losses are unweighted."""

    pos_weight: Literal["balanced"] | dict[str, PositiveFloat] | None = None
    """Weight in the loss of the examples that have a label, such as {rare: 20.0}; 1 for labels that are not listed.
    balanced makes the examples with and without each label weigh the same. multi_label_classification only."""

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        if self.problem_type != "multi_label_classification":
            ineffective["pos_weight"] = f"with data.problem_type: {self.problem_type}"
            ineffective["label_separator"] = f"with data.problem_type: {self.problem_type}"
        if self.problem_type != "single_label_classification":
            ineffective["class_weights"] = f"with data.problem_type: {self.problem_type}"
        if self.problem_type == "regression":
            ineffective["label_names"] = "with data.problem_type: regression"
        return ineffective

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.text_pair is None and self.truncation == "only_second":
            yield "truncation", "there is no second text without data.text_pair. Leave it out."
        names = self.label_names or []
        if len(set(names)) < len(names):
            yield "label_names", "a name occurs twice. Give each label a unique name."
        for key, weights in (("class_weights", self.class_weights), ("pos_weight", self.pos_weight)):
            for name in weights if isinstance(weights, dict) else ():
                if names and name not in names:
                    yield key, f'"{name}" is not among data.label_names.'


class ClassificationEval(EvalSection[LabelMetric]):
    """Frequency and metrics of evaluation."""

    evaluation_keys: ClassVar[tuple[str, ...]] = ("positive_label", "label_threshold")
    prediction_keys: ClassVar[tuple[str, ...]] = ("label_threshold",)

    metrics: list[LabelMetric] = []  # noqa: RUF012 (pydantic copies it)
    """Metrics computed on the predicted labels, in addition to the loss."""

    positive_label: str | None = None
    """Positive label for f1, precision, recall and roc_auc with two labels; by default the second."""

    label_threshold: Fraction | None = None
    """Predict the labels with a higher probability; multi_label_classification only. By default the threshold of each
    label that gives it the best F1 on the validation split; the thresholds are saved with the model."""


class ClassificationRecipe(LabelingRecipe):
    """Text classification: one label, several labels, or a number per text or text pair."""

    mapping: ClassVar[str | None] = "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES"
    pipeline_tag: ClassVar[str] = "text-classification"
    auto_class: ClassVar[str] = "AutoModelForSequenceClassification"
    peft_task_type: ClassVar[str | None] = "SEQ_CLS"

    task: Literal["classification"]
    """Text classification: one label, several labels, or a number per text or text pair."""

    data: ClassificationData
    """Location, columns and labels of the data."""

    eval: ClassificationEval = ClassificationEval()
    """Frequency and metrics of evaluation."""

    @classmethod
    def suggest(cls, sample: DataSample) -> Suggestion | None:
        """Suggest classification for one or two texts with a column of labels, of lists of labels, or of numbers."""
        texts = [column for column in sample.prose if sample.find(*LABEL_NAMES, among=[column]) is None][:2]
        if not texts or sample.is_parallel:
            return None
        labels = [column for column in sample.labels if column not in texts and column.separator is None]
        lists = [column for column in sample.columns if column.lists_text and column.distinct <= MAX_LABELS]
        separated = [column for column in sample.columns if column.separator is not None]
        numbers = [column for column in sample.columns if column.is_number and not column.is_id]
        named = sample.find(*LABEL_NAMES, among=[*labels, *separated, *lists, *numbers])
        label = named or next(iter([*labels, *separated, *lists, *numbers]), None)
        if label is None:
            return None
        data: dict[str, Any] = {"text": texts[0].name, "label": label.name, **sample.held_out()}
        what, others = "text", {}
        # a second text belongs to the example only if the names do not tell it from the first
        stems = {text.name.rstrip("0123456789_ab") for text in texts}
        if len(texts) == 2 and (named or len(stems) == 1):
            data["text_pair"], what = texts[1].name, "pair of texts"
        if label in lists or label in separated:
            data["problem_type"] = "multi_label_classification"
            data |= {"label_separator": label.separator} if label.separator else {}
            others = {"eval.metrics": ["f1_micro", "f1_macro"], "eval.metric_for_best_model": "f1_micro"}
            count = len(label.items_between(label.separator)) if label.separator else label.distinct
            what += f" → any of {count} labels"
        elif label in labels:
            counts = Counter(map(str, label.values))
            if label.is_text and min(counts.values()) < RARE and len(counts) <= MAX_NAMED and sample.held_out():
                data["label_names"] = sorted(counts)  # a rare label may only be among the held-out rows
            what += f" → one of {label.distinct} labels"
        else:
            data["problem_type"] = "regression"
            others = {"eval.metrics": ["pearson", "spearman"], "eval.metric_for_best_model": "pearson"}
            what += " → number"
        return Suggestion(0.9 if named else 0.75, what, "classification_banking77", data, others)

    @property
    def model_kind(self) -> str:
        return "text regression" if self.data.problem_type == "regression" else super().model_kind

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        kind = self.data.problem_type
        for name in self.eval.metrics:
            if name not in METRICS:  # the recipe of a finished run, whose process had registered it
                continue
            if (METRICS[name].kind == "numbers") != (kind == "regression"):
                yield "eval.metrics", f"{name} cannot be computed with data.problem_type: {kind}."
            elif name in SINGLE_LABEL_METRICS and kind == "multi_label_classification":
                yield (
                    "eval.metrics",
                    f"{name} is defined for one label per example: use f1_macro, f1_micro or f1_weighted.",
                )
        if self.eval.label_threshold is not None and kind != "multi_label_classification":
            yield "eval.label_threshold", f"it has no effect with data.problem_type: {kind}. Leave it out."
        if self.train.label_smoothing_factor and kind != "single_label_classification":
            yield "train.label_smoothing_factor", f"it has no effect with data.problem_type: {kind}. Leave it out."
