"""The keys of a recipe whose task is to say what is in a picture."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Lt
from pydantic import PositiveInt

from kit.evaluation.metrics.choice import or_registered
from kit.recipe.inputs import DataSection
from kit.tasks.families.seq2seq.recipe import Seq2SeqEval, Seq2SeqRecipe

CaptionMetric = Annotated[
    Literal["bleu", "chrf", "cider", "ter", "rouge1", "rouge2", "rougeL", "rougeLsum", "exact_match", "token_accuracy"],
    or_registered("text"),
]
Share = Annotated[float, Gt(0), Lt(1)]


class CaptioningData(DataSection):
    """The pictures: where they are, which columns hold them and their captions, and what is held out."""

    image: str = "image"
    """Column of the pictures, or of their file names within the folder; at the default, file_name is found too."""

    caption: str = "caption"
    """Column of the captions: a text, or a list of several of one picture. Rows with the same picture are put
    together. At the default, captions and text are found too."""

    max_length: PositiveInt | None = None
    """Leave out captions with more tokens than this from training; they are counted. Other splits keep all."""

    validation_share: Share | None = None
    """Share of the pictures that is held out for validation when the data has no such split: a picture with all its
    captions, or not at all. Or give data.validation_size, their number."""

    test_share: Share | None = None
    """Share of the pictures that is held out for the test when the data has no such split."""

    @property
    def text_columns(self) -> dict[str, str]:
        return {}

    @property
    def value_columns(self) -> dict[str, str]:
        return {self.image: "image", self.caption: "caption"}

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.image == self.caption:
            yield "caption", f'image and caption are both "{self.caption}".'
        for split in ("validation", "test"):
            if getattr(self, f"{split}_share") is not None and getattr(self, f"{split}_size") is not None:
                yield f"{split}_share", f"it is given beside data.{split}_size, but only one can hold. Take one away."
        if (self.validation_share or 0) + (self.test_share or 0) >= 1:
            yield "validation_share", "with data.test_share it is all of the pictures: nothing is left to train on."
        if self.streaming:
            yield "streaming", "pictures are read from disk as they are needed anyway. Leave it out."


class CaptioningEval(Seq2SeqEval):
    """Evaluation: when, by which metrics, and how captions are searched for."""

    metrics: list[CaptionMetric] = []  # type: ignore[assignment]  # noqa: RUF012
    """What is computed on the captions, besides loss and perplexity; all captions of a picture are right."""

    select_by: CaptionMetric | Literal["loss"] = "loss"  # type: ignore[assignment]
    """What makes a checkpoint the best one: the loss, or one of eval.metrics."""

    max_new_tokens: PositiveInt = 64
    """Longest caption, in tokens; what is not finished by then is cut."""

    group_by: list[str] = []  # noqa: RUF012
    """Report metrics for groups too: by columns of the data, such as category."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if "length" in self.group_by:
            yield "group_by", "a picture has no length: name columns of the data."


class CaptioningRecipe(Seq2SeqRecipe):
    """From a picture to text."""

    own_types: ClassVar[tuple[str, ...]] = ("rnn_captioner",)
    pipeline_tag: ClassVar[str] = "image-to-text"
    auto_class: ClassVar[str] = "AutoModelForImageTextToText"

    task: Literal["captioning"]
    """Say in words what is in a picture."""

    data: CaptioningData
    """The pictures: where they are and what to use of them."""

    eval: CaptioningEval = CaptioningEval()
    """Evaluation: when, by which metrics, and how captions are searched for."""
