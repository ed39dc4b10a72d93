"""The recipe of tagging: one tag per word."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MinLen

from kit.evaluation.metrics.choice import or_registered
from kit.recipe.suggestion import MAX_LABELS, DataSample, Suggestion
from kit.recipe.training import EvalSection
from kit.tasks.families.labeling.recipe import LabelingData, LabelingRecipe, TruncationKey

TagMetric = Annotated[Literal["entity_f1", "entity_precision", "entity_recall", "tag_accuracy"], or_registered("tags")]


TAG_NAMES = ("ner_tags", "tags", "ner", "labels", "pos_tags", "pos", "upos", "xpos", "chunk_tags")
"""Usual names of a column of tags."""
WORDS_PER_TOKEN = 1.5
"""Lists of longer texts on average are turns or paragraphs, rather than the words of a sentence."""


class TaggingData(TruncationKey, LabelingData):
    """Location, columns and tagging scheme of the data."""

    value_keys: ClassVar[tuple[str, ...]] = ("tokens", "tags")
    encoding_keys: ClassVar[tuple[str, ...]] = ("label_names",)
    prediction_keys: ClassVar[tuple[str, ...]] = ("tokens",)

    tokens: str = "tokens"
    """Column of the words: a list per sentence."""

    tags: str = "tags"
    """Column of the tags, one per word: names, or indices into data.label_names or the names in a Hub dataset."""

    scheme: Literal["BIO", "IOB1", "IOBES", "BILOU", "none"] = "BIO"
    """Tagging scheme of the model's spans. Data in any of these schemes is converted; none keeps the tags unchanged,
    for tags of single words such as parts of speech."""

    label_names: Annotated[list[str], MinLen(1)] | None = None
    """Tag names; numeric tags are indices into this list, from 0. By default the names in a Hub dataset or parquet file
    or, if there are none, all tags in the training data."""

    label_all_tokens: bool = False
    """Train on all tokens of a word, the later ones of B-X as I-X in the BIO and IOB1 schemes; false trains on the
    first token only. The predicted tag of a word is always that of its first token."""

    @property
    def default_columns(self) -> list[str]:
        return ["tokens", self.tags]

    @property
    def text_roles(self) -> tuple[str, ...]:
        return ("tokens",)

    @property
    def learned_columns(self) -> tuple[str, ...]:
        return (self.tags,)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.truncation in ("only_first", "only_second"):
            yield "truncation", "there is only one text: use longest_first or do_not_truncate."


class TaggingEval(EvalSection[TagMetric]):
    """Frequency and word-level metrics of evaluation."""

    metrics: list[TagMetric] = []  # noqa: RUF012 (pydantic copies it)
    """Metrics computed on the tags of words, in addition to the loss."""


class TaggingRecipe(LabelingRecipe):
    """Tagging: one tag per word."""

    mapping: ClassVar[str | None] = "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES"
    pipeline_tag: ClassVar[str] = "token-classification"
    auto_class: ClassVar[str] = "AutoModelForTokenClassification"
    peft_task_type: ClassVar[str | None] = "TOKEN_CLS"

    task: Literal["tagging"]
    """Tagging: one tag per word, such as named entities or parts of speech."""

    data: TaggingData
    """Location, columns and tagging scheme of the data."""

    eval: TaggingEval = TaggingEval()
    """Frequency and word-level metrics of evaluation."""

    @classmethod
    def suggest(cls, sample: DataSample) -> Suggestion | None:
        """Suggest tagging for lists of words with lists of as many tags."""
        lists = [column for column in sample.columns if column.items]
        words = next((column for column in lists if column.lists_text and column.item_words < WORDS_PER_TOKEN), None)
        tags = [
            column
            for column in lists
            if words is not None and column is not words and column.distinct <= MAX_LABELS
            and [*map(len, column.values)] == [*map(len, words.values)]
        ]  # fmt: skip
        tag = sample.find(*TAG_NAMES, among=tags) or next(
            (column for column in tags if words is not None and column.distinct < words.distinct), None
        )
        if words is None or tag is None:
            return None
        data = {"tokens": words.name, "tags": tag.name, **sample.held_out()}
        others: dict[str, Any] = {}
        names = {str(item) for item in tag.items}
        if not tag.class_labels and not any(re.match(r"[BI]-.", name) for name in names):
            data["scheme"] = "none"
            others = {"eval.metrics": ["tag_accuracy"], "eval.metric_for_best_model": "tag_accuracy"}
        return Suggestion(0.95, f"words → one of {tag.distinct} tags each", "tagging_wnut17", data, others)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        for name in self.eval.metrics:
            if name.startswith("entity_") and self.data.scheme == "none":
                yield "eval.metrics", f"{name} measures spans, which data.scheme: none does not define."
