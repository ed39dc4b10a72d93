"""The depth of each parameter of a pretrained model, for freezing lower layers and layer-wise learning-rate decay."""

import re

from torch import nn
from transformers import PreTrainedModel

from kit.errors import RecipeError
from kit.recipe.training import TrainSection


def layer_depths(model: PreTrainedModel, key: str) -> tuple[dict[str, int], int]:
    """The depth of each parameter by name, and the number of layers L.

    Depth 0 is before the first layer (embeddings), 1 to L are the layers, L + 1 is after the last one (heads). Raises
    RecipeError, naming `key`, for a model whose layers are not one stack.
    """
    name, layers = layer_stack(model, key)
    inside = re.compile(rf"(?:^|\.){re.escape(name)}\.(\d+)\.")
    result: dict[str, int] = {}
    depth = 0
    for parameter, _ in model.named_parameters():
        match = inside.search(parameter)
        if match is not None:
            depth = int(match[1]) + 1
        elif depth:
            depth = layers + 1
        result[parameter] = depth
    return result, layers


def layer_stack(model: PreTrainedModel, key: str) -> tuple[str, int]:
    """The name of the ModuleList that holds the layers, and their number. Raises RecipeError if it is not unique."""
    kind = model.config.model_type
    count = getattr(model.config, "num_hidden_layers", None)
    if getattr(model.config, "is_encoder_decoder", False):
        raise RecipeError(f"{key}: a {kind} has an encoder and a decoder, not one stack of layers. Leave it out.")
    lists = [(name, len(part)) for name, part in model.named_modules() if isinstance(part, nn.ModuleList)]
    stacks = [(name, size) for name, size in lists if size == count]
    if len(stacks) != 1:
        sizes = ", ".join(f"{name} of {size}" for name, size in lists) or "none"
        raise RecipeError(
            f"{key}: cannot identify the layers of a {kind}: its configuration has {count}, its module lists are "
            f"{sizes}. Leave it out."
        )
    return stacks[0]


def freeze(model: PreTrainedModel, train: TrainSection) -> None:
    """Freeze the embeddings, and the lowest layers up to `train.freeze`. Raises RecipeError if there are fewer."""
    if train.freeze is None:
        return
    depth, layers = layer_depths(model, "train.freeze")
    highest = 0 if train.freeze == "embeddings" else int(train.freeze)
    if highest > layers:
        raise RecipeError(f"train.freeze: the model has {layers} layers, not {highest}.")
    for name, parameter in model.named_parameters():
        if depth[name] <= highest:
            parameter.requires_grad_(False)


def learning_rates(model: PreTrainedModel, train: TrainSection) -> dict[str, float]:
    """The peak learning rate of each parameter by name."""
    if train.layer_decay is None:
        return {name: train.learning_rate for name, _ in model.named_parameters()}
    by_name, layers = layer_depths(model, "train.layer_decay")
    # ULMFiT (Howard & Ruder, 2018) and ELECTRA: the top layer and the head have the full rate
    return {name: train.learning_rate * train.layer_decay ** max(0, layers - depth) for name, depth in by_name.items()}
