"""From the columns of the data, whatever their names, to those of the task (`source`, `target`) and others that all
splits share."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kit.data.report import DataReport, SplitReport
from kit.data.rows import filter_rows, to_dataset
from kit.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.recipe.data import DataSection

PARAGRAPHS = "\n\n"
"""What stands between the paragraphs of a document."""


def name_columns(
    dataset: "Dataset", data: "DataSection", split: str, report: DataReport, needed: tuple[str, ...] | None = None
) -> "Dataset":
    """The dataset with the columns of the recipe first, renamed to their roles if these are all that is `needed`.

    Other columns of the needed names are dropped. Raises DataError if a column of the recipe is missing, or does not
    hold text where text is needed.
    """
    needed = data.roles if needed is None else needed
    chosen = data.text_columns | data.value_columns
    dataset = unfold(dataset, set(chosen))
    if data.joins_paragraphs:
        for name in chosen:
            dataset = joined_paragraphs(dataset, name)
    for name, key in chosen.items():
        if name not in dataset.column_names:
            raise DataError(
                f'data.{key}: the {split} split of {data.path} has no column "{name}".'
                f"{did_you_mean(name, dataset.column_names)} It has {', '.join(dataset.column_names)}. "
                "(If this is a file without a header line, name its columns by data.columns.)"
            )
        kind = dataset.data.schema.field(name).type
        # A column of type null has no values at all; its rows are counted as missing.
        if name in data.text_columns and not is_text(kind) and kind != pa.null():
            raise DataError(f'data.{key}: the column "{name}" of {data.path} holds {kind}, not text.')
    shadowed = [name for name in dataset.column_names if name in needed and name not in chosen]
    if shadowed:
        dataset = dataset.remove_columns(shadowed)
        note_once(report, f"left out, since its name is needed: column {', '.join(shadowed)}")
    others = [name for name in dataset.column_names if name not in chosen]
    dataset = dataset.select_columns([*chosen, *others])
    return dataset.rename_columns(chosen) if needed == data.roles else dataset


def unfold(dataset: "Dataset", names: set[str]) -> "Dataset":
    """Bring the texts of a translation out of the column that holds them as {"de": …, "en": …}; a name may also say
    which: translation.de."""
    if names <= set(dataset.column_names):
        return dataset
    if any("." in name for name in names) and names <= set((flat := dataset.flatten()).column_names):
        return flat
    for field in dataset.data.schema:
        if pa.types.is_struct(field.type) and names <= (inner := {part.name for part in field.type}):
            flat = dataset.flatten()
            free = inner - set(dataset.column_names)
            return flat.rename_columns({f"{field.name}.{name}": name for name in sorted(free)})
    return dataset


def joined_paragraphs(rows: "Dataset", column: str) -> "Dataset":
    """The rows with a list of paragraphs in a column as one text."""
    if column not in rows.column_names:
        return rows
    kind = rows.data.schema.field(column).type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not is_text(kind.value_type):
        return rows
    table = rows.with_format("arrow")[:]
    texts = [None if cell is None else PARAGRAPHS.join(filter(None, cell)) for cell in table[column].to_pylist()]
    place = table.column_names.index(column)
    return to_dataset(table.set_column(place, column, pa.array(texts, pa.string())))


def is_text(kind: pa.DataType) -> bool:
    """Whether a type holds text, in whichever of the layouts Arrow has for it."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def plain_text(table: pa.Table) -> pa.Table:
    """The table with all text in the one layout that every consumer knows."""
    fields = [field.with_type(pa.string()) if is_text(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields))


def drop_missing(dataset: "Dataset", roles: Sequence[str], told: SplitReport) -> "Dataset":
    """Leave out and count rows that lack a text or a value. Empty text is a value, and stays."""
    whole = np.ones(len(dataset), dtype=bool)
    for role in roles:
        there = ~missing(dataset, role)
        told.dropped += Counter({f"no {role}": int((whole & ~there).sum())})
        whole &= there
    return dataset if whole.all() else filter_rows(dataset, whole)


def missing(dataset: "Dataset", column: str) -> np.ndarray:
    """A mask of the rows without a value in a column: null, not a number, or the -1 that the Hub gives to examples
    whose class is kept secret."""
    from datasets import ClassLabel

    cells = dataset.with_format("arrow").select_columns([column])[:][column]
    found = pc.is_null(cells, nan_is_null=pa.types.is_floating(cells.type)).to_numpy(zero_copy_only=False)
    if isinstance(dataset.features[column], ClassLabel):
        found = found | pc.fill_null(pc.less(cells, 0), False).to_numpy(zero_copy_only=False)
    return found


def keep_common_columns(found: "dict[str, Dataset]", roles: Sequence[str], report: DataReport) -> None:
    """Leave out columns that are not the same in all splits, and note them."""
    features = [dataset.features for dataset in found.values()]
    first = features[0]
    common = [
        name
        for name in first
        if name in roles or all(name in other and other[name] == first[name] for other in features)
    ]
    for split, dataset in found.items():
        if others := [name for name in dataset.column_names if name not in common]:
            note_once(report, f"left out, since not all splits have it alike: column {', '.join(others)}")
        found[split] = dataset.select_columns(common)


def note_once(report: DataReport, note: str) -> None:
    if note not in report.notes:
        report.notes.append(note)
