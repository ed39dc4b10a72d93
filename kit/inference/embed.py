"""`kit embed`: a vector for each line of text, from any encoder or language model."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from kit.data.batching.plan import length_sorted_batches
from kit.errors import KitError, RunError, did_you_mean
from kit.prediction.bad_lines import BadLines
from kit.prediction.files import read_lines
from kit.pretrained.loading import load_model, one_line_errors, weights_dir
from kit.pretrained.positions import position_limit
from kit.system.console import Reporter
from kit.system.files import atomic_write
from kit.tasks.families.seq2seq.inference import CHARACTERS_AT_ONCE, LINES_AT_ONCE, take

Pooling = Literal["mean", "cls", "last"]


class Embedder:
    """A trained model that turns texts into vectors."""

    def __init__(self, name_or_path: str | Path, pooling: Pooling = "mean", device: str | None = None):
        """`name_or_path` is a run folder, a model folder or a Hub id.

        `pooling` makes one vector of those of all tokens: their mean, that of the first token (as in BERT), or that of
        the last one (of models that read from left to right).
        """
        self.model = load_model(AutoModel, name_or_path).eval()
        if getattr(self.model.config, "is_encoder_decoder", False) and hasattr(self.model, "decoder"):
            raise RunError(f"{name_or_path} needs a target as well as a source: it has no vector for a single text")
        self.model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        with one_line_errors(name_or_path):
            self.tokenizer = AutoTokenizer.from_pretrained(weights_dir(name_or_path), trust_remote_code=False)
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.pooling = pooling
        self.limit = position_limit(self.model.config)
        self.cut = 0
        """Texts so far that were longer than the model can read, and of which only the beginning was."""

    def embed(self, texts: Iterable[str], tokens_per_batch: int = 8192) -> Iterator[np.ndarray]:
        """A vector (float32) for each text, in order; texts are read in portions and sorted by length within each.

        A text without a token is a vector of zeros.
        """
        lines = iter(texts)
        while portion := take(lines, LINES_AT_ONCE, CHARACTERS_AT_ONCE):
            yield from self._portion(portion, tokens_per_batch)

    @torch.inference_mode()
    def _portion(self, texts: list[str], tokens_per_batch: int) -> np.ndarray:
        whole = self.tokenizer(texts, verbose=False)["input_ids"]
        self.cut += sum(self.limit is not None and len(ids) > self.limit for ids in whole)
        encoded = self.tokenizer(texts, truncation=self.limit is not None, max_length=self.limit, verbose=False)
        lengths = np.array([len(ids) for ids in encoded["input_ids"]])
        vectors: dict[int, np.ndarray] = {}
        for indices in length_sorted_batches(lengths, tokens_per_batch):
            rows = [{name: encoded[name][i] for name in encoded} for i in indices if lengths[i]]
            if not rows:
                continue
            batch = self.tokenizer.pad(rows, padding_side="right", return_tensors="pt").to(self.model.device)
            states = self.model(**batch).last_hidden_state.float()  # (batch, length, width)
            found = self._pooled(states, batch["attention_mask"]).cpu().numpy()
            vectors.update(zip((int(i) for i in indices if lengths[i]), found, strict=True))
        width = len(next(iter(vectors.values()))) if vectors else self.model.config.hidden_size
        return np.stack([vectors.get(i, np.zeros(width, np.float32)) for i in range(len(texts))])

    def _pooled(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.pooling == "cls":
            return states[:, 0]
        if self.pooling == "last":
            return states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]
        weights = mask.unsqueeze(-1).to(states.dtype)  # (batch, length, 1)
        return (states * weights).sum(1) / weights.sum(1)


def embed_file(
    run: str, file: Path | None, output: Path | None, pooling: str, tokens_per_batch: int, reporter: Reporter
) -> None:
    """Embed the lines of a file, or of standard input, into a .npy file or as JSON lines to standard output."""
    if pooling not in get_args(Pooling):
        known = get_args(Pooling)
        raise KitError(f'--pooling: expected one of {", ".join(known)}, got "{pooling}".{did_you_mean(pooling, known)}')
    if file is not None and not file.is_file():
        raise KitError(f"{file} does not exist: give a text file, or pipe text into `kit embed {run}`")
    if output is not None and output.suffix != ".npy":
        raise KitError(f"--output: {output} does not end in .npy, the one format that vectors are written in")
    if output is not None and not output.parent.is_dir():
        raise KitError(f"--output: there is no folder {output.parent} to write {output.name} into")
    embedder, bad_lines = Embedder(run, pooling), BadLines()  # type: ignore[arg-type]
    with read_lines(file, bad_lines) as lines, reporter.progress("lines", None) as advance:
        rows = []
        for vector in embedder.embed(lines, tokens_per_batch):
            advance(1)
            if output is None:
                sys.stdout.write(json.dumps([round(float(number), 6) for number in vector]) + "\n")
            else:
                rows.append(vector)
    if output is not None:
        with atomic_write(output) as temporary, temporary.open("wb") as stream:
            np.save(stream, np.stack(rows) if rows else np.empty((0, embedder.model.config.hidden_size), np.float32))
        reporter.print(f"{len(rows):,} vectors: {output}")
    for message in bad_lines.messages():
        reporter.print(message)
    if embedder.cut:
        reporter.print(
            f"{embedder.cut:,} lines were longer than the model can read: only their beginnings were embedded"
        )
