"""Translate lines of text with a trained model: in order, streaming, in memory that does not grow with the file."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from kit.attention_map import draw_attention
from kit.data.batches import reading_batches
from kit.data.examples import Pairs, TokenLists
from kit.data.tokenizer import load_pretrained_tokenizers
from kit.hub import load_seq2seq, model_place
from kit.search import SearchSettings, search

LINES_AT_ONCE = 1024


@dataclass(frozen=True)
class Output:
    """One hypothesis for one line."""

    text: str
    score: float
    finished: bool


class Translator:
    """A trained model and its tokenizers, ready to translate."""

    def __init__(self, name_or_path: str | Path, device: str | None = None):
        """`name_or_path` is a run folder, a model folder or a Hub id; by default a GPU is used if there is one."""
        self.model = load_seq2seq(name_or_path).eval()
        self.model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.tokenizers = load_pretrained_tokenizers(model_place(name_or_path))

    def settings(self, **changes: object) -> SearchSettings:
        """The search that the model was saved with, with changes."""
        saved = self.model.generation_config
        own = {
            "num_beams": saved.num_beams or 1,
            "max_new_tokens": saved.max_new_tokens or SearchSettings.max_new_tokens,
            "length_penalty": 1.0 if saved.length_penalty is None else saved.length_penalty,
            "early_stopping": saved.early_stopping or False,
            "no_repeat_ngram_size": saved.no_repeat_ngram_size or 0,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        return SearchSettings(**{**own, **given})  # type: ignore[arg-type]

    def translate(
        self,
        lines: Iterable[str],
        settings: SearchSettings | None = None,
        tokens_per_batch: int = 8192,
        lines_at_once: int = LINES_AT_ONCE,
    ) -> Iterator[list[Output]]:
        """The best outputs of each line, in the order of the lines.

        Lines are read in portions and sorted by length within each, so that little is padded; an empty line gives one
        empty output.
        """
        settings = settings or self.settings()
        remaining = iter(lines)
        while portion := list(islice(remaining, lines_at_once)):
            yield from self._portion(portion, settings, tokens_per_batch)

    def _portion(self, lines: list[str], settings: SearchSettings, tokens: int) -> list[list[Output]]:
        outputs: list[list[Output]] = [[Output("", 0.0, True)] for _ in lines]
        filled = np.array([i for i, line in enumerate(lines) if line.strip()], dtype=np.int64)
        ids = self.tokenizers.encode_source([lines[i] for i in filled])
        pairs = Pairs(TokenLists(ids), TokenLists([] for _ in ids))
        for indices in reading_batches(pairs.source.lengths, max(1, tokens // settings.num_beams)):
            for index, hypotheses in zip(
                indices, search(self.model, self._batch(pairs, indices), settings), strict=True
            ):
                texts = self.tokenizers.decode([hypothesis.tokens for hypothesis in hypotheses])
                outputs[filled[index]] = [
                    Output(text, hypothesis.score, hypothesis.finished)
                    for text, hypothesis in zip(texts, hypotheses, strict=True)
                ]
        return outputs

    def _batch(self, pairs: Pairs, indices: np.ndarray) -> dict[str, torch.Tensor]:
        batch = pairs.batch(indices, self.tokenizers.source.pad_token_id)
        return {name: tensor.to(self.model.device) for name, tensor in batch.items()}

    def draw_attention(self, line: str, path: Path, settings: SearchSettings | None = None) -> bool:
        """Draw where the model looked while it translated a line, as a heat map; false if it has no attention."""
        pairs = Pairs(TokenLists(self.tokenizers.encode_source([line])), TokenLists([[]]))
        best = search(self.model, self._batch(pairs, np.array([0])), settings or self.settings(), attention=True)[0][0]
        if best.attention is None:
            return False
        source = self.tokenizers.source.convert_ids_to_tokens(pairs.source[0].tolist())
        output = self.tokenizers.target.convert_ids_to_tokens(best.tokens)
        draw_attention(best.attention.float().cpu().numpy(), source, output, path)
        return True
