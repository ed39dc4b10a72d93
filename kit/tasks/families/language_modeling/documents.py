"""Text for pretraining: documents from files, from the Hub or built in, each as one text in the column `text`.

A blank line separates the paragraphs of a document, also where the data has a list of paragraphs.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kit.data.builder import SplitBuilder, Splits
from kit.data.columns import drop_missing, name_columns
from kit.data.formats.folders import ShardFiles
from kit.data.formats.layout import file_extension
from kit.data.formats.lines import SURROGATE, read_lines, strip_line_end
from kit.data.report import SplitReport
from kit.data.rows import ColumnView, filter_rows, to_dataset
from kit.data.sources import SplitRows, local_files, read_splits, source_kind
from kit.data.steps import RowSteps
from kit.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.tasks.families.language_modeling.recipe import TextData

TITLE = re.compile(r"\s*=\s*[^\s=](.*[^\s=])?\s*=\s*")
"""A line with a heading of the first level in wiki markup: one equals sign on either side. Headings of sections have
more, `== Section ==`; WikiText separates them by spaces, `= = Section = =`."""

LINES_SEARCHED = 10_000
"""Lines at the beginning of a file that are searched for blank ones, so that a large file is not read to its end."""


def load_documents(data: "TextData") -> Splits:
    """Load the documents that a recipe names. Raises DataError if they are missing or do not match the recipe."""
    builder = SplitBuilder(data, RowSteps(data))
    for split, (rows, report) in read_documents(data).items():
        with builder.collecting(split):
            named = name_columns(rows, data, split, builder.report)
            builder.add(split, without_empty(drop_missing(named, data.roles, report), report), report)
    builder.check_mistakes()
    builder.check_not_empty()
    hold_out_ends(builder, data)
    builder.hold_out_missing()
    builder.select_training_rows()
    builder.report.warnings += blank_line_warnings(data)
    return builder.finish()


def read_documents(data: "TextData") -> dict[str, SplitRows]:
    """Read the documents of each split that the data has."""
    if data.documents == "row":
        return read_splits(data, RowSteps(data))
    if (kind := source_kind(data)) != "local":
        source = f"there is no file or folder {data.path}" if kind == "Hub" else f"{data.path} is not one"
        raise DataError(
            f"data.documents: {data.documents} is for .txt files, and {source}. Correct data.path, or leave "
            "data.documents out."
        )
    files = local_files(Path(data.path).expanduser(), data, RowSteps(data))
    return {split: read_texts(shards, data) for split, shards in files.items()}


def read_texts(shards: list[ShardFiles], data: "TextData") -> SplitRows:
    """Read the documents of .txt files."""
    documents: list[str] = []
    dropped: Counter[str] = Counter()
    for path in shards:
        if not isinstance(path, Path) or file_extension(path) != "txt":
            raise DataError(f"data.documents: {data.documents} is for .txt files, and {path} is not one. Leave it out.")
        for text in texts_of(path, data):
            if SURROGATE.search(text):
                dropped["undecodable"] += 1
            else:
                documents.append(text)
    rows = to_dataset(pa.table({data.text: pa.array(documents, pa.large_string()).cast(pa.string())}))
    return rows, SplitReport(len(rows) + dropped.total(), dropped=dropped)


def texts_of(path: Path, data: "TextData") -> Iterator[str]:
    r"""Split the text of a file into documents by `data.documents`: at blank lines, at headings, or not at all. Lines
    end in "\n"."""
    lines = map(strip_line_end, read_lines(path, data.encoding))
    if data.documents == "heading":
        return texts_from_headings(path, lines)
    if data.documents == "blank_line":
        return texts_between(lines, lambda line: not line.strip())
    return texts_between(lines, lambda line: False)


def texts_between(lines: Iterator[str], is_separator: Callable[[str], bool]) -> Iterator[str]:
    """Join the lines between separating lines, which belong to no text."""
    text: list[str] = []
    for line in lines:
        if not is_separator(line):
            text.append(line)
        elif text:
            yield "\n".join(text)
            text = []
    if text:
        yield "\n".join(text)


def texts_from_headings(path: Path, lines: Iterator[str]) -> Iterator[str]:
    """Split lines at headings of the first level, with which texts begin; a text before the first heading counts
    too. Raises DataError if there is no heading."""
    text: list[str] = []
    headings = 0
    for line in lines:
        if TITLE.fullmatch(line):
            headings += 1
            if any(map(str.strip, text)):
                yield "\n".join(text)
            text = []
        text.append(line)
    if not headings:
        raise DataError(
            f"data.documents: {path} has no line with a heading of the first level, such as `= Title =`. Set "
            "blank_line, file or row."
        )
    yield "\n".join(text)


def blank_line_warnings(data: "TextData") -> list[str]:
    """Warn if every line of a .txt file is a document although blank lines separate some."""
    if data.documents != "row" or source_kind(data) != "local":
        return []
    files = local_files(Path(data.path).expanduser(), data, RowSteps(data))
    paths = [path for shards in files.values() for path in shards if isinstance(path, Path)]
    blank = next((path for path in paths if file_extension(path) == "txt" and has_blank_lines(path, data)), None)
    if blank is None or data.delimiter is not None:
        return []
    return [
        f"{blank} has blank lines, but each of its lines is a document of its own. If a document is what is between "
        "blank lines, set data.documents: blank_line; if it begins with a heading such as `= Title =`, heading"
        + (" (and read it into memory, without data.streaming)" if data.streaming else "")
    ]


def has_blank_lines(path: Path, data: "TextData") -> bool:
    """Whether the beginning of a file has blank lines between others."""
    filled = [bool(line.strip()) for line in islice(read_lines(path, data.encoding), LINES_SEARCHED)]
    while filled and not filled[-1]:
        filled.pop()
    return True in filled and False in filled[filled.index(True) :]


def without_empty(rows: "Dataset", report: SplitReport) -> "Dataset":
    """Drop and count documents without any text."""
    filled = np.array([bool(text.strip()) for text in ColumnView(rows, "text")], dtype=bool)
    report.dropped += Counter({"empty": int((~filled).sum())})
    return rows if filled.all() else filter_rows(rows, filled)


def hold_out_ends(builder: SplitBuilder, data: "TextData") -> None:
    """Move the end of the training text to test and validation, where the recipe gives a share."""
    shares = (("test", data.test_share), ("validation", data.validation_share))
    if not any(share for _, share in shares):
        return
    texts = list(ColumnView(builder.train, "text"))
    characters = sum(map(len, texts))
    for split, share in shares:
        if share is None:
            continue
        builder.check_absent(split, f"{split}_share")
        before = len(texts)
        texts, held = split_off_end(texts, round(share * characters))
        if not held or not texts:
            raise DataError(
                f"data.{split}_share: {share} of the text of {data.path} leaves nothing for one of the splits."
            )
        builder.add(split, to_dataset(pa.table({"text": pa.array(held, pa.string())})), SplitReport(len(held)))
        builder.report.notes.append(f"{split} is the last {sum(map(len, held)):,} characters of the training text")
        builder.datasets["train"] = to_dataset(pa.table({"text": pa.array(texts, pa.string())}))
        # of a document that is split, train keeps a part: it is not dropped
        builder.report.splits["train"].dropped[f"held out for {split}"] = before - len(texts)


def split_off_end(texts: list[str], characters: int) -> tuple[list[str], list[str]]:
    """Split at most the last `characters` off the documents; returns what is left and what was split off. A document
    is divided at the end of a line."""
    head, tail = list(texts), list[str]()
    while head and characters > 0:
        last = head.pop()
        if len(last) <= characters:
            tail.insert(0, last)
            characters -= len(last)
            continue
        end_of_line = last.find("\n", len(last) - characters)
        if end_of_line >= 0 and last[end_of_line + 1 :].strip():
            head.append(last[:end_of_line])
            tail.insert(0, last[end_of_line + 1 :])
        else:
            head.append(last)
        break
    return head, tail
