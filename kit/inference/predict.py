"""What a fine-tuned model says about each row of a file: `kit predict` for labels, tags and answers."""

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
from accelerate import Accelerator
from datasets import Dataset

from kit.data.columns import missing, name_columns, plain_text
from kit.data.formats.layout import Layout, file_extension
from kit.data.formats.reader import read_table
from kit.data.formats.tables import FileTable
from kit.data.report import DataReport
from kit.data.rows import to_dataset
from kit.data.sources import layout_of
from kit.errors import DataError, KitError, RecipeError, RunError
from kit.hub.download import resolve_folder
from kit.prediction.files import ignoring_rest, writing
from kit.recipe.data import DataSection
from kit.recipe.document import parse_override, write_override
from kit.recipe.parse import check_sections
from kit.runs.folder import RunFolder
from kit.system.console import Reporter
from kit.tasks.families.labeling.recipe import LabelingData, LabelingRecipe
from kit.tasks.families.labeling.task import FineTuning
from kit.tasks.registry import create_task, load_recipe
from kit.tasks.tagging.recipe import TaggingData

ROWS_AT_ONCE = 2000
OF_FILES = {"data.columns", "data.delimiter", "data.quoting"}


class Labeller:
    """The model of a run, ready to say about the rows of a file what it was trained to say; they need no labels."""

    def __init__(self, run: str | Path, file: Path, overrides: list[str] | None = None):
        """`run` is a run folder, or a run on the Hub; `overrides` say what is different about the file:
        `data.text=review`, `data.columns=[text]`."""
        folder = RunFolder.existing(resolve_folder(run))
        check_sections(overrides or [], "data", "eval", example="data.text=review")
        self.file, self.given = file, dict(map(parse_override, overrides or []))
        if "data.path" in self.given:
            raise RecipeError(f"on the command line: data.path has no effect, as the rows are those of {file}.")
        ran = folder.recipe()
        if not isinstance(ran, LabelingRecipe):
            raise RunError(
                f"{run} is a run of the task {ran.task}: rows are labeled by classification, tagging and "
                "question_answering, series go on by forecasting. Texts are written by `kit generate`"
            )
        if not folder.model.is_dir():
            raise RunError(f"{folder.path} has no model yet: finish it with `kit train {folder.path} --resume`")
        recipe = load_recipe(folder.recipe_file, [*(overrides or []), *self.of_this_file(ran.data)], saved=True)
        assert isinstance(recipe.data, LabelingData)
        self.data: LabelingData = recipe.data
        task = create_task(recipe)
        assert isinstance(task, FineTuning)
        self.task: FineTuning[Any] = task
        self.tokenizers = task.load_tokenizers(folder.model)
        self.objective: Any = task.objective(task.load_model(folder.model).to(Accelerator().device).eval())
        self.cut = 0
        """Rows so far that were longer than the model reads."""
        self.without_text = 0
        """Rows that have nothing to read, and get no prediction."""

    def of_this_file(self, trained_on: DataSection) -> list[str]:
        """What has to change in the recipe, so that its data is the file."""
        assert isinstance(trained_on, LabelingData)
        changes: dict[str, Any] = {"path": str(self.file)} | dict.fromkeys(("fingerprints", "languages", "sizes"))
        columns = self.given.get("data.columns")
        if isinstance(columns, list):  # without labels, which recipes must have
            changes["columns"] = list(dict.fromkeys([*columns, *trained_on.learned_columns]))
        return [write_override(f"data.{name}", value) for name, value in changes.items()]

    @property
    def layout(self) -> Layout:
        """What is known about the inside of the file. What the recipe says is about files like those of the training
        data: one that names its columns itself, or has a text on each line, needs none of it."""
        ending, data = file_extension(self.file), self.data
        names_itself = ending in ("json", "jsonl", "parquet") or (ending == "txt" and data.delimiter is None)
        if names_itself and not self.given.keys() & OF_FILES:
            return Layout(encoding=data.encoding)
        return replace(layout_of(data), columns=self.given.get("data.columns", data.columns))

    def read(self) -> tuple[pa.Table, list[str]]:
        """The rows of the file, and what is worth knowing about them and about those that are not among them."""
        layout = self.layout
        try:
            read = read_table(self.file, layout)
        except DataError as error:
            unlabelled = self.read_unlabelled(layout)
            if unlabelled is None:
                raise error
            read = unlabelled
        table = plain_text(read.table)
        if file_extension(self.file) == "txt" and layout.delimiter is None and len(self.data.text_columns) == 1:
            table = table.rename_columns(list(self.data.text_columns))  # a text on each line is the text that is meant
        left_out = [f"{count:,} rows left out ({why})" for why, count in read.dropped.items()]
        return table, [*left_out, *(f"{count:,} rows with {what}" for what, count in read.flagged.items())]

    def read_unlabelled(self, layout: Layout) -> FileTable | None:
        """The file as one that does not name its columns, and has those of the training data but the labels."""
        columns = layout.columns or (["tokens", self.data.tags] if isinstance(self.data, TaggingData) else [])
        others = [name for name in columns if name not in self.data.learned_columns]
        if 0 < len(others) < len(columns):
            with suppress(DataError):
                return read_table(self.file, replace(layout, columns=others))
        return None

    def predict(self, table: pa.Table) -> Iterator[dict[str, Any]]:
        """Each row as it is, and what the model says about it, in order; of a row without a text it says nothing."""
        whole = table
        for name in self.data.learned_columns:
            if name not in table.column_names:
                whole = whole.append_column(name, pa.nulls(len(table)))
        rows = name_columns(to_dataset(whole), self.data, "only", DataReport())
        there = ~np.any([missing(rows, role) for role in self.data.read_roles], axis=0)
        self.without_text = int((~there).sum())
        for start in range(0, len(table), ROWS_AT_ONCE):
            own = there[start : start + ROWS_AT_ONCE]
            found = iter(self.said(rows.select(start + np.flatnonzero(own))))
            for row, has_text in zip(table.slice(start, ROWS_AT_ONCE).to_pylist(), own, strict=True):
                yield row | (next(found) if has_text else dict.fromkeys(self.task.predicted_names))

    def said(self, rows: Dataset) -> list[dict[str, Any]]:
        """What the model says about rows that all have a text."""
        if not len(rows):
            return []
        predictions = self.task.predict(self.objective, rows, self.tokenizers)
        self.cut += predictions.cut
        return predictions.rows


