"""Where a model comes from: its base model, its data, its training and its recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.cards.markdown import code, escape, table
from kit.cards.tables import figures_of
from kit.hub.names import RepoRef, parse_foreign_repo_id, parse_repo_id

if TYPE_CHECKING:
    from kit.recipe.base import Recipe


_METHODS = {"lora": "LoRA", "dora": "DoRA", "ia3": "IA3"}


def summary(recipe: Recipe, results: Mapping[str, Any]) -> str:
    """What the model is, how it was trained, and how many parameters it has."""
    kind = recipe.model_kind
    article = "An" if kind[0] in "aeiou" else "A"
    if recipe.model.type:
        origin = f"{article} {kind} model of type `{recipe.model.type}`, trained from scratch"
    else:
        base = escape(recipe.hub.base_model or short_path(recipe.model.pretrained or ""))
        origin = f"{article} {kind} model, fine-tuned from {base}"
    sentences = [f"{origin} with kit on {escape(short_path(recipe.data.path))}."]
    size, trained = results.get("parameters"), results.get("trained_parameters")
    if isinstance(size, int):
        sentences.append(f"It has {size:,} parameters.")
        if isinstance(trained, int) and trained < size:
            method = f" with {_METHODS[recipe.peft.method]}" if recipe.peft.method else ""
            share = f"{trained:,} parameters ({trained / size:.2%})"
            sentences.append(f"{share} were trained{method}; the rest are frozen.")
    return " ".join(sentences)


def base_on_hub(recipe: Recipe) -> RepoRef | None:
    """The model on the Hub that training started from; None for a new model, or one in a folder."""
    named = recipe.hub.base_model
    return parse_repo_id(recipe.model.pretrained or "") if named is None else parse_foreign_repo_id(named)


def data_sentence(recipe: Recipe) -> str:
    """The data set with its configuration, revision, columns or directions, and languages."""
    data = recipe.data
    details = {"configuration": data.name, "revision": data.revision}
    more = "".join(f", {name} {escape(value)}" for name, value in details.items() if value)
    languages = f" Languages: {escape(', '.join(data.languages))}." if data.languages else ""
    columns = " → ".join(f"`{code(column)}`" for column in data.text_columns)
    columns = f"Columns: {columns}." if len(data.text_columns) > 1 else f"Column: {columns}."
    if data.value_columns:
        columns = f"Columns: {', '.join(f'`{code(column)}`' for column in data.text_columns | data.value_columns)}."
    if data.language_directions:
        columns = f"Directions: {', '.join(f'`{code(direction)}`' for direction in data.language_directions)}."
    return f"{escape(short_path(data.path))}{more}. {columns}{languages}"


def data_table(recipe: Recipe, results: Mapping[str, Any]) -> str:
    """The splits with their names in the data, numbers of examples and fingerprints."""
    data = figures_of(results, "data")
    fingerprints = recipe.data.fingerprints or data.get("fingerprints") or {}
    counts = data.get("examples") or {}
    rows = [
        [split, getattr(recipe.data, split) or recipe.data.train, counts.get(split, ""), fingerprints.get(split, "")]
        for split in ("train", "validation", "test")
        if split in fingerprints or split in counts
    ]
    return table(("split", "name in the data", "examples", "fingerprint"), rows)


def data_notes(results: Mapping[str, Any]) -> list[str]:
    """How the data was processed, and how many training examples each length filter dropped."""
    data = figures_of(results, "data")
    dropped = [f"{count:,} by {escape(name)}" for name, count in (data.get("left_out") or {}).items() if count]
    notes = [escape(note) for note in data.get("notes") or ()]
    return notes + ([f"training examples dropped for their length: {', '.join(dropped)}"] if dropped else [])


def training(recipe: Recipe, results: Mapping[str, Any]) -> dict[str, Any]:
    """Duration, steps, memory and speed of the training, the tokenizer, numbers of parameters, and the hardware."""
    measured = figures_of(results, "train")
    facts = {name: results[name] for name in ("parameters", "trained_parameters", "hardware") if name in results}
    tokenizer = {"tokenizer": tokenizer_origin(recipe)} if measured and "tokenizer" in type(recipe).model_fields else {}
    return {**measured, **tokenizer, **facts}


def tokenizer_origin(recipe: Recipe) -> str:
    """Where the tokenizer comes from: trained with the data, named by the recipe, or that of the base model."""
    section = recipe.tokenizer
    if section.pretrained:
        return short_path(section.pretrained)
    if recipe.model.pretrained:
        return f"of {recipe.hub.base_model or short_path(recipe.model.pretrained)}"
    number = "one vocabulary" if section.shares_vocabulary else "one for each side"
    return f"{section.train}, trained on the training data; {number}, at most {section.vocab_size:,} tokens"


def shared_recipe(recipe: Recipe) -> str:
    """The recipe as YAML, with names of local folders instead of their paths.

    The section `measured` is left out: its results are of the run that the recipe was recorded from, not of this one.
    """
    sections: dict[str, Any] = {
        "data": recipe.data.model_copy(update={"path": short_path(recipe.data.path)}),
        "measured": None,
    }
    named = {"model": recipe.hub.base_model, "tokenizer": None}
    for name, section in (("model", recipe.model), ("tokenizer", recipe.tokenizer)):
        if section.pretrained:
            sections[name] = section.model_copy(update={"pretrained": named[name] or short_path(section.pretrained)})
    return recipe.model_copy(update=sections).to_yaml()


def short_path(path: str) -> str:
    """The last part of an absolute path (of `RUN/model`, the name of the run); anything else unchanged."""
    absolute = Path(path)
    if not absolute.is_absolute() and not path.startswith("~"):
        return path
    return absolute.parent.name if absolute.name == "model" else absolute.name
