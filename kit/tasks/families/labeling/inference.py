"""Predict labels, tags or answers for the rows of a file."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from kit.data.columns import missing, name_columns, plain_text
from kit.data.formats.layout import Layout, file_extension
from kit.data.formats.reader import read_table
from kit.data.formats.tables import FileTable
from kit.data.report import DataReport
from kit.data.rows import to_dataset
from kit.data.sources import layout_of
from kit.errors import DataError, KitError, RunError
from kit.prediction.engine import Encoded
from kit.prediction.issues import LineIssue
from kit.prediction.options import reject_unsupported
from kit.prediction.rows import PredictOptions, RowPredictor
from kit.pretrained.folder import ModelFolder
from kit.pretrained.vocabulary import check_folder
from kit.recipe.document import parse_override, write_override
from kit.recipe.parse import check_overrides
from kit.system.device import default_device
from kit.tasks.families.labeling.recipe import LabelingData
from kit.tasks.registry import create_task, load_recipe

FILE_KEYS = {"data.columns", "data.delimiter", "data.quoting"}
NO_TEXT = LineIssue("had nothing to read", "the prediction is empty")


class LabelPredictor(RowPredictor[int, int, dict[str, Any]]):
    """The model of a run, for the rows of a file, which need no labels. An item is the index of a row."""

    action: ClassVar[str] = "labeled"
    portion_size = 2000

    def __init__(self, folder: ModelFolder, options: PredictOptions):
        """Raises RunError if the folder has no recipe, which describes the columns."""
        reject_unsupported(options, {"file", "overrides", "top_k"}, f"{folder.name}, which predicts labels")
        if folder.recipe_file is None:
            raise RunError(
                f"{folder.name} is not a run folder: it has no recipe.yaml. `kit train RECIPE` makes one, by default "
                "under runs/"
            )
        overrides = list(options.overrides)
        trained: Any = load_recipe(folder.recipe_file, saved=True)
        self.file, self.changed = options.file, dict(map(parse_override, overrides))
        accepted = trained.keys_after_training("prediction_keys")
        check_overrides(overrides, trained, accepted, f"the predictions for {self.file}")
        recipe = load_recipe(folder.recipe_file, [*overrides, *self._file_overrides(trained.data)], saved=True)
        self.data: Any = recipe.data
        self.task = cast(Any, create_task(recipe))  # a LabelingTask, whose module imports this one
        if options.top_k is not None and self.task.ranked_name is None:
            raise KitError(f"--top-k has no effect on {folder.name}, which predicts one value or tag. Leave it out")
        self.top_k = options.top_k
        ranked = () if self.top_k is None else (self.task.ranked_name,)
        self.predicted_names: tuple[str, ...] = (*self.task.predicted_names, *ranked)
        self.state = self.task.restore(folder)
        model = self.task.load_model(folder).to(default_device()).eval()
        check_folder(folder.name, model, self.state.tokenizers)
        self.objective = self.task.objective(model, self.state)
        self.empty = dict.fromkeys(self.predicted_names)
        self.truncated = 0

    def _file_overrides(self, trained_on: LabelingData) -> list[str]:
        """The overrides that make the file the data of the recipe."""
        changes: dict[str, Any] = {"path": str(self.file)} | dict.fromkeys(("fingerprints", "languages", "sizes"))
        columns = self.changed.get("data.columns")
        if isinstance(columns, list):  # without labels, which recipes must have
            changes["columns"] = list(dict.fromkeys([*columns, *trained_on.learned_columns]))
        return [write_override(f"data.{name}", value) for name, value in changes.items()]

    # ---- the file ----------------------------------------------------------------------------------------------------

    def read(self) -> Sequence[int]:
        layout = self._layout()
        try:
            read = read_table(self.file, layout)
        except DataError as error:
            unlabeled = self._read_without_labels(layout)
            if unlabeled is None:
                raise error
            read = unlabeled
        table = plain_text(read.table)
        if file_extension(self.file) == "txt" and layout.delimiter is None and len(self.data.text_columns) == 1:
            table = table.rename_columns(list(self.data.text_columns))  # each line is a text
        table = self.task.input_table(table)
        if taken := [name for name in self.predicted_names if name in table.column_names]:
            raise DataError(f'{self.file} already has a column "{taken[0]}", which predictions need. Rename it.')
        self.table = table
        for name in self.data.learned_columns:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(len(table)))
        self.rows = name_columns(to_dataset(table), self.data, "only", DataReport())
        self.has_text = ~np.any([missing(self.rows, role) for role in self.data.input_roles], axis=0)
        self._notes = [f"{count:,} rows left out ({reason})" for reason, count in read.dropped.items()]
        self._notes += [f"{count:,} rows with {what}" for what, count in read.flagged.items()]
        return range(len(self.table))

    def _layout(self) -> Layout:
        """The layout of the file: that of the training data, unless the file names its columns or has none."""
        extension, data = file_extension(self.file), self.data
        names_columns = extension in ("json", "jsonl", "parquet") or (extension == "txt" and data.delimiter is None)
        if names_columns and not self.changed.keys() & FILE_KEYS:
            return Layout(encoding=data.encoding)
        return replace(layout_of(data), columns=self.changed.get("data.columns", data.columns))

    def _read_without_labels(self, layout: Layout) -> FileTable | None:
        """Read the file as the columns of the training data without the labels, for a file that does not name its
        columns.

        None if the training data has no such columns, or if the file does not fit.
        """
        columns = layout.columns or self.data.default_columns
        inputs = [name for name in columns if name not in self.data.learned_columns]
        if 0 < len(inputs) < len(columns):
            with suppress(DataError):
                return read_table(self.file, replace(layout, columns=inputs))
        return None

    # ---- predictions -------------------------------------------------------------------------------------------------

    def encode(self, items: list[int]) -> list[Encoded[int]]:
        return [Encoded([index]) if self.has_text[index] else Encoded([], NO_TEXT) for index in items]

    def batches(self, units: list[int]) -> list[np.ndarray]:
        """The whole portion as one batch: the task makes batches as in its evaluation, so that predictions are the
        same."""
        return [np.arange(len(units))]

    def predict(self, units: list[int]) -> list[dict[str, Any]]:
        predictions = self.task.predict(self.objective, self.rows.select(units), self.state, self.top_k)
        self.truncated += predictions.truncated
        return predictions.rows

    def columns(self) -> list[str]:
        return [*self.table.column_names, *self.predicted_names]

    def json_row(self, item: int, output: dict[str, Any]) -> dict[str, Any]:
        return self.table.slice(item, 1).to_pylist()[0] | output

    def notes(self) -> list[str]:
        if not self.truncated:
            return self._notes
        return [*self._notes, f"{self.truncated:,} rows were longer than the model reads, and were truncated"]
