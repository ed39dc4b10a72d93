"""Built-in dates: every source has exactly one right answer, and splits share no day."""

import os
import subprocess
import sys
from collections import Counter
from datetime import date, timedelta

import pytest
from babel.dates import format_date
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.data.builtin import load_builtin
from kit.data.builtin.dates import DISPLAY_ONLY, FIRST_DAY, LANGUAGES, LAST_DAY, days_of_splits, formats
from kit.errors import DataError

SMALL = {"train": 600, "validation": 60, "test": 90}
ALL_DAYS = [FIRST_DAY + timedelta(days=n) for n in range((LAST_DAY - FIRST_DAY).days + 1)]
ALL_FORMATS = [written for language in LANGUAGES for written in formats(language)]


def untagged(written) -> str:
    sample = written.write(FIRST_DAY)
    return sample.removeprefix(f"[{written.language}] ")


def assert_unique(days) -> None:
    """No format of any language writes the same text for two of the days."""
    days = list(days)
    meant: dict[str, date] = {}
    for written in ALL_FORMATS:
        for day in days:
            assert meant.setdefault(written.write(day), day) == day


def test_every_source_has_one_right_answer():
    # Only small numbers can be confused: a day with a month (first line), or with a year (second).
    assert_unique(
        day
        for n, day in enumerate(ALL_DAYS)
        if (day.year in range(2001, 2013) and day.day <= 12)
        or (day.year in (FIRST_DAY.year, *range(2001, 2032), LAST_DAY.year) and day.month == 5)
        or n % 29 == 0
    )


@pytest.mark.soak
def test_every_source_of_every_day_has_one_right_answer():
    assert_unique(ALL_DAYS)


@settings(deadline=None)
@given(day=st.dates(FIRST_DAY, LAST_DAY), written=st.sampled_from(ALL_FORMATS))
def test_texts_equal_those_of_babel(day, written):
    expected = format_date(day, written.pattern, locale=written.language).translate(DISPLAY_ONLY)
    assert written.write(day).removeprefix(f"[{written.language}] ") == expected


def test_languages_scripts_and_formats_are_many():
    assert len(LANGUAGES) >= 24
    assert all(len(formats(language)) >= 4 for language in LANGUAGES)
    everything = "".join(written.write(date(2021, 4, 3)) for written in ALL_FORMATS)
    for word in ("Saturday", "суббота", "Σάββατο", "土曜日", "토요일", "السبت", "שבת", "शनिवार", "เสาร์", "შაბათი"):
        assert word in everything
    for language, word in (("hy", "շաբաթ"), ("bn", "শনিবার"), ("ta", "சனி"), ("fa", "شنبه")):
        assert any(word in written.write(date(2021, 4, 3)) for written in formats(language))


def test_every_format_has_day_month_and_year():
    for written in ALL_FORMATS:
        other_days = [date(2021, 4, 3), date(2021, 4, 4), date(2021, 5, 3), date(2022, 4, 3)]
        assert len({written.write(day) for day in other_days}) == 4


def test_exactly_the_all_number_formats_have_a_language_tag():
    tagged = {(written.language, written.pattern) for written in ALL_FORMATS if written.write(FIRST_DAY)[0] == "["}
    assert {("en", "M/d/yy"), ("de", "dd.MM.yy"), ("sv", "y-MM-dd"), ("ko", "yy. M. d.")} <= tagged
    assert not {("ja", "y年M月d日"), ("de", "d. MMMM y"), ("vi", "d MMMM, y"), ("ko", "y년 MMMM d일")} & tagged
    for written in ALL_FORMATS:
        if not any(letter.isalpha() for letter in untagged(written)):
            assert (written.language, written.pattern) in tagged


def test_bidirectional_controls_are_removed():
    texts = "".join(written.write(FIRST_DAY) for written in ALL_FORMATS)
    assert not set(map(chr, DISPLAY_ONLY)) & set(texts)


@pytest.mark.parametrize("seed", [0, 1])
def test_no_day_is_in_two_splits(seed):
    days = days_of_splits(seed)
    assert sum(map(len, days.values())) == len(set().union(*days.values())) == len(ALL_DAYS)
    tables = load_builtin("dates", sizes=SMALL, seed=seed)
    for split, table in tables.items():
        assert {date.fromisoformat(day) for day in table["target"].to_pylist()} <= set(days[split])


def test_rows_have_the_documented_form():
    tables = load_builtin("dates", sizes=SMALL)
    for split, table in tables.items():
        assert table.column_names == ["source", "target", "language"]
        assert table.num_rows == SMALL[split] == len(set(table["source"].to_pylist()))
        counts = Counter(table["language"].to_pylist())
        assert set(counts) == set(LANGUAGES)
        assert max(counts.values()) - min(counts.values()) <= 1
        for row in table.to_pylist():
            day = date.fromisoformat(row["target"])
            assert row["source"] in {written.write(day) for written in formats(row["language"])}


def test_rows_depend_only_on_the_seed():
    first, same, other = (load_builtin("dates", sizes=SMALL, seed=seed) for seed in (3, 3, 4))
    assert first == same
    assert all(first[split] != other[split] for split in first)
    code = (
        f"from kit.data.builtin import load_builtin; print(load_builtin('dates', None, {SMALL}, 3)['test'].to_pydict())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8"},
    )
    assert run.stdout.strip() == str(first["test"].to_pydict())


def test_the_size_of_one_split_does_not_change_another():
    first = load_builtin("dates", sizes=SMALL)
    assert load_builtin("dates", sizes=SMALL | {"train": 50})["test"] == first["test"]


def test_languages_can_be_chosen():
    tables = load_builtin("dates", languages=["ka", "th"], sizes=SMALL)
    assert set(tables["train"]["language"].to_pylist()) == {"ka", "th"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"languages": ["deu"]}, r'data\.languages: .*"deu"\. Did you mean "de"\? It has ar, bg'),
        ({"languages": []}, r"data\.languages: the list is empty"),
        ({"sizes": {"tain": 5}}, r'data\.sizes: .*"tain"\. Did you mean "train"\?'),
        ({"sizes": {"train": 0}}, r"data\.sizes\.train: expected at least 1"),
        ({"sizes": {"test": 10**6}, "languages": ["de"]}, r"data\.sizes\.test: 1000000 rows requested, but .* 1 lang"),
    ],
)
def test_mistakes_are_reported(arguments, message):
    with pytest.raises(DataError, match=message):
        load_builtin("dates", **arguments)


def test_the_largest_size_can_be_reached():
    with pytest.raises(DataError) as caught:
        load_builtin("dates", languages=["fi"], sizes={"validation": 10**6})
    available = int(str(caught.value).split(" has ")[1].split()[0])
    table = load_builtin("dates", languages=["fi"], sizes={"validation": available, "train": 5, "test": 5})[
        "validation"
    ]
    assert table.num_rows == available
