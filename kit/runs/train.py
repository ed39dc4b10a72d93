"""A run from recipe to results: `train` reads as the table of contents of kit."""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from kit.data.in_memory import datasets_of
from kit.errors import RecipeError, RunError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.metrics import greater_is_better
from kit.recipe.base import Recipe
from kit.recipe.parse import Overrides, RecipeSource
from kit.runs.extend import changes_length, check_length
from kit.runs.failure import recorded_failure
from kit.runs.finish import finish, show_evaluation
from kit.runs.finished import FinishedRun
from kit.runs.folder import RunFolder
from kit.runs.prepare import Prepared, prepare
from kit.runs.request import find_request, output_of
from kit.runs.revisions import pin_revisions, reuse_revisions
from kit.system.console import Reporter
from kit.system.device import check_environment, preserved_random_state
from kit.system.machine import keep_freed_memory
from kit.tasks.registry import create_task
from kit.training import sharding
from kit.training.callbacks import Callback, check_callbacks
from kit.training.compilation import compile_model, without_compilation
from kit.training.launch import EXPECTED_PROCESSES
from kit.training.layer_swaps import swap_layers
from kit.training.loop import Loop
from kit.training.metrics_log import MetricsLog, check_trackers
from kit.training.optim import build_optimizer, build_schedule
from kit.training.out_of_memory import explain_out_of_memory
from kit.training.processes import on_main, wait_for_everyone

UNSUPPORTED_ENGINES = {"ACCELERATE_USE_DEEPSPEED": "DeepSpeed", "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM"}

ACCUMULATION = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
"""Environment variable by whose value Accelerate divides every loss."""


def train(
    recipe: RecipeSource,
    output: str | Path | None = None,
    resume: bool = False,
    *,
    data: Mapping[str, Any] | None = None,
    overrides: Overrides = (),
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
) -> FinishedRun:
    """Train the model of a recipe; evaluate it, export it and write its card into the folder `output`.

    `recipe` is a recipe file, the name of a shipped recipe, a run folder, the sections of a recipe as a mapping, or a
    loaded recipe. `overrides` take precedence over it: `{"train.max_steps": 500}`, or a list of `key=value` arguments.
    `data` has the rows of train, validation and test to use instead of the recipe's data; of each split, a
    `datasets.Dataset`, a data frame or a list of dictionaries. Without `output`, the run is in runs/RECIPE-NAME.

    A finished run of the same recipe is returned without training. With `resume`, an unfinished run continues from its
    last checkpoint, and a run is extended if the recipe asks for more steps; rows from Python must be the same.
    `callbacks` are called while it trains. Messages and progress are printed unless `quiet`. Raises KitError for
    mistakes in the recipe or the data.
    """
    keep_freed_memory()
    rows = None if data is None else datasets_of(data)
    request = find_request(recipe, overrides, rows, Reporter(quiet).print)
    folder = RunFolder(output_of(request, output))
    accelerator = build_accelerator(request.recipe, folder.path)
    reporter = Reporter(quiet=quiet or not accelerator.is_main_process)
    # only the main process looks into the folder, which on another machine can be a different one
    resolved = on_main(lambda: resolve_recipe(request.recipe, folder, resume, accelerator, reporter))
    resolved = resolved.with_rows(request.recipe.data.rows)  # each process has its own
    extends = on_main(lambda: changes_length(resolved, folder))
    results = on_main(lambda: folder.results() if folder.is_finished and not extends else None)
    if results is not None:
        if resolved.data.rows is not None:
            create_task(resolved).load_training_splits()  # raises DataError if these are not the rows of the run
        for line in on_main(lambda: describe_finished(resolved, folder)):
            reporter.print(line)
        return FinishedRun(folder.path, results, already_finished=True, rows=resolved.data.rows)
    with preserved_random_state(), folder.locked(accelerator.is_main_process):
        folder.check_shared()
        for key, reason in request.recipe.dropped.items():
            reporter.print(f"recipe: {key} is dropped: {reason}")
        prepared = prepare(resolved, on_main(folder.tokenizers), accelerator)
        if extends:
            reporter.print(on_main(lambda: check_length(resolved, folder, prepared.total_steps)))
        if accelerator.is_main_process:
            folder.start(prepared.recipe, prepared.tokenizers)
        wait_for_everyone()
        for line in [*prepared.summary(), describe_processes(accelerator)]:
            reporter.print(line)
        loop = build_loop(prepared, folder, accelerator, reporter, check_callbacks(callbacks))
        try:
            with recorded_failure(folder, accelerator.is_main_process), explain_out_of_memory(resolved, loop):
                resume_from_checkpoint(loop, resume, reporter)
                loop.run()
                results = finish(prepared, loop, folder, reporter)
        finally:
            loop.release()
    return FinishedRun(folder.path, results, rows=resolved.data.rows)


