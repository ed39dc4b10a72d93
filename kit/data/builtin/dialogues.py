"""Short dialogues about dates, in which the answer needs an earlier turn: `builtin:dialogues`.

    turns                                                                            response
    my flight is on 3 april. / noted. / my exam is on 12 may. / ok. /                your flight is on 3 april.
        when is my flight?
    my party is on 9 june. / ok. / sorry, my party is on 10 june instead. /          your party is on 10 june.
        noted. / when is my party?
    my exam is on 12 may. / ok. / my party is on 9 june. / got it. /                 your exam is now with your party
        please move my exam to the day of my party.                                      on 9 june.

`turns` are what has been said, by the user and the assistant in turn, and `response` is what the assistant should say.
`answer` is the part of it that counts, and `kind` says which of the three it is: recall, correction or move. The last
turn alone says nothing about the answer: whichever event it asks for, all dates are equally likely.

No date that is told is in two splits: a model must have learned the parts of a date, and to look for them in the turn
that has them. Training has dialogues that end when something is told, too ("ok."), so that one can talk to a model.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

EVENTS = ("concert", "dentist", "exam", "flight", "interview", "meeting", "party", "wedding")
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
DATES = tuple(f"{day} {month}" for month in MONTHS for day in range(1, 29))
KINDS = ("recall", "correction", "move")
TOLD = "told"
STATEMENTS = ("my {event} is on {when}.", "i have my {event} on {when}.", "remember my {event} on {when}.")
CORRECTION = "sorry, my {event} is on {when} instead."
QUESTION = "when is my {event}?"
REQUEST = "please move my {event} to the day of my {other}."
REPLIES = ("ok.", "noted.", "got it.")
DEFAULT_SIZES = {"train": 12_000, "validation": 600, "test": 1_200}
SHARE_HELD_OUT = 0.1  # of dates, for validation and for test


def dealt(dates: Sequence[str], chance: random.Random) -> dict[str, list[str]]:
    """All dates, in random order, some for each split."""
    order = chance.sample(dates, len(dates))
    held_out = round(len(order) * SHARE_HELD_OUT)
    return {
        "train": order[2 * held_out :],
        "validation": order[:held_out],
        "test": order[held_out : 2 * held_out],
    }


def generate(sizes: dict[str, int] | None = None, seed: int = 0) -> dict[str, pa.Table]:
    """Train, validation and test, each with the columns turns, response, answer and kind.

    The kinds are equally frequent (to within one), and so are the dates that are the answers of each; equal arguments
    give equal rows.
    """
    sizes = DEFAULT_SIZES | (sizes or {})
    dates = dealt(DATES, random.Random(f"dialogues/{seed}/dates"))
    return {split: sample(dates[split], sizes[split], split, seed) for split in DEFAULT_SIZES}


def sample(dates: Sequence[str], size: int, split: str, seed: int) -> pa.Table:
    """`size` dialogues, by turns of each kind, in random order."""
    chance = random.Random(f"dialogues/{seed}/{split}")
    kinds = (*KINDS, TOLD) if split == "train" else KINDS
    answers = {kind: in_turn(dates, chance) for kind in kinds}
    wanted = [kinds[number % len(kinds)] for number in range(size)]
    rows = [dialogue(kind, next(answers[kind]), dates, chance) for kind in wanted]
    chance.shuffle(rows)
    return pa.Table.from_pylist(rows, SCHEMA)


def in_turn(dates: Sequence[str], chance: random.Random) -> Iterator[str]:
    """The dates for ever, in a new random order each time round."""
    while True:
        yield from chance.sample(dates, len(dates))


def dialogue(kind: str, answer: str, dates: Sequence[str], chance: random.Random) -> dict[str, Any]:
    """Two or three events are told, one of them twice in a correction; then the user asks for one, or moves one."""
    asked, other, *more = chance.sample(EVENTS, chance.randint(2, 3))
    decisive = other if kind == "move" else asked  # the event whose date is the answer
    told = {event: chance.choice(dates) for event in (asked, other, *more)}
    told[decisive] = answer
    while kind == "correction" and told[asked] == answer:
        told[asked] = chance.choice(dates)
    events = chance.sample(list(told), len(told))
    said = [chance.choice(STATEMENTS).format(event=event, when=told[event]) for event in events]
    if kind == "correction":  # at any later time
        place = chance.randint(events.index(asked) + 1, len(said))
        said.insert(place, CORRECTION.format(event=asked, when=answer))
    if kind == TOLD:
        *before, last = said[: chance.randint(1, len(said))]
        response = chance.choice(REPLIES)
        return {
            "turns": [*with_replies(before, chance), last],
            "response": response,
            "answer": response[:-1],
            "kind": kind,
        }
    last = (REQUEST if kind == "move" else QUESTION).format(event=asked, other=other)
    response = f"your {asked} is {f'now with your {other} ' if kind == 'move' else ''}on {answer}."
    return {"turns": [*with_replies(said, chance), last], "response": response, "answer": answer, "kind": kind}


def with_replies(said: Sequence[str], chance: random.Random) -> list[str]:
    """What the user said, and the assistant's reply to each, which repeats nothing of it."""
    return [turn for statement in said for turn in (statement, chance.choice(REPLIES))]


SCHEMA = pa.schema(
    {"turns": pa.list_(pa.string()), "response": pa.string(), "answer": pa.string(), "kind": pa.string()}
)
