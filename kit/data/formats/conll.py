"""Columns of words and tags, as the CoNLL tasks have them: `.conll` files, plain or as .gz, to a row for each sentence.

    EU       NNP   B-ORG          {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}
    rejects  VBZ   O
                                  a line of nothing but white space ends a sentence
    Peter    NNP   B-PER

Columns are separated by tabs, or, in a file without tabs, by any number of spaces; `data.delimiter` decides otherwise.
`data.columns` names the columns, each of which becomes a list; without it the first one is `tokens`, the last one is
`tags`, and those between are left out. A word may be anything, also `#`: there are no comments. Lines that begin with
`-DOCSTART-` end a sentence and are left out.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from kit.data.formats.lines import DecodingCheck, read_lines, strip_line_end
from kit.data.formats.reader import UNDECODABLE, FileTable, Layout
from kit.errors import DataError

DOCUMENT = "-DOCSTART-"
SPACES = re.compile("[ \t]+")


@dataclass
class Sentence:
    """The words of a sentence with their columns, and where it begins."""

    line: int
    rows: list[list[str]] = field(default_factory=list)


def read_conll(path: Path, layout: Layout) -> FileTable:
    """The sentences of a file, each column as a list of texts.

    Sentences that cannot be decoded are left out and counted. Raises DataError, with the line, if a line has more or
    fewer columns than others or an empty one, and if there are no sentences.
    """
    decoding, dropped = DecodingCheck(path, layout.encoding), Counter[str]()
    names = layout.columns
    columns: dict[str, list[list[str]]] = {}
    for sentence in sentences(path, layout):
        if not columns:
            places = chosen_columns(path, sentence, names)
            columns = {name: [] for name in places}
        if decoding.count("\n".join(map("\t".join, sentence.rows)), sentence.line):
            for name, place in places.items():
                columns[name].append([row[place] for row in sentence.rows])
        else:
            dropped[UNDECODABLE] += 1
    if decoding.rows == 0:
        raise DataError(f"{path} holds no sentences.")
    decoding.check()
    words = pa.list_(pa.string())
    return FileTable(pa.table({name: pa.array(cells, words) for name, cells in columns.items()}), dropped)


def sentences(path: Path, layout: Layout) -> Iterator[Sentence]:
    """The sentences of a file. Raises DataError, with the line, if one is not in columns as all the others."""
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
        # Only spaces and tabs separate: other white space, such as the non-breaking one, can be part of a word.
        row = SPACES.split(text.strip(" \t")) if delimiter == " " else text.split(delimiter)
        if width is None:
            width, expected = len(row), f"line {number} has {len(row)}"
        if len(row) != width:
            raise DataError(f"{path}, line {number}: {columns_of(row)} where {expected}.{advice(text, delimiter)}")
        if "" in row:
            raise DataError(f"{path}, line {number}: column {row.index('') + 1} is empty.{advice(text, delimiter)}")
        sentence.rows.append(row)
    if sentence.rows:
        yield sentence


def chosen_columns(path: Path, first: Sentence, names: list[str] | None) -> dict[str, int]:
    """The place of each column by its name."""
    if names is not None:
        if repeated := [name for name, times in Counter(names).items() if times > 1]:
            raise DataError(f'data.columns: "{repeated[0]}" is there twice. Give the columns different names.')
        return {name: place for place, name in enumerate(names)}
    width = len(first.rows[0])
    if width == 1:
        raise DataError(
            f"{path}, line {first.line}: one column where words and tags were expected. If something other than tabs "
            "or spaces separates them, set data.delimiter; if there are no tags, name the column (data.columns)."
        )
    return {"tokens": 0, "tags": width - 1}


def columns_of(row: list[str]) -> str:
    return f"{len(row)} column{'s' if len(row) > 1 else ''}"


def advice(text: str, delimiter: str) -> str:
    """What may be wrong with a line."""
    if text.startswith("#"):
        return " A line with # is read as a word: take comments out of the file."
    other = " " if delimiter == "\t" else "\t"
    if other in text:
        return f" Columns are separated by {delimiter!r}; if not, set data.delimiter, and use the same in all lines."
    return " Each line holds one word with all its columns; an empty line ends a sentence."
