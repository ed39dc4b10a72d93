"""Half precision for every task, and sums over processes in double precision on any device."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.recipes import GPT, RECIPES, make_recipe
from support.runs import losses
from torch import Tensor

from kit import train
from kit.training.processes import add_over_processes


@pytest.mark.soak
@pytest.mark.parametrize("task", RECIPES)
def test_every_task_trains_in_bf16(task: str, tmp_path: Path) -> None:
    sections = {"model": {**GPT, "n_positions": 96}} if task == "instruction_tuning" else {}
    losses_by_precision = {}
    for precision in ("no", "bf16"):
        overrides = [f"train.mixed_precision={precision}", "train.max_steps=3", "eval.steps=0"]
        recipe = make_recipe(tmp_path, task, None, overrides, **sections)
        losses_by_precision[precision] = losses(train(recipe, tmp_path / precision).folder)
    assert len(losses_by_precision["bf16"]) == 3
    assert losses_by_precision["bf16"] != losses_by_precision["no"]
    assert losses_by_precision["bf16"] == pytest.approx(losses_by_precision["no"], rel=0.05)


def test_sums_over_processes_are_float64_without_a_float64_tensor_on_the_device() -> None:
    ranks = [[2.0**52, 0.1, 3.0], [1.0, 0.2, 4.0], [1.0, 0.3, 5.0]]
    sent = []

    def gather(tensor: Tensor) -> Tensor:
        sent.append(tensor.dtype)
        others = torch.tensor(ranks[1:], dtype=torch.float64).view(torch.int64)
        return torch.cat([tensor, others])

    accelerator = SimpleNamespace(num_processes=3, device=torch.device("cpu"), gather=gather)
    assert add_over_processes(ranks[0], accelerator) == [2.0**52 + 2, 0.1 + 0.2 + 0.3, 12.0]
    assert sent == [torch.int64]
    assert add_over_processes([0.5, 1], SimpleNamespace(num_processes=1)) == [0.5, 1]
