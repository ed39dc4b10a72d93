"""The task "reverse": read a text, and write it from its end to its beginning."""

from dataclasses import replace

from datasets import DatasetDict

from kit.data.batching.ragged import TokenPairs
from kit.data.splits import Splits
from kit.tasks.families.seq2seq.text import TextToTextTask


class Reverse(TextToTextTask[TokenPairs]):
    """Reverse a text: `kit` → `tik`."""

    def load_splits(self) -> Splits:
        splits = super().load_splits()  # with the column `source`, whatever its name in the data
        pairs = {
            name: rows.add_column("target", [text[::-1] for text in rows["source"]])
            for name, rows in splits.datasets.items()
        }
        return replace(splits, datasets=DatasetDict(pairs))
