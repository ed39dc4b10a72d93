"""The self-attention of encoders and causal models, such as BERT and GPT, while they read a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModel

from kit.errors import DataError, RunError
from kit.plots.attention import attention_figure
from kit.prediction.options import PlotOptions, reject_unsupported
from kit.prediction.text import BLANK
from kit.pretrained.folder import ModelFolder
from kit.pretrained.loading import load_for_inference
from kit.pretrained.positions import position_limit
from kit.tasks.families.seq2seq.attention_weights import MAX_TOKENS, Kind, eager_attention, readable
from kit.tasks.families.seq2seq.plots import Maps, choose_maps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIONS = frozenset({"sentence", "kind", "layer", "head", "output", "format"})


def check_options(folder: ModelFolder, options: PlotOptions) -> None:
    """Raise KitError for options that have no effect on such models."""
    reject_unsupported(options, OPTIONS, f"{folder.name}, a {folder.config.model_type}")


@torch.inference_mode()
def self_attention_figures(folder: ModelFolder, texts: Sequence[str], options: PlotOptions) -> dict[str, Figure]:
    """The chosen attention maps while the model reads a text or a pair of texts, by name; empty without attention.

    Long texts are truncated to the positions of the model, and to MAX_TOKENS.
    """
    if getattr(folder.config, "vocab_size", None) is None:
        return {}
    if all(BLANK.fullmatch(text) for text in texts):
        raise DataError("the sentence is empty: there is nothing to attend to")
    limit = min(position_limit(folder.config) or MAX_TOKENS, MAX_TOKENS)
    full = folder.tokenizer(*texts, verbose=False)["input_ids"]
    inputs = folder.tokenizer(*texts, truncation=True, max_length=limit, return_tensors="pt", verbose=False)
    model = load_for_inference(folder, AutoModel)
    with eager_attention(model):
        outputs: Any = model(**inputs.to(model.device), output_attentions=True)
    layers = [layer for layer in getattr(outputs, "attentions", None) or () if layer is not None]
    if not layers:
        return {}
    weights = torch.cat(layers).float().cpu()  # (layers, heads, tokens, tokens)
    causal = not weights.triu(1).any()
    kind: Kind = "decoder" if causal else "encoder"
    if options.kind not in (None, kind, "all"):
        raise RunError(f"--kind {options.kind}: the model ({folder.config.model_type}) has {kind} attention only")
    tokens = readable(folder.tokenizer, inputs["input_ids"][0].tolist())
    maps = Maps.of(options.layer, options.head)
    chosen, title, captions = choose_maps(weights, kind, maps)
    if len(full) > len(tokens):
        title += f" · truncated after {len(tokens)} tokens"
    names = ("attends to", "token")
    figure = attention_figure(chosen, tokens, tokens, title, names=names, captions=captions, causal=causal)
    return {maps.name(kind): figure}
