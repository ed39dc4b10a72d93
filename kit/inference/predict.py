"""`kit predict`: the rows of a file with predictions, by whatever task the model belongs to."""

from pathlib import Path
from typing import Any

from kit.errors import RunError
from kit.prediction.issues import LineIssues
from kit.prediction.rows import PredictOptions, RowPredictor
from kit.prediction.writing import open_output, row_format, row_writer
from kit.pretrained.folder import ModelFolder
from kit.system.console import Reporter
from kit.tasks.registry import find_task


def predict_file(run: str | Path, options: PredictOptions, output: Path | None, reporter: Reporter) -> None:
    """Write the rows of a file with the predictions of a model, to a .csv or .jsonl file or to standard output.

    Rows that fail are reported at the end. Raises RunError if every row failed, because the model must be the reason.
    """
    ending = row_format(output)
    with open_output(output) as file:  # before the model is loaded, as it may be impossible
        predictor = row_predictor(run, options)
        items, issues = predictor.read(), LineIssues(predictor.noun)
        with reporter.progress(predictor.noun, len(items)) as advance:
            write = row_writer(ending, file, predictor.columns())
            for item, prediction in zip(items, predictor.stream(items, issues, advance), strict=True):
                rows = predictor.csv_rows if ending == ".csv" else lambda *pair: [predictor.json_row(*pair)]
                for row in rows(item, prediction):
                    write(row)
        if items and issues.count(predictor.failed) == len(items):
            raise RunError(f"no {predictor.noun} could be {predictor.action}: {issues.error(predictor.failed)}")
    plural = predictor.noun if predictor.noun.endswith("s") else f"{predictor.noun}s"
    destination = "" if output is None else f": {output}"
    for message in (*predictor.notes(), f"{len(items):,} {plural}{destination}", *issues.messages()):
        reporter.print(message)


def row_predictor(run: str | Path, options: PredictOptions) -> RowPredictor[Any, Any, Any]:
    """The predictor of a run folder, a model folder or a Hub id. Raises KitError for what the model cannot do."""
    folder = ModelFolder.open(run)
    task = find_task(folder.config)
    if task.command != "predict":
        raise RunError(f"{run} is a {folder.config.architectures[0]}, which predicts no rows: use `kit {task.command}`")
    predictor = task.predictor(folder, options)
    assert isinstance(predictor, RowPredictor)
    return predictor
