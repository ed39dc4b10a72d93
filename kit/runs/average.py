"""`kit average`: a new run folder whose model is the mean of the last checkpoints of a run."""

import shutil
from itertools import islice
from pathlib import Path

from kit.errors import RunError
from kit.runs.finish import export_and_evaluate
from kit.runs.finished import FinishedRun
from kit.runs.folder import RunFolder
from kit.runs.prepare import prepare
from kit.runs.train import build_accelerator, build_loop
from kit.system.console import Reporter
from kit.system.outputs import new_folder
from kit.training.checkpoint import Checkpoints


def average_checkpoints(run: Path, last: int, output: Path, reporter: Reporter | None = None) -> FinishedRun:
    """Average the weights of the `last` newest checkpoints of a run, evaluate the result as the run was evaluated, and
    write it to the new run folder `output`. The run itself does not change.

    Raises RunError if the run has fewer intact checkpoints.
    """
    reporter = reporter or Reporter(quiet=True)
    source = RunFolder.open(run)
    valid = list(islice(Checkpoints(source.checkpoints).intact(), last))
    if len(valid) < last:
        fewer = f"average them with `kit average {run} --last {len(valid)}`, or " if len(valid) > 1 else ""
        raise RunError(
            f"{run} has {len(valid)} valid checkpoint{'s' * (len(valid) != 1)}, not {last}: {fewer}keep more in a new "
            f"run with train.save_total_limit={last}"
        )
    recipe = source.recipe()
    accelerator = build_accelerator(recipe, output)
    with new_folder(output) as temporary:
        folder = RunFolder(temporary)
        prepared = prepare(recipe, source.tokenizers(), accelerator)
        loop = build_loop(prepared, source, accelerator, reporter)
        try:
            loop.restore(valid[0])
            steps = loop.manager.load_mean(last)
            reporter.print(f"mean of the checkpoints of steps {', '.join(map(str, steps))}")
            folder.start(prepared.recipe, prepared.tokenizers)
            if source.metrics_file.is_file():
                shutil.copyfile(source.metrics_file, folder.metrics_file)
            results = export_and_evaluate(
                prepared, loop, folder, reporter, "Nothing was written", averaging={"steps": steps, "run": run.name}
            )
        finally:
            loop.release()
    return FinishedRun(output, results)
