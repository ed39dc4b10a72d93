"""Short dialogues about dates, in which the answer needs an earlier turn: `builtin:dialogues`.

    turns                                                                            response
    my flight is on 3 april. / noted. / my exam is on 12 may. / ok. /                your flight is on 3 april.
        when is my flight?
    my party is on 9 june. / ok. / sorry, my party is on 10 june instead. /          your party is on 10 june.
        noted. / when is my party?
    my meeting is on monday. / got it. / please move my meeting two days later.      your meeting is now on wednesday.

`turns` are what has been said, by the user and the assistant in turn, and `response` is what the assistant should say.
`answer` is the part of it that counts, and `kind` says which of the three it is: recall, correction or shift. The last
turn alone says nothing about the answer: whichever event it asks for, all dates are equally likely.

No date that is told is in two splits, and no shift of an event from a weekday: a model must have learned the parts of a
date, and to look for them in the turn that has them.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pyarrow as pa

EVENTS = ("concert", "dentist", "exam", "flight", "interview", "meeting", "party", "wedding")
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
SHIFTS = {
    "a day later": 1,
    "two days later": 2,
    "three days later": 3,
    "a day earlier": -1,
    "two days earlier": -2,
    "three days earlier": -3,
}
DATES = tuple(f"{day} {month}" for month in MONTHS for day in range(1, 29))
KINDS = ("recall", "correction", "shift")
STATEMENTS = ("my {event} is on {when}.", "i have my {event} on {when}.", "remember my {event} on {when}.")
CORRECTION = "sorry, my {event} is on {when} instead."
QUESTION = "when is my {event}?"
REQUEST = "please move my {event} {shift}."
REPLIES = ("ok.", "noted.", "got it.")
DEFAULT_SIZES = {"train": 12_000, "validation": 600, "test": 1_200}
SHARE_HELD_OUT = 0.1  # of dates and of shifts, for validation and for test

Move = tuple[str, str, str]  # event, weekday and shift


def dealt(things: Sequence[Any], chance: random.Random) -> dict[str, list[Any]]:
    """All things, in random order, some for each split."""
    order = chance.sample(things, len(things))
    held_out = round(len(order) * SHARE_HELD_OUT)
    return {
        "train": order[2 * held_out :],
        "validation": order[:held_out],
        "test": order[held_out : 2 * held_out],
    }


def generate(sizes: dict[str, int] | None = None, seed: int = 0) -> dict[str, pa.Table]:
    """Train, validation and test, each with the columns turns, response, answer and kind.

    The three kinds are equally frequent (to within one), and so are the dates that are asked for and the shifts; equal
    arguments give equal rows.
    """
    sizes = DEFAULT_SIZES | (sizes or {})
    dates = dealt(DATES, random.Random(f"dialogues/{seed}/dates"))
    moves = dealt(list(product(EVENTS, WEEKDAYS, SHIFTS)), random.Random(f"dialogues/{seed}/moves"))
    return {split: sample(dates[split], moves[split], sizes[split], split, seed) for split in DEFAULT_SIZES}


def sample(dates: Sequence[str], moves: Sequence[Move], size: int, split: str, seed: int) -> pa.Table:
    """`size` dialogues, by turns of each kind, in random order."""
    chance = random.Random(f"dialogues/{seed}/{split}")
    answers = {kind: in_turn(dates, chance) for kind in ("recall", "correction")}
    shifted = in_turn(moves, chance)
    rows = []
    for number in range(size):
        kind = KINDS[number % len(KINDS)]
        if kind == "shift":
            rows.append(shift(next(shifted), chance))
        else:
            rows.append(recall(next(answers[kind]), dates, kind == "correction", chance))
    chance.shuffle(rows)
    return pa.Table.from_pylist(rows, SCHEMA)


def in_turn(things: Sequence[Any], chance: random.Random) -> Iterator[Any]:
    """The things for ever, in a new random order each time round."""
    while True:
        yield from chance.sample(things, len(things))


def recall(answer: str, dates: Sequence[str], corrected: bool, chance: random.Random) -> dict[str, Any]:
    """Two or three events are told, one of them twice if `corrected`, and the user asks for one."""
    asked, *others = chance.sample(EVENTS, chance.randint(2, 3))
    told = {event: chance.choice(STATEMENTS).format(event=event, when=chance.choice(dates)) for event in others}
    first = answer
    while corrected and first == answer:
        first = chance.choice(dates)
    told[asked] = chance.choice(STATEMENTS).format(event=asked, when=first)
    said = chance.sample(list(told.values()), len(told))
    if corrected:  # at any later time
        place = chance.randint(said.index(told[asked]) + 1, len(said))
        said.insert(place, CORRECTION.format(event=asked, when=answer))
    turns = [*with_replies(said, chance), QUESTION.format(event=asked)]
    kind = "correction" if corrected else "recall"
    return {"turns": turns, "response": f"your {asked} is on {answer}.", "answer": answer, "kind": kind}


def shift(move: Move, chance: random.Random) -> dict[str, Any]:
    """One or two events are told by their weekday, and the user moves one of them."""
    event, weekday, by = move
    answer = WEEKDAYS[(WEEKDAYS.index(weekday) + SHIFTS[by]) % len(WEEKDAYS)]
    said = [chance.choice(STATEMENTS).format(event=event, when=weekday)]
    if chance.random() < 0.5:
        other = chance.choice([name for name in EVENTS if name != event])
        said.append(chance.choice(STATEMENTS).format(event=other, when=chance.choice(WEEKDAYS)))
    chance.shuffle(said)
    turns = [*with_replies(said, chance), REQUEST.format(event=event, shift=by)]
    return {"turns": turns, "response": f"your {event} is now on {answer}.", "answer": answer, "kind": "shift"}


def with_replies(said: Sequence[str], chance: random.Random) -> list[str]:
    """What the user said, and the assistant's reply to each, which repeats nothing of it."""
    return [turn for statement in said for turn in (statement, chance.choice(REPLIES))]


SCHEMA = pa.schema(
    {"turns": pa.list_(pa.string()), "response": pa.string(), "answer": pa.string(), "kind": pa.string()}
)
