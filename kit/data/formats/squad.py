"""Questions about texts as SQuAD has them, versions 1.1 and 2.0: one JSON file to a row for each question.

    {"data": [{"title": …, "paragraphs": [{"context": …, "qas": [{"id": …, "question": …, "answers": [
        {"text": …, "answer_start": …}], "is_impossible": …}]}]}]}

A row has id, title, context, question, answers {text: […], answer_start: […]} and is_impossible, as on the Hub. An
answer starts where `context[answer_start:]` begins with its text: where the file says otherwise, the nearest place in
the context where the text stands is taken, and counted. One that is not in its context at all starts at -1: it cannot
be learned, but counts as an answer where models are judged.
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

from kit.data.formats.lines import SURROGATE, DecodingCheck, open_bytes, read_lines
from kit.data.formats.reader import UNDECODABLE, FileTable, Layout
from kit.errors import DataError

NOT_IN_CONTEXT = -1
"""Where an answer starts that is not in its context."""
MOVED = "an answer that was moved to where its text stands"
WITHOUT_ANSWER = "no answer, though not called impossible"
IGNORED_ANSWERS = "answers that were ignored, since it is called impossible"

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
BEGINNING = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*("version"\s*:\s*("[^"]*"|[\d.]+|null)\s*,\s*)?"data"\s*:\s*\[')


def is_squad(path: Path) -> bool:
    """Whether a file begins as a SQuAD file does: one object with a list under "data"."""
    with open_bytes(path) as raw:
        try:
            return BEGINNING.match(raw.read(1024)) is not None
        except (OSError, EOFError, zlib.error):
            return False  # whoever reads it will say what is wrong


def read_squad(path: Path, layout: Layout) -> FileTable:
    """All questions of a file. Raises DataError that names the place if it is not a SQuAD file."""
    text = "".join(read_lines(path, layout.encoding))
    broken = SURROGATE.search(text)
    reader = Reader(
        path, DecodingCheck(path, layout.encoding), 1 + text.count("\n", 0, broken.start() if broken else 0)
    )
    rows = list(reader.questions(parse(path, text)))
    if reader.decoding.rows == 0:
        raise DataError(f"{path} holds no questions.")
    reader.decoding.check()
    return FileTable(pa.Table.from_pylist(rows, SCHEMA), +reader.dropped, +reader.flagged)


def parse(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise DataError(f"{path}, {where}: this is not JSON ({error.msg}).") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: this JSON cannot be read ({error}).") from error


@dataclass
class Reader:
    """Goes through a file, and counts what is wrong with its questions."""

    path: Path
    decoding: DecodingCheck
    broken_line: int
    """The first line that could not be decoded, if there is one."""
    dropped: Counter[str] = field(default_factory=Counter)
    flagged: Counter[str] = field(default_factory=Counter)
    known: dict[str, str] = field(default_factory=dict)
    """Where each id was met."""

    def questions(self, whole: Any) -> Iterator[dict[str, Any]]:
        """The usable questions."""
        for number, article in enumerate(self.entry(whole, "data", list, ""), 1):
            title = self.entry(article, "title", str, f"article {number}", default="")
            at = f'article {number} ("{title}")' if title else f"article {number}"
            for place, paragraph in enumerate(self.entry(article, "paragraphs", list, at), 1):
                inside = f"{at}, paragraph {place}"
                context = self.entry(paragraph, "context", str, inside)
                for n, question in enumerate(self.entry(paragraph, "qas", list, inside), 1):
                    row = self.question(question, context, f"{inside}, question {n}")
                    if row is not None:
                        yield row | {"title": title, "context": context}

    def question(self, entry: Any, context: str, at: str) -> dict[str, Any] | None:
        """A row without title and context; None if it cannot be used."""
        key = self.entry(entry, "id", (str, int), at)
        text = self.entry(entry, "question", str, at)
        impossible = self.entry(entry, "is_impossible", (bool, type(None)), at, default=None)
        given = [
            (self.entry(answer, "text", str, f"{at}, answer {n}"), self.entry(answer, "answer_start", int, at))
            for n, answer in enumerate(self.entry(entry, "answers", list, at, default=[]), 1)
        ]
        if str(key) in self.known:
            raise DataError(
                f'{self.path}, {at}: the id "{key}" is that of {self.known[str(key)]}, too. Give each its own.'
            )
        self.known[str(key)] = at
        if not self.decoding.count(
            "\n".join([str(key), text, context, *(answer for answer, _ in given)]), self.broken_line
        ):
            self.dropped[UNDECODABLE] += 1
            return None
        if impossible and given:
            self.flagged[IGNORED_ANSWERS] += 1
            given = []
        found = [locate_answer(context, answer, start) for answer, start in given]
        if not given and impossible is False:
            self.flagged[WITHOUT_ANSWER] += 1
        self.flagged[MOVED] += any(pair is not None and pair != old for pair, old in zip(found, given, strict=True))
        placed = [new or (answer, NOT_IN_CONTEXT) for new, (answer, _) in zip(found, given, strict=True)]
        answers = {"text": [answer for answer, _ in placed], "answer_start": [start for _, start in placed]}
        called = not given if impossible is None else impossible
        return {"id": str(key), "question": text, "answers": answers, "is_impossible": called}

    def entry(self, owner: Any, key: str, kind: type | tuple[type, ...], at: str, default: Any = ...) -> Any:
        """The value of a key of an object. Raises DataError, with the place, if it is missing or of another kind."""
        where = f"{self.path}, {at}" if at else f"{self.path}"
        if not isinstance(owner, dict):
            raise DataError(f'{where}: expected an object with "{key}", got {json.dumps(owner)[:40]}.')
        if key not in owner:
            if default is not ...:
                return default
            raise DataError(f'{where}: "{key}" is missing. It has {", ".join(owner) or "nothing"}.')
        value = owner[key]
        # To Python, true and false are whole numbers.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, (str, int))):
            raise DataError(f'{where}: "{key}" is not what SQuAD has there: {json.dumps(value)[:40]}.')
        return value


def locate_answer(context: str, text: str, start: int) -> tuple[str, int] | None:
    """The answer and the place nearest to `start` where it stands in the context; None if it does not.

    White space around a text that does not stand there as it is, is taken off.
    """
    for wanted in dict.fromkeys((text, text.strip())):
        if not wanted:
            continue
        if start >= 0 and context.startswith(wanted, start):
            return wanted, start
        before = context.rfind(wanted, 0, max(start, 0) + len(wanted))
        after = context.find(wanted, max(start, 0))
        places = [place for place in (before, after) if place >= 0]
        if places:
            return wanted, min(places, key=lambda place: (abs(place - start), place))
    return None
