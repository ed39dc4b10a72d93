"""Weight averaging: the mean of the last checkpoints of a run, and an exponential moving average during training."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kit.training.checkpoint import Checkpoint, load_model_tensors, model_tensors
from kit.training.sharding import shard_like


def mean_weights(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """The arithmetic mean of the weights of checkpoints by name, summed in float64.

    Integer tensors, such as counters, come from the last checkpoint.
    """
    sums: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        tensors = checkpoint.weights()
        for name, tensor in tensors.items():
            sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
    return {
        name: (sums[name] / len(checkpoints)).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


class MovingAverage:
    """An exponential moving average of a model's weights, used for evaluation and for the exported model.

    After step t it is d · average + (1 − d) · weights with d = min(decay, t / (t + 10)). The smaller decay of early
    steps keeps the initial weights from dominating the average for long; the form is that of TensorFlow's
    `ExponentialMovingAverage` with `num_updates`. torch's `AveragedModel` has no such warm-up, and restores no sharded
    tensors.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.tensors = {name: tensor.clone() for name, tensor in model_tensors(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Update the average with the weights after a step, counted from 1."""
        decay = min(self.decay, step / (step + 10))
        for name, tensor in model_tensors(model).items():
            if tensor.is_floating_point():
                self.tensors[name].lerp_(tensor, 1 - decay)
            else:
                self.tensors[name].copy_(tensor)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load the average from the tensors of a checkpoint."""
        for name, tensor in self.tensors.items():
            tensor.copy_(shard_like(tensor, tensors[name]))

    @contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """Context manager: the model uses the averaged weights inside the block."""
        trained = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
        load_model_tensors(model, self.tensors, "the moving average")
        try:
            yield
        finally:
            load_model_tensors(model, trained, "the weights in training")
