"""The report of `kit data FILE` for the terminal."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from kit.data.rows import cell_text
from kit.diagnostics.tables import (
    facts_table,
    heading,
    label_counts,
    line,
    quantiles_table,
    repeated_table,
    sizes_table,
    table,
    text_statistics,
    visible,
)

if TYPE_CHECKING:
    from kit.diagnostics.data_report import DataDescription, Facts
    from kit.recipe.suggestion import Column, DataSample

EXAMPLE_WIDTH = 120
"""Characters of an example value."""
EXAMPLES = 3


def render_data(report: "DataDescription") -> RenderableType:
    """The report for a rich console, without the commands that follow it."""
    blocks: list[RenderableType] = [
        heading("Data"),
        facts_table(data_facts(report.sample)),
        heading("Columns"),
        columns_table(report.sample),
        heading("First rows"),
        *first_rows(report.sample),
    ]
    if report.facts is not None:
        blocks += facts_blocks(report.facts)
    for number, problem in enumerate(report.problems):
        blocks += [*([heading("To be settled before training")] if number == 0 else []), line(problem)]
    return Group(*blocks)


def data_facts(sample: "DataSample") -> Iterable[tuple[str, str]]:
    """Path, format and sizes of the data, and the keys that read it, as names and values."""
    yield "path", str(sample.source["path"])
    yield "format", sample.format
    yield "rows", ", ".join(f"{split} {rows:,}" for split, rows in sample.splits.items())
    for key, value in sample.source.items():
        if key != "path":
            yield key, repr(value) if key == "delimiter" else value if isinstance(value, str) else cell_text(value)
    if sample.documents != "row":
        yield "documents", sample.documents


def columns_table(sample: "DataSample") -> RenderableType:
    """The columns, and what they hold."""
    result = table(["column", "holds", "rows", "distinct"], text_columns=("holds",))
    for column in sample.columns:
        result.add_row(line(column.name), column.kind, f"{column.rows:,}", f"{column.distinct:,}")
    return result


def first_rows(sample: "DataSample") -> Iterable[RenderableType]:
    """The first values of every column."""
    for number in range(EXAMPLES):
        cells = [(column.name, example(column, number)) for column in sample.columns if number < len(column.values)]
        if cells:
            yield facts_table(cells)


def example(column: "Column", number: int) -> str:
    """An example value of a column as text; of an image, its size."""
    value: Any = column.values[number]
    text = f"{len(value['bytes'] or b''):,} bytes" if column.is_image and isinstance(value, dict) else cell_text(value)
    return text if len(text) <= EXAMPLE_WIDTH else f"{text[:EXAMPLE_WIDTH]}…"


def facts_blocks(facts: "Facts") -> list[RenderableType]:
    """Sizes, lengths, labels and repeated examples of the data as the first proposal loads it."""
    blocks: list[RenderableType] = [
        heading("As the recipe below loads it"),
        sizes_table(facts.splits),
        *(line(f"  {note}") for note in facts.notes),
        *label_counts(facts.splits),
        *text_statistics(facts.splits),
    ]
    if facts.word_lengths:
        rows = [(split, name, of, "") for split, sides in facts.word_lengths.items() for name, of in sides.items()]
        blocks += [heading("Lengths in words"), quantiles_table(rows)]
    return [*blocks, heading("Repeated examples"), repeated_table(facts.duplicates, facts.overlaps)]


def commands(report: "DataDescription") -> list[str]:
    """The tasks and the commands that train them, the most likely one last, as lines to print without wrapping."""
    first, *others = report.proposals
    ordered = [*(("Or", proposal) for proposal in others), ("Most likely", first)]
    return [
        text
        for how, proposal in ordered
        for text in ("", f"{how}: {visible(proposal.what)}", f"  {visible(proposal.command)}")
    ]
