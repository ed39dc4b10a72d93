"""Masking for masked language models, drawn anew every time a text is seen."""

from dataclasses import dataclass

import numpy as np

from kit.data.batching.ragged import IGNORE_INDEX

KEPT, REPLACED = 0.1, 0.1
"""Shares of the chosen tokens that stay as they are, and that become a random token; the others become the mask."""


@dataclass(frozen=True)
class Masking:
    """How tokens are masked: a share of them is to be predicted, of which 80 % become the mask token, 10 % a random
    token and 10 % stay, so that the model must look at every token."""

    mask_id: int
    ordinary_ids: np.ndarray
    """Ids that a random token is drawn from: all but the special ones."""
    probability: float = 0.15

    def __call__(
        self, ids: np.ndarray, maskable: np.ndarray, random: np.random.Generator, words: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """ids (batch, length) → the ids with tokens masked, and the labels: what stood at the chosen places, −100
        elsewhere.

        Only where `maskable` is true is anything chosen. `words` (batch, length) numbers the words of each row: with it
        all tokens of a word are chosen, or none.
        """
        if words is None:
            chosen = random.random(ids.shape) < self.probability
        else:
            draws = random.random((len(ids), int(words.max(initial=0)) + 1))  # one for each word of a row
            chosen = np.take_along_axis(draws, np.maximum(words, 0), axis=1) < self.probability
        chosen &= maskable
        fate = random.random(ids.shape)
        masked = ids.copy()
        masked[chosen & (fate >= KEPT + REPLACED)] = self.mask_id
        replaced = chosen & (fate < REPLACED)
        masked[replaced] = random.choice(self.ordinary_ids, int(replaced.sum()))
        return masked, np.where(chosen, ids, IGNORE_INDEX)
