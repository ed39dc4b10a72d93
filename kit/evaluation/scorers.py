"""The metrics of a comparison of runs, ready to be computed for any sample of their examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import KitError, RunError
from kit.evaluation.losses import MIN_DOCUMENTS, SUMS, compared_figures, read_losses, resampled_figure, unit_of
from kit.evaluation.metrics import METRICS, find_metric
from kit.evaluation.predictions import (
    OUTPUTS,
    Row,
    check_same_examples,
    pairs_of,
    read_predictions,
    reference_column,
)
from kit.evaluation.resampling import Scored, resampled_metric
from kit.recipe.document import read_yaml
from kit.system.files import read_json

DEFAULT_METRICS = ("bleu", "chrf", "exact_match")
"""The metrics of a comparison of runs without results that name them."""


@dataclass(frozen=True)
class Scorers:
    """The metrics of a comparison, each ready to be computed on any sample of its examples."""

    examples: int
    unit: str
    """The name of an example in the singular: "example", "document", "block" or "pair"."""
    by_metric: Mapping[str, Sequence[Scored]]
    """By the name of each metric, one scorer per run, in the order of the runs."""


def load_scorers(folders: Sequence[Path], split: str, metrics: Sequence[str]) -> Scorers:
    """The metrics of some runs on a split, by default those that all of them were evaluated by.

    Language models are compared by the losses of their examples, all other runs by their predictions. Raises RunError
    if a file is missing or the examples of the runs differ, and KitError for a metric that cannot be computed.
    """
    if any((folder / "losses").is_dir() for folder in folders):
        return _of_losses(folders, split, metrics)
    files = [folder / "predictions" / f"{split}.jsonl" for folder in folders]
    rows = [read_predictions(file) for file in files]
    for other, file in zip(rows[1:], files[1:], strict=True):
        check_same_examples(rows[0], other, files[0], file, OUTPUTS)
    names = metrics or _shared_metrics(folders, split, rows[0])
    by_metric = {name: [_scorer(name, *run) for run in zip(rows, folders, strict=True)] for name in names}
    return Scorers(len(rows[0]), "example", by_metric)


def _of_losses(folders: Sequence[Path], split: str, metrics: Sequence[str]) -> Scorers:
    """The figures of language models."""
    files = [folder / "losses" / f"{split}.jsonl" for folder in folders]
    for folder, file in zip(folders, files, strict=True):
        if not folder.is_dir():
            raise RunError(f"{folder} does not exist: name the folders of finished runs")
        if not file.is_file():
            others = sorted(path.stem for path in file.parent.glob("*.jsonl"))
            remedy = f"use --split {others[0]}" if others else "compare finished language models with each other only"
            raise RunError(f"{folder} has no losses of the split {split}: {remedy}")
    runs = [read_losses(file) for file in files]
    # another tokenizer gives a document another number of tokens; masked tokens must be the same ones
    outputs = [name for name in SUMS if name not in ("words", "bytes") and (name != "tokens" or "bytes" in runs[0][0])]
    for other, file in zip(runs[1:], files[1:], strict=True):
        if unit_of(runs[0]) == unit_of(other) == "block" and len(runs[0]) != len(other):
            raise RunError(
                f"{files[0]} and {file} hold different blocks, because their tokenizers or data.block_size differ. A "
                f"split of at least {MIN_DOCUMENTS} documents (data.documents) compares such models"
            )
        check_same_examples(runs[0], other, files[0], file, outputs)
    names = compared_figures(runs, metrics)
    by_metric = {name: [resampled_figure(name, run) for run in runs] for name in names}
    return Scorers(len(runs[0]), unit_of(runs[0]), by_metric)


def _scorer(name: str, rows: Sequence[Row], folder: Path) -> Scored:
    """A metric of a run. Raises KitError if its predictions do not suffice for it."""
    kind = find_metric(name).kind
    column = reference_column(rows, kind)
    if column is None:
        raise KitError(
            f"Runs cannot be compared by {name}: it compares {kind}, and the predictions of {folder} have "
            f"{', '.join(rows[0])}."
        )
    predictions, references = pairs_of(rows, column, kind)
    options = _label_options(folder) if kind == "labels" else _text_options(name, folder)
    return resampled_metric(name, predictions, references, **options)


def _text_options(name: str, folder: Path) -> Mapping[str, Any]:
    """The tokenizer and the case of a metric, by the signature that it had when the run was evaluated."""
    if name not in ("bleu", "chrf", "chrfpp"):
        return {}
    file = folder / "results.json"
    results = read_json(file, "the results of a run") if file.is_file() else {}
    sections = [section for section in results.values() if isinstance(section, dict)]
    signature = next((section[f"{name}_signature"] for section in sections if f"{name}_signature" in section), "")
    parts = dict(part.partition(":")[::2] for part in signature.split("|"))
    lowercase = {"lowercase": True} if parts.get("case") == "lc" else {}
    return lowercase | ({"tokenize": parts["tok"]} if name == "bleu" and "tok" in parts else {})


def _label_options(folder: Path) -> Mapping[str, Any]:
    """The labels of a classifier in the order of its model, and the positive one if its recipe names it."""
    config, recipe = folder / "model" / "config.json", folder / "recipe.yaml"
    options: dict[str, Any] = {}
    if config.is_file():
        labels = read_json(config, "a model configuration").get("id2label") or {}
        options["labels"] = [labels[index] for index in sorted(labels, key=int)] or None
    if recipe.is_file():
        sections = read_yaml(recipe.read_text(encoding="utf-8"), str(recipe)).value
        options["positive"] = (sections.get("eval") or {}).get("positive_label")
    return options


def _shared_metrics(folders: Sequence[Path], split: str, rows: Sequence[Row]) -> tuple[str, ...]:
    """The metrics that the results.json of every run has for this split and that its predictions suffice for.

    Raises KitError if there are none; without results, the default metrics of texts.
    """
    shared = set(METRICS)
    for folder in folders:
        file = folder / "results.json"
        if not file.exists():
            shared = set(DEFAULT_METRICS)
            break
        shared &= set(read_json(file, "the results of a run").get(split) or {})
    possible = tuple(
        name for name in METRICS if name in shared and reference_column(rows, METRICS[name].kind) is not None
    )
    if possible:
        return possible
    if defaults := tuple(name for name in DEFAULT_METRICS if reference_column(rows, METRICS[name].kind) is not None):
        return defaults
    raise KitError(
        f"The predictions of {folders[0]} have no reference that a metric could compare them with, only "
        f"{', '.join(rows[0])}."
    )
