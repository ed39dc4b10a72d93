"""The labeled sets of dates: one right answer per example, balanced, and no day in two splits."""

import re
from collections import Counter
from typing import Any

import pytest

from kit.data.builtin import load_builtin
from kit.data.builtin.date_tasks import untagged
from kit.data.builtin.dates import LANGUAGES, days_of_splits, formats
from kit.data.text.tag_schemes import convert
from kit.errors import DataError

SMALL = {"train": 320, "validation": 64, "test": 96}
SOME = ["ar", "de", "ja", "th", "vi"]


def rows_of(name: str, split: str = "train", **arguments: Any) -> list[dict[str, Any]]:
    return load_builtin(name, **{"sizes": SMALL, **arguments})[split].to_pylist()


def balanced(values: Any, slack: int = 1) -> bool:
    counts = Counter(values).values()
    return max(counts) - min(counts) <= slack


@pytest.mark.parametrize("name", ["date_language", "date_pairs", "date_tags", "date_questions"])
def test_rows_depend_only_on_the_seed_and_are_distinct(name: str) -> None:
    first, same, other = (load_builtin(name, sizes=SMALL, seed=seed) for seed in (3, 3, 4))
    assert first == same
    for split, table in first.items():
        assert table.num_rows == SMALL[split]
        assert other[split] != table
        texts = [repr({key: cell for key, cell in row.items() if key != "id"}) for row in table.to_pylist()]
        assert len(set(texts)) == len(texts)
    assert load_builtin(name, sizes=SMALL | {"train": 5}, seed=3)["test"] == first["test"]


def texts_of_day(languages: list[str]) -> dict[str, dict[str, set[str]]]:
    """Every text of the days of the two smaller splits, with the languages that write it."""
    languages_of: dict[str, dict[str, set[str]]] = {}
    for split in ("validation", "test"):
        known, days = languages_of.setdefault(split, {}), days_of_splits(0)[split]
        for language in languages:
            for style in untagged(language):
                for day in days:
                    known.setdefault(style.write(day), set()).add(language)
    return languages_of


def test_every_date_has_one_language_and_its_day_one_split() -> None:
    languages = ["ja", "nl", "sv", "zh"]  # sv has dates of nl, and zh of ja
    known = texts_of_day(languages)
    assert any(len(languages) > 1 for languages in known["test"].values())
    for split in ("validation", "test"):
        rows = rows_of("date_language", split, languages=languages)
        assert balanced(row["label"] for row in rows)
        assert {row["label"] for row in rows} == set(languages)
        for row in rows:
            assert known[split][row["text"]] == {row["label"]}


def test_pairs_are_balanced_and_include_near_misses() -> None:
    rows = rows_of("date_pairs", languages=["de", "en"])
    day_of = {
        style.write(day): day
        for day in days_of_splits(0)["train"]
        for language in ("de", "en")
        for style in formats(language)
    }
    near = 0
    for row in rows:
        first, second = day_of[row["text"]], day_of[row["text_pair"]]
        assert (first == second) == (row["label"] == "same")
        assert row["text"] != row["text_pair"]
        parts = [(day.year, day.month, day.day) for day in (first, second)]
        near += sum(a != b for a, b in zip(*parts, strict=True)) == 1
    assert balanced(row["label"] for row in rows)
    assert balanced((row["label"], row["language"]) for row in rows)
    assert 0.35 < near / sum(row["label"] == "different" for row in rows) < 0.75


def test_tags_cover_the_date() -> None:
    for row in rows_of("date_tags"):
        tokens, tags = row["tokens"], row["tags"]
        assert len(tokens) == len(tags)
        assert all(token.strip() for token in tokens)
        kinds = Counter(tag[2:] for tag in tags if tag.startswith("B-"))
        assert kinds["day"] == kinds["month"] == kinds["year"] == 1
        assert kinds["weekday"] <= 1
        year = "".join(token for token, tag in zip(tokens, tags, strict=True) if tag.endswith("-year"))
        assert re.fullmatch(r"\d\d|\d{4}", year)
        written = "".join(tokens)
        assert written
    rows = rows_of("date_tags", languages=SOME)
    assert convert([row["tags"] for row in rows], "BIO", source="BIO").repaired == 0
    assert balanced(row["language"] for row in rows)
    days = days_of_splits(0)["train"]
    known = {re.sub(r"\s", "", style.write(day)) for day in days for style in formats("vi")}
    assert {"".join(row["tokens"]) for row in rows_of("date_tags", languages=["vi"])} <= known


def test_marked_answers_answer_their_questions() -> None:
    dates = {
        split: {style.write(day) for day in days for language in SOME for style in untagged(language)}
        for split, days in days_of_splits(0).items()
        if split != "train"
    }
    for split in dates:
        rows = rows_of("date_questions", split, languages=SOME)
        assert len({row["id"] for row in rows}) == len(rows)
        assert Counter(row["is_impossible"] for row in rows)[True] == len(rows) // 3
        assert balanced((row["language"] for row in rows), slack=3)
        for row in rows:
            name = next(word for word in row["question"].split() if word in row["title"].split())
            asked = row["question"].split(name)[1].strip(" ?").split()[-1]
            parts = row["context"].split(f"{name} ")[1].split(" on ")
            assert row["is_impossible"] != bool(row["answers"]["text"])
            for text, start in zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True):
                assert row["context"][start:].startswith(text)
                assert text in dates[split]
                assert row["context"][:start].endswith(" on ")
                assert asked in row["context"][:start].split(" on ")[-2].split()[-1]
            if len(row["title"].split()) == 1:
                assert any(part.split()[-1].startswith(asked) for part in parts[:-1]) != row["is_impossible"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"languages": ["deu"]}, r'builtin:date_tags has no language "deu"\. Did you mean "de"\?'),
        ({"languages": []}, "the list is empty"),
        ({"sizes": {"tst": 1}}, 'Did you mean "test"'),
    ],
)
def test_mistakes_are_reported(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_builtin("date_tags", **arguments)


def test_an_unreachable_size_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {split: days[:5] for split, days in days_of_splits(0).items()}
    monkeypatch.setattr("kit.data.builtin.date_tasks.days_of_splits", lambda seed: few)
    available = len({style.write(day) for style in formats("de") for day in few["test"]})
    with pytest.raises(
        DataError, match=rf"data\.sizes\.test: 999 rows requested, but .* little more than {available} for"
    ):
        load_builtin("date_tags", languages=["de"], sizes={"train": 9, "validation": 9, "test": 999})


def test_every_language_has_unambiguous_dates() -> None:
    assert {row["label"] for row in rows_of("date_language")} == set(LANGUAGES)
