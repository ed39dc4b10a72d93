"""Built-in shapes, dialogues and pendulums: seeds reproduce data, splits are disjoint, answers are right."""

import io
import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset
from PIL import Image

from kit.data.builtin import dialogues, load_builtin, pendulum, shapes
from kit.errors import DataError

FEW = {"train": 600, "validation": 60, "test": 120}
CAPTION = re.compile(
    r"a (?:(small|large) )?(\w+) (\w+) (left of|right of|above|below) a (?:(small|large) )?(\w+) (\w+)"
)


@pytest.fixture(scope="module")
def scenes() -> dict[str, list[dict[str, Any]]]:
    return {split: table.to_pylist() for split, table in shapes.generate(FEW).items()}


@pytest.fixture(scope="module")
def conversations() -> dict[str, list[dict[str, Any]]]:
    return {split: table.to_pylist() for split, table in dialogues.generate(FEW).items()}


# ---- all three -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shapes", "dialogues", "pendulum"])
def test_equal_seeds_give_equal_data(name: str) -> None:
    sizes = {"train": 40, "validation": 10, "test": 10}
    first, again, other = (load_builtin(name, sizes=sizes, seed=seed) for seed in (1, 1, 2))
    assert {split: table.num_rows for split, table in first.items()} == sizes
    for split, table in first.items():
        assert table.equals(again[split])
        assert not table.equals(other[split])
    assert not first["validation"].equals(first["test"])
    with pytest.raises(DataError, match="has no languages"):
        load_builtin(name, languages=["en"])


def test_sizes_that_are_not_given_have_defaults() -> None:
    tables = pendulum.generate({"train": 3, "test": 2})
    assert {split: table.num_rows for split, table in tables.items()} == {"train": 3, "validation": 200, "test": 2}


# ---- shapes ----------------------------------------------------------------------------------------------------------


def kinds(caption: str) -> frozenset[tuple[str, str]]:
    parts = CAPTION.fullmatch(caption)
    assert parts is not None, caption
    return frozenset({(parts[2], parts[3]), (parts[6], parts[7])})


def test_combinations_are_in_one_split_and_words_in_all(scenes: dict[str, list[dict[str, Any]]]) -> None:
    combinations_of = {split: {kinds(row["caption"]) for row in rows} for split, rows in scenes.items()}
    assert not combinations_of["train"] & combinations_of["test"]
    assert not combinations_of["train"] & combinations_of["validation"]
    assert not combinations_of["validation"] & combinations_of["test"]
    for seed in range(20):
        assigned = shapes.combinations_of_splits(seed)
        assert sum(map(len, assigned.values())) == 300
        for combinations in assigned.values():
            words = {word for pair in combinations for kind in pair for word in kind}
            assert words == {*shapes.COLORS, *shapes.FORMS}


