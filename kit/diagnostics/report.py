"""The report of a dry run."""

from dataclasses import dataclass, field

from kit.data.shortcuts import Rule
from kit.data.statistics import Duplicates, LengthStats, Overlap, UnknownTokens
from kit.diagnostics.cost import Cost


@dataclass(frozen=True)
class Side:
    """Statistics of one kind of text of a split, such as the sources."""

    lengths: LengthStats  # before truncation
    unknown: UnknownTokens


@dataclass(frozen=True)
class SplitFacts:
    """Statistics of a split after reading, filtering and encoding."""

    read: int
    left_out: dict[str, int]  # by reason, nonzero counts only
    flagged: dict[str, int]  # rows that are kept, but deserve a note
    examples: int
    sides: dict[str, Side]
    beyond_filters: dict[str, int]  # validation and test only: kept, though the filters of train would drop them
    unreachable_references: int  # references longer than eval.max_new_tokens
    longest_reference: int  # of these, in tokens; 0 if there are none
    pair_labels: dict[str, int] = field(default_factory=dict)  # number of pairs of texts by label
    labels: dict[str, int] = field(default_factory=dict)  # how often each label occurs, the most frequent first
    truncated: int = 0  # examples that are cut off at the maximum length
    rules: list[Rule] = field(default_factory=list)  # train only: trivial rules for these labels, the best one first


@dataclass(frozen=True)
class ShownSide:
    """One side of an example as it is in a batch."""

    text: str  # decoded, with special tokens
    tokens: list[str]
    padding: int  # number of padding tokens


@dataclass(frozen=True)
class Example:
    """An example of the first micro-batch."""

    sides: dict[str, ShownSide]
    """What the model reads and what it learns to write, by name."""
    labels: dict[str, str]
    """The labels of the whole example, by name."""


@dataclass(frozen=True)
class Batches:
    """Sizes of the batch plan."""

    steps_per_epoch: int
    total_steps: int
    micro_batches: int
    padding: float  # share of the tokens that the model computes
    streamed: bool = False  # an "epoch" is the first buffer

    @property
    def epochs(self) -> float:
        """Number of epochs of the whole training."""
        return self.total_steps / self.steps_per_epoch


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a model; shared parameters count once."""

    model_type: str
    total: int
    trained: int
    parts: dict[str, int]


@dataclass(frozen=True)
class Inspection:
    """The report of a dry run: what a run of the recipe will read, and what it will need."""

    splits: dict[str, SplitFacts]
    duplicates: Duplicates
    overlaps: dict[str, Overlap]  # of validation and test with train
    examples: list[Example]
    start_token: str | None  # first decoder input of an encoder-decoder
    vocabularies: dict[str, int]  # sizes: source and target, or shared
    batches: Batches
    parameters: Parameters
    cost: Cost | None  # None if the longest micro-batch does not fit into memory
    notes: list[str]  # from reading the data
    warnings: list[str]  # likely mistakes
