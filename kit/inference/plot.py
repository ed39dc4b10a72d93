"""`kit plot`: the training curves of a run, and the attention of its model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.errors import KitError, RunError, did_you_mean
from kit.inference.generate import text_predictor
from kit.plots.curves import draw_curves, save_figure
from kit.prediction.options import GenerateOptions, PlotOptions, reject_unsupported
from kit.runs.folder import RunFolder
from kit.system.outputs import check_file
from kit.tasks.registry import create_task

KINDS = ("curves", "cross", "encoder", "decoder", "all")


def plot(run: str | Path, options: PlotOptions, report: Callable[[str], None] = print) -> list[Path]:
    """Plot a run folder, or the attention of a model folder or a Hub id, and return the files.

    Without options, these are the curves of a run and the cross-attention for an example of its data; a model without
    attention is reported. With options, it is the attention alone, or the curves with `kind="curves"`. Figures go to
    the folder `plots` of a run, otherwise to the working folder; or to `output`, a folder or a single file.
    """
    kind, output = options.kind, options.output
    if kind is not None and kind not in KINDS:
        raise KitError(f'--kind "{kind}": expected one of {", ".join(KINDS)}.{did_you_mean(kind, KINDS)}')
    to_file = output is not None and _is_file(output)
    if output is not None:
        _check_output(output, to_file)
    if to_file and kind in ("curves", "all"):
        raise KitError(f"--output {output} is one file, but --kind {kind} has several figures: name a folder")
    is_run = (Path(run) / "recipe.yaml").is_file()
    if kind == "curves":
        reject_unsupported(options, {"kind", "output"}, "--kind curves")
        return _plot_curves(RunFolder.open(Path(run)), output)
    default = RunFolder.open(Path(run)).plots if is_run else Path()
    folder = output if output is not None and not to_file else default
    if not is_run or to_file or options != PlotOptions(output=output):
        return _plot_attention(run, options, folder, output if to_file else None)
    curves = draw_curves(RunFolder(Path(run)).metrics_file, folder)
    try:
        return curves + _plot_attention(run, options, folder, None)
    except KitError as problem:
        if not curves:
            raise
        report(f"no plot of attention: {problem}")
        return curves


def _plot_curves(run: RunFolder, output: Path | None) -> list[Path]:
    curves = draw_curves(run.metrics_file, output or run.plots)
    if not curves:
        raise RunError(f"{run.path} has no curves to plot: nothing has been logged yet")
    return curves


def _plot_attention(run: str | Path, options: PlotOptions, folder: Path, file: Path | None) -> list[Path]:
    """The attention as files in a folder, or as one file."""
    predictor = text_predictor(run, GenerateOptions())
    if predictor.plot_options:
        reject_unsupported(options, predictor.plot_options, f"{run}, {predictor.description}")

    def examples() -> list[Any]:
        is_run = (Path(run) / "recipe.yaml").is_file()
        opened = RunFolder(Path(run))
        plotted = create_task(opened.recipe()).run_examples(opened.predictions, predictor) if is_run else []
        if not plotted:
            option = "--sentence" if "sentence" in predictor.plot_options else "--image"
            raise RunError(f"{run} has no predictions or data to take an example from: give one with {option}")
        return plotted

    # all figures are made before the first is written, so that a failure leaves no files
    figures = predictor.attention_figures(options, examples)
    if not figures:
        raise RunError(f"the model of {run} has no attention: its decoder sees the input through a fixed state only")
    if file is not None:
        if len(figures) > 1:
            raise KitError(f"--output {file} is one file, but there are {len(figures)} figures: name a folder")
        return [save_figure(next(iter(figures.values())), file)]
    return [save_figure(figure, folder / name) for name, figure in figures.items()]


def _check_output(output: Path, to_file: bool) -> None:
    """Raise RunError if nothing can be written to a file or a folder: known before anything is computed."""
    if to_file:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write {output}: {error.strerror}") from None
        check_file(output)
    elif output.exists() and not output.is_dir():
        raise KitError(f"--output {output} is a file: name a folder, or a file that ends in .png")


def _is_file(output: Path) -> bool:
    """Whether `--output` names a PNG file, and not a folder."""
    if output.is_dir() or not output.suffix:
        return False
    if output.suffix.lower() != ".png":
        raise KitError(f"--output {output}: figures are PNG files. Name one that ends in .png, or a folder")
    return True
