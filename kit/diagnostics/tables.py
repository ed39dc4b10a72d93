"""A dry run for the terminal, in tables without vertical lines: the width of some scripts varies by terminal."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kit.system.console import duration

if TYPE_CHECKING:
    from kit.data.statistics import Duplicates, ExampleTexts, LengthStats, Overlap
    from kit.diagnostics.cost import Cost
    from kit.diagnostics.report import Inspection, ShownSide, SplitFacts

MAX_WIDTH = 400
"""Longer texts are truncated, in terminal columns."""

MAX_LABELS = 12
"""Labels that are listed."""

BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of the text around them."""


def render(inspection: "Inspection") -> RenderableType:
    """The whole report for a rich console."""
    cost = inspection.cost
    blocks: list[RenderableType] = [
        heading("Data"),
        sizes_table(inspection.splits),
        *(line(f"  {note}") for note in inspection.notes),
        *label_counts(inspection.splits),
        *text_statistics(inspection.splits),
        *pair_labels(inspection),
        heading("Repeated examples"),
        repeated_table(inspection.duplicates, inspection.overlaps),
        *([heading("First examples of the first batch, as the model sees them")] if inspection.examples else []),
        *examples(inspection),
        heading("Model and batches"),
        facts_table(model_facts(inspection)),
        heading("Time and memory: an estimate from a few steps, for one process"),
        line("could not be measured: see below") if cost is None else facts_table(cost_facts(cost)),
    ]
    if inspection.warnings:
        blocks.append(heading("Before you train"))
        warnings = Table.grid(padding=(0, 1))
        for warning in inspection.warnings:
            warnings.add_row(Text("!", style="bold yellow"), line(warning))
        blocks.append(warnings)
    return Group(*blocks)


def text_statistics(splits: "Mapping[str, SplitFacts]") -> Iterable[RenderableType]:
    """Lengths and unknown tokens, for tasks with text."""
    if any(facts.sides for facts in splits.values()):
        yield heading("Lengths in tokens, without the end marker and before truncation")
        yield lengths_table(splits)
        yield heading("Unknown tokens")
        yield unknown_table(splits)


def pair_labels(inspection: "Inspection") -> Iterable[RenderableType]:
    """How often each label of text pairs occurs, and the best trivial rule for them."""
    counts = {split: facts.pair_labels for split, facts in inspection.splits.items() if facts.pair_labels}
    if not counts:
        return
    yield heading("Labels of pairs")
    result = table(["split", "label", "pairs", "share"], text_columns=("label",))
    for split, of_split in counts.items():
        total = sum(of_split.values())
        for name, count in of_split.items():
            result.add_row(split, line(name), f"{count:,}", f"{count / max(1, total):.1%}")
    yield result
    for rule in inspection.splits["train"].rules[:1]:
        yield line(f"the best trivial rule, {rule.name}, predicts {rule.accuracy:.1%} of those in train", "dim")


# ---- untrusted text ----------------------------------------------------------------------------------------


def visible(text: str) -> str:
    """Text on one line without terminal control characters, which are escaped: \\n, \\u202e."""

    def show(letter: str) -> str:
        controls = letter in BIDI_CONTROLS or unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")
        return letter.encode("unicode_escape").decode("ascii") if controls else letter

    return "".join(map(show, text))


def line(text: str, style: str = "") -> Text:
    """Text without markup, truncated if it is very long."""
    shown = Text(visible(text), style=style, overflow="fold")
    shown.truncate(MAX_WIDTH, overflow="ellipsis")
    return shown


def heading(text: str) -> Padding:
    """A bold line after an empty one."""
    return Padding(Text(text, style="bold"), (1, 0, 0, 0), expand=False)


