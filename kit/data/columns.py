"""From the columns of the data to those of the task (such as `source` and `target`), and others that all splits
share."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kit.data.report import DataReport, SplitReport
from kit.data.rows import ColumnView, filter_rows, to_dataset
from kit.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.recipe.data import DataSection

DELIMITERS = (";", "\t", "|", ",")
"""What separates the columns of tables, the least common in text first."""
PARAGRAPHS = "\n\n"
"""Separator of the paragraphs of a document."""


def name_columns(
    dataset: "Dataset", data: "DataSection", split: str, report: DataReport, needed: tuple[str, ...] | None = None
) -> "Dataset":
    """The dataset with the columns that the recipe names first, renamed to the roles of the task.

    `needed` are the column names that the task reads; if they are more than the roles, columns keep their names. Any
    other column with a needed name is dropped, with a note in the report. Raises DataError if a column of the recipe is
    missing, or does not hold text where text is needed.
    """
    needed = data.roles if needed is None else needed
    chosen = data.text_columns | data.value_columns
    dataset = flatten_translations(dataset, set(chosen))
    if data.joins_paragraphs:
        for name in chosen:
            dataset = join_paragraphs(dataset, name)
    mistakes = []
    for name, key in chosen.items():
        if name not in dataset.column_names:
            mistakes.append(
                f'data.{key}: the {split} split of {data.path} has no column "{name}".'
                f"{did_you_mean(name, dataset.column_names)} It has {', '.join(dataset.column_names)}. "
                f"{delimiter_hint(dataset.column_names, data)}"
            )
            continue
        kind = dataset.data.schema.field(name).type
        # A column of type null has no values at all; its rows are counted as missing.
        if name in data.text_columns and not is_text(kind) and kind != pa.null():
            mistakes.append(f'data.{key}: the column "{name}" of {data.path} holds {kind}, not text.')
    if mistakes:
        raise DataError("\n".join(mistakes))
    shadowed = [name for name in dataset.column_names if name in needed and name not in chosen]
    if shadowed:
        dataset = dataset.remove_columns(shadowed)
        note_once(report, f"left out, since its name is needed: column {', '.join(shadowed)}")
    others = [name for name in dataset.column_names if name not in chosen]
    dataset = dataset.select_columns([*chosen, *others])
    return dataset.rename_columns(chosen) if needed == data.roles else dataset


def delimiter_hint(columns: Sequence[str], data: "DataSection") -> str:
    """The end of a message about a missing column: the delimiter or the names that the table probably needs."""
    inside = [mark for mark in DELIMITERS if mark in columns[0]] if len(columns) == 1 else []
    if inside and data.delimiter is None:
        shown = {"\t": r"\t"}.get(inside[0], inside[0])
        return f'If "{shown}" separates the columns, set data.delimiter="{shown}".'
    return "(If this is a file without a header line, name its columns with data.columns.)"


def flatten_translations(dataset: "Dataset", names: set[str]) -> "Dataset":
    """Turn a column of translations, {"de": …, "en": …}, into a column per language; a name may also include that of
    the column: translation.de."""
    if names <= set(dataset.column_names):
        return dataset
    if any("." in name for name in names) and names <= set((flat := dataset.flatten()).column_names):
        return flat
    for field in dataset.data.schema:
        if pa.types.is_struct(field.type) and names <= (inner := {part.name for part in field.type}):
            unused = sorted(inner - set(dataset.column_names))
            return dataset.flatten().rename_columns({f"{field.name}.{name}": name for name in unused})
    return dataset


def join_paragraphs(rows: "Dataset", column: str) -> "Dataset":
    """The rows with each list of paragraphs in a column joined to one text; other columns are not changed."""
    if column not in rows.column_names:
        return rows
    kind = rows.data.schema.field(column).type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not is_text(kind.value_type):
        return rows
    table = rows.with_format("arrow")[:]
    texts = [None if cell is None else PARAGRAPHS.join(filter(None, cell)) for cell in table[column].to_pylist()]
    index = table.column_names.index(column)
    return to_dataset(table.set_column(index, column, pa.array(texts, pa.string())))


def is_text(kind: pa.DataType) -> bool:
    """Whether a type holds text, in any of Arrow's layouts."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def plain_text(table: pa.Table) -> pa.Table:
    """The table with all text in Arrow's most common layout."""
    fields = [field.with_type(pa.string()) if is_text(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields))


def drop_missing(dataset: "Dataset", roles: Sequence[str], report: SplitReport, texts: Sequence[str] = ()) -> "Dataset":
    """Drop and count rows that lack a text or a value, and those with an empty text in one of the columns `texts`."""
    complete = np.ones(len(dataset), dtype=bool)
    for role in roles:
        present = ~missing(dataset, role)
        report.dropped += Counter({f"no {role}": int((complete & ~present).sum())})
        complete &= present
    for role in texts:
        filled = ~blank(dataset, role)
        report.dropped += Counter({f"empty {role}": int((complete & ~filled).sum())})
        complete &= filled
    return dataset if complete.all() else filter_rows(dataset, complete)


def blank(dataset: "Dataset", column: str) -> np.ndarray:
    """A mask of the rows whose text in a column is empty or only white space, or whose list has no items."""
    return np.array(
        [not (cell.strip() if isinstance(cell, str) else cell) for cell in ColumnView(dataset, column)], bool
    )


def missing(dataset: "Dataset", column: str) -> np.ndarray:
    """A mask of the rows without a value in a column: null, NaN, or the -1 by which Hub datasets withhold a class."""
    from datasets import ClassLabel

    cells = dataset.with_format("arrow").select_columns([column])[:][column]
    mask = pc.is_null(cells, nan_is_null=pa.types.is_floating(cells.type))
    if isinstance(dataset.features[column], ClassLabel):
        mask = pc.or_(mask, pc.fill_null(pc.less(cells, 0), False))
    return mask.to_numpy(zero_copy_only=False)


def keep_common_columns(splits: "dict[str, Dataset]", roles: Sequence[str], report: DataReport) -> None:
    """Remove columns that differ between the splits, and note them."""
    features = [dataset.features for dataset in splits.values()]
    first = features[0] if features else {}  # a streamed train alone is not a dataset
    common = [
        name
        for name in first
        if name in roles or all(name in other and other[name] == first[name] for other in features)
    ]
    for split, dataset in splits.items():
        if others := [name for name in dataset.column_names if name not in common]:
            note_once(report, f"left out, since it differs between splits: column {', '.join(others)}")
        splits[split] = dataset.select_columns(common)


def note_once(report: DataReport, note: str) -> None:
    if note not in report.notes:
        report.notes.append(note)
