"""Caption pictures with a trained model: in order, streaming, in memory that does not grow with their number."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForImageTextToText

from kit.data.text.tokenizer import load_pretrained_tokenizers
from kit.decoding.search import Hypothesis, search
from kit.decoding.settings import GenerationSettings, saved_settings
from kit.errors import DataError, RunError
from kit.prediction.bad_lines import FAILED, BadLines, Fault, in_halves
from kit.pretrained.loading import load_config, load_model, weights_dir
from kit.tasks.captioning.images import PixelReader
from kit.tasks.captioning.recipe import CaptioningRecipe
from kit.tasks.families.seq2seq.inference import EMPTY, UNREADABLE, Output, outputs_of

PICTURES_AT_ONCE = 64

NO_PICTURE = Fault("named no picture that can be read", "the output is empty")


def is_captioner(name_or_path: str | Path) -> bool:
    """Whether a run folder, a model folder or a Hub id holds a model that reads pictures."""
    return load_config(name_or_path).model_type in CaptioningRecipe.kit_types


@dataclass
class _Seen:
    """A picture on its way: its pixels, or nothing; then its captions."""

    pixels: np.ndarray | None
    outputs: list[Output]


class Captioner:
    """A trained model with its tokenizer, ready to caption."""

    def __init__(self, name_or_path: str | Path, device: str | None = None):
        """`name_or_path` is a run folder, a model folder or a Hub id; by default a GPU is used if there is one."""
        self.model = load_model(AutoModelForImageTextToText, name_or_path).eval()
        if self.model.config.model_type not in CaptioningRecipe.kit_types:
            raise RunError(f"{name_or_path} is a {self.model.config.model_type}, which reads no pictures")
        self.model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.tokenizers = load_pretrained_tokenizers(weights_dir(name_or_path))
        self.reader = PixelReader(self.model.config)

    def settings(self, **changes: object) -> GenerationSettings:
        """The search that the model was saved with, with changes."""
        return saved_settings(self.model, **changes)

    def caption(
        self,
        pictures: Iterable[Any],
        settings: GenerationSettings | None = None,
        at_once: int = PICTURES_AT_ONCE,
        *,
        bad_lines: BadLines | None = None,
        progress: Callable[[int], object] = lambda pictures: None,
    ) -> Iterator[list[Output]]:
        """The best captions of each picture, a path or a PIL image, in order; an empty path gives one empty caption.

        A picture that cannot be read is an error; with `bad_lines` it is noted there, and its caption is empty.
        """
        settings, waiting, read = settings or self.settings(), iter(pictures), 0
        while portion := list(islice(waiting, at_once)):
            seen = [self._look(picture, number, bad_lines) for number, picture in enumerate(portion, start=read + 1)]
            there = np.array([place for place, one in enumerate(seen) if one.pixels is not None], dtype=np.int64)
            work = partial(self._search, seen, settings=settings)
            for place, found in in_halves(there, work, raising=bad_lines is None) if len(there) else ():
                if isinstance(found, Exception):
                    assert bad_lines is not None
                    bad_lines.add(FAILED, read + place + 1, found)
                else:
                    seen[place].outputs = outputs_of(self.tokenizers, found)
            progress(len(portion))
            read += len(portion)
            yield from (one.outputs for one in seen)

    def _search(self, seen: list[_Seen], places: np.ndarray, settings: GenerationSettings) -> list[list[Hypothesis]]:
        pixels = self.reader.pixels(np.stack([seen[place].pixels for place in places]))
        return search(self.model, {"pixel_values": pixels.to(self.model.device)}, settings)

    def _look(self, picture: Any, number: int, bad_lines: BadLines | None) -> _Seen:
        if isinstance(picture, str):
            if UNREADABLE.fullmatch(picture):
                return _Seen(None, [EMPTY])
            picture = Path(picture)
        try:
            return _Seen(self.reader.resized(self.reader.picture(picture)), [EMPTY])
        except (ValueError, OSError) as error:
            if bad_lines is None:
                raise DataError(f"picture {number}: {error}") from error
            bad_lines.add(NO_PICTURE, number)
            return _Seen(None, [EMPTY])
