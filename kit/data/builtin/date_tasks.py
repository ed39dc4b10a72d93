"""Four sets made from the dates of `builtin:dates`, each to be judged by exactly one right answer.

    builtin:date_language     text, label                     3 avril 2021 → fr
    builtin:date_pairs        text, text_pair, label          3 avril 2021 | April 3, 2021 → same
    builtin:date_tags         tokens, tags                    3 avril 2021 → B-day B-month B-year
    builtin:date_questions    context, question, answers      Anna was born on 3 avril 2021 … When was Anna born?

- The language of a date is asked only where one language alone writes it so, whatever the case of its letters.
- Half of the pairs are the same day in two ways of writing; half of the others differ in a single part.
- Words are cut at spaces, between letters, digits and signs, and at the ends of the parts of the date.
- A question is about one of several dates in a text in English; every third has no answer there. The rows are those
  of SQuAD.

No day is in two splits. Languages, labels, and both of them together are balanced to within three rows.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import date
from functools import lru_cache
from typing import Any

import pyarrow as pa
import regex

from kit.data.builtin.dates import LANGUAGES, PART_OF_FIELD, DateFormat, chosen_languages, days_of_splits, formats
from kit.errors import DataError

DEFAULT_SIZES = {"train": 10_000, "validation": 1_000, "test": 2_000}

LETTERS = {"d": "day", "ML": "month", "Ec": "weekday", "y": "year"}  # an era (G) is no part of the year
KINDS = {PART_OF_FIELD[letter]: kind for letters, kind in LETTERS.items() for letter in letters}
WORD = regex.compile(r"\p{N}+|[\p{L}\p{M}\p{Cf}]+|\S")

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


class Maker:
    """Makes rows from the days of a split."""

    def __init__(self, days: Sequence[date], languages: Sequence[str], chance: random.Random) -> None:
        self.days = days
        self.languages = tuple(languages)
        self.chance = chance
        self.day = chance.choice(days)
        # Days that have two parts in common, to find one that differs in the third.
        self.near: dict[tuple[str, int, int], list[date]] = defaultdict(list)
        for day in days:
            for key in alike(day):
                self.near[key].append(day)

    def language(self, number: int) -> Row | None:
        """A date and its language; None if another language writes it so, too."""
        language = self.languages[number % len(self.languages)]
        # All that is written about a day is slow to find out, so that one day serves for a few rows.
        if self.chance.random() < 0.25:
            self.day = self.chance.choice(self.days)
        text = self.chance.choice(untagged(language)).write(self.day)
        if len(writers(self.day, self.languages)[text.casefold()]) > 1:
            return None
        return {"text": text, "label": language}

    def pair(self, number: int) -> Row | None:
        """Two dates, and whether they are the same day; None if they are the same text."""
        same = number % 2 == 1
        language = self.languages[number // 2 % len(self.languages)]
        day = self.chance.choice(self.days)
        other = day if same else self.another(day)
        text = self.chance.choice(formats(language)).write(day)
        text_pair = self.chance.choice(formats(self.chance.choice(self.languages))).write(other)
        if text == text_pair:
            return None
        label = "same" if same else "different"
        return {"text": text, "text_pair": text_pair, "label": label, "language": language}

    def another(self, day: date) -> date:
        """Another day: half the time one that differs in nothing but day, month or year."""
        if self.chance.random() < 0.5:
            keys = list(alike(day))
            self.chance.shuffle(keys)
            for key in keys:
                if others := [near for near in self.near[key] if near != day]:
                    return self.chance.choice(others)
        return self.chance.choice([near for near in self.chance.sample(self.days, 2) if near != day])

    def tags(self, number: int) -> Row:
        """The words of a date, and which part of it they are."""
        language = self.languages[number % len(self.languages)]
        style, day = self.chance.choice(formats(language)), self.chance.choice(self.days)
        tokens, tags = [], []
        for text, kind in pieces(style, day):
            words = WORD.findall(text)
            tokens += words
            tags += [f"{'I' if place else 'B'}-{kind}" if kind else "O" for place in range(len(words))]
        return {"tokens": tokens, "tags": tags, "language": language}

    def question(self, number: int) -> Row:
        """A text about one or two people, and a question that every third time is about something not told."""
        language = self.languages[number // 3 % len(self.languages)]
        names = self.chance.sample(PEOPLE, self.chance.choice((1, 2)))
        each = 3 if len(names) == 1 else 2
        days = self.chance.sample(self.days, each * len(names))
        context = ""
        told: dict[tuple[str, str], tuple[str, int]] = {}
        for name in names:
            context += f" {name}" if context else name
            for place, event in enumerate(self.chance.sample(list(EVENTS), each)):
                link = "" if place == 0 else " and" if place == each - 1 else ","
                context += f"{link} {event} on "
                told[name, event] = self.chance.choice(untagged(language)).write(days.pop()), len(context)
                context += told[name, event][0]
            context += "."
        impossible = number % 3 == 2
        untold = [(name, event) for name in names for event in EVENTS if (name, event) not in told]
        asked = self.chance.choice(untold if impossible else list(told))
        answers = [] if impossible else [told[asked]]
        return {
            "title": " and ".join(names),
            "context": context,
            "question": EVENTS[asked[1]].format(asked[0]),
            "answers": {"text": [text for text, _ in answers], "answer_start": [start for _, start in answers]},
            "is_impossible": impossible,
            "language": language,
        }


def alike(day: date) -> tuple[tuple[str, int, int], ...]:
    """What other days may have in common with one, but for a single part."""
    return (("day", day.year, day.month), ("month", day.year, day.day), ("year", day.month, day.day))


def untagged(language: str) -> list[DateFormat]:
    """The ways to write a date that do not begin with the name of the language."""
    return [style for style in formats(language) if not style.template.startswith("[")]


@lru_cache(maxsize=8)
def writers(day: date, languages: tuple[str, ...]) -> dict[str, set[str]]:
    """All texts of a day in lower case, and the languages that have them."""
    found: dict[str, set[str]] = defaultdict(set)
    for language in languages:
        for style in untagged(language):
            found[style.write(day).casefold()].add(language)
    return found


def pieces(style: DateFormat, day: date) -> list[tuple[str, str | None]]:
    """The text of a date in pieces, each with the part of the date that it is, if it is one."""
    between = style.template.split("%s")
    found: list[tuple[str, str | None]] = [(between[0], None)]
    for (part, names), text in zip(style.fields, between[1:], strict=True):
        found += [(names[part(day)], KINDS.get(part)), (text, None)]
    return found


def generate(
    name: str, languages: Sequence[str] | None = None, sizes: dict[str, int] | None = None, seed: int = 0
) -> dict[str, pa.Table]:
    """Train, validation and test of one of the sets. Equal arguments give equal rows, and no row is there twice."""
    chosen = chosen_languages(LANGUAGES if languages is None else languages, name)
    days = days_of_splits(seed)
    sizes = DEFAULT_SIZES | (sizes or {})
    tables = {}
    for split in DEFAULT_SIZES:
        maker = Maker(days[split], chosen, random.Random(f"{name}/{seed}/{split}"))
        make = {
            "date_language": maker.language,
            "date_pairs": maker.pair,
            "date_tags": maker.tags,
            "date_questions": maker.question,
        }[name]
        rows = fill(make, sizes[split], name, split)
        maker.chance.shuffle(rows)
        if name == "date_questions":
            rows = [{"id": f"{split}-{number}", **row} for number, row in enumerate(rows)]
        tables[split] = pa.Table.from_pylist(rows)
    return tables


def fill(make: Callable[[int], Row | None], size: int, name: str, split: str) -> list[Row]:
    """`size` rows, no two of them the same. Raises DataError if there are not as many."""
    rows: dict[str, Row] = {}
    failed = 0
    while len(rows) < size:
        row = make(len(rows))
        if row is not None and (key := repr(row)) not in rows:
            rows[key] = row
            failed = 0
        elif (failed := failed + 1) == 1000:
            raise DataError(
                f"data.sizes.{split}: {size} rows asked for, but builtin:{name} has hardly more than {len(rows)} for "
                "this split and these languages. Ask for fewer, or for more languages."
            )
    return list(rows.values())
