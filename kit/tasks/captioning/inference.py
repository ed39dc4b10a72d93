"""Caption images with a trained model."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from transformers import AutoModelForImageTextToText

from kit.decoding.search import search
from kit.errors import KitError, RunError
from kit.prediction.engine import Encoded
from kit.prediction.issues import LineIssue
from kit.prediction.options import SAMPLING, GenerateOptions, PlotOptions
from kit.prediction.text import BLANK, Output, TextPredictor, encode_blank
from kit.system.files import check_regular
from kit.tasks.captioning.images import PixelReader, image_cost
from kit.tasks.captioning.plots import attention_figure_of
from kit.tasks.captioning.recipe import CaptioningRecipe
from kit.tasks.families.seq2seq.plots import parse_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_IMAGE = LineIssue("named no image that can be read", "the output is empty")


class Captioner(TextPredictor[np.ndarray]):
    """A captioning model and its tokenizer. An item is the path of an image, or a PIL image."""

    auto_class: ClassVar[Any] = AutoModelForImageTextToText
    description: ClassVar[str] = "a captioning model"
    supported: ClassVar[frozenset[str]] = frozenset({"attention", *SAMPLING})
    plot_options: ClassVar[frozenset[str]] = frozenset({"image", "target", "kind", "head", "output"})
    action: ClassVar[str] = "captioned"

    def read_config(self) -> None:
        if self.config.model_type not in CaptioningRecipe.kit_types:
            raise RunError(f"{self.folder.name} is a {self.config.model_type}, which reads no images")
        self.reader = PixelReader(self.config)

    def configure(self, options: GenerateOptions) -> None:
        super().configure(options)
        self.settings = options.seq2seq_settings(self.model)
        rows = max(self.settings.num_beams, self.settings.num_return_sequences)
        self.tokens_per_batch = max(1, options.tokens_per_batch // rows)
        # images of a portion are in memory as pixels: a portion is a batch
        self.portion_size = options.portion_size or max(1, self.tokens_per_batch // image_cost(self.config))

    def start(self) -> None:
        """Seed sampling."""
        torch.manual_seed(self.settings.seed)

    def encode(self, items: list[Any]) -> list[Encoded[np.ndarray]]:
        return [encode_blank(item) if _is_blank(item) else self._read(item) for item in items]

    def _read(self, item: Any) -> Encoded[np.ndarray]:
        try:
            if isinstance(item, str):
                check_regular(Path(item))
            image = self.reader.open(Path(item) if isinstance(item, str) else item)
            return Encoded([self.reader.resized(image)])
        except (ValueError, OSError) as error:
            return Encoded([], NO_IMAGE, error)

    def lengths(self, units: list[np.ndarray]) -> np.ndarray:
        return np.full(len(units), image_cost(self.config))

    def predict(self, units: list[np.ndarray]) -> list[list[Output]]:
        pixels = self.reader.pixels(np.stack(units))
        hypotheses = search(self.model, {"pixel_values": pixels.to(self.model.device)}, self.settings)
        return [self.outputs(best) for best in hypotheses]

    def line_figure(self, line: Any) -> "Figure | None":
        return self.image_figure(line)

    def image_figure(self, image: Any, caption: str | None = None, head: int | str = "mean") -> "Figure | None":
        """Plot the attention over an image for the caption of the model, or for `caption`; None if the model has no
        attention."""
        return attention_figure_of(self.model, self.tokenizers, self.reader, image, caption, head, self.settings)

    def attention_figures(self, options: PlotOptions, examples: Callable[[], list[Any]]) -> "dict[str, Figure]":
        if options.kind not in (None, "cross"):
            raise KitError(f"--kind {options.kind}: a captioning model has cross-attention only")
        options.require("image", "target")
        head = "mean" if options.head is None else parse_number("--head", options.head, ("mean",))
        if options.image is not None:
            images: dict[str, Any] = {f"attention_{options.image.stem}": options.image}
        else:
            images = {f"attention_{number}": image for number, image in enumerate(examples(), start=1)}
        figures = {name: self.image_figure(image, options.target, head) for name, image in images.items()}
        return {name: figure for name, figure in figures.items() if figure is not None}


def _is_blank(item: Any) -> bool:
    return isinstance(item, str) and BLANK.fullmatch(item) is not None
