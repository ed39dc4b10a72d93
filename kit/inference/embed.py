"""`kit embed`: a vector for each line of text, from any encoder or language model."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from transformers import AutoModel

from kit.data.text.tokenizer import Tokenizers
from kit.errors import KitError, RunError, did_you_mean
from kit.models import register_models
from kit.prediction.engine import Encoded, Predictor
from kit.prediction.issues import LineIssues, longer_than
from kit.prediction.lines import check_input, read_lines
from kit.prediction.writing import open_output
from kit.pretrained.folder import ModelFolder
from kit.pretrained.loading import load_for_inference
from kit.pretrained.positions import position_limit
from kit.pretrained.vocabulary import check_folder
from kit.system.console import Reporter
from kit.system.json_files import to_json
from kit.system.outputs import atomic_write
from kit.tasks.registry import find_task

Pooling = Literal["mean", "cls", "last"]
TokenizedText = dict[str, list[int]]


class Embedder(Predictor[str, TokenizedText, np.ndarray]):
    """A trained model that turns texts into vectors (float32); a text without a token has a vector of zeros."""

    action: ClassVar[str] = "embedded"

    def __init__(
        self,
        name_or_path: str | Path,
        pooling: Pooling = "mean",
        device: str | None = None,
        tokens_per_batch: int = 8192,
    ):
        """`name_or_path` is a run folder, a model folder or a Hub id; the default device is that of training.

        `pooling` combines the hidden states of the tokens: their mean, that of the first token (as in BERT), or that
        of the last one (for models that read from left to right).
        """
        folder = ModelFolder.open(name_or_path)
        register_models()
        kind = AutoModel._model_mapping.get(type(folder.config), None)
        if kind is None or kind.main_input_name != "input_ids":
            raise RunError(f"{name_or_path} does not read text, so it cannot embed it{other_command(folder)}")
        self.model = load_for_inference(folder, AutoModel, device)
        if getattr(folder.config, "is_encoder_decoder", False) and hasattr(self.model, "decoder"):
            raise RunError(
                f"{name_or_path} needs a target as well as a source: it has no vector for a single text"
                f"{other_command(folder)}"
            )
        self.tokenizer = folder.tokenizer
        check_folder(folder.name, self.model, Tokenizers(self.tokenizer, self.tokenizer))
        self.pooling = pooling
        self.tokens_per_batch = tokens_per_batch
        self.limit = position_limit(folder.config)
        # not config.hidden_size: some models return another width
        self.empty = np.zeros_like(self.predict([{"input_ids": [0], "attention_mask": [1]}])[0])

    def encode(self, items: list[str]) -> list[Encoded[TokenizedText]]:
        lengths = [len(ids) for ids in self.tokenizer(items, verbose=False)["input_ids"]]
        encoded = self.tokenizer(items, truncation=self.limit is not None, max_length=self.limit, verbose=False)
        rows = [{name: encoded[name][index] for name in encoded} for index in range(len(items))]
        return [self._as_unit(row, length) for row, length in zip(rows, lengths, strict=True)]

    def _as_unit(self, row: TokenizedText, length: int) -> Encoded[TokenizedText]:
        if self.limit is not None and length > self.limit:
            return Encoded([row], longer_than(self.limit, "tokens", "only the beginning was embedded"))
        return Encoded([row] if row["input_ids"] else [])

    def lengths(self, units: list[TokenizedText]) -> np.ndarray:
        return np.array([len(row["input_ids"]) for row in units])

    @torch.inference_mode()
    def predict(self, units: list[TokenizedText]) -> list[np.ndarray]:
        batch = self.tokenizer.pad(units, padding_side="right", return_tensors="pt").to(self.model.device)
        states = self.model(**batch).last_hidden_state.float()  # (batch, length, width)
        return list(self._pool(states, batch["attention_mask"]).cpu().numpy())

    def _pool(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.pooling == "cls":
            return states[:, 0]
        if self.pooling == "last":
            return states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]
        weights = mask.unsqueeze(-1).to(states.dtype)  # (batch, length, 1)
        return (states * weights).sum(1) / weights.sum(1)


def other_command(folder: ModelFolder) -> str:
    """The command for a model without vectors, to append to a message; empty for a model of no task."""
    try:
        return f": use `kit {find_task(folder.config).command}`"
    except RunError:
        return ""


def embed_file(
    run: str, file: Path | None, output: Path | None, pooling: Any, tokens_per_batch: int, reporter: Reporter
) -> None:
    """Embed the lines of a file, or of standard input, into a .npy file or as JSON lines to standard output."""
    choices = get_args(Pooling)
    if pooling not in choices:
        raise KitError(
            f'--pooling: expected one of {", ".join(choices)}, got "{pooling}".{did_you_mean(pooling, choices)}'
        )
    if file is not None:
        check_input(file, f"pass a text file, or pipe text into `kit embed {run}`")
    if output is not None and output.suffix != ".npy":
        raise KitError(f"--output: {output} does not end in .npy, the only format of vectors")
    issues = LineIssues()
    with nullcontext() if output is None else atomic_write(output) as temporary:  # before the model is loaded
        embedder = Embedder(run, pooling, tokens_per_batch=tokens_per_batch)
        with read_lines(file, issues) as lines, reporter.progress("lines", None) as advance:
            vectors = embedder.stream(lines, issues, advance)
            if temporary is None:
                with open_output(None) as stream:
                    for vector in vectors:
                        print(to_json([round(float(number), 6) for number in vector]), file=stream)
            else:
                rows = list(vectors)
                with temporary.open("wb") as matrix:
                    np.save(matrix, np.stack(rows) if rows else np.empty((0, len(embedder.empty)), np.float32))
    if output is not None:
        reporter.print(f"{len(rows):,} vectors: {output}")
    for message in issues.messages():
        reporter.print(message)
