"""Dates as people write them, in many languages and scripts, and the same dates in ISO 8601: `builtin:dates`.

    source                        target       language
    Σάββατο 3 Απριλίου 2021       2021-04-03   el
    2021年4月3日(土)               2021-04-03   ja
    [en] 4/3/21                   2021-04-03   en

Names and formats come from CLDR through Babel, in the Gregorian calendar, with ASCII digits.
Every source has exactly one right answer:

- The days are those of 1950-2049, so two digits identify a year.
- A format in which only the order distinguishes day and month ("4/3/21") starts with the language in brackets.

Sources are what a person types: CLDR's bidirectional control characters are removed, and its non-breaking spaces are
plain spaces. No day is in two splits, so a model must learn the parts of a date to write a new one.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache

import pyarrow as pa
from babel import Locale
from babel.dates import DateTimeFormat, parse_pattern

from kit.errors import DataError, did_you_mean

FIRST_DAY = date(1950, 1, 1)
LAST_DAY = date(2049, 12, 31)
"""One hundred years, so that a year of two digits has one reading."""

# fmt: off
LANGUAGES = (
    "ar", "bg", "bn", "cs", "de", "el", "en", "es", "fa", "fi", "fr", "he", "hi", "hu", "hy", "id",
    "it", "ja", "ka", "ko", "nl", "pl", "pt", "ro", "ru", "sv", "ta", "th", "tr", "uk", "vi", "zh",
)
# fmt: on
DEFAULT_SIZES = {"train": 40_000, "validation": 1_000, "test": 2_000}
SHARE_OF_DAYS = {"train": 0.8, "validation": 0.1, "test": 0.1}

# Marks of text direction are dropped; no-break spaces become plain ones.
DISPLAY_ONLY = {0x200E: None, 0x200F: None, 0x061C: None, 0x00A0: " ", 0x202F: " "}
FIELD = re.compile(r"%\((\w+)\)s")
# The value that a field of a CLDR pattern depends on. A pattern with any other field is not a plain date.
PART_OF_FIELD: dict[str, Callable[[date], int]] = {
    "d": lambda day: day.day,
    "M": lambda day: day.month,
    "L": lambda day: day.month,
    "E": lambda day: day.weekday(),
    "c": lambda day: day.weekday(),
    "y": lambda day: day.year,
    "G": lambda day: day.year,
}
# Days that together cover every month, weekday, day of the month and year.
SAMPLE_DAYS = [date(2000, 1, 1) + timedelta(days=n) for n in range(366)] + [
    date(year, 1, 1) for year in range(FIRST_DAY.year, LAST_DAY.year + 1)
]


@dataclass(frozen=True)
class DateFormat:
    """One way to write a date in one language."""

    language: str
    pattern: str
    template: str
    fields: tuple[tuple[Callable[[date], int], dict[int, str]], ...]

    def write(self, day: date) -> str:
        """The date as text: what Babel writes, except for the characters named above and the language tag."""
        return self.template % tuple(names[part(day)] for part, names in self.fields)


@cache
def formats(language: str) -> tuple[DateFormat, ...]:
    """Every distinct CLDR format of day, month and year in a language, with or without the weekday."""
    locale = Locale.parse(language)
    patterns = [locale.date_formats[width].pattern for width in ("full", "long", "medium", "short")]
    # Skeletons with an era (G) are excluded: people do not write "AD" after the year, and some of them are wrong.
    patterns += [
        skeleton.pattern for name, skeleton in sorted(locale.datetime_skeletons.items()) if set(name) <= set("yMEcd")
    ]

    @cache
    def names_of(field: str) -> dict[int, str]:
        part = PART_OF_FIELD[field[0]]
        return {part(day): DateTimeFormat(day, locale)[field].translate(DISPLAY_ONLY) for day in SAMPLE_DAYS}

    result = []
    for pattern in dict.fromkeys(patterns):
        template = parse_pattern(pattern).format.translate(DISPLAY_ONLY)
        fields = FIELD.findall(template)
        if {"y", "d"} <= (letters := {field[0] for field in fields}) and letters & {"M", "L"}:
            if needs_tag(template, fields):
                template = f"[{language}] {template}"
            parts = tuple((PART_OF_FIELD[field[0]], names_of(field)) for field in fields)
            result.append(DateFormat(language, pattern, FIELD.sub("%s", template), parts))
    return tuple(result)


def needs_tag(template: str, fields: Sequence[str]) -> bool:
    """Whether the month is a number that no word such as 月 marks: then only the language tells it from the day."""
    month_is_number = any(field[0] in "ML" and len(field) <= 2 for field in fields)
    return month_is_number and not any(letter.isalpha() for letter in FIELD.sub("", template))


def days_of_splits(seed: int) -> dict[str, list[date]]:
    """Every day of the range, assigned to one of the splits by seed."""
    days = [FIRST_DAY + timedelta(days=n) for n in range((LAST_DAY - FIRST_DAY).days + 1)]
    random.Random(f"dates/{seed}/days").shuffle(days)
    first = int(len(days) * SHARE_OF_DAYS["train"])
    second = first + int(len(days) * SHARE_OF_DAYS["validation"])
    return {"train": days[:first], "validation": days[first:second], "test": days[second:]}


def generate(
    languages: Sequence[str] | None = None, sizes: dict[str, int] | None = None, seed: int = 0
) -> dict[str, pa.Table]:
    """Train, validation and test, each with the columns source, target and language.

    The languages have the same number of rows (within one), the sources of a split are distinct, and equal arguments
    give equal rows.
    """
    chosen = chosen_languages(LANGUAGES if languages is None else languages, "dates")
    days = days_of_splits(seed)
    sizes = DEFAULT_SIZES | (sizes or {})
    return {split: sample(days[split], chosen, sizes[split], split, seed) for split in DEFAULT_SIZES}


def chosen_languages(languages: Sequence[str], name: str) -> list[str]:
    """The languages without repetitions. Raises DataError if the set lacks one of them, or if there are none."""
    for language in languages:
        if language not in LANGUAGES:
            raise DataError(
                f'data.languages: builtin:{name} has no language "{language}".{did_you_mean(language, LANGUAGES)} '
                f"It has {', '.join(LANGUAGES)}."
            )
    if not languages:
        raise DataError(
            "data.languages: the list is empty. Name at least one language, or remove the key for all of them."
        )
    return list(dict.fromkeys(languages))


def sample(days: Sequence[date], languages: Sequence[str], size: int, split: str, seed: int) -> pa.Table:
    """`size` rows with distinct sources, alternating between the languages, then shuffled."""
    # Some formats coincide for some days (a short month name may equal the long one), so not every pair of day and
    # format is a new text; at least half of them are.
    max_rows = len(languages) * min(len(formats(language)) for language in languages) * len(days) // 2
    if size > max_rows:
        raise DataError(
            f"data.sizes.{split}: {size} rows requested, but builtin:dates has {max_rows} for this split with "
            f"{len(languages)} language(s). Request fewer rows, or more languages."
        )
    rng = random.Random(f"dates/{seed}/{split}")
    rows: dict[str, tuple[str, str]] = {}
    while len(rows) < size:
        language = languages[len(rows) % len(languages)]
        day = rng.choice(days)
        rows.setdefault(rng.choice(formats(language)).write(day), (day.isoformat(), language))
    order = list(rows)
    rng.shuffle(order)
    return pa.table(
        {
            "source": order,
            "target": [rows[source][0] for source in order],
            "language": [rows[source][1] for source in order],
        }
    )
