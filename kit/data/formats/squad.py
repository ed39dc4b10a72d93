"""SQuAD files, versions 1.1 and 2.0: one nested JSON object, read as one row per question.

    {"data": [{"title": …, "paragraphs": [{"context": …, "qas": [{"id": …, "question": …, "answers": [
        {"text": …, "answer_start": …}], "is_impossible": …}]}]}]}

A row has id, title, context, question, answers {text: […], answer_start: […]} and is_impossible, as on the Hub. An
answer starts where `context[answer_start:]` starts with its text. If the offset in the file is wrong, the nearest
occurrence of the text in the context is used, and counted. An answer that does not occur in its context starts at -1:
it cannot be trained on, but counts as a reference in evaluation.
"""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from kit.data.formats.layout import Layout
from kit.data.formats.lines import SURROGATE, DecodingCheck, open_bytes, read_lines
from kit.data.formats.tables import UNDECODABLE, FileTable
from kit.data.formats.text import parse_json
from kit.errors import DataError

NOT_IN_CONTEXT = -1
"""Start of an answer that does not occur in its context."""
MOVED = "an answer that was moved to the nearest occurrence of its text"
WITHOUT_ANSWER = "no answer, though not marked as impossible"
IGNORED_ANSWERS = "answers that were ignored because it is marked as impossible"

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("context", pa.string()),
        ("question", pa.string()),
        ("answers", pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int64()))])),
        ("is_impossible", pa.bool_()),
    ]
)
START_OF_FILE = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*("version"\s*:\s*("[^"]*"|[\d.]+|null)\s*,\s*)?"data"\s*:\s*\[')


def is_squad(path: Path) -> bool:
    """Whether a file starts like a SQuAD file: one object with a list under "data"."""
    with open_bytes(path) as raw:
        try:
            return START_OF_FILE.match(raw.read(1024)) is not None
        except (OSError, EOFError, zlib.error):
            return False  # the reader that opens it next reports the error


def read_squad(path: Path, layout: Layout) -> FileTable:
    """All questions of a file. Raises DataError, naming article, paragraph and question, if it is not a SQuAD file."""
    text = "".join(read_lines(path, layout.encoding))
    invalid = SURROGATE.search(text)
    first_undecodable_line = 1 + text.count("\n", 0, invalid.start() if invalid else 0)
    parser = SquadParser(path, DecodingCheck(path, layout.encoding), first_undecodable_line)
    rows = list(parser.questions(parse_json(path, text)))
    if parser.check.rows == 0:
        raise DataError(f"{path} has no questions.")
    parser.check.check()
    return FileTable(pa.Table.from_pylist(rows, SCHEMA), +parser.dropped, +parser.flagged)


@dataclass
class SquadParser:
    """Walks through a file, validates its questions and counts what is wrong with them."""

    path: Path
    check: DecodingCheck
    first_undecodable_line: int
    dropped: Counter[str] = field(default_factory=Counter)
    flagged: Counter[str] = field(default_factory=Counter)
    locations: dict[str, str] = field(default_factory=dict)
    """Where each question id was seen."""

    def questions(self, document: Any) -> Iterator[dict[str, Any]]:
        """The usable questions as rows."""
        for number, article in enumerate(self.value(document, "data", list, ""), 1):
            title = self.value(article, "title", str, f"article {number}", default="")
            in_article = f'article {number} ("{title}")' if title else f"article {number}"
            for index, paragraph in enumerate(self.value(article, "paragraphs", list, in_article), 1):
                in_paragraph = f"{in_article}, paragraph {index}"
                context = self.value(paragraph, "context", str, in_paragraph)
                for n, question in enumerate(self.value(paragraph, "qas", list, in_paragraph), 1):
                    row = self.question(question, context, f"{in_paragraph}, question {n}")
                    if row is not None:
                        yield row | {"title": title, "context": context}

    def question(self, entry: Any, context: str, location: str) -> dict[str, Any] | None:
        """A row without title and context; None if it cannot be decoded."""
        id = str(self.value(entry, "id", (str, int), location))
        text = self.value(entry, "question", str, location)
        impossible = self.value(entry, "is_impossible", (bool, type(None)), location, default=None)
        answers = [
            (
                self.value(answer, "text", str, f"{location}, answer {n}"),
                self.value(answer, "answer_start", int, location),
            )
            for n, answer in enumerate(self.value(entry, "answers", list, location, default=[]), 1)
        ]
        if id in self.locations:
            raise DataError(
                f'{self.path}, {location}: the id "{id}" is already used by {self.locations[id]}. Ids must be unique.'
            )
        self.locations[id] = location
        cells = [id, text, context, *(answer for answer, _ in answers)]
        if not self.check.count("\n".join(cells), self.first_undecodable_line):
            self.dropped[UNDECODABLE] += 1
            return None
        if impossible and answers:
            self.flagged[IGNORED_ANSWERS] += 1
            answers = []
        if not answers and impossible is False:
            self.flagged[WITHOUT_ANSWER] += 1
        located = [locate_answer(context, answer, start) or (answer, NOT_IN_CONTEXT) for answer, start in answers]
        self.flagged[MOVED] += any(
            new != old and new[1] != NOT_IN_CONTEXT for new, old in zip(located, answers, strict=True)
        )
        return {
            "id": id,
            "question": text,
            "answers": {"text": [answer for answer, _ in located], "answer_start": [start for _, start in located]},
            "is_impossible": not answers if impossible is None else impossible,
        }

    def value(self, parent: Any, key: str, kind: type | tuple[type, ...], location: str, default: Any = ...) -> Any:
        """The value of a key. Raises DataError, with the location, if it is missing or of another type."""
        where = f"{self.path}, {location}" if location else f"{self.path}"
        if not isinstance(parent, dict):
            raise DataError(f'{where}: expected an object with "{key}", got {json.dumps(parent)[:40]}.')
        if key not in parent:
            if default is not ...:
                return default
            raise DataError(f'{where}: "{key}" is missing. It has {", ".join(parent) or "nothing"}.')
        value = parent[key]
        # In Python, booleans are integers.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, (str, int))):
            raise DataError(f'{where}: "{key}" has a different type than in SQuAD: {json.dumps(value)[:40]}.')
        return value


def locate_answer(context: str, text: str, start: int) -> tuple[str, int] | None:
    """The answer and its occurrence in the context nearest to `start`; None if it does not occur.

    If the text as given does not occur, surrounding white space is stripped.
    """
    for wanted in dict.fromkeys((text, text.strip())):
        if not wanted:
            continue
        if start >= 0 and context.startswith(wanted, start):
            return wanted, start
        before = context.rfind(wanted, 0, max(start, 0) + len(wanted))
        after = context.find(wanted, max(start, 0))
        occurrences = [index for index in (before, after) if index >= 0]
        if occurrences:
            return wanted, min(occurrences, key=lambda index: (abs(index - start), index))
    return None
