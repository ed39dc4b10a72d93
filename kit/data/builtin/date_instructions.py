"""Instructions about dates, each with one right answer: `builtin:date_instructions`.

    prompt                                           answer          kind       language
    Write 3. März 2021 as ISO.                       2021-03-03      iso        de
    Write 2021-03-03 in French.                      3 mars 2021     write      fr
    Name the month of 3 mars 2021.                   March           month      fr
    What is the year of 3/mar/2021?                  2021            year       es
    Which weekday is Wed, Mar 3, 2021?               Wednesday       weekday    en
    Which is earlier, 2021-03-03 or 2019-11-16?      2019-11-16      earlier    en
    Which day comes after 2021-03-31?                2021-04-01      next       en

Dates are written as in `builtin:dates`, in formats that need no language tag; a weekday is asked for only if the date
states it. No day that is asked about is in two splits. The kinds have the same number of rows, within one.
"""

import random
from collections.abc import Sequence
from datetime import date, timedelta
from functools import cache

import pyarrow as pa
from babel import Locale

from kit.data.builtin.date_tasks import Row, fill, untagged
from kit.data.builtin.dates import PART_OF_FIELD, DateFormat, chosen_languages, days_of_splits, formats

LANGUAGES = ("de", "en", "es", "fr", "it")
"""The languages of the set, unless the recipe chooses others."""
DEFAULT_SIZES = {"train": 8_000, "validation": 500, "test": 1_000}
KINDS = ("iso", "write", "month", "year", "weekday", "earlier", "next")
ENGLISH = Locale.parse("en")


@cache
def name_of(language: str) -> str:
    """The English name of a language."""
    return str(ENGLISH.languages[language])


@cache
def long_format(language: str) -> DateFormat:
    """The long format of a language, as in letters and headings."""
    pattern = Locale.parse(language).date_formats["long"].pattern
    return next(style for style in formats(language) if style.pattern == pattern)


@cache
def with_weekday(language: str) -> tuple[DateFormat, ...]:
    """The formats that state the weekday."""
    weekday_parts = (PART_OF_FIELD["E"], PART_OF_FIELD["c"])
    return tuple(style for style in untagged(language) if any(part in weekday_parts for part, _ in style.fields))


def instruction(kind: str, day: date, other: date, language: str, rng: random.Random) -> tuple[str, str]:
    """A prompt of a kind, and its answer."""
    styles = with_weekday(language) if kind == "weekday" else untagged(language)
    written = rng.choice(styles).write(day)
    match kind:
        case "iso":
            return f"Write {written} as ISO.", day.isoformat()
        case "write":
            return f"Write {day.isoformat()} in {name_of(language)}.", long_format(language).write(day)
        case "month":
            return f"Name the month of {written}.", ENGLISH.months["format"]["wide"][day.month]
        case "year":
            return f"What is the year of {written}?", str(day.year)
        case "weekday":
            return f"Which weekday is {written}?", ENGLISH.days["format"]["wide"][day.weekday()]
        case "earlier":
            return f"Which is earlier, {day.isoformat()} or {other.isoformat()}?", min(day, other).isoformat()
    return f"Which day comes after {day.isoformat()}?", (day + timedelta(days=1)).isoformat()


def generate(
    languages: Sequence[str] | None = None, sizes: dict[str, int] | None = None, seed: int = 0
) -> dict[str, pa.Table]:
    """Train, validation and test, with the columns prompt, answer, kind and language.

    Equal arguments give equal rows, and all rows are distinct.
    """
    chosen = chosen_languages(LANGUAGES if languages is None else languages, "date_instructions")
    days = days_of_splits(seed)
    sizes = DEFAULT_SIZES | (sizes or {})
    tables = {}
    for split in DEFAULT_SIZES:
        rng = random.Random(f"date_instructions/{seed}/{split}")

        def make(number: int, days: Sequence[date] = days[split], rng: random.Random = rng) -> Row:
            kind = KINDS[number % len(KINDS)]
            language = "en" if kind in ("earlier", "next") else chosen[number // len(KINDS) % len(chosen)]
            day, other = rng.sample(days, 2)
            prompt, answer = instruction(kind, day, other, language, rng)
            return {"prompt": prompt, "answer": answer, "kind": kind, "language": language}

        rows = fill(make, sizes[split], "date_instructions", split)
        rng.shuffle(rows)
        tables[split] = pa.Table.from_pylist(rows)
    return tables
