"""Attention of a captioning model: the image once for each token, bright where the model attends to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from kit.data.text.tokenizer import Tokenizers
from kit.decoding.search import search
from kit.decoding.settings import GenerationSettings, saved_settings
from kit.errors import DataError, RunError
from kit.plots.fonts import MISSING_NOTE, label_of, script_of
from kit.system.files import check_regular
from kit.tasks.captioning.images import PixelReader
from kit.tasks.families.seq2seq.attention_weights import eager_attention, readable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 6  # panels in a row
MAX_TOKENS = 60  # panels in a figure, one for each token
_PANEL, _GAP, _TOP, _SCALE = 1.5, 0.12, 0.32, 0.55  # inches
_DPI = 120


@dataclass(frozen=True)
class CaptionAttention:
    """A caption with the attention of each of its tokens: weights (heads, tokens, rows, columns) that add up to 1."""

    image: Image.Image
    tokens: list[str]
    weights: torch.Tensor


@torch.inference_mode()
def caption_attention(
    model: Any,
    tokenizers: Tokenizers,
    reader: PixelReader,
    image: Any,
    caption: str | None = None,
    settings: GenerationSettings | None = None,
) -> CaptionAttention:
    """Compute the attention while a model writes its best caption of an image, or reads the given one.

    Raises DataError if the image cannot be read.
    """
    try:
        if isinstance(image, str | Path):
            check_regular(Path(image))
        opened = reader.open(image)
    except (ValueError, OSError) as error:
        raise DataError(str(error)) from error
    batch = {"pixel_values": reader.pixels(reader.resized(opened)[None]).to(model.device)}
    if caption is None:
        tokens = search(model, batch, settings or saved_settings(model))[0][0].tokens
    else:
        tokens = tokenizers.encode_target([caption])[0]
    tokens = tokens[:MAX_TOKENS]
    inputs = torch.tensor([[model.generation_config.decoder_start_token_id, *tokens[:-1]]], device=model.device)
    with eager_attention(model):
        outputs = model(**batch, decoder_input_ids=inputs, use_cache=False, output_attentions=True)
    shape = model.feature_shape(*batch["pixel_values"].shape[-2:])
    weights = outputs.cross_attentions[-1][0].float().cpu().unflatten(-1, shape)  # (heads, tokens, rows, columns)
    return CaptionAttention(opened, readable(tokenizers.target, tokens), weights)


def caption_figure(attention: CaptionAttention, head: int | str = "mean", title: str | None = None) -> Figure:
    """Draw the image and a copy of it for each token, bright where the attention weights are high. All copies share
    one scale."""
    from matplotlib.figure import Figure

    weights = (
        attention.weights.mean(0) if head == "mean" else attention.weights[int(head) - 1]
    )  # (tokens, rows, columns)
    panels = 1 + weights.shape[0]
    columns = min(COLUMNS, panels)
    rows = math.ceil(panels / columns)
    image_width, image_height = attention.image.size
    panel_height = _PANEL * min(3.0, max(1 / 3, image_height / image_width))
    script = script_of([*attention.tokens, title or ""])
    heading = 0.25 if title else 0.0
    width = columns * (_PANEL + _GAP) + _GAP + _SCALE
    height = rows * (panel_height + _TOP) + _GAP + heading
    figure = Figure(figsize=(width, height), dpi=_DPI)
    colors = np.asarray(attention.image.convert("RGB"), dtype=np.float32) / 255
    for panel in range(panels):
        row, column = divmod(panel, columns)
        left, bottom = _GAP + column * (_PANEL + _GAP), height - heading - (row + 1) * (panel_height + _TOP)
        axes = figure.add_axes((left / width, bottom / height, _PANEL / width, panel_height / height))
        axes.set_axis_off()
        shown = colors if panel == 0 else highlight(colors, weights[panel - 1].numpy(), float(weights.max()))
        axes.imshow(shown, aspect="auto", interpolation="nearest")
        name = "image" if panel == 0 else label_of(attention.tokens[panel - 1], script, spaces=True).strip()
        style: dict[str, Any] = {"family": script.fonts, "parse_math": False, "fontsize": 9, "pad": 3}
        axes.set_title(name, color="dimgray" if panel == 0 or name in ("END",) else "black", **style)
    _draw_scale(figure, float(weights.max()), width, height)
    if title:
        more = f" · {MISSING_NOTE}" if script.incomplete else ""
        text = label_of(title, script, 110, spaces=True) + more
        figure.text(0.5, 1 - 0.05 / height, text, ha="center", va="center", fontsize=9, family=script.fonts,
                    parse_math=False)  # fmt: skip
    return figure


def _draw_scale(figure: Figure, max_weight: float, width: float, height: float) -> None:
    """Draw a color bar, which shows how a gray image looks at each weight."""
    gray = np.full((64, 1, 3), 0.5, dtype=np.float32)
    weights = np.linspace(max_weight, 0, len(gray), dtype=np.float32)[:, None]
    bar_height = min(_PANEL, height - _TOP - _GAP)
    bottom = height - _TOP - 0.25 - bar_height
    axes = figure.add_axes((1 - _SCALE / width, max(bottom, 0) / height, 0.12 / width, bar_height / height))
    axes.imshow(highlight(gray, weights, max_weight), aspect="auto", extent=(0, 1, 0, max_weight))
    axes.set_xticks([])
    axes.yaxis.tick_right()
    axes.tick_params(labelsize=7)
    axes.set_title("weight", fontsize=7, color="dimgray", pad=3)


def highlight(colors: np.ndarray, weights: np.ndarray, max_weight: float) -> np.ndarray:
    """Shade colors (height, width, 3): dark where the weights (rows, columns) are low, yellowish near `max_weight`."""
    height, width = colors.shape[:2]
    smooth = Image.fromarray(weights.astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
    light = np.clip(np.asarray(smooth) / max(max_weight, 1e-9), 0, 1)[..., None]
    shaded = colors * (0.15 + 0.85 * light)
    # darkening alone would not show high weights on a dark background
    return shaded + (1 - shaded) * light * np.array([0.30, 0.25, 0.0], dtype=np.float32)


def attention_figure_of(
    model: Any,
    tokenizers: Tokenizers,
    reader: PixelReader,
    image: Any,
    caption: str | None = None,
    head: int | str = "mean",
    settings: GenerationSettings | None = None,
) -> Figure | None:
    """Plot the attention over an image for each token of its caption; None if the model has no attention."""
    if model.config.attention in ("none", "fixed"):
        return None
    attention = caption_attention(model, tokenizers, reader, image, caption, settings)
    heads = attention.weights.shape[0]
    if head != "mean" and not 1 <= int(head) <= heads:
        raise RunError(f"--head {head}: the model has {heads} head{'s' * (heads > 1)}, counted from 1")
    shown_heads = "" if heads == 1 else f" · mean of {heads} heads" if head == "mean" else f" · head {head} of {heads}"
    title = "attention of each word" + shown_heads + (" · the caption was given" if caption is not None else "")
    return caption_figure(attention, head, title)
