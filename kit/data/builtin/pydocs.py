"""The topics of the Python language reference that `help()` shows: `builtin:pydocs`.

A row is one topic (`topic`, `text`) from `pydoc_data`. Inline markup and heading underlines are removed; code is kept.
The content depends on the version of Python.
"""

import hashlib
import re
from functools import cache

import pyarrow as pa

from kit.errors import DataError

SHARES = {"validation": 0.08, "test": 0.08}  # of the documents
HEADING = re.compile(r"\n[*=\-~^\"]{4,}\n")
MARKUP = re.compile(r"\*\*|``|`|(?<=\s)\*(?=\w)|(?<=\w)\*(?=[\s,.;:)])")


@cache
def documents() -> dict[str, str]:
    """The text of each topic of Python's language reference, without duplicates."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError("builtin:pydocs is generated from pydoc_data, which this Python does not have.") from None
    texts: dict[str, str] = {}
    for topic in sorted(topics):
        text = plain(topics[topic])
        if text and text not in texts.values():
            texts[topic] = text
    return texts


def plain(text: str) -> str:
    """A topic without heading underlines and inline markup."""
    text = HEADING.sub("\n", text.replace("\r\n", "\n"))
    return re.sub(r"\n{3,}", "\n\n", MARKUP.sub("", text)).strip()


def generate(sizes: dict[str, int] | None = None, seed: int = 0) -> dict[str, pa.Table]:
    """Train, validation and test: whole topics, assigned by the seed.

    Equal arguments give equal rows on the same Python. `sizes` overrides the topics of the splits that it names.
    """
    texts = documents()
    order = sorted(texts, key=lambda topic: hashlib.blake2b(topic.encode(), key=str(seed).encode()).digest())
    wanted = {split: round(share * len(order)) for split, share in SHARES.items()} | dict(sizes or {})
    held_out = {split: [order.pop() for _ in range(min(wanted[split], len(order)))] for split in SHARES}
    train = order if "train" not in wanted else order[: wanted["train"]]
    splits = {"train": train, **held_out}
    for split, topics in splits.items():
        if len(topics) < wanted.get(split, 1):
            raise DataError(
                f"data.sizes.{split}: builtin:pydocs has {len(texts)} topics in all, too few for these sizes."
            )
    return {
        split: pa.table({"topic": pa.array(topics), "text": pa.array([texts[topic] for topic in topics])})
        for split, topics in splits.items()
    }
