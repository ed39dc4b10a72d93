"""CoNLL files, plain or .gz: columns of words and tags, read as one row per sentence.

    EU       NNP   B-ORG          {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}
    rejects  VBZ   O
                                  a blank line ends a sentence
    Peter    NNP   B-PER

Columns are separated by tabs, or, in a file without tabs, by any number of spaces; `data.delimiter` overrides this.
`data.columns` names the columns, each of which becomes a list. Without it, the first column is `tokens`, the last one
is `tags`, and those in between are ignored. A word may be anything, including `#`: there are no comments. Lines that
start with `-DOCSTART-` end a sentence and are ignored.

The files of CoNLL-2003 end in the names of their splits: `eng.train`, `eng.testa` (validation), `eng.testb` (test).
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from kit.data.formats.layout import Layout
from kit.data.formats.lines import DecodingCheck, read_lines, strip_line_end
from kit.data.formats.tables import UNDECODABLE, FileTable
from kit.errors import DataError

SPLIT_OF_EXTENSION = {"train": "train", "testa": "validation", "testb": "test"}
"""The split of a file of CoNLL-2003 by its extension."""
DOCUMENT = "-DOCSTART-"
SPACES = re.compile("[ \t]+")


@dataclass
class Sentence:
    """The rows of cells of a sentence, and the line it starts at."""

    line: int
    rows: list[list[str]] = field(default_factory=list)


def read_conll(path: Path, layout: Layout) -> FileTable:
    """The sentences of a file, each column as a list of strings. Undecodable sentences are dropped and counted.

    Raises DataError, with the line, for an empty column or a different number of columns, and for a file without
    sentences.
    """
    check, dropped = DecodingCheck(path, layout.encoding), Counter[str]()
    cells: dict[str, list[list[str]]] = {}
    for sentence in read_sentences(path, layout):
        if not cells:
            indices = column_indices(path, sentence, layout.columns)
            cells = {name: [] for name in indices}
        if check.count("\n".join(map("\t".join, sentence.rows)), sentence.line):
            for name, index in indices.items():
                cells[name].append([row[index] for row in sentence.rows])
        else:
            dropped[UNDECODABLE] += 1
    if check.rows == 0:
        raise DataError(f"{path} has no sentences.")
    check.check()
    strings = pa.list_(pa.string())
    return FileTable(pa.table({name: pa.array(column, strings) for name, column in cells.items()}), dropped)


def read_sentences(path: Path, layout: Layout) -> Iterator[Sentence]:
    """The sentences of a file.

    Raises DataError, with the line, for an empty cell, or if a line does not have as many columns as `layout.columns`
    or, by default, the first line.
    """
    delimiter = layout.delimiter
    width = None if layout.columns is None else len(layout.columns)
    expected = f"data.columns names {width}"
    sentence = Sentence(1)
    for number, line in enumerate(read_lines(path, layout.encoding), 1):
        text = strip_line_end(line)
        if not text.strip() or text.lstrip().startswith(DOCUMENT):
            if sentence.rows:
                yield sentence
            sentence = Sentence(number + 1)
            continue
        if delimiter is None:
            delimiter = "\t" if "\t" in text else " "
        # Only spaces and tabs separate: other white space, such as a non-breaking space, can be part of a word.
        row = SPACES.split(text.strip(" \t")) if delimiter == " " else text.split(delimiter)
        if width is None:
            width, expected = len(row), f"line {number} has {len(row)}"
        if len(row) != width:
            raise DataError(f"{path}, line {number}: {count_columns(row)} where {expected}.{advice(text, delimiter)}")
        if "" in row:
            raise DataError(f"{path}, line {number}: column {row.index('') + 1} is empty.{advice(text, delimiter)}")
        sentence.rows.append(row)
    if sentence.rows:
        yield sentence


def column_indices(path: Path, first: Sentence, names: list[str] | None) -> dict[str, int]:
    """The index of each column that is read, by its name."""
    if names is not None:
        if repeated := [name for name, count in Counter(names).items() if count > 1]:
            raise DataError(f'data.columns: there are two columns "{repeated[0]}". Give them different names.')
        return {name: index for index, name in enumerate(names)}
    width = len(first.rows[0])
    if width == 1:
        raise DataError(
            f"{path}, line {first.line}: one column where words and tags were expected. If something other than tabs "
            "or spaces separates them, set data.delimiter; if there are no tags, name the column (data.columns)."
        )
    return {"tokens": 0, "tags": width - 1}


def count_columns(row: list[str]) -> str:
    return f"{len(row)} column{'s' if len(row) > 1 else ''}"


def advice(text: str, delimiter: str) -> str:
    """A sentence on what is probably wrong with a line."""
    if text.startswith("#"):
        return " A line that starts with # is read as a word: remove comments from the file."
    other = " " if delimiter == "\t" else "\t"
    if other in text:
        return f" Columns are separated by {delimiter!r}; if not, set data.delimiter, and use the same in all lines."
    return " Each line has one word with all its columns; an empty line ends a sentence."
