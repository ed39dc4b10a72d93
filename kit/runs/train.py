"""A run from recipe to results: `train` is the table of contents of kit."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from kit.errors import RecipeError, RunError
from kit.evaluation.metrics import greater_is_better
from kit.recipe.base import Recipe
from kit.runs.finish import finish, show_evaluation
from kit.runs.folder import RunFolder
from kit.runs.prepare import Prepared, prepare
from kit.runs.revisions import pinned, with_pins_of
from kit.system.console import Reporter
from kit.system.machine import keep_freed_memory
from kit.training import sharding
from kit.training.launch import EXPECTED_PROCESSES
from kit.training.layer_swaps import swap_layers
from kit.training.loop import Loop
from kit.training.metrics_log import MetricsLog, check_trackers
from kit.training.optim import build_optimizer, build_schedule
from kit.training.out_of_memory import explain_out_of_memory
from kit.training.processes import on_main, wait_for_everyone

REFUSED = {"ACCELERATE_USE_DEEPSPEED": "DeepSpeed", "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM"}


@dataclass(frozen=True)
class FinishedRun:
    """What a training leaves behind."""

    folder: Path
    results: dict[str, Any]
    was_there: bool = False


def train(recipe: Recipe, output: str | Path, resume: bool = False, reporter: Reporter | None = None) -> FinishedRun:
    """Train what the recipe says into the folder `output`; evaluate, export and describe the result.

    A finished run of the same recipe is returned as it is. With `resume` an unfinished one goes on where it was.
    """
    keep_freed_memory()
    accelerator = build_accelerator(recipe, Path(output))
    reporter = reporter if reporter is not None and accelerator.is_main_process else Reporter(quiet=True)
    folder = RunFolder(Path(output))
    # the main process alone looks into the folder, which on other machines can be another one
    recipe = on_main(lambda: claimed_recipe(recipe, folder, resume, accelerator, reporter))
    results = on_main(lambda: folder.results() if folder.is_finished else None)
    if results is not None:
        return FinishedRun(folder.path, results, was_there=True)
    with folder.locked(accelerator.is_main_process):
        folder.check_shared()
        prepared = prepare(recipe, on_main(folder.tokenizers), accelerator)
        if accelerator.is_main_process:
            folder.start(prepared.recipe, prepared.tokenizers)
        wait_for_everyone()
        for line in [*prepared.summary(), describe_processes(accelerator)]:
            reporter.print(line)
        loop = build_loop(prepared, folder, accelerator, reporter)
        try:
            with explain_out_of_memory(recipe, loop):
                go_on_from_checkpoint(loop, resume, reporter)
                loop.run()
                results = finish(prepared, loop, folder, reporter)
        finally:
            loop.release()
    return FinishedRun(folder.path, results)


def claimed_recipe(
    recipe: Recipe, folder: RunFolder, resume: bool, accelerator: Accelerator, reporter: Reporter
) -> Recipe:
    """The recipe as this folder can run it. Raises RunError if the folder is not free for it."""
    recipe = in_enough_parts(recipe, folder, resume, accelerator.num_processes, reporter)
    if folder.recipe_file.is_file():
        recipe = pinned(with_pins_of(recipe, folder.recipe()))
    if sharding.is_requested():
        sharding.check(recipe, accelerator)
    folder.claim(recipe, resume)
    return recipe


def build_accelerator(recipe: Recipe, output: Path = Path("runs")) -> Accelerator:
    """Accelerate, on the devices that there are; the number of processes must be the one that was asked for."""
    precision = recipe.train.mixed_precision
    if precision == "fp16" and not torch.cuda.is_available():
        raise RecipeError("train.mixed_precision=fp16 needs a GPU, and there is none: use bf16 or no")
    for variable, name in REFUSED.items():
        if os.environ.get(variable, "false").lower() == "true":
            raise RunError(
                f"{name} would take the steps and the checkpoints out of kit's hands: to divide a model among "
                "processes use recipes/accelerate/zero3.yaml, or --shard"
            )
    trackers = check_trackers(recipe.train.report_to)
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != precision:
        AcceleratorState._reset_state()  # left by an earlier run of this process, as in a notebook
    accelerator = Accelerator(mixed_precision=precision, log_with=trackers or None, project_dir=str(output))
    # without kit's own launcher the environment tells as well: Accelerate can take each of several for the only one
    told = os.environ.get(EXPECTED_PROCESSES) or os.environ.get("WORLD_SIZE") or accelerator.num_processes
    expected = int(told)
    if accelerator.num_processes != expected:
        raise RunError(
            f"{expected} processes were asked for, but Accelerate runs {accelerator.num_processes}: start them with "
            f"`kit train … --processes {expected}`"
        )
    return accelerator


def in_enough_parts(recipe: Recipe, folder: RunFolder, resume: bool, processes: int, reporter: Reporter) -> Recipe:
    """The recipe with at least one micro-batch per process; a resumed run keeps the number it was started with, unless
    more are asked for, as after it ran out of memory."""
    asked = recipe.train.micro_batches
    parts = asked + -asked % processes if sharding.is_requested() and asked > 1 else asked
    if resume and folder.recipe_file.is_file():
        before = folder.recipe()
        parts = before.train.micro_batches
        if asked > parts:
            parts = in_more_parts(before, asked, folder, reporter)
        if parts < processes:
            raise RunError(
                f"{folder.path} computes each step in {parts} part{'s' * (parts > 1)} (train.micro_batches), too few "
                f"for {processes} processes: resume with at most {parts}"
            )
    elif parts < processes:
        parts = processes
        reporter.print(
            f"each step is computed in {parts} parts, one per process: the same batches as in one part, only dropout "
            f"falls otherwise. To compare exactly, run one process with train.micro_batches={parts}"
        )
    return recipe.with_values("train", micro_batches=parts)


def in_more_parts(before: Recipe, parts: int, folder: RunFolder, reporter: Reporter) -> int:
    """The number of parts for the rest of a run, where that changes nothing but the memory a step takes."""
    if key := before.data.fixes_micro_batches:
        raise RunError(
            f"{folder.path}: train.micro_batches was {before.train.micro_batches}, now {parts}. With data.{key} "
            "it cannot change within a run"
        )
    reporter.print(
        f"each step is computed in {parts} parts from here on, before in {before.train.micro_batches}: the same "
        "batches, only dropout falls otherwise"
    )
    return parts


def describe_processes(accelerator: Accelerator) -> str:
    """How many processes there really are, and how they talk to each other."""
    number = accelerator.num_processes
    if number == 1:
        return f"processes: 1, on {accelerator.device.type}"
    shared = "weights divided among them (FSDP2)" if sharding.is_requested() else "each with all weights (DDP)"
    return f"processes: {number}, on {accelerator.device.type} by {torch.distributed.get_backend()}, {shared}"


def build_loop(prepared: Prepared, folder: RunFolder, accelerator: Accelerator, reporter: Reporter) -> Loop:
    """The training loop over the task's objective, with evaluation on the validation split."""
    recipe, task = prepared.recipe, prepared.task
    swap_layers(prepared.model, accelerator.device, accelerator.mixed_precision != "no")
    if recipe.train.torch_compile:
        prepared.model.compile(dynamic=True)
    objective = task.objective(prepared.model, prepared.plan)
    trained_objective = objective
    if sharding.is_requested():
        trained_objective = sharding.shard(objective, accelerator)
    optimizer = build_optimizer(trained_objective, recipe.train)
    selected = recipe.eval.metric_for_best_model

    def evaluate(step: int) -> tuple[dict[str, Any], float, bool]:
        with reporter.status(f"evaluating at step {step}"):
            found = task.evaluate(
                objective, prepared.splits, prepared.encoded, prepared.tokenizers, "validation",
                prepared.evaluator(accelerator),
                final=False,
            )  # fmt: skip
        show_evaluation(reporter, task, f"step {step}", found)
        return found.figures, found.figures[selected], greater_is_better(selected)

    return Loop(
        accelerator=accelerator,
        objective=objective,
        trained_objective=trained_objective,
        optimizer=optimizer,
        schedule=build_schedule(optimizer, recipe.train, prepared.total_steps),
        plan=prepared.plan,
        make_batch=prepared.batch_maker(),
        evaluate=evaluate,
        recipe=recipe,
        total_steps=prepared.total_steps,
        folder=folder.path,
        log=MetricsLog(folder.metrics_file, accelerator),
        reporter=reporter,
    )


def go_on_from_checkpoint(loop: Loop, resume: bool, reporter: Reporter) -> None:
    """Restore the newest intact checkpoint, which the main process chooses; report if there is none."""
    on_main(loop.checkpoints.remove_partial)
    if loop.recipe.train.report_to:
        loop.accelerator.init_trackers("kit", config={key: str(value) for key, value in loop.recipe.flat().items()})
    if resume:
        step = on_main(lambda: newest_intact(loop, reporter))
        if step is None:
            loop.log.rewind(0)
            reporter.print("there is nothing to resume: starting afresh")
        else:
            loop.restore(loop.checkpoints.at(step))
            loop.log.rewind(step)
            reporter.print(f"resuming at step {step}")
    wait_for_everyone()  # reading a checkpoint can take one machine much longer than another


def newest_intact(loop: Loop, reporter: Reporter) -> int | None:
    """The step of the newest intact checkpoint, or None if there is none."""
    for checkpoint, error in loop.checkpoints.newest_first():
        if error is None:
            return checkpoint.step
        reporter.print(f"{checkpoint.folder} is broken ({error}): going back to the one before it")
    return None
