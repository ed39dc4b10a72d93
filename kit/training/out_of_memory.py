"""Turn out-of-memory errors into advice on which keys to change."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kit.errors import first_line
from kit.recipe.base import Recipe
from kit.training.finite import TrainingFailed
from kit.training.loop import Loop


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch or Python means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "can't allocate memory" in str(error) or "not enough memory" in str(error)


@contextmanager
def explain_out_of_memory(recipe: Recipe, loop: Loop) -> Iterator[None]:
    """Context manager: raise TrainingFailed with advice if memory runs out inside the block."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        train = recipe.train
        name = "tokens_per_batch" if train.batch_size is None else "batch_size"
        reason = first_line(error)[:150]  # torch adds the state of its allocator
        raise TrainingFailed(
            f"memory ran out after step {loop.progress.step} ({reason}). The same steps need less memory in more "
            f"micro-batches: train.micro_batches={2 * train.micro_batches}, also with --resume. Or lower train.{name} "
            f"(now {getattr(train, name)}), or eval.tokens_per_batch (now {recipe.eval.tokens_per_batch}) if it "
            "happened during evaluation, or use train.mixed_precision=bf16 or a smaller model; the last checkpoint is "
            "untouched"
        ) from error
