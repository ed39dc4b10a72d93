"""An account of every row on its way from the data to training, per split."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class SplitReport:
    """Rows read, dropped by reason, and kept: `read + repeated == rows + merged + sum(dropped.values())`."""

    read: int
    """Rows of the data, or rows held out of train for this split; with `data.directions`, once per direction."""

    rows: int = 0
    """Rows kept."""

    dropped: Counter[str] = field(default_factory=Counter)
    """Rows that were dropped, by reason."""

    merged: int = 0
    """Rows that became part of another one, such as further captions of an image."""

    repeated: int = 0
    """Additional copies of rows."""

    flagged: Counter[str] = field(default_factory=Counter)
    """Rows that were kept but are worth a note, such as those with an empty target."""

    def add(self, other: "SplitReport") -> None:
        """Add the counts of another part of the same split."""
        self.read += other.read
        self.rows += other.rows
        self.dropped += other.dropped
        self.merged += other.merged
        self.repeated += other.repeated
        self.flagged += other.flagged


@dataclass
class DataReport:
    """What was dropped from the data, and why."""

    splits: dict[str, SplitReport] = field(default_factory=dict)
    """One report per split."""

    notes: list[str] = field(default_factory=list)
    """Notes on more than one split, such as columns that were left out."""

    warnings: list[str] = field(default_factory=list)
    """Likely mistakes, each with its remedy."""

    def lines(self) -> list[str]:
        """The report as text: a line for each split with anything worth a note, then the notes and the warnings."""
        lines = []
        for name, split in self.splits.items():
            parts = [f"{count} left out ({reason})" for reason, count in split.dropped.items()]
            parts += [f"{count} with {what}" for what, count in split.flagged.items()]
            if parts:
                lines.append(f"{name}: {', '.join(parts)}")
        return [*lines, *self.notes, *self.warnings]
