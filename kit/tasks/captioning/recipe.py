"""The recipe of image captioning."""

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
    """Location, columns and splits of the images."""

    image: str = "image"
    """Column of the images, or of their file names within the folder; with the default, file_name is accepted too."""

    caption: str = "caption"
    """Column of the captions: a text, or a list of several for one image. Rows with the same image are merged. With the
    default, captions and text are accepted too."""

    max_length: PositiveInt | None = None
    """Drop training captions with more tokens than this; they are counted. Other splits keep every caption."""

    validation_share: Share | None = None
    """Fraction of the images to hold out for validation if the data has no validation split; all captions of an image
    stay together. Alternatively, set data.validation_size, their number."""

    test_share: Share | None = None
    """Fraction of the images to hold out for testing if the data has no test split."""

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
                yield f"{split}_share", f"it cannot be combined with data.{split}_size. Remove one of them."
        if (self.validation_share or 0) + (self.test_share or 0) >= 1:
            yield (
                "validation_share",
                "together with data.test_share it holds out all images: none are left to train on.",
            )
        if self.streaming:
            yield "streaming", "images are read from disk as needed anyway. Leave it out."


class CaptioningEval(Seq2SeqEval):
    """Frequency and metrics of evaluation, and beam search."""

    metrics: list[CaptionMetric] = []  # type: ignore[assignment]  # noqa: RUF012
    """Metrics computed on the generated captions, in addition to loss and perplexity; every caption of an image is a
    reference."""

    select_by: CaptionMetric | Literal["loss"] = "loss"  # type: ignore[assignment]
    """Metric that selects the best checkpoint: loss, or one of eval.metrics."""

    max_new_tokens: PositiveInt = 64
    """Maximum number of tokens in a caption; longer captions are truncated."""

    group_by: list[str] = []  # noqa: RUF012
    """Also report metrics by group: by columns of the data, such as category."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if "length" in self.group_by:
            yield "group_by", "an image has no length: use columns of the data."


class CaptioningRecipe(Seq2SeqRecipe):
    """Image captioning."""

    kit_types: ClassVar[tuple[str, ...]] = ("rnn_captioner",)
    pipeline_tag: ClassVar[str] = "image-to-text"
    auto_class: ClassVar[str] = "AutoModelForImageTextToText"

    task: Literal["captioning"]
    """Image captioning: describe an image in words."""

    data: CaptioningData
    """Location, columns and splits of the images."""

    eval: CaptioningEval = CaptioningEval()
    """Frequency and metrics of evaluation, and beam search."""
