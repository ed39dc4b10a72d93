"""Optimizers and learning-rate schedules, from the `train` section of a recipe."""

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_scheduler

from kit.recipe import TrainSection


def build_optimizer(model: nn.Module, train: TrainSection) -> Optimizer:
    """The optimizer over all trainable parameters; biases and other vectors are never decayed."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": train.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if train.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=train.learning_rate, momentum=train.momentum, fused=True)
    if train.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, lr=train.learning_rate)
    adam = torch.optim.AdamW if train.optimizer == "adamw" else torch.optim.Adam
    return adam(
        groups,
        lr=train.learning_rate,
        betas=(train.adam_beta1, train.adam_beta2),
        eps=train.adam_epsilon,
        fused=True,
    )


def build_schedule(optimizer: Optimizer, train: TrainSection, total_steps: int) -> LRScheduler:
    """The learning rate as a function of the step: transformers' own schedules."""
    return get_scheduler(
        train.lr_scheduler_type,
        optimizer,
        num_warmup_steps=train.warmup_steps,
        num_training_steps=total_steps,
    )