def test_relations_and_sizes_are_balanced(scenes: dict[str, list[dict[str, Any]]]) -> None:
    for rows in scenes.values():
        relations = Counter(row["relation"] for row in rows)
        assert set(relations.values()) == {len(rows) // 4}
        sizes = Counter((parts[1], parts[5]) for row in rows if (parts := CAPTION.fullmatch(row["caption"])))
        assert sizes.keys() == {("small", None), ("small", "large"), (None, "large")}
        assert set(sizes.values()) == {len(rows) // 3}
    assert len({row["caption"] for row in scenes["train"]}) > 550


def nearest_color(pixel: tuple[int, ...]) -> str:
    """The color nearest to a pixel."""
    return min(shapes.COLORS, key=lambda name: math.dist(shapes.COLORS[name], pixel))


def test_images_match_their_captions(scenes: dict[str, list[dict[str, Any]]]) -> None:
    widths = {"small": 10, None: 18, "large": 26}
    for row in scenes["test"]:
        parts = CAPTION.fullmatch(row["caption"])
        assert parts is not None
        image = Image.open(io.BytesIO(row["image"]["bytes"]))
        assert image.size == (64, 64)
        boxes = row["boxes"]
        for (left, top, right, bottom), size, color, form in zip(
            boxes, parts.group(1, 5), parts.group(2, 6), parts.group(3, 7), strict=True
        ):
            assert abs(right - left - widths[size]) <= 1
            assert abs(bottom - top - widths[size]) <= 1
            assert 0 <= left < right <= 64
            assert 0 <= top < bottom <= 64
            assert nearest_color(image.getpixel(((left + right) // 2, (top + bottom) // 2))) == color
            inside = np.array(image.crop((left, top, right, bottom)), dtype=float)
            background = np.array(image.getpixel((0, 0) if left > 2 or top > 2 else (63, 63)), dtype=float)
            to_color, to_background = (np.linalg.norm(inside - x, axis=-1) for x in (shapes.COLORS[color], background))
            lit = to_color < to_background
            share = {"square": 1, "circle": math.pi / 4, "cross": 5 / 9, "triangle": 1 / 2}[form]
            assert lit.mean() == pytest.approx(share, abs=0.1)
            assert (lit[-2, 2] and not lit[2, 2]) == (form == "triangle")
        (x, y), (other_x, other_y) = (((b[0] + b[2]) / 2, (b[1] + b[3]) / 2) for b in boxes)
        right, down = other_x - x, other_y - y
        far = {"left of": right, "right of": -right, "above": down, "below": -down}
        relation = max(far, key=lambda name: far[name])
        assert relation == row["relation"] == parts[4]
        assert far[relation] >= 1.9 * min(abs(right), abs(down))


def test_datasets_decodes_the_images() -> None:
    rows = Dataset(shapes.generate({"train": 2, "validation": 1, "test": 1})["train"])
    assert rows[0]["image"].size == (64, 64)
    assert rows[0]["boxes"] == rows[:1]["boxes"][0]


# ---- dialogues -------------------------------------------------------------------------------------------------------

STATEMENT = re.compile(r"(?:sorry, )?(?:my|i have my|remember my) (\w+) (?:is )?on (.+?)(?: instead)?\.")
ASKED = re.compile(r"when is my (\w+)\?|please move my \w+ to the day of my (\w+)\.")


def answer_of(turns: list[str]) -> str:
    """The answer that follows from the turns."""
    date_of = {}
    for turn in turns[:-1:2]:
        statement = STATEMENT.fullmatch(turn)
        assert statement is not None, turn
        date_of[statement[1]] = statement[2]
    asked = ASKED.fullmatch(turns[-1])
    assert asked is not None, turns[-1]
    return date_of[asked[1] or asked[2]]


def test_the_answer_follows_from_the_turns(conversations: dict[str, list[dict[str, Any]]]) -> None:
    for rows in conversations.values():
        for row in rows:
            if row["kind"] == dialogues.STATEMENT:
                assert STATEMENT.fullmatch(row["turns"][-1])
                assert row["response"] == f"{row['answer']}."
                assert row["response"] in dialogues.REPLIES
            else:
                assert row["answer"] == answer_of(row["turns"])
                assert row["response"].endswith(f"on {row['answer']}.")
            assert len(row["turns"]) % 2 == 1
            assert set(row["turns"][1:-1:2]) <= set(dialogues.REPLIES)


def test_the_last_turn_does_not_reveal_the_answer() -> None:
    rows = dialogues.generate({"train": 3, "validation": 3, "test": 6000})["test"].to_pylist()
    assert {row["kind"]: 0 for row in rows}.keys() == set(dialogues.KINDS)
    by_last_turn: dict[str, Counter[str]] = {}
    for row in rows:
        assert row["answer"] not in row["turns"][-1]
        by_last_turn.setdefault(row["turns"][-1], Counter())[row["answer"]] += 1
    guessed = sum(answers.most_common(1)[0][1] for answers in by_last_turn.values())
    assert guessed / len(rows) < 0.12  # of a model that memorizes the most frequent answer to each last turn
    for kind in dialogues.KINDS:
        same_kind = [row for row in rows if row["kind"] == kind]
        assert len(same_kind) == 2000
        positions = Counter()
        for row in same_kind:
            event = next(filter(None, ASKED.fullmatch(row["turns"][-1]).group(1, 2)))  # type: ignore[union-attr]
            positions[max(i for i, turn in enumerate(row["turns"][:-1]) if event in turn)] += 1
        assert len(positions) >= 2  # the decisive turn is at various positions


def test_dates_are_in_one_split_and_balanced(conversations: dict[str, list[dict[str, Any]]]) -> None:
    dates = {}
    for split, rows in conversations.items():
        dates[split] = {date for row in rows for turn in row["turns"] for date in re.findall(r"\d+ \w+", turn)}
        for kind in dialogues.KINDS:
            asked = Counter(row["answer"] for row in rows if row["kind"] == kind)
            assert max(asked.values()) - min(asked.values()) <= 1
        kinds = [*dialogues.KINDS, *([dialogues.STATEMENT] if split == "train" else [])]
        assert Counter(row["kind"] for row in rows) == dict.fromkeys(kinds, len(rows) // len(kinds))
    assert all(dates.values())
    assert not dates["train"] & dates["test"]
    assert not dates["train"] & dates["validation"]
    assert not dates["validation"] & dates["test"]
    parts = [{part for date in dates[split] for part in date.split()} for split in ("train", "test")]
    assert parts[1] <= parts[0]  # each day and each month of the test was seen, but not in combination


# ---- pendulum --------------------------------------------------------------------------------------------------------


def columns(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    return np.array(table["values"].to_pylist()), np.array(table["context"].to_pylist())


def test_measurements_have_the_right_shapes_and_never_go_over_the_top() -> None:
    tables = pendulum.generate({"train": 50, "validation": 20, "test": 20}, steps=30)
    for table in tables.values():
        values, context = columns(table)
        assert values.shape == (table.num_rows, 30, 2)
        assert context.shape == (table.num_rows, 30, 1)
        assert np.abs(values[..., 0]).max() < np.pi + 0.1
        assert 1 < values[..., 1].std() < 2.5
    lengths = [length for table in tables.values() for length in table["length"].to_pylist()]
    assert len(set(lengths)) == len(lengths) == 90  # all pendulums are distinct


def test_undamped_pendulums_conserve_energy_and_small_swings_have_the_right_period() -> None:
    length = np.array([0.5, 1.0, 1.5])
    start = np.stack([np.array([1.5, -1.0, 0.01]), np.array([0.0, 2.0, 0.0])], axis=-1)
    states = pendulum.swing(start, np.zeros((3, 100)), length, np.zeros(3))
    energy = [
        state[..., 1] ** 2 / 2 - pendulum.GRAVITY / length * np.cos(state[..., 0])
        for state in (start, *states.swapaxes(0, 1))
    ]
    np.testing.assert_allclose(np.array(energy), np.array(energy[:1]).repeat(101, axis=0), rtol=1e-3)
    time = pendulum.STEP * np.arange(1, 101)
    np.testing.assert_allclose(states[2, :, 0], 0.01 * np.cos(np.sqrt(pendulum.GRAVITY / 1.5) * time), atol=1e-5)


def test_runge_kutta_is_of_fourth_order() -> None:
    def error(steps: int) -> float:
        state = np.array([1.0])
        for _ in range(steps):
            state = pendulum.runge_kutta(lambda x: -x, state, 1 / steps)
        return abs(float(state[0]) - math.exp(-1))

    assert error(4) / error(8) == pytest.approx(16, rel=0.2)


def test_damping_decays_and_a_constant_drive_deflects() -> None:
    start = np.array([[1.0, 0.0]] * 2)
    states = pendulum.swing(start, np.zeros((2, 200)), np.ones(2), np.array([0.0, 0.5]))
    assert np.abs(states[0, -30:, 0]).max() > 0.99
    assert np.abs(states[1, -30:, 0]).max() < 0.02
    rest = pendulum.swing(np.zeros((1, 2)), np.full((1, 400), 2.0), np.ones(1), np.full(1, 0.6))
    assert rest[0, -1, 0] == pytest.approx(
        math.asin(2.0 / pendulum.GRAVITY), abs=1e-2
    )  # the angle at which drive and gravity balance


def test_the_context_of_a_step_is_the_drive_before_it() -> None:
    """Integrating from the previous measurement with the context of the step gives the next one, up to noise."""
    table = pendulum.generate({"train": 40, "validation": 1, "test": 1})["train"]
    values, context = columns(table)
    length, damping = (np.array(table[name].to_pylist()) for name in ("length", "damping"))
    for t in (1, 20, 50):
        for drive, fits in ((context[:, t], True), (context[:, t] + 1, False)):
            predicted = pendulum.swing(values[:, t - 1], drive, length, damping)[:, 0]
            assert (np.abs(predicted - values[:, t]).max() < 0.08) == fits
    changes = (np.abs(np.diff(context[..., 0], axis=1)) > 0.1).mean()
    assert 0.05 < changes < 0.2  # a drive is held for some steps