def describe_finished(recipe: Recipe, folder: RunFolder) -> list[str]:
    """What is reported instead of training again."""
    lines = [f"{folder.path} holds the finished run; nothing was changed (use --output for a new one)"]
    if changed := [key for key in recipe.differences(folder.recipe()) if key.startswith("eval.")]:
        lines.append(f"to evaluate it with another {', '.join(changed)}: kit eval {folder.path} {changed[0]}=…")
    return lines


def resolve_recipe(
    recipe: Recipe, folder: RunFolder, resume: bool, accelerator: Accelerator, reporter: Reporter
) -> Recipe:
    """The recipe as it runs in this folder. Raises RunError if the folder is not available for it."""
    recipe = resolve_micro_batches(recipe, folder, resume, accelerator.num_processes, reporter)
    if folder.recipe_file.is_file():
        saved = folder.recipe()
        recipe = pin_revisions(reuse_revisions(recipe, saved))
        if recipe.data.fingerprints is None:  # loading other data is then an error
            recipe = recipe.with_values("data", fingerprints=saved.data.fingerprints)
    if sharding.is_requested():
        sharding.check(recipe, accelerator)
    folder.check_available(recipe, resume)
    return recipe


def build_accelerator(recipe: Recipe, output: Path = Path("runs")) -> Accelerator:
    """Accelerate on the available devices. Raises RunError unless it runs the requested number of processes."""
    precision = recipe.train.mixed_precision
    if precision == "fp16" and not torch.cuda.is_available():
        raise RecipeError("train.mixed_precision=fp16 needs a GPU, and there is none: use bf16 or no")
    for variable, name in UNSUPPORTED_ENGINES.items():
        if os.environ.get(variable, "false").lower() == "true":
            raise RunError(
                f"{name} is not supported: it replaces kit's training step and checkpoints. To shard a model, use "
                "--shard or recipes/accelerate/zero3.yaml"
            )
    check_environment()
    if os.environ.get(ACCUMULATION, "1") != "1":
        raise RunError(
            f"{ACCUMULATION} is not supported: unset it, and set train.micro_batches in the recipe to split a step"
        )
    trackers = check_trackers(recipe.train.report_to)
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != precision:
        AcceleratorState._reset_state()  # left by an earlier run of this process, as in a notebook
    accelerator = Accelerator(mixed_precision=precision, log_with=trackers or None, project_dir=str(output))
    if recipe.train.dtype == "float64" and accelerator.device.type == "mps":
        raise RecipeError(
            "train.dtype=float64 does not run on Apple GPUs, which have no float64: use float32, or train on the CPU "
            "with ACCELERATE_USE_CPU=true"
        )
    # checked without kit's launcher too: misconfigured, each of several processes would train as if it were alone
    expected = int(os.environ.get(EXPECTED_PROCESSES) or os.environ.get("WORLD_SIZE") or accelerator.num_processes)
    if accelerator.num_processes != expected:
        no_gpu = "" if torch.accelerator.is_available() else " This machine has no GPU, which its configuration needs."
        raise RunError(
            f"{expected} processes were requested, but Accelerate runs {accelerator.num_processes}.{no_gpu} Start them "
            f"with `kit train … --processes {expected}`"
        )
    if expected > 1:
        # DDP compares the strides of gradients even along dimensions of size 1, where they mean nothing
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides", UserWarning)
    return accelerator


def resolve_micro_batches(
    recipe: Recipe, folder: RunFolder, resume: bool, processes: int, reporter: Reporter
) -> Recipe:
    """The recipe with at least one micro-batch per process.

    A resumed run keeps its number of micro-batches unless a larger one is requested, as after running out of memory.
    """
    requested = recipe.train.micro_batches
    number = requested + -requested % processes if sharding.is_requested() and requested > 1 else requested
    if resume and folder.recipe_file.is_file():
        saved = folder.recipe()
        number = max(requested, before := saved.train.micro_batches)
        if number > before and (key := saved.data.fixes_micro_batches):
            raise RunError(
                f"{folder.path}: train.micro_batches was {before}, now {number}. With data.{key} it cannot change "
                "within a run"
            )
        if number > before:
            reporter.print(
                f"Splitting each step into {number} micro-batches from here on, instead of {before}. Batches stay the "
                "same; dropout masks differ"
            )
        if number < processes:
            raise RunError(
                f"{folder.path} splits each step into {number} micro-batch{'es' * (number > 1)} "
                f"(train.micro_batches), too few for {processes} processes: resume with at most {number}"
            )
    elif number < processes:
        number = processes
        reporter.print(
            f"Splitting each step into {number} micro-batches, one per process. Batches stay the same; dropout masks "
            f"differ from a run with one micro-batch. To compare exactly, run one process with "
            f"train.micro_batches={number}"
        )
    return recipe.with_values("train", micro_batches=number)


