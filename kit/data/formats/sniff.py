"""Guess how a text file is laid out, from its first lines: encoding, delimiter, header line, documents."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from kit.data.columns import DELIMITERS
from kit.data.formats.layout import Layout, file_extension
from kit.data.formats.lines import WIDE_MARKS, open_bytes, read_lines, reading, strip_line_end
from kit.errors import DataError

HEAD_BYTES = 1 << 16
"""Bytes from which the encoding is guessed."""
LINES = 500
"""Lines from which the layout is guessed, so that a guess takes no longer for a large file."""
SAME_WIDTH = 0.95
"""Share of the lines that a delimiter must divide into the same number of cells: a few lines may be malformed, and the
reader, which requires all of them, reports these."""
SHORT_DOCUMENT = 400
"""Mean number of characters between blank lines below which these do not separate documents: in plays they separate
speeches."""
HEADER_CELL = re.compile(r"[^\W\d][\w \-/()%]{0,40}")
HEADER_NAMES = frozenset((
    "text", "label", "sentence", "title", "id", "source", "target", "class", "category", "question", "answer",
    "answers", "context", "prompt", "response", "instruction", "input", "output", "tag", "tags", "tokens", "date",
    "time", "timestamp", "value", "values", "name", "score", "rating", "language", "sentence1", "sentence2", "premise",
    "hypothesis", "body", "summary", "review", "comment", "message", "content",
))  # fmt: skip
"""Names of columns that are rarely the content of a row."""
GZIP = b"\x1f\x8b"
CONTROLS = tuple(bytes([code]) for code in range(32) if chr(code) not in "\t\n\f\r\x1b")
"""Bytes that texts in encodings of one byte do not have."""
TITLE_LINE = re.compile(r"\s*=\s*[^\s=](.*[^\s=])?\s*=\s*")


def guess_encoding(path: Path) -> str:
    """The encoding of a text file: utf-8, utf-16 or utf-32, or else cp1252, in which every byte is a character."""
    with reading(path), open_bytes(path) as raw:
        head = raw.read(HEAD_BYTES)
    if not head:
        raise DataError(f"{path} is empty.")
    if marked := next((name for mark, name in WIDE_MARKS.items() if head.startswith(mark)), None):
        return marked
    if head.count(0) > len(head) // 5:
        return "utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"
    try:
        head[: head.rfind(b"\n") + 1 or len(head)].decode("utf-8")
    except UnicodeDecodeError:
        # reading a compressed file reports what it is
        if not head.startswith(GZIP) and sum(head.count(byte) for byte in CONTROLS) > len(head) // 100:
            raise DataError(
                f"{path} is not text: it contains bytes that occur in no text encoding. If it is "
                "compressed or of another "
                "format, its name must end accordingly, such as .gz or .parquet."
            ) from None
        return "cp1252"
    return "utf-8"


def first_lines(path: Path, encoding: str, count: int = LINES) -> list[str]:
    """The first lines of a file, without line ends and blank ones."""
    lines = (strip_line_end(line) for line in islice(read_lines(path, encoding), count))
    return [line for line in lines if line.strip()]


def guess_table(path: Path, encoding: str) -> Layout | None:
    """The layout of a table with a line for each row; None for text without columns."""
    extension, lines = file_extension(path), first_lines(path, encoding)
    default = {"csv": ",", "tsv": "\t"}.get(extension)
    # where no other delimiter divides the lines evenly, the one of the extension reports what is wrong
    delimiter = guess_delimiter(lines, default) or default
    if delimiter is None:
        return None
    quoting = extension == "csv" or is_quoted(lines, delimiter)
    rows = cells_of(lines, delimiter, quoting)
    columns = None if has_header(rows) else invented_names(rows)
    return Layout(
        columns,
        None if delimiter == default else delimiter,
        True if quoting and extension != "csv" else None,
        encoding,
    )


def guess_delimiter(lines: Sequence[str], default: str | None) -> str | None:
    """The delimiter that divides almost all lines into the same number of cells; `default` wins if it does."""
    candidates = [default] if default else []
    # commas and bars are common in texts without columns: only a file that is a table by name may have them
    candidates += [mark for mark in (DELIMITERS if default else ("\t",)) if mark != default]
    for mark in candidates:
        rows = cells_of(lines, mark, default is not None)
        widths = Counter(map(len, rows))
        width, count = widths.most_common(1)[0] if widths else (1, 0)
        # a decimal comma divides all lines but the header
        if width > 1 and count >= SAME_WIDTH * widths.total() and len(rows[0]) == width:
            return mark
    return None


def cells_of(lines: Sequence[str], delimiter: str, quoting: bool) -> list[list[str]]:
    """The cells of each line. A last row that continues beyond the lines is left out."""
    if not quoting:
        return [line.split(delimiter) for line in lines]
    rows = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter)
    try:
        return list(rows)
    except csv.Error:
        return [line.split(delimiter) for line in lines]


def is_quoted(lines: Sequence[str], delimiter: str) -> bool:
    """Whether lines have the same number of cells only if cells may be in quotation marks."""
    plain, quoted = ({len(cells) for cells in cells_of(lines, delimiter, quoting)} for quoting in (False, True))
    return len(plain) > len(quoted) == 1


def has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns."""
    if not rows:
        return True
    first, body = [cell.strip() for cell in rows[0]], rows[1:]
    named = first if first[0] else first[1:]  # pandas gives the index no name
    if not named or not all(map(HEADER_CELL.fullmatch, named)) or len(set(first)) < len(first):
        return False
    if not body or any(cell.lower() in HEADER_NAMES for cell in first):
        return True
    columns = list(zip(*(row for row in body if len(row) == len(first)), strict=True))
    for name, cells in zip(first, columns, strict=False):
        if name in cells:
            return False
        numbers = sum(re.fullmatch(r"[-+\d.,:/eETZ ]+", cell) is not None for cell in cells if cell)
        words = sum(len(cell.split()) for cell in cells) / len(cells)
        if numbers > len(cells) // 2 or words > 3 * len(name.split()):
            return True
    return False


def invented_names(rows: Sequence[Sequence[str]]) -> list[str]:
    """Names for the columns of a table without a header, by what they hold: text, label, label2, id, number."""
    names, counts = list[str](), Counter[str]()
    for cells in zip(*(row for row in rows if len(row) == len(rows[0])), strict=True):
        numbers = all(re.fullmatch(r"[+-]?\d+(\.\d+)?", cell) for cell in cells)
        repeats = len(set(cells)) <= max(2, len(cells) // 5)
        words = sum(len(cell.split()) for cell in cells) / len(cells)
        kind = "label" if repeats and words <= 4 else "text"
        if numbers and not repeats:
            kind = "number" if any("." in cell for cell in cells) else "id"
        counts[kind] += 1
        names.append(kind if counts[kind] == 1 else f"{kind}{counts[kind]}")
    return names


def guess_documents(path: Path, encoding: str) -> str:
    """What a document is in a text without columns, as `data.documents`."""
    lines = [strip_line_end(line) for line in islice(read_lines(path, encoding), 20 * LINES)]
    if sum(TITLE_LINE.fullmatch(line) is not None for line in lines) > 1:
        return "heading"
    blank = sum(not line.strip() for line in lines[:-1])
    if not blank:
        return "row"
    return "blank_line" if sum(map(len, lines)) / (blank + 1) >= SHORT_DOCUMENT else "file"
