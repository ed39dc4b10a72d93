"""Pictures of what a captioner looks at: the picture again for each word, bright where the word came from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from kit.decoding.search import search
from kit.decoding.settings import GenerationSettings
from kit.errors import DataError, RunError
from kit.plots.curves import save_figure
from kit.plots.fonts import MISSING_NOTE, label_of, script_of
from kit.tasks.families.seq2seq.attention_weights import eager_attention, readable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kit.tasks.captioning.inference import Captioner

COLUMNS = 6
MOST_WORDS = 60
_PANEL, _GAP, _TOP = 1.5, 0.12, 0.32  # inches
_DPI = 120


@dataclass(frozen=True)
class Look:
    """A caption with where each of its tokens looked: weights (heads, tokens, rows, columns) that add up to 1."""

    picture: Image.Image
    tokens: list[str]
    weights: torch.Tensor


@torch.inference_mode()
def look(
    captioner: Captioner, picture: Any, caption: str | None = None, settings: GenerationSettings | None = None
) -> Look:
    """Where the model looks while it writes its best caption of a picture, or reads a given one.

    Raises RunError if the model has no attention.
    """
    model, reader = captioner.model, captioner.reader
    if model.config.attention in ("none", "fixed"):
        raise RunError("the model has no attention: it sees the picture through a fixed state only")
    try:
        seen = reader.picture(picture)
    except ValueError as error:
        raise DataError(str(error)) from error
    batch = {"pixel_values": reader.pixels(reader.resized(seen)[None]).to(model.device)}
    if caption is None:
        tokens = search(model, batch, settings or captioner.settings())[0][0].tokens
    else:
        tokens = captioner.tokenizers.encode_target([caption])[0]
    tokens = tokens[:MOST_WORDS]
    inputs = torch.tensor([[model.generation_config.decoder_start_token_id, *tokens[:-1]]], device=model.device)
    with eager_attention(model):
        told = model(**batch, decoder_input_ids=inputs, use_cache=False, output_attentions=True)
    shape = model.feature_shape(*batch["pixel_values"].shape[-2:])
    weights = told.cross_attentions[-1][0].float().cpu().unflatten(-1, shape)  # (heads, tokens, rows, columns)
    return Look(seen, readable(captioner.tokenizers.target, tokens), weights)


def caption_figure(seen: Look, head: int | str = "mean", title: str | None = None) -> Figure:
    """The picture, and beside it once more for each word: as bright as the weight at each place, on a common scale."""
    from matplotlib.figure import Figure

    number = seen.weights.shape[1]
    weights = seen.weights.mean(0) if head == "mean" else seen.weights[int(head) - 1]  # (tokens, rows, columns)
    panels = number + 1
    columns = min(COLUMNS, panels)
    rows = math.ceil(panels / columns)
    wide, high = seen.picture.size
    tall = _PANEL * min(3.0, max(1 / 3, high / wide))
    script = script_of([*seen.tokens, title or ""])
    heading = 0.25 if title else 0.0
    width = columns * (_PANEL + _GAP) + _GAP
    height = rows * (tall + _TOP) + _GAP + heading
    figure = Figure(figsize=(width, height), dpi=_DPI)
    colors = np.asarray(seen.picture.convert("RGB"), dtype=np.float32) / 255
    for place in range(panels):
        row, column = divmod(place, columns)
        left, bottom = _GAP + column * (_PANEL + _GAP), height - heading - (row + 1) * (tall + _TOP)
        axes = figure.add_axes((left / width, bottom / height, _PANEL / width, tall / height))
        axes.set_axis_off()
        shown = colors if place == 0 else lit(colors, weights[place - 1].numpy(), float(weights.max()))
        axes.imshow(shown, aspect="auto", interpolation="nearest")
        name = "the picture" if place == 0 else label_of(seen.tokens[place - 1], script, spaces=True).strip()
        style: dict[str, Any] = {"family": script.fonts, "parse_math": False, "fontsize": 9, "pad": 3}
        axes.set_title(name, color="dimgray" if place == 0 or name in ("END",) else "black", **style)
    if title:
        more = f" · {MISSING_NOTE}" if script.incomplete else ""
        text = label_of(title, script, 110, spaces=True) + more
        figure.text(0.5, 1 - 0.05 / height, text, ha="center", va="center", fontsize=9, family=script.fonts,
                    parse_math=False)  # fmt: skip
    return figure


def lit(colors: np.ndarray, weights: np.ndarray, most: float) -> np.ndarray:
    """Colors (height, width, 3), dark where weights (rows, columns) are nil, and as they are where these are most."""
    height, width = colors.shape[:2]
    smooth = Image.fromarray(weights.astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
    light = np.clip(np.asarray(smooth) / max(most, 1e-9), 0, 1)[..., None]
    shaded = colors * (0.15 + 0.85 * light)
    # a little yellow, so that light shows on a dark ground too
    return shaded + (1 - shaded) * light * np.array([0.30, 0.25, 0.0], dtype=np.float32)


def draw_caption(
    captioner: Captioner,
    picture: Any,
    path: Path,
    caption: str | None = None,
    head: int | str = "mean",
    settings: GenerationSettings | None = None,
) -> bool:
    """Draw where the model looks for each word; false if it has no attention."""
    if captioner.model.config.attention in ("none", "fixed"):
        return False
    seen = look(captioner, picture, caption, settings)
    heads = seen.weights.shape[0]
    if head != "mean" and not 1 <= int(head) <= heads:
        raise RunError(f"--head {head}: the model has {heads} head{'s' * (heads > 1)}, counted from 1")
    which = "" if heads == 1 else f" · mean of {heads} heads" if head == "mean" else f" · head {head} of {heads}"
    title = "where the model looks for each word" + which + (" · the caption was given" if caption is not None else "")
    save_figure(caption_figure(seen, head, title), path)
    return True
