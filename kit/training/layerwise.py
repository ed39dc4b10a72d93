"""The layers of a pretrained model from the bottom to the top: which parameter is in which, to freeze the lowest, or to
let them learn more slowly."""

import re

from torch import nn
from transformers import PreTrainedModel

from kit.errors import RecipeError
from kit.recipe.training import TrainSection


def depths(model: PreTrainedModel, key: str) -> tuple[dict[str, int], int]:
    """How high up each parameter is, by name, and the number of layers L: 0 for what the model has before its first
    layer (embeddings), 1 to L within layers, L + 1 behind them (heads). Raises RecipeError, which names `key`, for a
    model whose layers are not one stack."""
    name, layers = layer_stack(model, key)
    inside = re.compile(rf"(?:^|\.){re.escape(name)}\.(\d+)\.")
    found: dict[str, int] = {}
    depth = 0
    for parameter, _ in model.named_parameters():
        place = inside.search(parameter)
        if place is not None:
            depth = int(place[1]) + 1
        elif depth:
            depth = layers + 1
        found[parameter] = depth
    return found, layers


def layer_stack(model: PreTrainedModel, key: str) -> tuple[str, int]:
    """The name of the list of layers, and their number."""
    kind = model.config.model_type
    count = getattr(model.config, "num_hidden_layers", None)
    if getattr(model.config, "is_encoder_decoder", False):
        raise RecipeError(f"{key}: a {kind} has an encoder and a decoder, not one stack of layers. Leave it out.")
    lists = [(name, len(part)) for name, part in model.named_modules() if isinstance(part, nn.ModuleList)]
    stacks = [(name, size) for name, size in lists if size == count]
    if len(stacks) != 1:
        told = ", ".join(f"{name} of {size}" for name, size in lists) or "none"
        raise RecipeError(
            f"{key}: the layers of a {kind} cannot be told: its configuration says {count}, its lists of modules are "
            f"{told}. Leave it out."
        )
    return stacks[0]


def freeze(model: PreTrainedModel, train: TrainSection) -> None:
    """Freeze what `train.freeze` says."""
    if train.freeze is None:
        return
    found, layers = depths(model, "train.freeze")
    highest = 0 if train.freeze == "embeddings" else int(train.freeze)
    if highest > layers:
        raise RecipeError(f"train.freeze: the model has {layers} layers, not {highest}.")
    for name, parameter in model.named_parameters():
        if found[name] <= highest:
            parameter.requires_grad_(False)


def learning_rates(model: PreTrainedModel, train: TrainSection) -> dict[str, float]:
    """The highest learning rate of each parameter, by name."""
    if train.layer_decay is None:
        return {name: train.learning_rate for name, _ in model.named_parameters()}
    found, layers = depths(model, "train.layer_decay")
    # the top layer and what is behind it learn at the full rate
    return {name: train.learning_rate * train.layer_decay ** max(0, layers - depth) for name, depth in found.items()}
