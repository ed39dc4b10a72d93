"""BPE dropout: training words are cut into other pieces every time they are seen (Provilkov et al., 2020).

The `tokenizers` library has it too, but draws from a random source that cannot be seeded; here nothing but the seed,
the step and the micro-batch decides, so that a resumed run sees the same pieces.
"""

import json
from collections.abc import Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from kit.data.batching.ragged import RaggedTokens, TokenPairs

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from kit.data.text.tokenizer import Tokenizers


class Segmenter:
    """A trained BPE vocabulary that can leave out merges at random."""

    def __init__(self, backend: "Tokenizer"):
        self._backend = backend
        model = json.loads(backend.to_str())["model"]
        self._ids: dict[str, int] = model["vocab"]
        self._unknown = self._ids[model["unk_token"]]
        # by the ids of both parts: the rank of the merge, and what it makes
        self._merges = {
            (self._ids[a], self._ids[b]): (rank, self._ids[a + b]) for rank, (a, b) in enumerate(model["merges"])
        }

    def words(self, text: str) -> list[str]:
        """What merges never cross."""
        normalized = self._backend.normalizer.normalize_str(text)
        return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(normalized)]

    def characters(self, word: str) -> list[int]:
        return [self._ids.get(character, self._unknown) for character in word]

    def merge(self, pieces: Sequence[int], dropout: float, random: Random) -> list[int]:
        """Merge pieces, the most frequent pair first; before each merge every possible one is left out with
        probability `dropout`, and when none remains the word is done."""
        pieces = list(pieces)
        merges = self._merges
        while True:
            best, place = (len(merges), -1), -1
            for i in range(len(pieces) - 1):
                found = merges.get((pieces[i], pieces[i + 1]))
                if found is not None and found < best and (not dropout or random.random() >= dropout):
                    best, place = found, i
            if place < 0:
                return pieces
            pieces[place : place + 2] = [best[1]]


class Side:
    """The training texts of one side as words; `ids` are their usual tokens, with what the tokenizer adds."""

    def __init__(self, segmenter: Segmenter, texts: Iterable[str], ids: RaggedTokens):
        self._segmenter = segmenter
        numbers: dict[str, int] = {}
        self._texts = RaggedTokens(
            [numbers.setdefault(word, len(numbers)) for word in segmenter.words(text)] for text in texts
        )
        self._characters = [segmenter.characters(word) for word in numbers]
        self._plain = [segmenter.merge(characters, 0.0, Random(0)) for characters in self._characters]
        self._ids = ids

    def cut(self, index: int, dropout: float, random: Random, limit: int | None = None) -> list[int]:
        """The tokens of a text, cut anew; what stands before and after its words stays. If that makes more than `limit`
        tokens, they are the usual ones."""
        usual, words = self._ids[index].tolist(), self._texts[index].tolist()
        plain = [piece for word in words for piece in self._plain[word]]
        # what the tokenizer adds: a language tag in front, the end marker behind, or neither
        before = next(n for n in range(len(usual)) if usual[n : n + len(plain)] == plain)
        cut = [piece for word in words for piece in self._segmenter.merge(self._characters[word], dropout, random)]
        anew = [*usual[:before], *cut, *usual[before + len(plain) :]]
        return usual if limit is not None and len(anew) > limit else anew


class CutAnew:
    """Training examples whose words are cut anew for every batch."""

    def __init__(
        self,
        pairs: TokenPairs,
        sources: Iterable[str],
        targets: Iterable[str],
        tokenizers: "Tokenizers",
        dropout: float,
        limit: int | None = None,
    ):
        """`limit` is what the model has positions for."""
        source, target = Segmenter(tokenizers.source.backend_tokenizer), Segmenter(tokenizers.target.backend_tokenizer)
        self._source, self._target = Side(source, sources, pairs.source), Side(target, targets, pairs.target)
        self._dropout, self._limit = dropout, limit

    def batch(self, indices: np.ndarray, pad: int, generator: np.random.Generator) -> dict[str, Tensor]:
        """As `Pairs.batch`, with the words of both sides cut at random."""
        random = Random(int(generator.integers(2**63)))
        cut = TokenPairs(
            RaggedTokens(self._source.cut(i, self._dropout, random, self._limit) for i in indices),
            RaggedTokens(self._target.cut(i, self._dropout, random, self._limit) for i in indices),
        )
        return cut.batch(np.arange(len(indices)), pad)
