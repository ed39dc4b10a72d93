"""Is one run better than another, or is it chance? Paired bootstrap over the predictions of finished runs.

The samples equal those of sacrebleu's paired bootstrap (`sacrebleu.significance.PairedTest`) for the same seed. Its
code takes only sacrebleu's metrics; here every metric with additive statistics is scored on the same samples, one
matrix product per sample (Koehn 2004).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import KitError, RunError
from kit.evaluation.metrics import METRICS, by_kind, find_metric, greater_is_better
from kit.evaluation.metrics.base import Statistics
from kit.system.files import read_json
from kit.system.format import check_format, read_run_format

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

DEFAULT_METRICS = ("bleu", "chrf", "exact_match")
"""The metrics of a comparison of runs without results that name them."""


@dataclass(frozen=True)
class Score:
    """A metric of one run, with the middle 95 % of its resampled values."""

    run: str
    metric: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """The score of a run minus that of the first run, by one metric."""

    run: str
    baseline: str
    metric: str
    value: float
    low: float
    """Lower end of the middle 95 % of the resampled differences."""
    high: float
    p_value: float
    """Two-sided: twice the share of samples in which the difference is zero or has the other sign."""

    @property
    def better(self) -> bool | None:
        """Whether the run is better than the first one; None if the difference may be chance (p of 0.05 or more)."""
        if self.p_value >= 0.05:
            return None
        return (self.value > 0) == greater_is_better(self.metric)


@dataclass(frozen=True)
class Comparison:
    """Two or more runs on the same examples, each compared with the first one."""

    split: str
    examples: int
    samples: int
    seed: int
    runs: tuple[str, ...]
    metrics: tuple[str, ...]
    scores: tuple[Score, ...]
    differences: tuple[Difference, ...]
    signatures: dict[str, str]
    """The signature of each metric that has one, with the number of samples and the seed."""

    def score(self, run: str, metric: str) -> Score:
        """The score of a run by a metric."""
        return next(score for score in self.scores if (score.run, score.metric) == (run, metric))

    def difference(self, run: str, metric: str) -> Difference:
        """The difference of a run to the first one by a metric."""
        return next(item for item in self.differences if (item.run, item.metric) == (run, metric))

    def table(self) -> Table:
        """The comparison for a terminal, with a row for each metric and run."""
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=f"{self.split}: {self.examples} examples, {self.samples} bootstrap samples",
            caption=Text(
                f"Differences are relative to {self.runs[0]}. p is two-sided, not corrected for multiple comparisons."
            ),
        )
        for heading in ("metric", "run", "score", "95 % interval", "difference", "95 % interval", "p", ""):
            table.add_column(heading, justify="left" if heading in ("metric", "run", "") else "right")
        for metric in self.metrics:
            digits = 4 if metric in ("exact_match", "token_accuracy") else 2
            for run in self.runs:
                score = self.score(run, metric)
                cells: list[str | Text] = [
                    METRICS[metric].title if run == self.runs[0] else "",
                    Text(run),  # a folder name is not rich markup
                    f"{score.value:.{digits}f}",
                    f"{score.low:.{digits}f} to {score.high:.{digits}f}",
                ]
                if run != self.runs[0]:
                    difference = self.difference(run, metric)
                    cells += [
                        f"{difference.value:+.{digits}f}",
                        f"{difference.low:+.{digits}f} to {difference.high:+.{digits}f}",
                        f"{difference.p_value:.4f}",
                        {True: "better", False: "worse", None: "no clear difference"}[difference.better],
                    ]
                table.add_row(*cells, end_section=run == self.runs[-1])
        return table


def compare_runs(
    folders: Sequence[Path],
    split: str = "test",
    metrics: Sequence[str] | None = None,
    samples: int = 1000,
    seed: int = 12345,
) -> Comparison:
    """Compare the predictions of two or more run folders with those of the first one by paired bootstrap.

    The same examples are drawn with replacement for every run, `samples` times, and each sample gets a corpus score.
    The samples equal those of sacrebleu's paired bootstrap for the same seed; unlike sacrebleu's, the p-value is
    two-sided, so that it agrees with the interval, and equal runs give 1. `metrics` defaults to those by which all
    runs were evaluated. The result depends only on the files, `metrics`, `samples` and `seed`. Raises RunError if the
    sources or targets of the runs differ, KitError for a metric without additive statistics.
    """
    if len(folders) < 2:
        raise KitError(f"A comparison needs at least two run folders, got {len(folders)}.")
    if samples < 1:
        raise KitError(f"A comparison needs at least one bootstrap sample, got {samples}.")
    if seed < 0:
        raise KitError(f"The seed of a comparison must not be negative, got {seed}.")
    for folder in folders:
        if stored := read_run_format(Path(folder)):  # predictions of other programs have no format
            check_format(folder, stored)
    files = [Path(folder) / "predictions" / f"{split}.jsonl" for folder in folders]
    rows = [read_predictions(file) for file in files]
    for other, file in zip(rows[1:], files[1:], strict=True):
        _check_same_examples(rows[0], other, files[0], file)
    names = tuple(dict.fromkeys(metrics)) if metrics else _shared_metrics(folders, split)
    targets = [row["target"] for row in rows[0]]
    statistics = {
        name: [_statistics(name, [row["prediction"] for row in run], targets) for run in rows]
        for name in _check_additive(names)
    }
    resampled = _resample(statistics, samples, seed)
    runs, scores, differences = _run_names(folders), [], []
    for name in names:
        values = [run.score() for run in statistics[name]]
        for index, (run, value, draws) in enumerate(zip(runs, values, resampled[name], strict=True)):
            scores.append(Score(run, name, value, *_middle_95_percent(draws)))
            if index > 0:
                drawn = draws - resampled[name][0]
                interval = _middle_95_percent(drawn)
                differences.append(Difference(run, runs[0], name, value - values[0], *interval, _p_value(drawn)))
    signatures = {
        name: f"{first.signature}|bs:{samples}|seed:{seed}"
        for name, (first, *_) in statistics.items()
        if first.signature is not None
    }
    return Comparison(split, len(targets), samples, seed, runs, names, tuple(scores), tuple(differences), signatures)


def _check_additive(names: Sequence[str]) -> Sequence[str]:
    for kind, group in by_kind(names).items():
        if kind != "text":
            raise KitError(f"Runs are compared by their texts, and {', '.join(group)} compares {kind}.")
    for name in names:
        if not find_metric(name).additive:
            raise KitError(f"Runs cannot be compared by {name}: a registered metric has no statistics to resample.")
    return names


def _statistics(name: str, predictions: list[str], targets: list[Any]) -> Statistics:
    result = find_metric(name).function(predictions, targets)
    assert isinstance(result, Statistics)
    return result


def _resample(statistics: dict[str, list[Statistics]], samples: int, seed: int) -> dict[str, np.ndarray]:
    """The scores (runs, samples) of each metric on samples that are the same for all runs and metrics."""
    import numpy as np

    first = next(iter(statistics.values()))
    examples = len(first[0].rows)
    scores = {name: np.empty((len(first), samples)) for name in statistics}
    generator = np.random.default_rng(seed)
    # One sample at a time keeps memory constant; the numbers are those of one large draw, as sacrebleu makes it.
    for sample in range(samples):
        counts = np.bincount(generator.choice(examples, size=examples, replace=True), minlength=examples)
        for name, runs in statistics.items():
            for index, run in enumerate(runs):
                scores[name][index, sample] = run.score(counts)
    return scores


def read_predictions(file: Path) -> list[dict[str, Any]]:
    """The rows of a predictions file, each with `source`, `target` and `prediction`.

    Raises RunError, with the line, if the file is missing, empty or malformed.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RunError(
            f"{file} does not exist. Is {file.parent.parent} a run folder? "
            f"Predictions are written at the end of `kit train` and by `kit eval`."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{file} cannot be read: {error}") from None
    rows = []
    # Not splitlines(): texts may hold other line separators, such as U+2028, which JSON does not escape.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not _is_prediction(row):
            raise RunError(
                f"{file}, line {number} is not a prediction: expected a JSON object with the texts "
                f'"source", "target" and "prediction". Write the file again with `kit eval`.'
            )
        rows.append(row)
    if not rows:
        raise RunError(f"{file} is empty: it holds no predictions.")
    return rows


def _is_prediction(row: dict[str, Any]) -> bool:
    target = row.get("target")
    texts = target if isinstance(target, list) and target else [target]
    return all(isinstance(text, str) for text in (row.get("source"), row.get("prediction"), *texts))


def _check_same_examples(
    rows: list[dict[str, Any]], others: list[dict[str, Any]], file: Path, other_file: Path
) -> None:
    for number, (row, other) in enumerate(zip(rows, others, strict=False), start=1):
        for key in ("source", "target"):
            if row[key] != other[key]:
                raise RunError(
                    f"The runs do not share their examples: row {number} has the {key} {_short(row[key])} "
                    f"in {file}, but {_short(other[key])} in {other_file}. Evaluate both on the same data."
                )
    if len(rows) != len(others):
        raise RunError(
            f"The runs do not share their examples: {file} has {len(rows)} rows, {other_file} has "
            f"{len(others)}, so row {min(len(rows), len(others)) + 1} is only in one of them. "
            f"Evaluate both on the same data."
        )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"


def _shared_metrics(folders: Sequence[Path], split: str) -> tuple[str, ...]:
    """The additive metrics that the results.json of every run has for this split; DEFAULT_METRICS if there are none."""
    shared = {name for name, metric in METRICS.items() if metric.additive}
    for folder in folders:
        file = Path(folder) / "results.json"
        if not file.exists():
            return DEFAULT_METRICS
        shared &= set(read_json(file, "the results of a run").get(split) or {})
    return tuple(name for name in METRICS if name in shared) or DEFAULT_METRICS


def _run_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """A name for each run: its folder's, its path if folder names repeat, and a number if even paths do."""
    names = [Path(folder).resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return tuple(
        name if name not in names[:index] else f"{name} ({names[:index].count(name) + 1})"
        for index, name in enumerate(names)
    )


def _middle_95_percent(values: np.ndarray) -> tuple[float, float]:
    """The ends of the middle 95 % of the values: as in sacrebleu, a fortieth is dropped at either end."""
    ordered = sorted(values.tolist())
    dropped = len(ordered) // 40
    return ordered[dropped], ordered[-dropped - 1]


def _p_value(drawn: np.ndarray) -> float:
    # Adding one to both counts keeps p above zero: no finite number of samples rules chance out (Davison and
    # Hinkley 1997, section 4.2).
    smaller_side = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    return min(1.0, 2 * (smaller_side + 1) / (len(drawn) + 1))
