"""The data set "words": random words of up to six letters."""

import random

import pyarrow as pa

DEFAULT_SIZES = {"train": 400, "validation": 40, "test": 40}


def generate(sizes: dict[str, int] | None, seed: int) -> dict[str, pa.Table]:
    """Disjoint splits with the column `text`."""
    sizes = DEFAULT_SIZES | (sizes or {})
    rng = random.Random(seed)
    words: dict[str, None] = {}  # a dict keeps the order and drops repetitions
    while len(words) < sum(sizes.values()):
        words["".join(rng.choices("abcdefgh", k=rng.randint(2, 6)))] = None
    rest = iter(words)
    return {split: pa.table({"text": [next(rest) for _ in range(size)]}) for split, size in sizes.items()}
