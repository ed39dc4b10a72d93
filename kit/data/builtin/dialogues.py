"""Short dialogues about dates in which the answer depends on an earlier turn: `builtin:dialogues`.

    turns                                                                            response
    my flight is on 3 april. / noted. / my exam is on 12 may. / ok. /                your flight is on 3 april.
        when is my flight?
    my party is on 9 june. / ok. / sorry, my party is on 10 june instead. /          your party is on 10 june.
        noted. / when is my party?
    my exam is on 12 may. / ok. / my party is on 9 june. / got it. /                 your exam is now with your party
        please move my exam to the day of my party.                                      on 9 june.

`turns` alternate between the user and the assistant, and `response` is the assistant's next turn. `answer` is the part
of it that counts, and `kind` is one of recall, correction and move. The last turn alone reveals nothing about the
answer: whichever event it asks for, all dates are equally likely.

No date is in two splits, so a model must learn the parts of a date, and to look for them in the right turn. Training
also has dialogues that end with a statement (answered by "ok."), so that the model can be used in a conversation.
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
DATES = tuple(f"{day} {month}" for month in MONTHS for day in range(1, 29))  # every month has these days
KINDS = ("recall", "correction", "move")
STATEMENT = "told"
STATEMENTS = ("my {event} is on {when}.", "i have my {event} on {when}.", "remember my {event} on {when}.")
CORRECTION = "sorry, my {event} is on {when} instead."
QUESTION = "when is my {event}?"
REQUEST = "please move my {event} to the day of my {other}."
REPLIES = ("ok.", "noted.", "got it.")
DEFAULT_SIZES = {"train": 12_000, "validation": 600, "test": 1_200}
SHARE_HELD_OUT = 0.1  # of dates, for validation and for test


def split_dates(dates: Sequence[str], rng: random.Random) -> dict[str, list[str]]:
    """All dates in random order, each in one split."""
    order = rng.sample(dates, len(dates))
    held_out = round(len(order) * SHARE_HELD_OUT)
    return {
        "train": order[2 * held_out :],
        "validation": order[:held_out],
        "test": order[held_out : 2 * held_out],
    }


def generate(sizes: dict[str, int] | None = None, seed: int = 0) -> dict[str, pa.Table]:
    """Train, validation and test, each with the columns turns, response, answer and kind.

    The kinds are equally frequent (within one), and so are the dates among the answers of each kind; equal arguments
    give equal rows.
    """
    sizes = DEFAULT_SIZES | (sizes or {})
    dates = split_dates(DATES, random.Random(f"dialogues/{seed}/dates"))
    return {split: sample(dates[split], sizes[split], split, seed) for split in DEFAULT_SIZES}


def sample(dates: Sequence[str], size: int, split: str, seed: int) -> pa.Table:
    """`size` dialogues, alternating between the kinds, then shuffled."""
    rng = random.Random(f"dialogues/{seed}/{split}")
    kinds = (*KINDS, STATEMENT) if split == "train" else KINDS
    answers = {kind: cycle_shuffled(dates, rng) for kind in kinds}
    wanted = [kinds[number % len(kinds)] for number in range(size)]
    rows = [dialogue(kind, next(answers[kind]), dates, rng) for kind in wanted]
    rng.shuffle(rows)
    return pa.Table.from_pylist(rows, SCHEMA)


def cycle_shuffled(dates: Sequence[str], rng: random.Random) -> Iterator[str]:
    """The dates endlessly, reshuffled in each round."""
    while True:
        yield from rng.sample(dates, len(dates))


def dialogue(kind: str, answer: str, dates: Sequence[str], rng: random.Random) -> dict[str, Any]:
    """A dialogue that states three or four events (one twice in a correction), and then asks for or moves one."""
    asked, other, *more = rng.sample(EVENTS, rng.randint(2, 3))
    decisive = other if kind == "move" else asked  # the event whose date is the answer
    date_of = {event: rng.choice(dates) for event in (asked, other, *more)}
    date_of[decisive] = answer
    while kind == "correction" and date_of[asked] == answer:
        date_of[asked] = rng.choice(dates)
    events = rng.sample(list(date_of), len(date_of))
    statements = [rng.choice(STATEMENTS).format(event=event, when=date_of[event]) for event in events]
    if kind == "correction":  # at any later time
        position = rng.randint(events.index(asked) + 1, len(statements))
        statements.insert(position, CORRECTION.format(event=asked, when=answer))
    if kind == STATEMENT:
        *before, last = statements[: rng.randint(1, len(statements))]
        response = rng.choice(REPLIES)
        return {
            "turns": [*with_replies(before, rng), last],
            "response": response,
            "answer": response[:-1],
            "kind": kind,
        }
    last = (REQUEST if kind == "move" else QUESTION).format(event=asked, other=other)
    response = f"your {asked} is {f'now with your {other} ' if kind == 'move' else ''}on {answer}."
    return {"turns": [*with_replies(statements, rng), last], "response": response, "answer": answer, "kind": kind}


def with_replies(statements: Sequence[str], rng: random.Random) -> list[str]:
    """The user's statements, each followed by a reply of the assistant that repeats nothing of it."""
    return [turn for statement in statements for turn in (statement, rng.choice(REPLIES))]


SCHEMA = pa.schema(
    {"turns": pa.list_(pa.string()), "response": pa.string(), "answer": pa.string(), "kind": pa.string()}
)
