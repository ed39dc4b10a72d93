"""What became of the rows of a dataset on their way to training, split by split."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class SplitReport:
    """Rows read, rows left out by reason, and rows kept: `read + repeated == rows + joined + sum(dropped.values())`."""

    read: int
    """Rows of the data, or rows held out of train for this split; with `data.directions` once for each direction."""

    rows: int = 0
    """Rows handed on."""

    dropped: Counter[str] = field(default_factory=Counter)
    """Rows that were left out, by reason."""

    joined: int = 0
    """Rows that became a part of the one before them."""

    repeated: int = 0
    """Rows that were handed on once more."""

    flagged: Counter[str] = field(default_factory=Counter)
    """Rows that were kept but are worth knowing about, such as those with an empty target."""

    def add(self, other: "SplitReport") -> None:
        """Count what another part of the same split tells."""
        self.read += other.read
        self.rows += other.rows
        self.dropped += other.dropped
        self.joined += other.joined
        self.repeated += other.repeated
        self.flagged += other.flagged


@dataclass
class DataReport:
    """What was left out of the data, and why."""

    splits: dict[str, SplitReport] = field(default_factory=dict)
    """One for each split."""

    notes: list[str] = field(default_factory=list)
    """What concerns more than one split, such as columns that were left out."""

    def lines(self) -> list[str]:
        """The report as text: a line for each split of which there is something to tell, and each note."""
        told = []
        for name, split in self.splits.items():
            parts = [f"{count} left out ({why})" for why, count in split.dropped.items()]
            parts += [f"{count} with {what}" for what, count in split.flagged.items()]
            if parts:
                told.append(f"{name}: {', '.join(parts)}")
        return told + self.notes
