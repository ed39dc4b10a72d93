"""`kit plot`: the figures of a run, and the attention of its model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kit.errors import KitError, RunError, did_you_mean
from kit.inference.generate import text_predictor
from kit.inference.self_attention import check_options, self_attention_figures
from kit.plots.saving import FORMATS, save_figure, save_figures
from kit.prediction.options import GenerateOptions, PlotOptions, reject_unsupported
from kit.pretrained.architecture import is_causal_lm
from kit.pretrained.folder import ModelFolder
from kit.runs.folder import RunFolder
from kit.runs.plots import curves_of, evaluated_split, run_figures
from kit.system.outputs import check_file
from kit.tasks.registry import create_task, find_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("curves", "cross", "encoder", "decoder", "all")


def plot(run: str | Path, options: PlotOptions, report: Callable[[str], None] = print) -> list[Path]:
    """Plot a run folder, or the attention of a model folder or a Hub id, and return the files.

    Without options, these are all figures of a run: its curves, what its task shows of the model, and the attention for
    an example of its data; a model without attention is reported. With options, it is the attention alone, or the
    curves with `kind="curves"`. Figures go to the folder `plots` of a run, otherwise to the working folder; or to
    `output`, a folder or a single file.
    """
    kind, output = options.kind, options.output
    for option, value, known in (("--kind", kind, KINDS), ("--format", options.format, FORMATS)):
        if value is not None and value not in known:
            raise KitError(f'{option} "{value}": expected one of {", ".join(known)}.{did_you_mean(value, known)}')
    to_file = output is not None and _is_file(output)
    if output is not None:
        _check_output(output, to_file)
    if to_file and options.format is not None:
        raise KitError(f"--format has no effect with --output {output}, whose ending names the format. Leave it out")
    if to_file and kind in ("curves", "all"):
        raise KitError(f"--output {output} is one file, but --kind {kind} has several plots: name a folder")
    is_run = (Path(run) / "recipe.yaml").is_file()
    saved_as = options.format or FORMATS[0]
    if kind == "curves":
        reject_unsupported(options, {"kind", "output", "format"}, "--kind curves")
        figures = _curves(RunFolder.open(Path(run)))
        if not figures:
            raise RunError(f"{run} has no curves to plot: nothing has been logged yet")
        return save_figures(figures, output or RunFolder(Path(run)).plots, saved_as)
    default = RunFolder.open(Path(run)).plots if is_run else Path()
    folder = output if output is not None and not to_file else default
    if is_run and not to_file and options == PlotOptions(output=output, format=options.format):
        return save_figures(_all_figures(RunFolder(Path(run)), report), folder, saved_as)
    figures = _attention_figures(run, options)
    if not to_file:
        return save_figures(figures, folder, saved_as)
    if len(figures) > 1:
        raise KitError(f"--output {output} is one file, but there are {len(figures)} plots: name a folder")
    assert output is not None
    return [save_figure(next(iter(figures.values())), output)]


def _all_figures(run: RunFolder, report: Callable[[str], None]) -> dict[str, Figure]:
    """Every figure of a run, which may be unfinished. Raises KitError if there is nothing to draw."""
    figures = run_figures(run, report=report) if run.is_finished else _curves(run)
    if any(name.startswith("attention") for name in figures):
        return figures
    try:
        return figures | _attention_figures(run.path, PlotOptions())
    except KitError as problem:
        if not figures:
            raise
        report(f"no plot of attention: {problem}")
        return figures


def _curves(run: RunFolder) -> dict[str, Figure]:
    return curves_of(run, create_task(run.recipe()))


def _attention_figures(run: str | Path, options: PlotOptions) -> dict[str, Figure]:
    """The attention of a model by name. Raises KitError for a model without any."""
    opened = ModelFolder.open(run)
    if find_task(opened.config).command == "generate" and not is_causal_lm(opened.config):
        figures = _predictor_figures(run, opened, options)
    else:
        check_options(opened, options)
        if getattr(opened.config, "vocab_size", None) is None:
            raise RunError(f"the model of {run} reads numbers, and has no attention that `kit plot` could show")
        texts = (options.sentence,) if options.sentence is not None else _example_texts(run, opened)
        figures = self_attention_figures(opened, texts, options)
    if not figures:
        raise RunError(f"the model of {run} has no attention that `kit plot` could show")
    return figures


def _predictor_figures(run: str | Path, opened: ModelFolder, options: PlotOptions) -> dict[str, Figure]:
    """The attention of a model that writes text for an input."""
    predictor = text_predictor(opened, GenerateOptions())
    if predictor.plot_options:
        reject_unsupported(options, predictor.plot_options | {"format"}, f"{run}, {predictor.description}")

    def examples() -> list[object]:
        folder, plotted = RunFolder(Path(run)), []
        if folder.recipe_file.is_file():
            task = create_task(folder.recipe())
            plotted = task.plot_examples(evaluated_split(folder, task), predictor)
        if not plotted:
            option = "--sentence" if "sentence" in predictor.plot_options else "--image"
            raise RunError(f"{run} has no predictions or data to take an example from: pass one with {option}")
        return plotted

    return predictor.attention_figures(options, examples)


def _example_texts(run: str | Path, opened: ModelFolder) -> tuple[str, ...]:
    """The text, or the pair of texts, that the model read for its first prediction, without special tokens, which
    tokenizing adds again. Raises RunError if the run has no predictions."""
    folder = RunFolder(Path(run))
    if folder.recipe_file.is_file():
        task = create_task(folder.recipe())
        texts = next(filter(None, map(task.example_texts, evaluated_split(folder, task).predictions)), ())
        if texts:
            tokenizer = opened.tokenizer
            added = {*tokenizer.all_special_tokens} - {tokenizer.mask_token, tokenizer.unk_token}
            return tuple(re.sub("|".join(map(re.escape, added)) or "$", "", text) for text in texts)
    raise RunError(f"{run} has no predictions to take an example from: pass one with --sentence")


def _check_output(output: Path, to_file: bool) -> None:
    """Raise RunError if nothing can be written to a file or a folder: known before anything is computed."""
    if to_file:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write {output}: {error.strerror}") from None
        check_file(output)
    elif output.exists() and not output.is_dir():
        raise KitError(f"--output {output} is a file: name a folder, or a file that ends in .png, .svg or .pdf")


def _is_file(output: Path) -> bool:
    """Whether `--output` names a file, and not a folder."""
    if output.is_dir() or not output.suffix:
        return False
    if output.suffix.lower().removeprefix(".") not in FORMATS:
        endings = ", ".join(f".{format}" for format in FORMATS)
        raise KitError(f"--output {output}: name a file that ends in {endings}, or a folder")
    return True
