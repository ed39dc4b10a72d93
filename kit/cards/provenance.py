"""What a card tells of where a model comes from: its data, its training, its recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.cards.markdown import code, escape, table
from kit.cards.tables import figures_of

if TYPE_CHECKING:
    from kit.recipe.base import Recipe


def summary(recipe: Recipe, results: Mapping[str, Any]) -> str:
    article = "An" if recipe.task[0] in "aeiou" else "A"
    if recipe.model.type:
        what = f"{article} {recipe.task} model of the type `{recipe.model.type}`, trained from scratch"
    else:
        base = escape(short_path(recipe.model.pretrained or ""))
        what = f"{article} {recipe.task} model, trained further from {base}"
    size = results.get("parameters")
    parameters = f" It has {size:,} parameters." if isinstance(size, int) else ""
    trained = results.get("trained_parameters")
    if isinstance(size, int) and isinstance(trained, int) and trained < size:
        how = f" by {recipe.peft.method}" if recipe.peft.method else ""
        parameters += f" Of these, {trained:,} ({trained / size:.2%}) were trained{how}; the others are as they were."
    return f"{what} with kit on {escape(short_path(recipe.data.path))}.{parameters}"


def data_sentence(recipe: Recipe) -> str:
    data = recipe.data
    details = {"configuration": data.name, "revision": data.revision}
    more = "".join(f", {what} {escape(value)}" for what, value in details.items() if value)
    languages = f" Languages: {escape(', '.join(data.languages))}." if data.languages else ""
    columns = " to ".join(f"`{code(column)}`" for column in data.text_columns)
    columns = f"From {columns}." if len(data.text_columns) > 1 else f"Column {columns}."
    if data.value_columns:
        named = (f"`{code(column)}`" for column in data.text_columns | data.value_columns)
        columns = f"Columns {', '.join(named)}."
    if data.language_directions:
        columns = f"Directions: {', '.join(f'`{code(direction)}`' for direction in data.language_directions)}."
    return f"{escape(short_path(data.path))}{more}. {columns}{languages}"


def data_table(recipe: Recipe, results: Mapping[str, Any]) -> str:
    data = figures_of(results, "data")
    prints = recipe.data.fingerprints or data.get("fingerprints") or {}
    counts = data.get("examples") or {}
    rows = [
        [split, getattr(recipe.data, split) or recipe.data.train, counts.get(split, ""), prints.get(split, "")]
        for split in ("train", "validation", "test")
        if split in prints or split in counts
    ]
    return table(("split", "name in the data", "examples", "fingerprint"), rows) if rows else ""


def data_notes(results: Mapping[str, Any]) -> list[str]:
    """What was done to the data, and how many training examples each length filter left out."""
    data = figures_of(results, "data")
    left_out = [f"{count:,} by {escape(name)}" for name, count in (data.get("left_out") or {}).items() if count]
    notes = [escape(note) for note in data.get("notes") or ()]
    return notes + ([f"left out of the training data for their length: {', '.join(left_out)}"] if left_out else [])


def training(results: Mapping[str, Any]) -> dict[str, Any]:
    """What the training took, and on what."""
    about = {name: results[name] for name in ("parameters", "trained_parameters", "hardware") if name in results}
    return {**figures_of(results, "train"), **about}


def shared_recipe(recipe: Recipe) -> str:
    """The recipe as YAML, with the names but not the places of folders on the machine that it ran on.

    What the recipe says was measured is left out: those are the figures of the run it was recorded from, not of this.
    """
    sections: dict[str, Any] = {
        "data": recipe.data.model_copy(update={"path": short_path(recipe.data.path)}),
        "measured": None,
    }
    for name, section in (("model", recipe.model), ("tokenizer", recipe.tokenizer)):
        if section.pretrained:
            sections[name] = section.model_copy(update={"pretrained": short_path(section.pretrained)})
    return recipe.model_copy(update=sections).to_yaml()


def short_path(path: str) -> str:
    """A Hub id, a built-in name or a relative path as it is; of an absolute path only the last part that says more than
    `model`, as the folder in a run is called."""
    place = Path(path)
    if not place.is_absolute() and not path.startswith("~"):
        return path
    return place.parent.name if place.name == "model" else place.name
