"""Is the memory that `kit data` and `kit train --dry-run` estimate what training uses?

    python benchmarks/estimated_memory.py [RECIPE ...] [--steps 20] [--set key=value ...]

estimates the memory of each recipe in one process, trains it for a few steps with an evaluation and a checkpoint in
another, and asks the system for the most memory that the training ever held. It prints both, the ratio of the totals,
and the ratio of what comes on top of libraries, data and weights. Exits with 1 if a ratio of totals is not between 0.9
and 1.3. On CPUs only.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

RECIPES = (
    "dates_rnn", "bert_mlm_tiny", "gpt_tiny", "rnn_lm", "dates_language", "dates_tags", "dates_questions",
    "shapes_captioner", "dialogues_hred", "pendulum",
)  # fmt: skip
LOWEST, HIGHEST = 0.9, 1.3
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Compared:
    """The memory of one recipe in MiB."""

    recipe: str
    estimated: float
    measured: float
    prepared: float
    """Before the first step: libraries, data and weights."""

    @property
    def ratio(self) -> float:
        return self.estimated / self.measured

    @property
    def ratio_of_steps(self) -> float:
        """The same ratio for what steps and evaluations add."""
        return (self.estimated - self.prepared) / max(1.0, self.measured - self.prepared)

    @property
    def is_close(self) -> bool:
        return LOWEST <= self.ratio <= HIGHEST


def estimate(recipe: str, overrides: list[str]) -> tuple[float, float]:
    """The estimated total, and what was resident before the first step, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=send_estimate, args=(sender, recipe, overrides))
    process.start()
    sender.close()
    try:
        total, prepared = receiver.recv()
    except EOFError:
        sys.exit(f"the memory of {recipe} could not be estimated")
    process.join()
    return total, prepared


def send_estimate(sender: Connection, recipe: str, overrides: list[str]) -> None:
    from kit import load_recipe
    from kit.diagnostics.dry_run import inspect_recipe

    cost = inspect_recipe(load_recipe(recipe, overrides)).cost
    assert cost is not None
    sender.send((cost.memory.total, cost.memory.parameters + cost.memory.rest))


def measure(recipe: str, overrides: list[str], folder: Path) -> float:
    """The peak memory of a training, as the system counted it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kit", "train", recipe, *overrides, "--output", str(folder)], env={**os.environ}
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"kit train {recipe} failed with exit code {process.returncode}")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 2**10) / MEBIBYTE


def compare(recipe: str, steps: int, settings: list[str]) -> Compared:
    overrides = [
        "train.num_train_epochs=null", f"train.max_steps={steps}", f"train.save_steps={steps}", f"eval.steps={steps}",
        *settings,
    ]  # fmt: skip
    estimated, prepared = estimate(recipe, overrides)
    with tempfile.TemporaryDirectory() as name:
        measured = measure(recipe, overrides, Path(name) / "run")
    return Compared(recipe, estimated, measured, prepared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", help="recipe keys to override")
    arguments = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    print("| recipe | before the first step | estimated | measured | ratio | ratio of what steps add |")
    print("|---|---|---|---|---|---|")
    all_close = True
    for recipe in arguments.recipes or RECIPES:
        compared = compare(recipe, arguments.steps, arguments.set)
        all_close &= compared.is_close
        cells = [f"{compared.prepared:,.0f} MB", f"{compared.estimated:,.0f} MB", f"{compared.measured:,.0f} MB"]
        print(
            f"| {Path(recipe).stem} | {' | '.join(cells)} | {compared.ratio:.2f} | {compared.ratio_of_steps:.2f} |",
            flush=True,
        )
    sys.exit(not all_close)


if __name__ == "__main__":
    main()
