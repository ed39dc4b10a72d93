"""Is one run better than another, or is it chance? Paired bootstrap over the predictions of finished runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import KitError, RunError
from kit.evaluation.metrics import METRICS, by_kind, greater_is_better, load_metric, metrics_of

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from kit.evaluation.metrics.text_metric import Statistics

DEFAULT_METRICS = ("bleu", "chrf", "exact_match")
"""What is compared when the runs do not say which metrics they were measured by."""


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
    """A run minus the first run, by one metric."""

    run: str
    baseline: str
    metric: str
    value: float
    low: float
    """Lower end of the middle 95 % of the resampled differences."""
    high: float
    p_value: float
    """Two-sided: twice the share of draws in which the difference is nil or has the other sign."""

    @property
    def better(self) -> bool | None:
        """Whether the run is better than the first one; None where that may be chance (p of 0.05 or more)."""
        if self.p_value >= 0.05:
            return None
        return (self.value > 0) == greater_is_better(self.metric)


@dataclass(frozen=True)
class Comparison:
    """Two or more runs on the same examples; the first run is the one that the others are compared with."""

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
        return next(score for score in self.scores if (score.run, score.metric) == (run, metric))

    def difference(self, run: str, metric: str) -> Difference:
        return next(found for found in self.differences if (found.run, found.metric) == (run, metric))

    def table(self) -> Table:
        """The comparison for a terminal: a row for each metric and run."""
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=f"{self.split}: {self.examples} examples, {self.samples} bootstrap samples",
            caption=Text(f"Differences are to {self.runs[0]}. p is two-sided, uncorrected for many comparisons."),
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
                    found = self.difference(run, metric)
                    cells += [
                        f"{found.value:+.{digits}f}",
                        f"{found.low:+.{digits}f} to {found.high:+.{digits}f}",
                        f"{found.p_value:.4f}",
                        {True: "better", False: "worse", None: "no clear difference"}[found.better],
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
    """Compare the predictions of two or more run folders with the first one by paired bootstrap.

    The same examples are drawn with replacement for every run, `samples` times, and the corpus score of each
    draw is computed. The draws are those of sacrebleu's paired bootstrap for the same seed; unlike there, the
    p-value is two-sided, so that it agrees with the interval, and equal runs give 1. Without `metrics`, those
    that all the runs were measured by are taken. The result depends on nothing but the files, `metrics`,
    `samples` and `seed`. Runs whose sources or targets differ are refused.
    """
    if len(folders) < 2:
        raise KitError(f"A comparison needs two run folders or more; {len(folders)} given.")
    if samples < 1:
        raise KitError(f"A comparison needs at least one bootstrap sample; {samples} asked for.")
    if seed < 0:
        raise KitError(f"The seed of a comparison is a number from 0 on; {seed} given.")
    files = [Path(folder) / "predictions" / f"{split}.jsonl" for folder in folders]
    rows = [read_predictions(file) for file in files]
    for other, file in zip(rows[1:], files[1:], strict=True):
        _check_same_examples(rows[0], other, files[0], file)
    names = tuple(dict.fromkeys(metrics)) if metrics else _measured(folders, split)
    for kind, others in by_kind(names).items():
        if kind != "text":
            raise KitError(f"Runs are compared by their texts, and {', '.join(others)} compares {kind}.")
    runs = _labels(folders)
    targets = [_as_list(row["target"]) for row in rows[0]]
    statistics: dict[str, list[Statistics]] = {}
    for name in names:
        metric = load_metric(name)
        statistics[name] = [metric.statistics([row["prediction"] for row in run], targets) for run in rows]

    draws = _draw(statistics, samples, seed)
    scores, differences = [], []
    for name in names:
        values = [float(run.score(run.rows.sum(axis=0))) for run in statistics[name]]
        for place, run_name in enumerate(runs):
            low, high = _middle(draws[name][place])
            scores.append(Score(run_name, name, values[place], low, high))
            if place > 0:
                difference = values[place] - values[0]
                drawn = draws[name][place] - draws[name][0]
                low, high = _middle(drawn)
                p_value = _p_value(drawn)
                differences.append(Difference(run_name, runs[0], name, difference, low, high, p_value))
    signatures = {
        name: f"{runs_of[0].signature}|bs:{samples}|seed:{seed}"
        for name, runs_of in statistics.items()
        if runs_of[0].signature is not None
    }
    return Comparison(split, len(targets), samples, seed, runs, names, tuple(scores), tuple(differences), signatures)


def _draw(statistics: dict[str, list[Statistics]], samples: int, seed: int) -> dict[str, np.ndarray]:
    """The scores (runs, samples) of each metric on samples that are the same for all runs and metrics."""
    import numpy as np

    first = next(iter(statistics.values()))
    count = len(first[0].rows)
    draws = {name: np.empty((len(first), samples)) for name in statistics}
    generator = np.random.default_rng(seed)
    # One sample at a time keeps memory flat; the generator gives the same numbers as in one large draw.
    for sample in range(samples):
        times = np.bincount(generator.choice(count, size=count, replace=True), minlength=count)
        for name, runs in statistics.items():
            for place, run in enumerate(runs):
                draws[name][place, sample] = run.score(times @ run.rows)
    return draws


def read_predictions(file: Path) -> list[dict[str, Any]]:
    """The rows of a predictions file, each with `source`, `target` and `prediction`."""
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
    # Not splitlines(): texts may hold other line separators, such as U+2028, which JSON leaves as they are.
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
        raise RunError(f"{file} is empty: it holds no prediction to work with.")
    return rows


def _is_prediction(row: dict[str, Any]) -> bool:
    target = row.get("target")
    texts = target if isinstance(target, list) and target else [target]
    return all(isinstance(text, str) for text in (row.get("source"), row.get("prediction"), *texts))


def _as_list(target: str | list[str]) -> list[str]:
    return [target] if isinstance(target, str) else target


def _check_same_examples(
    rows: list[dict[str, Any]], others: list[dict[str, Any]], file: Path, other_file: Path
) -> None:
    for number, (row, other) in enumerate(zip(rows, others, strict=False), start=1):
        for key in ("source", "target"):
            if row[key] != other[key]:
                raise RunError(
                    f"The runs are not on the same examples: row {number} has the {key} {_short(row[key])} "
                    f"in {file}, but {_short(other[key])} in {other_file}. Evaluate both on the same data."
                )
    if len(rows) != len(others):
        raise RunError(
            f"The runs are not on the same examples: {file} has {len(rows)} rows, {other_file} has "
            f"{len(others)}, so row {min(len(rows), len(others)) + 1} is in one of them only. "
            f"Evaluate both on the same data."
        )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"


def _measured(folders: Sequence[Path], split: str) -> tuple[str, ...]:
    """The metrics that all runs were measured by on this split, or the default ones if that is not known."""
    found = set(metrics_of("text"))
    for folder in folders:
        file = Path(folder) / "results.json"
        if not file.exists():
            return DEFAULT_METRICS
        try:
            results = json.loads(file.read_text(encoding="utf-8"))
            found &= set(results.get(split, {}))
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise RunError(f"{file} is not the results file of a run: {error}") from None
    return tuple(name for name in METRICS if name in found) or DEFAULT_METRICS


def _labels(folders: Sequence[Path]) -> tuple[str, ...]:
    """A name for each run: the folder's, or its path where names repeat, or numbered where even paths do."""
    names = [Path(folder).resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return tuple(
        name if name not in names[:place] else f"{name} ({names[:place].count(name) + 1})"
        for place, name in enumerate(names)
    )


def _middle(values: np.ndarray) -> tuple[float, float]:
    """The ends of the middle 95 % of the values, as sacrebleu cuts them."""
    ordered = sorted(values.tolist())
    cut = len(ordered) // 40
    return ordered[cut], ordered[len(ordered) - cut - 1]


def _p_value(drawn: np.ndarray) -> float:
    # One is added to both counts so that no finite number of draws claims that chance is impossible.
    smaller_side = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    return min(1.0, 2 * (smaller_side + 1) / (len(drawn) + 1))