def describe_processes(accelerator: Accelerator) -> str:
    """A line on the processes that really run: their number, their device and how they communicate."""
    number = accelerator.num_processes
    if number == 1:
        # `accelerate launch` sets the precision in all its processes; without GPUs it starts several by mpirun only
        alone = accelerator.device.type == "cpu" and "ACCELERATE_MIXED_PRECISION" in os.environ
        advice = "; `accelerate launch` starts no more on a CPU: use `kit train … --processes N`" if alone else ""
        return f"processes: 1, on {accelerator.device.type}{advice}"
    weights = "weights sharded (FSDP2)" if sharding.is_requested() else "weights replicated (DDP)"
    return f"processes: {number}, on {accelerator.device.type} by {torch.distributed.get_backend()}, {weights}"


def build_loop(
    prepared: Prepared,
    folder: RunFolder,
    accelerator: Accelerator,
    reporter: Reporter,
    callbacks: tuple[Callback, ...] = (),
) -> Loop:
    """Swap slow layers of the model for this device, compile or shard it on request, and build the loop that trains the
    task's objective and evaluates it on the validation split."""
    recipe, task = prepared.recipe, prepared.task
    swap_layers(prepared.model, accelerator.device, accelerator.mixed_precision != "no")
    if recipe.train.torch_compile:
        reporter.print(compile_model(prepared.model))
    objective = task.objective(prepared.model, prepared.state)
    trained_objective = objective
    if sharding.is_requested():
        trained_objective = sharding.shard(objective, accelerator)
    optimizer = build_optimizer(trained_objective, recipe.train)
    selected = recipe.eval.metric_for_best_model

    evaluator = prepared.evaluator(accelerator)
    validation = prepared.splits.datasets["validation"], prepared.encoded["validation"], prepared.state

    def evaluate(step: int) -> tuple[Evaluation, float, bool]:
        with reporter.status(f"evaluating at step {step}"), without_compilation(recipe.train.torch_compile):
            evaluation = task.evaluate(evaluator, objective, *validation, final=False)
        show_evaluation(reporter, task, f"step {step}", evaluation)
        return evaluation, evaluation.figures[selected], greater_is_better(selected)

    return Loop(
        accelerator=accelerator,
        objective=objective,
        trained_objective=trained_objective,
        optimizer=optimizer,
        schedule=build_schedule(optimizer, recipe.train, prepared.total_steps),
        plan=prepared.plan,
        make_batch=prepared.make_batch,
        evaluate=evaluate,
        recipe=recipe,
        total_steps=prepared.total_steps,
        folder=folder.path,
        log=MetricsLog(folder.metrics_file, accelerator),
        reporter=reporter,
        callbacks=callbacks,
    )


def resume_from_checkpoint(loop: Loop, resume: bool, reporter: Reporter) -> None:
    """Remove partial checkpoints, start the trackers and, with `resume`, restore the newest intact checkpoint.

    The main process chooses the checkpoint. If there is none, a line is printed and the run starts from step 0.
    """
    on_main(loop.manager.checkpoints.remove_partial)
    if loop.recipe.train.report_to:
        loop.accelerator.init_trackers("kit", config={key: str(value) for key, value in loop.recipe.flat().items()})
    if resume:
        step = on_main(lambda: newest_intact(loop, reporter))
        if step is None:
            loop.log.rewind(0)
            reporter.print("No checkpoint found: starting from step 0.")
        else:
            loop.restore(loop.manager.checkpoints.at(step))
            loop.log.rewind(step)
            reporter.print(f"resuming at step {step}")
            replace_corrupt_best(loop, reporter)
    wait_for_everyone()  # reading a checkpoint can take one machine much longer than another


def newest_intact(loop: Loop, reporter: Reporter) -> int | None:
    """The step of the newest intact checkpoint, or None if there is none; prints a line for each corrupt one."""
    for checkpoint, error in loop.manager.checkpoints.newest_first():
        if error is None:
            return checkpoint.step
        reporter.print(f"Checkpoint {checkpoint.folder} is corrupt ({error}); using the previous one.")
    return None


def replace_corrupt_best(loop: Loop, reporter: Reporter) -> None:
    """Select the best step again, among the intact checkpoints that were evaluated, if the checkpoint of the best is
    corrupt. Where there is none, the next evaluation chooses."""
    best, checkpoints = loop.progress.best_step, loop.manager.checkpoints
    problem = on_main(lambda: None if best is None else checkpoints.at(best).integrity_error())
    if best is None or problem is None:
        return
    selected = loop.recipe.eval.metric_for_best_model

    def evaluated() -> list[tuple[int, Mapping[str, Any]]]:
        logged = loop.log.validations()
        intact = sorted(checkpoint.step for checkpoint in checkpoints.intact())
        return [(step, logged[step]) for step in intact if step in logged and step <= loop.progress.step]

    loop.progress.forget_best()
    stale = loop.progress.stale_evaluations
    for step, figures in on_main(evaluated):
        loop.progress.record(step, figures.get(selected), figures.get("loss"), greater_is_better(selected))
    loop.progress.stale_evaluations = stale
    chosen = loop.progress.best_step
    remedy = "the next evaluation chooses another" if chosen is None else f"the best is now step {chosen}"
    reporter.print(f"The best checkpoint, {checkpoints.at(best).folder}, is corrupt ({problem}): {remedy}.")
