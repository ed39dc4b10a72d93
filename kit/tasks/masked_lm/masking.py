"""Masking for masked language models, drawn again every time a text is seen."""

from dataclasses import dataclass

import numpy as np

from kit.data.batching.ragged import IGNORE_INDEX

KEPT, REPLACED = 0.1, 0.1
"""Shares of the chosen tokens that stay, and that become random tokens; all others are masked (Devlin et al., 2019)."""


@dataclass(frozen=True)
class Masking:
    """Chooses tokens to predict. Of these, 80% become the mask token and 10% a random token; 10% are kept, so that the
    model must use every token."""

    mask_id: int
    ordinary_ids: np.ndarray
    """Ids of random tokens: all but the special ones."""
    probability: float = 0.15

    def __call__(
        self, ids: np.ndarray, maskable: np.ndarray, random: np.random.Generator, words: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mask ids (batch, length); returns the masked ids and the labels, which are the original ids of chosen tokens,
        else −100.

        Tokens are chosen only where `maskable` is true. With `words` (batch, length), the number of the word of each
        token, all tokens of a word are chosen or none.
        """
        if words is None:
            chosen = random.random(ids.shape) < self.probability
        else:
            draws = random.random((len(ids), int(words.max(initial=0)) + 1))  # one per word
            chosen = np.take_along_axis(draws, np.maximum(words, 0), axis=1) < self.probability
        chosen &= maskable
        draw = random.random(ids.shape)
        masked = ids.copy()
        masked[chosen & (draw >= KEPT + REPLACED)] = self.mask_id
        replaced = chosen & (draw < REPLACED)
        masked[replaced] = random.choice(self.ordinary_ids, int(replaced.sum()))
        return masked, np.where(chosen, ids, IGNORE_INDEX)
