"""The recipe of image captioning."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from kit.evaluation.metrics.choice import or_registered
from kit.recipe.data import DataSection, HoldoutShareKeys
from kit.recipe.section import NewTokens, PositiveInt
from kit.recipe.suggestion import DataSample, Suggestion
from kit.tasks.families.seq2seq.recipe import Seq2SeqEval, Seq2SeqRecipe

CaptionMetric = Annotated[
    Literal["bleu", "chrf", "cider", "ter", "rouge1", "rouge2", "rougeL", "rougeLsum", "exact_match", "token_accuracy"],
    or_registered("text"),
]


class CaptioningData(HoldoutShareKeys, DataSection):
    """Location, columns and splits of the images."""

    value_keys: ClassVar[tuple[str, ...]] = ("image", "caption")

    image: str = "image"
    """Column of the images, or of their file names within the folder; with the default, file_name is accepted too."""

    caption: str = "caption"
    """Column of the captions: a text, or a list of several for one image. Rows with the same image are merged. With the
    default, captions and text are accepted too."""

    max_length: PositiveInt | None = None
    """Drop training captions with more tokens than this; they are counted. Other splits keep every caption."""


class CaptioningEval(Seq2SeqEval[CaptionMetric]):
    """Frequency and metrics of evaluation, and beam search."""

    metrics: list[CaptionMetric] = []  # noqa: RUF012 (pydantic copies it)
    """Metrics computed on the generated captions, in addition to loss and perplexity; every caption of an image is a
    reference."""

    max_new_tokens: NewTokens = 64
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

    @classmethod
    def suggest(cls, sample: DataSample) -> Suggestion | None:
        """Suggest captioning for images, or names of image files, each with a text or a list of texts."""
        image = next((column for column in sample.columns if column.is_image), None)
        texts = [column for column in sample.columns if column.is_prose or column.lists_text]
        texts = texts or [column for column in sample.columns if column.is_text and not column.is_image]
        if image is None or not texts:
            return None
        caption = sample.find("caption", "captions", "text", "description", among=texts) or texts[0]
        missing = (split for split in ("validation", "test") if split not in sample.splits)
        data = {"image": image.name, "caption": caption.name} | {f"{split}_share": 0.1 for split in missing}
        return Suggestion(0.97, "image → caption", "emoji_captions", data)