def label_file(run: str | Path, file: Path, overrides: list[str], output: Path | None, reporter: Reporter) -> None:
    """Write the rows of a file with what the model says about each; the output appears when it is complete."""
    ending = ".jsonl" if output is None else output.suffix
    if ending not in WRITERS:
        raise KitError(f"--output {output}: predictions are written as .csv or .jsonl")
    labeller = Labeller(run, file, overrides)
    table, told = labeller.read()
    names = labeller.task.predicted_names
    if taken := [name for name in names if name in table.column_names]:
        raise DataError(
            f'{file} has a column "{taken[0]}" already, which is what predictions are called. Give it another name.'
        )
    with writing(output) as text, reporter.progress("rows", len(table)) as advance, ignoring_rest():
        write = WRITERS[ending](text, [*table.column_names, *names])
        for row in labeller.predict(table):
            write(row)
            advance()
    told.append(f"{len(table):,} rows{'' if output is None else f': {output}'}")
    if labeller.without_text:
        told.append(f"{labeller.without_text:,} rows have no text, and so no prediction")
    if labeller.cut:
        told.append(f"{labeller.cut:,} rows were longer than the model reads, and were cut")
    for message in told:
        reporter.print(message)


def json_writer(file: TextIO, columns: list[str]) -> Callable[[dict[str, Any]], None]:
    """Writes rows as objects, one a line."""
    return lambda row: print(as_json(row), file=file)


def csv_writer(file: TextIO, columns: list[str]) -> Callable[[dict[str, Any]], None]:
    """Writes rows as csv; a cell that is a list or an object is written as JSON."""
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()

    def write(row: dict[str, Any]) -> None:
        writer.writerow({name: as_json(cell) if isinstance(cell, list | dict) else cell for name, cell in row.items()})

    return write


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)  # tables may hold dates


WRITERS = {".csv": csv_writer, ".jsonl": json_writer}
"""By the ending of the output."""