def table(columns: Sequence[str], text_columns: Iterable[str] = ()) -> Table:
    """A table whose columns are numbers, except the first one and `text_columns`."""
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        is_text = name in text_columns or name == columns[0]
        result.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    return result


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Names and values in two columns."""
    result = Table.grid(padding=(0, 2, 0, 0))
    for name, value in facts:
        result.add_row(Text(name), line(value))
    return result


# ---- the parts -------------------------------------------------------------------------------------------------------


def listed(counts: dict[str, int]) -> str:
    """Counts with their reasons, separated by commas."""
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items())


def sizes_table(splits: "Mapping[str, SplitFacts]") -> Table:
    """Rows read, used and left out of each split, with reasons."""
    result = table(["split", "read", "used", "left out", "note"], text_columns=("left out", "note"))
    for name, facts in splits.items():
        notes = [f"{count:,} with {what}" for what, count in facts.flagged.items()]
        if facts.beyond_filters:
            notes.append(f"kept, though the filters of train drop them: {listed(facts.beyond_filters)}")
        left_out, note = line(listed(facts.left_out)), line("; ".join(notes))
        result.add_row(name, f"{facts.read:,}", f"{facts.examples:,}", left_out, note)
    return result


def lengths_table(splits: "Mapping[str, SplitFacts]") -> Table:
    """Lengths of each kind of text by split."""
    rows = [
        (split, name, side.lengths, f"{facts.truncated:,}")
        for split, facts in splits.items()
        for name, side in facts.sides.items()
    ]
    return quantiles_table(rows)


def quantiles_table(rows: "Iterable[tuple[str, str, LengthStats, str]]") -> Table:
    """Lengths by split and text, with the number of examples that are truncated."""
    names = ["split", "side", "shortest", "median", "mean", "95 %", "longest", "truncated"]
    result = table(names, text_columns=("side",))
    for split, name, lengths, truncated in rows:
        middle = f"{lengths.median:g}", f"{lengths.mean:.1f}", f"{round(lengths.percentile_95, 1):g}"
        result.add_row(split, name, str(lengths.shortest), *middle, str(lengths.longest), truncated)
    return result


def label_counts(splits: "Mapping[str, SplitFacts]") -> Iterable[RenderableType]:
    """How often each label occurs: the most frequent ones, and the rarest."""
    if not any(facts.labels for facts in splits.values()):
        return
    yield heading("Labels")
    names = "the most frequent, and the rarest"
    result = table(["split", "labels", names], text_columns=(names,))
    for split, facts in splits.items():
        shown = [f"{name} {count:,}" for name, count in facts.labels.items()]
        if len(shown) > MAX_LABELS:
            shown = [*shown[: MAX_LABELS - 1], "…", shown[-1]]
        result.add_row(split, f"{len(facts.labels):,}", line(", ".join(shown)))
    yield result


def unknown_table(splits: "Mapping[str, SplitFacts]") -> Table:
    """Unknown tokens of each kind of text by split, with examples."""
    result = table(["split", "side", "tokens", "unknown", "share", "for example"], text_columns=("side", "for example"))
    for split, facts in splits.items():
        for name, side in facts.sides.items():
            unknown = side.unknown
            share = f"{unknown.rate:.2%}" if unknown.count else ""
            result.add_row(
                split, name, f"{unknown.tokens:,}", f"{unknown.count:,}", share, line("  ".join(unknown.examples))
            )
    return result


def repeated_table(duplicates: "Duplicates", overlaps: "Mapping[str, Overlap]") -> Table:
    """Duplicates within train, and examples that other splits share with it."""
    result = table(["repetition", "count", "for example"], text_columns=("for example",))
    result.add_row("duplicate of an earlier example in train", f"{duplicates.count:,}", shown_pair(duplicates.example))
    for split, overlap in overlaps.items():
        columns = overlap.columns
        if columns.all != columns.inputs:
            shown = shown_pair(overlap.input_example)
            result.add_row(f"{split}: {overlap.input_name} also in train", f"{overlap.inputs:,}", shown)
        if columns.targets:
            shown = shown_pair(overlap.target_example)
            result.add_row(f"{split}: {overlap.target_name} also in train", f"{overlap.targets:,}", shown)
        result.add_row(f"{split}: whole example also in train", f"{overlap.whole:,}", shown_pair(overlap.whole_example))
    return result


def shown_pair(pair: "ExampleTexts | None") -> Text:
    """An example as one line; empty for None."""
    return line("" if pair is None else " → ".join(pair))


def examples(inspection: "Inspection") -> Iterable[RenderableType]:
    """The first examples; for models with a decoder, also a line on its input."""
    for number, example in enumerate(inspection.examples):
        sides = [side_lines(name, side) for name, side in example.sides.items()]
        labels = [facts_table([(name, label)]) for name, label in example.labels.items()]
        yield Padding(Group(*sides, *labels), (min(number, 1), 0, 0, 0), expand=False)
    if inspection.start_token is not None:
        yield line(
            f"the decoder input is {inspection.start_token} followed by the target, shifted right by one token",
            style="dim",
        )


def side_lines(name: str, side: "ShownSide") -> Table:
    """One side of an example: its text, and its tokens with the amount of padding."""
    result = Table.grid(padding=(0, 2, 0, 0))
    result.add_row(Text(name, style="dim"), line(side.text))
    padding = f"  and {side.padding} × padding" if side.padding else ""
    tokens = line(" ".join(side.tokens))
    tokens.append(f"  ({len(side.tokens)} tokens{padding})", style="dim")
    result.add_row("", tokens)
    return result


def model_facts(inspection: "Inspection") -> Iterable[tuple[str, str]]:
    """Vocabulary, parameters, steps and padding, as names and values."""
    parameters, batches = inspection.parameters, inspection.batches
    sizes = ", ".join(f"{name} {size:,}" for name, size in inspection.vocabularies.items())
    if sizes:
        yield "vocabulary", f"{sizes} tokens"
    frozen = "" if parameters.trained == parameters.total else f", of which {parameters.trained:,} are trained"
    yield "model", f"{parameters.model_type}, {parameters.total:,} parameters{frozen}"
    yield "", ", ".join(f"{part} {count:,}" for part, count in parameters.parts.items())
    parts = f", each in {batches.micro_batches} micro-batches" if batches.micro_batches > 1 else ""
    part = "in the first buffer" if batches.streamed else "an epoch"
    epochs = "" if batches.streamed else f", {batches.epochs:.3g} epochs"
    yield "steps", f"{batches.total_steps:,}{parts}; {batches.steps_per_epoch:,} {part}{epochs}"
    yield "padding", f"{batches.padding:.1%} of the tokens in a batch"


def cost_facts(cost: "Cost") -> Iterable[tuple[str, str]]:
    """Time and memory of the run, as names and values."""
    memory = cost.memory
    pace = f"{cost.seconds_per_step:.3g} s a step{', without the speedup of train.torch_compile' * cost.to_be_compiled}"
    yield "training", f"{duration(cost.seconds_of_training)} on {cost.device} ({pace})"
    yield (
        "evaluation",
        f"{duration(cost.seconds_of_evaluations)} ({cost.evaluations:,} while training, and the final ones), if "
        "outputs are as long as references",
    )
    parts = [f"weights {memory.parameters:,.0f}", f"optimizer {memory.optimizer:,.0f}"]
    parts.append(f"longest micro-batch {memory.step:,.0f}")
    if memory.rest:
        parts.append(f"libraries and data {memory.rest:,.0f}")
    yield "memory", f"{memory.total:,.0f} MB of {memory.available:,.0f} while training ({', '.join(parts)})"
