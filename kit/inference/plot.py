"""`kit plot`: the training curves of a run, and the attention of its model."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.errors import KitError, RunError, did_you_mean
from kit.inference.generate import text_predictor
from kit.inference.self_attention import check_options, self_attention_figures
from kit.plots.curves import FORMATS, draw_curves, save_figure
from kit.prediction.options import GenerateOptions, PlotOptions, reject_unsupported
from kit.pretrained.architecture import is_causal_lm
from kit.pretrained.folder import ModelFolder
from kit.runs.folder import RunFolder
from kit.system.files import read_json_lines
from kit.system.outputs import check_file
from kit.tasks.registry import create_task, find_task

KINDS = ("curves", "cross", "encoder", "decoder", "all")


def plot(run: str | Path, options: PlotOptions, report: Callable[[str], None] = print) -> list[Path]:
    """Plot a run folder, or the attention of a model folder or a Hub id, and return the files.

    Without options, these are the curves of a run and the cross-attention for an example of its data; a model without
    attention is reported. With options, it is the attention alone, or the curves with `kind="curves"`. Figures go to
    the folder `plots` of a run, otherwise to the working folder; or to `output`, a folder or a single file.
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
        raise KitError(f"--output {output} is one file, but --kind {kind} has several figures: name a folder")
    is_run = (Path(run) / "recipe.yaml").is_file()
    if kind == "curves":
        reject_unsupported(options, {"kind", "output", "format"}, "--kind curves")
        return _plot_curves(RunFolder.open(Path(run)), options)
    default = RunFolder.open(Path(run)).plots if is_run else Path()
    folder = output if output is not None and not to_file else default
    if not is_run or to_file or options != PlotOptions(output=output, format=options.format):
        return _plot_attention(run, options, folder, output if to_file else None)
    curves = _draw_curves(RunFolder(Path(run)), folder, options)
    try:
        return curves + _plot_attention(run, options, folder, None)
    except KitError as problem:
        if not curves:
            raise
        report(f"no plot of attention: {problem}")
        return curves


def _draw_curves(run: RunFolder, folder: Path, options: PlotOptions) -> list[Path]:
    try:
        config = ModelFolder.open(run.path).config
    except RunError:  # the run is unfinished
        config = None
    notes = create_task(run.recipe()).curve_notes(config)
    return draw_curves(run.metrics_file, folder, notes, options.format or FORMATS[0])


def _plot_curves(run: RunFolder, options: PlotOptions) -> list[Path]:
    curves = _draw_curves(run, options.output or run.plots, options)
    if not curves:
        raise RunError(f"{run.path} has no curves to plot: nothing has been logged yet")
    return curves


def _plot_attention(run: str | Path, options: PlotOptions, folder: Path, file: Path | None) -> list[Path]:
    """The attention as files in a folder, or as one file."""
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
    if file is not None:
        if len(figures) > 1:
            raise KitError(f"--output {file} is one file, but there are {len(figures)} figures: name a folder")
        return [save_figure(next(iter(figures.values())), file)]
    format = options.format or FORMATS[0]
    return [save_figure(figure, folder / f"{Path(name).stem}.{format}") for name, figure in figures.items()]


def _predictor_figures(run: str | Path, opened: ModelFolder, options: PlotOptions) -> dict[str, Any]:
    """The figures of a model that writes text for an input; all are made before the first is written, so that a failure
    leaves no files."""
    predictor = text_predictor(opened, GenerateOptions())
    if predictor.plot_options:
        reject_unsupported(options, predictor.plot_options | {"format"}, f"{run}, {predictor.description}")

    def examples() -> list[Any]:
        folder = RunFolder(Path(run))
        is_run = folder.recipe_file.is_file()
        plotted = create_task(folder.recipe()).run_examples(folder.predictions, predictor) if is_run else []
        if not plotted:
            option = "--sentence" if "sentence" in predictor.plot_options else "--image"
            raise RunError(f"{run} has no predictions or data to take an example from: give one with {option}")
        return plotted

    return predictor.attention_figures(options, examples)


def _example_texts(run: str | Path, opened: ModelFolder) -> tuple[str, ...]:
    """What the model of a run reads of the first prediction, without the special tokens that tokenizing adds again."""
    folder = RunFolder(Path(run))
    if folder.recipe_file.is_file():
        task = create_task(folder.recipe())
        for split in ("test", "validation"):
            file = folder.predictions / f"{split}.jsonl"
            for _, row in read_json_lines(file, "predictions") if file.is_file() else ():
                if texts := task.example_texts(row):
                    tokenizer = opened.tokenizer
                    added = {*tokenizer.all_special_tokens} - {tokenizer.mask_token, tokenizer.unk_token}
                    return tuple("".join(re.split("|".join(map(re.escape, added)) or "$", text)) for text in texts)
    raise RunError(f"{run} has no predictions to take an example from: give one with --sentence")


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
