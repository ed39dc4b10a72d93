"""The engine that streams items through a model: portions, batches by length, retries in halves, issues by number."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from kit.data.batching.plan import length_sorted_batches
from kit.errors import DataError, KitError
from kit.prediction.issues import LineIssue, LineIssues, describe_error

I = TypeVar("I")  # noqa: E741  # an item: a line, a row, a series
U = TypeVar("U")  # a unit that the model reads, such as a sentence of a line
O = TypeVar("O")  # noqa: E741  # the output of a unit, and of an item
T = TypeVar("T")

PORTION_SIZE = 1024
PORTION_CHARACTERS = 2**20
"""Items in memory at a time, and about how many characters of them."""


class Pause(Enum):
    """Among items: the input has no more of them at the moment, so those before it are predicted now."""

    PAUSE = auto()


PAUSE = Pause.PAUSE


@dataclass
class Encoded(Generic[U]):
    """An encoded item: the units that the model reads, none if there is nothing to read, and what is wrong with it."""

    units: list[U]
    issue: LineIssue | None = None
    error: Exception | None = None


class Predictor(ABC, Generic[I, U, O]):
    """What the engine needs to know of a model: how to encode items, and how to predict a batch of units."""

    noun: ClassVar[str] = "line"
    """The name of an item in messages."""
    action: ClassVar[str] = "predicted"
    """The verb for an item in messages, as a participle: "embedded", "captioned"."""
    empty: O
    """The output of a unit that failed, and of an item without units."""
    portion_size: int = PORTION_SIZE
    tokens_per_batch: int = 8192

    @property
    def failed(self) -> LineIssue:
        """The issue of an item that raises an exception."""
        return LineIssue(f"could not be {self.action}", "the output is empty")

    @abstractmethod
    def encode(self, items: list[I]) -> Sequence[Encoded[U]]:
        """Each item encoded. If it raises an exception, the engine encodes halves, to find the items it is due to."""

    def lengths(self, units: list[U]) -> np.ndarray:
        """The number of tokens of each unit, as `tokens_per_batch` counts them; unless `batches` is overridden."""
        raise NotImplementedError

    @abstractmethod
    def predict(self, units: list[U]) -> Sequence[O]:
        """The output of each unit of a batch."""

    def batches(self, units: list[U]) -> list[np.ndarray]:
        """The indices of the units of each batch."""
        return length_sorted_batches(self.lengths(units), self.tokens_per_batch)

    def combine(self, encoded: Encoded[U], outputs: list[O]) -> O:
        """The output of an item from those of its units."""
        return outputs[0] if outputs else self.empty

    def stream(
        self,
        items: Iterable[I | Pause],
        issues: LineIssues | None = None,
        progress: Callable[[int], object] = lambda items: None,
    ) -> Iterator[O]:
        """The output of each item, in order; no more than a portion is held in memory.

        An item with an issue is an error; with `issues` it is counted there and predicted as far as possible.
        `progress` is called with the number of items that are done.
        """
        self.start()
        return self._stream(iter(items), issues, progress)

    def start(self) -> None:
        """Called once before the first item is read, to set a seed and check options. Raises KitError for options that
        cannot work."""
        return None

    def _stream(
        self, items: Iterator[I | Pause], issues: LineIssues | None, progress: Callable[[int], object]
    ) -> Iterator[O]:
        first = 1
        while portion := take(items, self.portion_size, PORTION_CHARACTERS):
            yield from self._portion(portion, first, issues, progress)
            first += len(portion)

    def _portion(
        self, items: list[I], first: int, issues: LineIssues | None, progress: Callable[[int], object]
    ) -> Iterator[O]:
        """The outputs of a portion whose first item has the number `first`."""
        encoded = self._encode(items, must_succeed=issues is None)
        problems: list[dict[LineIssue, Exception | None]] = [{e.issue: e.error} if e.issue else {} for e in encoded]
        if issues is None:
            self._raise_first(problems, first)
        owners = [index for index, item in enumerate(encoded) for _ in item.units]
        units = [unit for item in encoded for unit in item.units]
        pending = [len(item.units) for item in encoded]
        progress(pending.count(0))

        outputs = [self.empty] * len(units)
        for batch in self.batches(units) if units else ():
            results = retry_in_halves(
                batch, lambda indices: self.predict([units[i] for i in indices]), must_succeed=issues is None
            )
            for index, result in results:
                if isinstance(result, Exception):
                    problems[owners[index]][self.failed] = result
                else:
                    outputs[index] = result
                pending[owners[index]] -= 1
                if pending[owners[index]] == 0:
                    progress(1)

        next_output = iter(outputs)
        for number, (item, causes) in enumerate(zip(encoded, problems, strict=True), start=first):
            for issue, error in causes.items():
                if issues is not None:
                    issues.add(issue, number, error)
            yield self.combine(item, [next(next_output) for _ in item.units])

    def _encode(self, items: list[I], must_succeed: bool) -> list[Encoded[U]]:
        results = retry_in_halves(
            np.arange(len(items)), lambda indices: self.encode([items[i] for i in indices]), must_succeed
        )
        return [Encoded([], self.failed, result) if isinstance(result, Exception) else result for _, result in results]

    def _raise_first(self, problems: list[dict[LineIssue, Exception | None]], first: int) -> None:
        """Raise DataError for the first item with a problem, if there is one; items are numbered from `first`."""
        for number, causes in enumerate(problems, start=first):
            for issue, error in causes.items():
                cause = f" ({describe_error(error)})" if error else ""
                raise DataError(
                    f"{self.noun} {number} {issue.problem}{cause}. With `issues=LineIssues()` such {self.noun}s are "
                    "counted, and the others are predicted"
                )


def retry_in_halves(
    indices: np.ndarray, work: Callable[[np.ndarray], Sequence[T]], must_succeed: bool
) -> Iterator[tuple[int, T | Exception]]:
    """The result of `work` for each index of a batch, in order.

    A batch that raises, most likely because it does not fit into memory, is retried in halves, down to single indices,
    which get their exception as result. KitErrors are raised, and with `must_succeed` every exception.
    """
    results: Sequence[T] | Exception
    try:
        results = work(indices)
    except Exception as error:
        if must_succeed or isinstance(error, KitError):
            raise
        results = error.with_traceback(None)  # its frames would keep the tensors that filled the memory
    if not isinstance(results, Exception):
        yield from zip(indices.tolist(), results, strict=True)
    elif len(indices) == 1:
        yield int(indices[0]), results
    else:
        for half in np.array_split(indices, 2):
            yield from retry_in_halves(half, work, must_succeed)


def take(items: Iterator[Any], count: int, characters: int) -> list[Any]:
    """The next items: at most `count`, texts of not much more than so many characters, and none after a pause."""
    taken: list[Any] = []
    for item in items:
        if item is not PAUSE:
            taken.append(item)
            characters -= len(item) if isinstance(item, str) else 0
        if taken and (item is PAUSE or len(taken) == count or characters <= 0):
            break
    return taken
