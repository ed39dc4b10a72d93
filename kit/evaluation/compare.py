"""Is one run better than another, or is it chance? Paired bootstrap over what finished runs predicted.

Where a side has several runs, such as seeds, a sample also draws which of them count. The samples of examples equal
those of sacrebleu's paired bootstrap (`sacrebleu.significance.PairedTest`) for the same seed. Its code takes only
sacrebleu's metrics; here every metric is scored on the same samples, most of them with one matrix product per sample
(Koehn 2004).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kit.errors import KitError
from kit.evaluation.metrics import greater_is_better
from kit.evaluation.resampling import Scored
from kit.evaluation.scorers import load_scorers
from kit.evaluation.titles import figure_titles
from kit.system.format import check_format, read_run_format

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Score:
    """A metric of one run, or its mean over several, with the middle 95 % of its resampled values."""

    run: str
    metric: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """The score of a side minus that of the first one, by one metric."""

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
    """Two or more sides on the same examples, each compared with the first one. A side is a run or several."""

    split: str
    examples: int
    unit: str
    """The name of what is resampled: "example", or for language models "document", "block" or "pair"."""
    samples: int
    seed: int
    runs: tuple[str, ...]
    metrics: tuple[str, ...]
    scores: tuple[Score, ...]
    differences: tuple[Difference, ...]
    signatures: dict[str, str]
    """The signature of each metric that has one, with the number of samples and the seed."""
    draws_runs: bool = False
    """Whether a side has several runs, of which samples draw some."""

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
            title=f"{self.split}: {self.examples:,} {self.unit}s, {self.samples:,} bootstrap samples",
            caption=Text(
                f"Differences are relative to {self.runs[0]}. p is two-sided, not corrected for multiple comparisons."
                + (f" Samples draw {self.unit}s, and runs of a side with several." if self.draws_runs else "")
            ),
        )
        titles = figure_titles(self.metrics)
        for heading in ("metric", "run", "score", "95 % interval", "difference", "95 % interval", "p", ""):
            table.add_column(heading, justify="left" if heading in ("metric", "run", "") else "right")
        for metric in self.metrics:
            digits = 2 if any(abs(score.value) >= 2 for score in self.scores if score.metric == metric) else 4
            for run in self.runs:
                score = self.score(run, metric)
                cells: list[str | Text] = [
                    titles[metric] if run == self.runs[0] else "",
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
    runs: Sequence[Path | Sequence[Path]],
    split: str = "test",
    metrics: Sequence[str] | None = None,
    samples: int = 1000,
    seed: int = 12345,
) -> Comparison:
    """Compare two or more runs with the first one by paired bootstrap over their predictions, or over the losses of the
    documents that language models read.

    A side is a run folder or a list of them, such as the seeds of one recipe, whose mean score counts. The same
    examples are drawn with replacement for every run, `samples` times, and each sample gets a corpus score. Of a side
    with several runs, as many are drawn with replacement, so that intervals and p-values include the chance of seeds.
    The samples of examples equal those of sacrebleu's paired bootstrap for the same seed; unlike sacrebleu's, the
    p-value is two-sided, so that it agrees with the interval, and equal runs give 1. `metrics` defaults to those by
    which all runs were evaluated. The result depends only on the files, `metrics`, `samples` and `seed`. Raises
    RunError if the examples of the runs differ, and KitError for a metric that cannot be computed from their files.
    """
    sides = [[Path(side)] if isinstance(side, str | Path) else [Path(run) for run in side] for side in runs]
    if len(sides) < 2 or not all(sides):
        raise KitError(f"A comparison needs at least two run folders, got {sum(map(len, sides))}.")
    if samples < 1:
        raise KitError(f"A comparison needs at least one bootstrap sample, got {samples}.")
    if seed < 0:
        raise KitError(f"The seed of a comparison must not be negative, got {seed}.")
    folders = [run for side in sides for run in side]
    for folder in folders:
        if stored := read_run_format(folder):  # predictions of other programs have no format
            check_format(folder, stored)
    loaded = load_scorers(folders, split, tuple(dict.fromkeys(metrics or ())))
    scorers, names = loaded.by_metric, tuple(loaded.by_metric)
    resampled = _resample(scorers, [len(side) for side in sides], loaded.examples, samples, seed)
    labels, scores, differences = _side_names(sides), [], []
    for name in names:
        of_runs = iter([scorer.score() for scorer in scorers[name]])
        values = [sum(next(of_runs) for _ in side) / len(side) for side in sides]
        for index, (side, value, draws) in enumerate(zip(labels, values, resampled[name], strict=True)):
            scores.append(Score(side, name, value, *_middle_95_percent(draws)))
            if index > 0:
                drawn = draws - resampled[name][0]
                interval = _middle_95_percent(drawn)
                differences.append(Difference(side, labels[0], name, value - values[0], *interval, _p_value(drawn)))
    signatures = {
        name: f"{signature}|bs:{samples}|seed:{seed}"
        for name, (first, *_) in scorers.items()
        if (signature := getattr(first, "signature", None)) is not None
    }
    several = any(len(side) > 1 for side in sides)
    return Comparison(
        split, loaded.examples, loaded.unit, samples, seed, labels, names, tuple(scores), tuple(differences),
        signatures, several,
    )  # fmt: skip


def _resample(
    scorers: Mapping[str, Sequence[Scored]], sides: Sequence[int], examples: int, samples: int, seed: int
) -> dict[str, np.ndarray]:
    """The mean scores (sides, samples) of each metric on samples of examples that are the same for all runs and
    metrics, and of the runs of each side, whose numbers are `sides`."""
    scores = {name: np.empty((sum(sides), samples)) for name in scorers}
    generator = np.random.default_rng(seed)
    # One sample at a time keeps memory constant; the numbers are those of one large draw, as sacrebleu makes it.
    for sample in range(samples):
        counts = np.bincount(generator.choice(examples, size=examples, replace=True), minlength=examples)
        for name, runs in scorers.items():
            for index, run in enumerate(runs):
                scores[name][index, sample] = run.score(counts)
    ends = np.cumsum(sides)
    chosen = np.random.default_rng([seed, 1])  # not from the generator of examples, whose draws are sacrebleu's
    drawn = [chosen.integers(end - size, end, (size, samples)) for size, end in zip(sides, ends, strict=True)]
    columns = np.arange(samples)
    return {name: np.stack([values[runs, columns].mean(axis=0) for runs in drawn]) for name, values in scores.items()}


def _side_names(sides: Sequence[Sequence[Path]]) -> tuple[str, ...]:
    """A name for each side: that of its first run, and how many more there are."""
    names = iter(_run_names([run for side in sides for run in side]))
    of_sides = [[next(names) for _ in side] for side in sides]
    return tuple(runs[0] if len(runs) == 1 else f"{runs[0]} and {len(runs) - 1} more" for runs in of_sides)


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
    ordered = sorted(value for value in values.tolist() if value == value)  # a sample may leave a metric undefined
    dropped = len(ordered) // 40
    return ordered[dropped], ordered[-dropped - 1]


def _p_value(drawn: np.ndarray) -> float:
    # Adding one to both counts keeps p above zero: no finite number of samples rules chance out (Davison and
    # Hinkley 1997, section 4.2).
    smaller_side = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    return min(1.0, 2 * (smaller_side + 1) / (len(drawn) + 1))
