"""Optimizers and learning-rate schedules, from the `train` section of a recipe."""

from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_scheduler

from kit.errors import RecipeError
from kit.recipe.training import TrainSection
from kit.training.layerwise import learning_rates
from kit.training.objective import Objective


def build_optimizer(objective: Objective, train: TrainSection) -> Optimizer:
    """The optimizer over all trainable parameters, in groups from the highest learning rate to the lowest.

    Vectors (biases and norm weights) have no weight decay, as is common practice since BERT.
    """
    rates = learning_rates(objective.model, train)
    trained = [(rates[name], p) for name, p in objective.model.named_parameters() if p.requires_grad]
    if not trained:
        raise RecipeError("train.freeze: nothing is left to train.")
    groups: list[dict[str, Any]] = []
    for rate in sorted({rate for rate, _ in trained}, reverse=True):
        parameters = [p for its_rate, p in trained if its_rate == rate]
        groups += [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": train.weight_decay, "lr": rate},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0, "lr": rate},
        ]
    groups = [group for group in groups if group["params"]]
    if train.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=train.learning_rate, momentum=train.momentum, fused=True)
    if train.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, lr=train.learning_rate)
    adam = torch.optim.AdamW if train.optimizer == "adamw" else torch.optim.Adam
    return adam(
        groups, lr=train.learning_rate, betas=(train.adam_beta1, train.adam_beta2), eps=train.adam_epsilon, fused=True
    )


def build_schedule(optimizer: Optimizer, train: TrainSection, total_steps: int) -> LRScheduler:
    """The learning-rate schedule, from transformers' `get_scheduler`."""
    return get_scheduler(
        train.lr_scheduler_type, optimizer, num_warmup_steps=train.warmup_steps, num_training_steps=total_steps
    )
