"""`kit generate`: a text for each line of a file, by whatever task the model belongs to."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from kit.errors import KitError, RunError
from kit.plots.saving import save_figure
from kit.prediction.engine import PAUSE, Pause
from kit.prediction.issues import LineIssues
from kit.prediction.lines import count_lines, read_lines
from kit.prediction.options import GenerateOptions
from kit.prediction.text import TextPredictor, write_texts
from kit.prediction.writing import open_output
from kit.pretrained.folder import ModelFolder
from kit.system.console import Reporter
from kit.system.outputs import check_file
from kit.tasks.registry import find_task


def text_predictor(run: str | Path | ModelFolder, options: GenerateOptions) -> TextPredictor:
    """The predictor of a run folder, a model folder or a Hub id. Raises KitError for what the model cannot do."""
    folder = ModelFolder.open(run)
    task = find_task(folder.config)
    if task.command != "generate":
        raise RunError(
            f"{folder.name} is a {folder.config.architectures[0]}, which writes no text: use `kit {task.command}`"
        )
    predictor = task.predictor(folder, options)
    assert isinstance(predictor, TextPredictor)
    return predictor


def plot_first_line(
    predictor: TextPredictor, lines: Iterator[str | Pause], path: Path, report: Callable[[str], object]
) -> Iterator[str | Pause]:
    """The lines, after the attention of the first one has been plotted."""
    first = next((line for line in lines if not isinstance(line, Pause)), None)
    if first is None:
        raise KitError("--attention: the input is empty, so there is no first line to plot")
    figure = predictor.line_figure(first)
    if figure is None:
        raise KitError("--attention: this model has none; its decoder sees the input through a fixed state only")
    save_figure(figure, path)
    report(f"attention of the first line: {path}")
    return chain([first, PAUSE], lines)


def generate_file(
    run: str | Path,
    source: Path | None,
    output: Path | None,
    options: GenerateOptions,
    reporter: Reporter,
    *,
    details: bool = False,
    as_json: bool = False,
) -> None:
    """Write the outputs of a model for the lines of a file or of standard input, to a file or to standard output.

    Bad lines are reported at the end. Raises RunError if every line failed, because the model must be the reason.
    """
    if options.attention is not None:
        check_file(options.attention)
    issues = LineIssues()
    with open_output(output) as file:  # before the model is loaded, as it may be impossible
        predictor = text_predictor(run, options)
        total = None
        if source is not None and reporter.shows_progress:
            with reporter.status("counting lines"):
                total = count_lines(source)
        with read_lines(source, issues) as lines, reporter.progress("lines", total) as advance:
            if options.attention is not None:
                lines = plot_first_line(predictor, lines, options.attention, reporter.print)
            count = write_texts(predictor.stream(lines, issues, advance), file, details, as_json)
        if count and issues.count(predictor.failed) == count:
            raise RunError(f"none of the {count:,} lines could be {predictor.action}: {issues.error(predictor.failed)}")
    for message in (*predictor.notes(), *issues.messages()):
        reporter.print(message)
