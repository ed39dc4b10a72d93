"""The recipe of tagging: one tag per word."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import MinLen

from kit.evaluation.metrics.choice import or_registered
from kit.recipe.training import EvalSection
from kit.tasks.families.labeling.recipe import FineTuningRecipe, LabelledData

TagMetric = Annotated[Literal["entity_f1", "entity_precision", "entity_recall", "tag_accuracy"], or_registered("tags")]


class TaggingData(LabelledData):
    """The data: where it is, which columns hold words and tags, and how tags are given to parts of words."""

    tokens: str = "tokens"
    """Column of the words: a list for each sentence."""

    tags: str = "tags"
    """Column of the tags, one for each word: names, or numbers of data.label_names or of a Hub dataset's names."""

    scheme: Literal["BIO", "IOB1", "IOBES", "BILOU", "none"] = "BIO"
    """How the model tags spans of words. Data may have any of these schemes and is converted; none takes tags as they
    are, for those that mean single words, such as parts of speech."""

    label_names: Annotated[list[str], MinLen(1)] | None = None
    """Names of the tags in the data, where they are numbers that mean places in this list, from 0."""

    label_all_subwords: bool = False
    """Whether all parts of a word learn its tag, the later ones of B-X as I-X where the scheme is BIO or IOB1; false
    lets only the first part learn. The tag of a word is that of its first part in any case."""

    @property
    def text_columns(self) -> dict[str, str]:
        return {}

    @property
    def value_columns(self) -> dict[str, str]:
        return {self.tokens: "tokens", self.tags: "tags"}

    @property
    def learned_columns(self) -> tuple[str, ...]:
        return (self.tags,)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.tokens == self.tags:
            yield "tags", f'tokens and tags are both "{self.tags}".'
        if self.truncation in ("only_first", "only_second"):
            yield "truncation", "there is one text: use longest_first or do_not_truncate."


class TaggingEval(EvalSection):
    """Evaluation: when, and by which metrics, all of them of whole words."""

    metrics: list[TagMetric] = []  # type: ignore[assignment]  # noqa: RUF012
    """What is computed on the tags of words, besides the loss."""


class TaggingRecipe(FineTuningRecipe):
    """Give each word a tag."""

    mapping: ClassVar[str | None] = "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES"
    pipeline_tag: ClassVar[str] = "token-classification"
    auto_class: ClassVar[str] = "AutoModelForTokenClassification"
    peft_task_type: ClassVar[str | None] = "TOKEN_CLS"

    task: Literal["tagging"]
    """Tell the tag of each word: names, parts of speech."""

    data: TaggingData
    """The data: where it is and what to use of it."""

    eval: TaggingEval = TaggingEval()
    """Evaluation: when, and by which metrics."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        for name in self.eval.metrics:
            if name.startswith("entity_") and self.data.scheme == "none":
                yield "eval.metrics", f"{name} is about spans, which data.scheme: none does not have."
