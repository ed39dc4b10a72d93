"""BPE dropout: training words are segmented differently every time they are seen (Provilkov et al., 2020).

The `tokenizers` library has it too, but its random source cannot be seeded. Here, a segmentation depends only on the
seed, the step and the micro-batch, so that a resumed run sees the same one.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Self

import numpy as np
from torch import Tensor

from kit.data.batching.ragged import RaggedTokens, TokenPairs

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from kit.data.text.tokenizer import Tokenizers


class Segmenter:
    """A trained BPE vocabulary that can skip merges at random."""

    def __init__(self, backend: "Tokenizer"):
        self._backend = backend
        model = json.loads(backend.to_str())["model"]
        self._ids: dict[str, int] = model["vocab"]
        self._unknown = self._ids[model["unk_token"]]
        # from the ids of both parts to the rank of the merge and the id of the result
        self._merges = {
            (self._ids[a], self._ids[b]): (rank, self._ids[a + b]) for rank, (a, b) in enumerate(model["merges"])
        }

    def words(self, text: str) -> list[str]:
        """The words of a text, whose boundaries merges never cross."""
        normalized = self._backend.normalizer.normalize_str(text)
        return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(normalized)]

    def characters(self, word: str) -> list[int]:
        return [self._ids.get(character, self._unknown) for character in word]

    def merge(self, pieces: Sequence[int], dropout: float, random: Random) -> list[int]:
        """Merge the pieces of a word, the pair with the lowest rank first. Before each merge, every possible one is
        skipped with probability `dropout`; when none remains, the word is done."""
        pieces = list(pieces)
        merges = self._merges
        while True:
            best, position = (len(merges), -1), -1
            for i in range(len(pieces) - 1):
                merge = merges.get((pieces[i], pieces[i + 1]))
                if merge is not None and merge < best and (not dropout or random.random() >= dropout):
                    best, position = merge, i
            if position < 0:
                return pieces
            pieces[position : position + 2] = [best[1]]


class Side:
    """The training texts of one side as words; `ids` are their usual tokens, with those that the tokenizer adds."""

    def __init__(self, segmenter: Segmenter, texts: Iterable[str], ids: RaggedTokens):
        self._segmenter = segmenter
        numbers: dict[str, int] = {}
        self._texts = RaggedTokens(
            [numbers.setdefault(word, len(numbers)) for word in segmenter.words(text)] for text in texts
        )
        self._characters = [segmenter.characters(word) for word in numbers]
        self._usual = [segmenter.merge(characters, 0.0, Random(0)) for characters in self._characters]
        self._ids = ids

    def segment(self, index: int, dropout: float, random: Random, limit: int | None = None) -> list[int]:
        """Segment the words of a text at random; returns its tokens, with those before and after the words unchanged.

        A segmentation of more than `limit` tokens is replaced by the usual one.
        """
        usual, words = self._ids[index].tolist(), self._texts[index].tolist()
        inner = [piece for word in words for piece in self._usual[word]]
        # the tokenizer may add a language tag in front and the end token behind
        start = next(n for n in range(len(usual)) if usual[n : n + len(inner)] == inner)
        pieces = [piece for word in words for piece in self._segmenter.merge(self._characters[word], dropout, random)]
        segmented = [*usual[:start], *pieces, *usual[start + len(inner) :]]
        return usual if limit is not None and len(segmented) > limit else segmented


@dataclass(frozen=True)
class BPEDropoutPairs(TokenPairs):
    """Training examples whose words are segmented at random in every batch; the token ids are the usual ones."""

    sides: tuple[Side, ...] = ()
    dropout: float = 0.0
    limit: int | None = None
    """The number of positions of the model."""

    @classmethod
    def of(
        cls,
        pairs: TokenPairs,
        sources: Iterable[str],
        targets: Iterable[str],
        tokenizers: "Tokenizers",
        dropout: float,
        limit: int | None = None,
    ) -> Self:
        """Make examples that can segment the words of their texts again, at random."""
        source, target = Segmenter(tokenizers.source.backend_tokenizer), Segmenter(tokenizers.target.backend_tokenizer)
        sides = Side(source, sources, pairs.source), Side(target, targets, pairs.target)
        return cls(pairs.source, pairs.target, pairs.languages, pairs.truncated, sides, dropout, limit)

    def segmented_batch(self, indices: np.ndarray, pad: int, generator: np.random.Generator) -> dict[str, Tensor]:
        """Make a batch, as `batch` does, with the words of both sides segmented at random."""
        random = Random(int(generator.integers(2**63)))
        source, target = (
            RaggedTokens(side.segment(i, self.dropout, random, self.limit) for i in indices) for side in self.sides
        )
        return TokenPairs(source, target).batch(np.arange(len(indices)), pad)
