"""Dialogues: from lists of turns in several forms to replies with the turns before them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kit.data.report import SplitReport
from kit.data.rows import to_dataset
from kit.data.steps import ExampleColumns, RowSteps
from kit.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.tasks.dialogue.recipe import DialogueData

DEFAULT_SPEAKERS = ("first", "second")
"""Speakers of turns without a name, which alternate."""

KEPT_TURNS = 64
"""Turns before a reply that rows keep, for display and comparison, even if the model reads fewer."""


class DialogueSteps(RowSteps):
    """Rows are dialogues while they are loaded, and replies afterwards."""

    data: "DialogueData"

    @property
    def example_columns(self) -> ExampleColumns:
        """The columns of replies, which have turns and a target, whatever the columns of the data are."""
        return ExampleColumns(("turns",), ("target",), () if self.data.answer is None else ("answer",))


@dataclass(frozen=True)
class Turn:
    """One turn of a dialogue."""

    speaker: str
    text: str


def turns_of(cell: Any, data: "DialogueData", where: str) -> list[Turn]:
    """The turns in a cell. Raises DataError if it is not a list, or if a turn has no text or speaker."""
    if not isinstance(cell, list):
        raise DataError(f"{where}: data.turns ({data.turns}) holds {type(cell).__name__}, not a list of turns.")
    return [_turn(turn, index, data, f"{where}, turn {index + 1}") for index, turn in enumerate(cell)]


def _turn(turn: Any, index: int, data: "DialogueData", where: str) -> Turn:
    """One turn of a cell: an object, a pair [speaker, text], or a text."""
    speaker: Any = DEFAULT_SPEAKERS[index % 2]
    if isinstance(turn, dict):
        for key, name in (("turn_text", data.turn_text), ("turn_speaker", data.turn_speaker)):
            if name not in turn:
                keys = [str(known) for known in turn]
                raise DataError(
                    f'{where}: data.{key}: there is no "{name}".{did_you_mean(name, keys)} It has {", ".join(keys)}.'
                )
        speaker, text = turn[data.turn_speaker], turn[data.turn_text]
    elif isinstance(turn, list):
        if len(turn) != 2:
            raise DataError(f"{where}: expected a pair [speaker, text], got {len(turn)} parts.")
        speaker, text = turn
    else:
        text = turn
    if not isinstance(text, str):
        raise DataError(f"{where} has no text: expected text, got {text!r}.")
    if not isinstance(speaker, str):
        raise DataError(f"{where} has no speaker: expected a name, got {speaker!r}.")
    return Turn(speaker, text)


def in_replies(rows: "Dataset", data: "DialogueData", split: str, report: SplitReport) -> "Dataset":
    """Turn dialogues into a row for each reply to learn: `turns` are the texts before it, `source` is the same as one
    text, and `target` is the reply.

    Other columns are repeated for each reply of a dialogue. Dialogues without a reply, and training examples without
    text, are dropped and counted. Raises DataError if there is no reply at all.
    """
    others = [name for name in rows.column_names if name not in ("turns", "target")]
    columns: dict[str, list[Any]] = {name: [] for name in ("turns", "source", "target")}
    owners: list[int] = []
    speakers = Counter[str]()
    kept = None if data.max_turns is None else max(data.max_turns, KEPT_TURNS)
    for number, row in enumerate(rows.select_columns([name for name in rows.column_names if name not in others])):
        turns = turns_of(row["turns"], data, f"{split}, dialogue {number + 1}")
        speakers.update(turn.speaker for turn in turns)
        texts = [turn.text for turn in turns]
        replies = list(_replies(turns, row.get("target"), data.speaker))
        if not replies:
            report.dropped["dialogue without a reply"] += 1
        for index, reply in replies:
            before = texts[max(0, index - kept) if kept is not None else 0 : index]
            if empty := "empty reply" if not reply.strip() else "" if any(map(str.strip, before)) else "empty turns":
                if split == "train":
                    report.dropped[empty] += 1
                    continue
                report.flagged[empty] += 1
            columns["turns"].append(before)
            columns["source"].append("\n".join(before))
            columns["target"].append(reply)
            owners.append(number)
    if not owners:
        names = ", ".join(sorted(speakers)) or "none"
        hint = "" if data.speaker is None else did_you_mean(data.speaker, speakers)
        asked = "" if data.speaker is None else f' by data.speaker: "{data.speaker}".{hint}'
        raise DataError(f"{split} has no reply to learn{asked or '.'} Its speakers: {names}.")
    kinds = {"turns": pa.list_(pa.string()), "source": pa.string(), "target": pa.string()}
    table = pa.table({name: pa.array(cells, kinds[name]) for name, cells in columns.items()})
    whole = rows.with_format("arrow")[:]
    for name in others:
        if name not in kinds:
            table = table.append_column(name, whole[name].combine_chunks().take(pa.array(owners)))
    return to_dataset(table)


def _replies(turns: Sequence[Turn], target: str | None, speaker: str | None) -> Iterator[tuple[int, str]]:
    """For each reply, the number of turns before it and its text."""
    if target is not None:
        if turns:
            yield len(turns), target
        return
    for index, turn in enumerate(turns):
        if index > 0 and speaker in (None, turn.speaker):
            yield index, turn.text


def new_turns(rows: Iterable[list[str]], replies: Iterable[str]) -> list[str]:
    """The turns of each row that are not in the row before it, and always its last one.

    Rows of one dialogue follow one another, and each has the turns of the row before it, its reply, and perhaps more:
    a speaker may take several turns before the next reply.
    """
    new: list[str] = []
    known: list[str] = []
    for turns, reply in zip(rows, replies, strict=True):
        shared = next(n for n in range(len(turns), -1, -1) if turns[:n] == known[len(known) - n :])
        new += turns[min(shared, len(turns) - 1) :]
        known = [*turns, reply]
    return new
