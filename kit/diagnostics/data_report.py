"""`kit data FILE`: what is in a file or folder, which tasks could learn from it, and the commands that train them."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from kit.data.guess import sample_data
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.statistics import Duplicates, LengthStats, Overlap, find_duplicates
from kit.diagnostics.dry_run import split_facts
from kit.diagnostics.report import SplitFacts
from kit.errors import DataError, HubError, NetworkError, RecipeError, RunError
from kit.models import register_models
from kit.recipe.base import Recipe
from kit.recipe.document import parse_override
from kit.recipe.suggestion import DataSample, Suggestion, override
from kit.system.console import counted
from kit.tasks.base import Task
from kit.tasks.registry import create_task, load_recipe, suggest

LEAST_SCORE = 0.5
"""Suggestions below this are listed only if there is no better one."""
MAX_ENCODED = 5_000
"""Rows of a split that are encoded, which takes seconds: quantiles of their lengths are close to those of all rows."""
SAMPLE_KEYS = ("name", "revision", "columns", "delimiter", "quoting", "encoding", "train", "validation", "test")
"""Data keys of the command line that change how a sample is read."""


@dataclass(frozen=True)
class Proposal:
    """A task that fits, and the recipe with which it is trained."""

    what: str
    score: float
    recipe: str
    arguments: Sequence[str]
    """The `key=value` arguments for the recipe."""

    @property
    def command(self) -> str:
        """The command that trains it, to be copied into a shell."""
        return shlex.join(["kit", "train", self.recipe, *self.arguments])


@dataclass(frozen=True)
class Facts:
    """Statistics of data, from loading and encoding it for a recipe."""

    splits: Mapping[str, SplitFacts]
    word_lengths: Mapping[str, Mapping[str, LengthStats]]
    """Lengths in words, by split and column, where there is no tokenizer."""
    duplicates: Duplicates
    overlaps: Mapping[str, Overlap]
    notes: Sequence[str]


@dataclass(frozen=True)
class DataDescription:
    """The report on data that no recipe names yet."""

    sample: DataSample
    proposals: Sequence[Proposal]
    """The tasks that fit, the most likely one first."""
    facts: Facts | None
    """For the first proposal; None if there is none, or the data has mistakes."""
    problems: Sequence[str] = field(default_factory=tuple)
    """Mistakes in the data with which the first proposal would fail."""

    def as_json(self) -> dict[str, Any]:
        """The report as values for programs."""
        columns = [
            {"name": column.name, "kind": column.kind, "distinct": column.distinct, "values": list(column.values[:3])}
            for column in self.sample.columns
        ]
        return {
            "data": dict(self.sample.source), "format": self.sample.format, "columns": columns,
            "splits": dict(self.sample.splits),
            "proposals": [{**asdict(proposal), "command": proposal.command} for proposal in self.proposals],
            "facts": None if self.facts is None else asdict(self.facts),
            "problems": list(self.problems),
        }  # fmt: skip


def inspect_path(path: str, overrides: Sequence[str] = ()) -> DataDescription:
    """Describe a file, a folder or a Hub dataset. Raises KitError if it cannot be read, or if nothing fits it."""
    overridden = dict(map(parse_override, overrides))
    sample = sample_data(path, {name: overridden[key] for name in SAMPLE_KEYS if (key := f"data.{name}") in overridden})
    suggestions = suggest(sample)
    likely = [suggestion for suggestion in suggestions if suggestion.score >= LEAST_SCORE] or suggestions[:1]
    if not likely:
        listed = ", ".join(f"{column.name} ({column.kind})" for column in sample.columns)
        rows = counted(sample.splits.get("train", 0), "row")
        commas = any(column.has_decimal_commas for column in sample.columns)
        hint = " Write numbers with a decimal point: 3.5, not 3,5." if commas else ""
        raise DataError(
            f"{path} can be read, but its columns fit no task: {listed}, of {rows}. Every task needs different texts, "
            f"images or a series of numbers; the guides of the tasks name their columns.{hint}"
        )
    proposals = [
        Proposal(suggestion.what, suggestion.score, suggestion.recipe, arguments_of(sample, suggestion, overrides))
        for suggestion in likely
    ]
    try:
        facts = facts_of(load_recipe(proposals[0].recipe, proposals[0].arguments))
    except (DataError, RecipeError) as error:
        return DataDescription(sample, proposals, None, str(error).split("\n"))
    return DataDescription(sample, proposals, facts)


def arguments_of(sample: DataSample, suggestion: Suggestion, overrides: Sequence[str]) -> list[str]:
    """The arguments that make the shipped recipe of a suggestion train on this data instead of its own."""
    shipped = load_recipe(suggestion.recipe).data
    wanted, fields = {**sample.source, **suggestion.data}, type(shipped).model_fields
    # what the shipped recipe states about its own data, rather than about how a model reads text
    about_data = {*shipped.keys_of("evaluation_keys"), *shipped.keys_of("own_data_keys")}
    for name, field_info in fields.items():
        is_own = name in about_data and name not in (*shipped.keys_of("encoding_keys"), *wanted)
        if is_own and shipped.is_set(name):
            wanted[name] = field_info.get_default(call_default_factory=True)
    values = {f"data.{name}": v for name, v in wanted.items() if name in fields and getattr(shipped, name) != v}
    values |= suggestion.others or {}
    overridden = [argument.partition("=")[0] for argument in overrides]
    return [*(override(key, value) for key, value in values.items() if key not in overridden), *overrides]


def facts_of(recipe: Recipe) -> Facts:
    """Load and encode the data of a recipe; without its tokenizer, lengths are counted in words."""
    register_models()
    task = create_task(recipe)
    splits = task.load_training_splits()
    rows, reports = dict(splits.datasets), splits.report.splits
    notes = [*splits.report.notes, *splits.report.warnings]
    try:
        state = task.fit(splits, task.build_tokenizers(splits))
        chosen = {split: of_split.select(evenly(len(of_split))) for split, of_split in rows.items()}
        encoded = {split: task.encode(of_split, state, split) for split, of_split in chosen.items()}
    except (HubError, NetworkError, RunError) as error:
        notes.append(f"lengths are counted in words, because the tokenizer cannot be loaded: {error}")
        duplicates, overlaps = find_duplicates(rows.pop("train"), None, rows, task.row_steps().example_columns)
        return Facts(plain_facts(task, splits), word_lengths(recipe, splits), duplicates, overlaps, notes)
    facts = {}
    for split, of_split in chosen.items():
        if len(of_split) < len(rows[split]):
            notes.append(f"{split}: lengths, unknown tokens and length limits are those of {len(of_split):,} rows")
        notes += encoded[split].notes
        indices = encoded[split].kept
        used = of_split if indices is None else of_split.select(indices)
        of_sample = split_facts(task, state, encoded[split], reports[split], split, used)
        used_rows = len(rows[split]) if len(of_split) < len(rows[split]) else of_sample.examples
        facts[split] = replace(of_sample, examples=used_rows, labels=task.count_labels(rows[split]))
    duplicates, overlaps = find_duplicates(rows.pop("train"), None, rows, task.row_steps().example_columns)
    return Facts(facts, {}, duplicates, overlaps, notes)


def evenly(rows: int) -> np.ndarray:
    """The indices of the rows to encode: all, or `MAX_ENCODED` evenly spaced ones."""
    return np.arange(min(rows, MAX_ENCODED)) * rows // max(1, min(rows, MAX_ENCODED))


def plain_facts(task: Task[Any, Any], splits: Splits) -> dict[str, SplitFacts]:
    """The sizes and labels of the splits, without tokens."""
    reports = splits.report.splits
    return {
        split: SplitFacts(
            read=reports[split].read,
            left_out={reason: count for reason, count in reports[split].dropped.items() if count},
            flagged={what: count for what, count in reports[split].flagged.items() if count},
            examples=len(rows), sides={}, beyond_filters={}, unreachable_references=0, longest_reference=0,
            labels=task.count_labels(rows),
        )
        for split, rows in splits.datasets.items()
    }  # fmt: skip


def word_lengths(recipe: Recipe, splits: Splits) -> dict[str, dict[str, LengthStats]]:
    """Lengths of texts in words, by split and column; of lists, the number of items."""

    def words(cell: Any) -> int:
        return len(cell.split()) if isinstance(cell, str) else len(cell)

    return {
        split: {
            role: LengthStats.of(np.array([words(cell) for cell in ColumnView(rows, role)]))
            for role in recipe.data.text_roles
            if role in rows.column_names
        }
        for split, rows in splits.datasets.items()
    }
