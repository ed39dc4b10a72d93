"""What decides how a file is read: its extension, and what the recipe states about the inside of files."""

from dataclasses import dataclass
from pathlib import Path

from kit.recipe.data import TABULAR_KEYS


@dataclass(frozen=True)
class Layout:
    """What a recipe states about the inside of files."""

    columns: list[str] | None = None
    delimiter: str | None = None
    quoting: bool | None = None
    encoding: str = "utf-8"

    @property
    def tabular_keys(self) -> list[str]:
        """The keys that are set and apply only to files whose lines are split into cells."""
        return [name for name in TABULAR_KEYS if getattr(self, name) is not None]


def file_extension(path: Path) -> str:
    """The extension that decides the format: "tsv" for a.tsv and for a.tsv.gz."""
    return Path(path.name.removesuffix(".gz")).suffix.removeprefix(".")
