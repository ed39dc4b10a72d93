"""Whether a new model fits into memory, before it is built."""

import psutil
import torch
from transformers import PreTrainedConfig

from kit.errors import RecipeError
from kit.system.device import default_device

MAX_LAYERS = 1000
"""As deep as the deepest Transformers (Wang et al., 2022). Building takes time in proportion, also without memory."""
LAYER_FIELDS = ("layers", "layer", "blocks")
"""Last words of the names of configuration fields that count layers."""
SIZE_FIELDS = (*LAYER_FIELDS, "size", "heads", "head", "embd", "positions", "embeddings")
"""Last words of the names of fields that must be at least 1."""
GIGABYTE = 10**9


def check_sizes(config: PreTrainedConfig) -> None:
    """Raise RecipeError for more than `MAX_LAYERS` layers, which take hours to build, and for sizes below 1, some of
    which would fail only at the first batch. Configs of transformers accept any number."""
    defaults = type(config)().to_dict()
    for name, value in config.to_dict().items():
        ending = name.rpartition("_")[2]
        if type(value) is not int or value == defaults.get(name):  # 0 means "none" in a few models
            continue
        if ending in LAYER_FIELDS and value > MAX_LAYERS:
            raise RecipeError(f"model.{name}: a {config.model_type} has at most {MAX_LAYERS:,} layers, not {value:,}.")
        if ending in SIZE_FIELDS and value < 1:
            raise RecipeError(f"model.{name}: it must be at least 1, not {value}.")


def check_memory(skeleton: torch.nn.Module, dtype: torch.dtype) -> None:
    """Raise RecipeError if a model on the meta device cannot fit into the memory of this machine.

    The model is built in main memory. Training on a CPU keeps a gradient of the same size for every weight; what the
    optimizer and a step need besides is left to `kit train --dry-run`, which measures it.
    """
    weights = sum(parameter.numel() for parameter in skeleton.parameters())
    copies = 2 if default_device().type == "cpu" else 1
    needed, available = weights * dtype.itemsize * copies, psutil.virtual_memory().total
    if needed > available:
        what = "weights and gradients" if copies == 2 else "weights"
        raise RecipeError(
            f"model: it would have {weights:,} parameters, whose {what} need {needed / GIGABYTE:,.0f} GB; this machine "
            f"has {available / GIGABYTE:,.0f} GB. Set smaller sizes: `kit explain model` lists the keys"
        )
