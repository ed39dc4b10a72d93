"""Four labeled sets built from the dates of `builtin:dates`, with exactly one right answer per example.

    builtin:date_language     text, label                     3 avril 2021 → fr
    builtin:date_pairs        text, text_pair, label          3 avril 2021 | April 3, 2021 → same
    builtin:date_tags         tokens, tags                    3 avril 2021 → B-day B-month B-year
    builtin:date_questions    context, question, answers      Anna was born on 3 avril 2021 … When was Anna born?

- `date_language` has only dates that a single language writes that way, ignoring case.
- Half of the pairs are the same day in two formats; half of the others differ in a single part.
- Tokens are split at spaces, between letters, digits and symbols, and at the boundaries of the parts of the date.
- A question is about one of several dates in an English text; every third has no answer there. The rows have the
  structure of SQuAD.

No day is in two splits. Languages, labels, and their combinations are balanced within three rows.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import date
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from kit.data.builtin.dates import LANGUAGES, PART_OF_FIELD, DateFormat, chosen_languages, days_of_splits, formats
from kit.data.text.words import split_words
from kit.errors import DataError

DEFAULT_SIZES = {"train": 10_000, "validation": 1_000, "test": 2_000}

LETTERS = {"d": "day", "ML": "month", "Ec": "weekday", "y": "year"}  # an era (G) is not part of the year
KINDS = {PART_OF_FIELD[letter]: kind for letters, kind in LETTERS.items() for letter in letters}

PEOPLE = (
    "Anna", "Ben", "Chloé", "Dmitri", "Esra", "Farid", "Grace", "Hiroshi", "Inês", "Jonas", "Kofi", "Lena", "Maya",
    "Nils", "Olga", "Paweł",
)  # fmt: skip
EVENTS = {
    "was born": "When was {} born?",
    "started school": "When did {} start school?",
    "moved to Oslo": "When did {} move to Oslo?",
    "moved to Lima": "When did {} move to Lima?",
    "got married": "When did {} get married?",
    "bought a house": "When did {} buy a house?",
    "opened a shop": "When did {} open a shop?",
    "wrote a book": "When did {} write a book?",
    "learned to swim": "When did {} learn to swim?",
    "retired": "When did {} retire?",
}

Row = dict[str, Any]


class RowGenerator:
    """Generates rows from the days of a split."""

    def __init__(self, days: Sequence[date], languages: Sequence[str], rng: random.Random) -> None:
        self.days = days
        self.languages = tuple(languages)
        self.rng = rng
        self.day = rng.choice(days)
        # Days by two of their parts, to find one that differs only in the third.
        self.near: dict[tuple[str, int, int], list[date]] = defaultdict(list)
        for day in days:
            for key in shared_parts(day):
                self.near[key].append(day)

    def language(self, number: int) -> Row | None:
        """A date and its language; None if another language writes it the same way."""
        language = self.languages[number % len(self.languages)]
        # Writing a day in all languages is slow, so one day serves for a few rows.
        if self.rng.random() < 0.25:
            self.day = self.rng.choice(self.days)
        text = self.rng.choice(untagged(language)).write(self.day)
        if len(languages_by_text(self.day, self.languages)[text.casefold()]) > 1:
            return None
        return {"text": text, "label": language}

    def pair(self, number: int) -> Row | None:
        """Two dates, and whether they are the same day; None if their texts are equal."""
        same = number % 2 == 1
        language = self.languages[number // 2 % len(self.languages)]
        day = self.rng.choice(self.days)
        other = day if same else self.other_day(day)
        text = self.rng.choice(formats(language)).write(day)
        text_pair = self.rng.choice(formats(self.rng.choice(self.languages))).write(other)
        if text == text_pair:
            return None
        label = "same" if same else "different"
        return {"text": text, "text_pair": text_pair, "label": label, "language": language}

    def other_day(self, day: date) -> date:
        """Another day; with probability one half, one that differs in a single part."""
        if self.rng.random() < 0.5:
            keys = list(shared_parts(day))
            self.rng.shuffle(keys)
            for key in keys:
                if others := [near for near in self.near[key] if near != day]:
                    return self.rng.choice(others)
        return self.rng.choice([near for near in self.rng.sample(self.days, 2) if near != day])

    def tags(self, number: int) -> Row:
        """The tokens of a date, and the part of it that each is."""
        language = self.languages[number % len(self.languages)]
        style, day = self.rng.choice(formats(language)), self.rng.choice(self.days)
        tokens, tags = [], []
        for text, kind in pieces(style, day):
            words = split_words(text)
            tokens += words
            tags += [f"{'I' if index else 'B'}-{kind}" if kind else "O" for index in range(len(words))]
        return {"tokens": tokens, "tags": tags, "language": language}

    def question(self, number: int) -> Row:
        """A text about one or two people, and a question; every third question has no answer in the text."""
        language = self.languages[number // 3 % len(self.languages)]
        names = self.rng.sample(PEOPLE, self.rng.choice((1, 2)))
        each = 3 if len(names) == 1 else 2
        days = self.rng.sample(self.days, each * len(names))
        context = ""
        answer_of: dict[tuple[str, str], tuple[str, int]] = {}  # text and start by person and event
        for name in names:
            context += f" {name}" if context else name
            for index, event in enumerate(self.rng.sample(list(EVENTS), each)):
                link = "" if index == 0 else " and" if index == each - 1 else ","
                context += f"{link} {event} on "
                answer_of[name, event] = self.rng.choice(untagged(language)).write(days.pop()), len(context)
                context += answer_of[name, event][0]
            context += "."
        impossible = number % 3 == 2
        unstated = [(name, event) for name in names for event in EVENTS if (name, event) not in answer_of]
        asked = self.rng.choice(unstated if impossible else list(answer_of))
        answers = [] if impossible else [answer_of[asked]]
        return {
            "title": " and ".join(names),
            "context": context,
            "question": EVENTS[asked[1]].format(asked[0]),
            "answers": {"text": [text for text, _ in answers], "answer_start": [start for _, start in answers]},
            "is_impossible": impossible,
            "language": language,
        }


def shared_parts(day: date) -> tuple[tuple[str, int, int], ...]:
    """Keys that days share if they differ in a single part: day, month or year."""
    return (("day", day.year, day.month), ("month", day.year, day.day), ("year", day.month, day.day))


def untagged(language: str) -> list[DateFormat]:
    """The formats that do not start with a language tag."""
    return [style for style in formats(language) if not style.template.startswith("[")]


@lru_cache(maxsize=8)
def languages_by_text(day: date, languages: tuple[str, ...]) -> dict[str, set[str]]:
    """Every text of a day in lower case, with the languages that write it."""
    languages_of: dict[str, set[str]] = defaultdict(set)
    for language in languages:
        for style in untagged(language):
            languages_of[style.write(day).casefold()].add(language)
    return languages_of


def pieces(style: DateFormat, day: date) -> list[tuple[str, str | None]]:
    """The text of a date in pieces, each with the part of the date that it is, or None for what lies between parts."""
    between = style.template.split("%s")
    result: list[tuple[str, str | None]] = [(between[0], None)]
    for (part, names), text in zip(style.fields, between[1:], strict=True):
        result += [(names[part(day)], KINDS.get(part)), (text, None)]
    return result


def generate(
    name: str, languages: Sequence[str] | None = None, sizes: dict[str, int] | None = None, seed: int = 0
) -> dict[str, pa.Table]:
    """Train, validation and test of one of the sets. Equal arguments give equal rows, and all rows are distinct."""
    chosen = chosen_languages(LANGUAGES if languages is None else languages, name)
    days = days_of_splits(seed)
    sizes = DEFAULT_SIZES | (sizes or {})
    tables = {}
    for split in DEFAULT_SIZES:
        rows_of = RowGenerator(days[split], chosen, random.Random(f"{name}/{seed}/{split}"))
        make = {
            "date_language": rows_of.language,
            "date_pairs": rows_of.pair,
            "date_tags": rows_of.tags,
            "date_questions": rows_of.question,
        }[name]
        rows = fill(make, sizes[split], name, split)
        rows_of.rng.shuffle(rows)
        if name == "date_questions":
            rows = [{"id": f"{split}-{number}", **row} for number, row in enumerate(rows)]
        tables[split] = pa.Table.from_pylist(rows)
    return tables


date_language = partial(generate, "date_language")
date_pairs = partial(generate, "date_pairs")
date_tags = partial(generate, "date_tags")
date_questions = partial(generate, "date_questions")


def fill(make: Callable[[int], Row | None], size: int, name: str, split: str) -> list[Row]:
    """`size` distinct rows. Raises DataError if there are fewer."""
    rows: dict[str, Row] = {}
    failed = 0
    while len(rows) < size:
        row = make(len(rows))
        if row is not None and (key := repr(row)) not in rows:
            rows[key] = row
            failed = 0
        elif (failed := failed + 1) == 1000:
            raise DataError(
                f"data.sizes.{split}: {size} rows requested, but builtin:{name} has little more than {len(rows)} for "
                "this split and these languages. Request fewer rows, or more languages."
            )
    return list(rows.values())
