"""Losses, gradients and weights must be finite numbers: a run stops before they reach a checkpoint or a model."""

import math
from pathlib import Path

from accelerate import Accelerator
from safetensors.torch import save_file
from torch import nn

from kit.pretrained.finite import describe, nonfinite
from kit.system.json_files import write_json
from kit.training.checkpoint import model_tensors
from kit.training.objective import Batch
from kit.training.processes import add_over_processes
from kit.training.sharding import local_tensor

ADVICE = "A lower train.learning_rate, more train.warmup_steps or a smaller train.max_grad_norm often helps"


class TrainingFailed(Exception):
    """Training cannot continue. The message states the reason and, if data was saved for debugging, its folder."""


def check_losses(
    accelerator: Accelerator, step: int, batches: list[tuple[int, Batch]], losses: list[float], norm: float, run: Path
) -> None:
    """Raise TrainingFailed unless the losses of a step and its gradient norm are finite numbers.

    With fp16, the norm may overflow: the scaler then skips the step. Before it raises, the batches and losses of this
    process are saved in the folder `nonfinite` of the run.
    """
    scaled = accelerator.scaler is not None  # with fp16 overflows are expected: the scaler skips the step
    if all(math.isfinite(loss) for loss in losses) and (scaled or math.isfinite(norm)):
        return
    folder = run / "nonfinite"
    folder.mkdir(exist_ok=True)
    name = f"step-{step}-process-{accelerator.process_index}"
    tensors = {f"{j}:{key}": tensor.cpu().contiguous() for j, batch in batches for key, tensor in batch.items()}
    save_file(tensors, folder / f"{name}.safetensors")
    # as text, because JSON has no number that is not finite
    values = {j: str(loss) for (j, _), loss in zip(batches, losses, strict=True)}
    write_json(folder / f"{name}.json", {"losses": values, "grad_norm": str(norm)})
    raise TrainingFailed(
        f"step {step} has a non-finite loss or gradient (gradient norm {norm}). Its batches are in {folder}. {ADVICE}; "
        "the last checkpoint is untouched"
    )


def check_weights(accelerator: Accelerator, model: nn.Module, step: int) -> None:
    """Raise TrainingFailed, in all processes, unless the trained weights after a step are finite numbers.

    The loss of a step is computed before its update, so that nothing else shows an update that overflows.
    """
    names = nonfinite({name: local_tensor(tensor) for name, tensor in model_tensors(model).items()})
    (broken,) = add_over_processes([float(len(names))], accelerator)
    if broken:
        raise TrainingFailed(
            f"{describe(names) if names else 'weights'} are not finite numbers after step {step}. {ADVICE}; the last "
            "checkpoint is untouched"
        )
