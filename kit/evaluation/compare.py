"""Is one run better than another, or is it chance? Paired bootstrap over the predictions of finished runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import KitError, RunError
from kit.evaluation.metrics import METRICS, greater_is_better, load_metric

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
    """Two-sided: how often chance alone gives a difference at least this large, in either direction."""

    @property
    def better(self) -> bool | None:
        """Whether the run is better than the first one; None where the 95 % interval holds zero."""
        if self.low <= 0 <= self.high:
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
    """sacrebleu's signature of each metric that has one, with the number of samples and the seed."""

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
            caption=f"Differences are to {self.runs[0]}. p is two-sided, and not corrected for several comparisons.",
        )
        for heading in ("metric", "run", "score", "95 % interval", "difference", "95 % interval", "p", ""):
            table.add_column(heading, justify="left" if heading in ("metric", "run", "") else "right")
        for metric in self.metrics:
            digits = 4 if metric in ("exact_match", "token_accuracy") else 2
            for run in self.runs:
                score = self.score(run, metric)
                cells = [
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

    The same examples are drawn with replacement for every run, `samples` times, and the corpus score of each draw
    is computed. The draws are those of sacrebleu's paired bootstrap for the same seed. Unlike there, the p-value is
    two-sided and the same for every metric, so that it agrees with the interval, and equal runs give 1.
    Without `metrics`, those that all the runs were measured by are taken. The result depends on nothing but the
    files, `samples` and `seed`. Runs whose sources or targets differ are refused.
    """
    import numpy as np

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
    if not names:
        raise KitError("No metric to compare by.")
    runs = _labels(folders)
    count = len(rows[0])

    targets = [_as_list(row["target"]) for row in rows[0]]
    statistics: dict[str, list[Statistics]] = {}
    for name in names:
        metric = load_metric(name)
        statistics[name] = [metric.statistics([row["prediction"] for row in run], targets) for run in rows]

    # (runs, samples) for each metric; drawing row by row keeps memory flat and gives sacrebleu's draws all the same.
    draws = {name: np.empty((len(runs), samples)) for name in names}
    generator = np.random.default_rng(seed)
    for sample in range(samples):
        times = np.bincount(generator.choice(count, size=count, replace=True), minlength=count)
        for name in names:
            for place, run in enumerate(statistics[name]):
                draws[name][place, sample] = run.score(times @ run.rows)

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
                p_value = _p_value(drawn, difference)
                differences.append(Difference(run_name, runs[0], name, difference, low, high, p_value))
    signatures = {
        name: f"{runs_of[0].signature}|bs:{samples}|seed:{seed}"
        for name, runs_of in statistics.items()
        if runs_of[0].signature is not None
    }
    return Comparison(
        split, count, samples, seed, runs, names, tuple(scores), tuple(differences), signatures
    )


def read_predictions(file: Path) -> list[dict[str, Any]]:
    """The rows of a predictions file, each with `source`, `target` and `prediction`."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise RunError(
            f"{file} does not exist. Is {file.parent.parent} a run folder? "
            f"Predictions are written at the end of `kit train` and by `kit eval`."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{file} cannot be read: {error}") from None
    rows = []
    for number, line in enumerate(lines, start=1):
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
