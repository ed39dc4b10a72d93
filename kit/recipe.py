"""The recipe: everything that decides the outcome of a run, as sections of documented fields.

`load_recipe` reads YAML and `key=value` overrides into a `Recipe`, or says in one message what is wrong where.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    ValidationError,
)

from kit import recipe_model
from kit.errors import RecipeError, did_you_mean
from kit.recipe_file import printable, read_text, read_yaml, write_yaml
from kit.recipe_model import Problem, field_problems
from kit.recipe_sections import (
    DataSection,
    EvalSection,
    HubSection,
    ModelSection,
    Section,
    TokenizerSection,
    TrainSection,
)
from kit.shipped import find_recipe


class Recipe(Section):
    """A whole recipe: the task and one section for each part of a run."""

    task: Literal["translation"]
    """What the model learns to do."""

    model: ModelSection
    """The model: a type of kit's and its settings, or a pretrained one."""

    tokenizer: TokenizerSection = TokenizerSection()
    """How text becomes numbers."""

    data: DataSection
    """The text: where it is and what to use of it."""

    train: TrainSection
    """Training: how long, how many examples at a time, and how the optimizer moves."""

    eval: EvalSection = EvalSection()
    """Evaluation: when, by which metrics, and how output is searched for."""

    hub: HubSection = HubSection()
    """What the model card says when the model is shared."""

    measured: dict[str, int | float | str] | None = None
    """Figures of a real run of this recipe, written by `kit record`; or `none: why` if there are none."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.train.early_stopping_patience is not None and self.eval.steps == 0:
            yield (
                "train.early_stopping_patience",
                "it counts evaluations, but eval.steps is 0: there is only the last.",
            )
        yield from self._language_contradictions()
        if self.data.streaming:
            yield from self._beyond_a_stream()
        if self.measured and "none" in self.measured and len(self.measured) > 1:
            yield "measured.none", "there are figures beside the reason why there are none. Keep one of both."

    def _language_contradictions(self) -> Iterator[tuple[str, str]]:
        """Keys about languages, and about a tokenizer that is not trained."""
        fixed, several = ("source_language", "target_language"), self.data.directions is not None
        given = [name for name in (*fixed, "language_codes") if getattr(self.tokenizer, name) is not None]
        exists = self.tokenizer.pretrained is not None or self.model.pretrained is not None
        for name in given:
            if not exists:
                yield f"tokenizer.{name}", "a tokenizer trained here has no language codes. Leave it out."
            elif (name in fixed) == several:
                beside = "beside data.directions, where every example has its own (tokenizer.language_codes)"
                why = beside if several else "without data.directions"
                yield f"tokenizer.{name}", f"it has no effect {why}. Leave it out."
        for name in self.tokenizer.language_codes or () if several else ():
            if name not in self.data.text_columns:
                hint = did_you_mean(name, self.data.text_columns)
                yield f"tokenizer.language_codes.{name}", f"no direction of data.directions has it.{hint}"
        if self.model.pretrained is not None and self.tokenizer.pretrained is None:
            for name in self.tokenizer.of_training:
                if getattr(self.tokenizer, name) != TokenizerSection.model_fields[name].default:
                    yield f"tokenizer.{name}", "it has no effect on the tokenizer of model.pretrained. Leave it out."

    def _beyond_a_stream(self) -> Iterator[tuple[str, str]]:
        """What needs to know all of the training data before the first step."""
        if self.train.num_train_epochs is not None:
            yield (
                "train.num_train_epochs",
                "with data.streaming nobody knows how many steps an epoch has. Give train.max_steps instead.",
            )
        if self.train.tokens_per_batch is not None and self.data.max_length is None:
            yield (
                "data.max_length",
                "with data.streaming a text longer than train.tokens_per_batch would only be met in the middle of "
                "training. Give the longest that is to be used, such as 128.",
            )
        if self.tokenizer.bpe_dropout:
            yield "tokenizer.bpe_dropout", "it needs all training data in memory. Leave it out, or data.streaming."

    def to_yaml(self) -> str:
        """The whole recipe, defaults included, as YAML that `load_recipe` reads as an equal recipe."""
        parts = {name: getattr(self, name) for name in type(self).model_fields}
        shown = {name: part.values() if isinstance(part, Section) else part for name, part in parts.items()}
        return "".join(write_yaml({name: part}) for name, part in shown.items() if part is not None)

    def differences(self, other: "Recipe") -> list[str]:
        """The dotted keys ("train.max_steps") whose values differ, in the order of the recipe."""
        mine, theirs = self.flat(), other.flat()
        missing = object()
        return [key for key in mine | theirs if mine.get(key, missing) != theirs.get(key, missing)]

    def with_values(self, section: str, **values: Any) -> "Recipe":
        """This recipe with other values in a section; they are the program's own, so they are not checked."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})

    def flat(self) -> dict[str, Any]:
        """Every value by its dotted key; `task` and `measured` stand for themselves."""
        found: dict[str, Any] = {}
        for name, part in self.model_dump().items():
            if isinstance(getattr(self, name), Section):
                found |= {f"{name}.{key}": value for key, value in part.items()}
            else:
                found[name] = part
        return found


SECTIONS: dict[str, type[Section]] = {
    name: field.annotation
    for name, field in Recipe.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}


def load_recipe(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a file of the user's own or of kit's, with `key=value` overrides, which win.

    One RecipeError names all mistakes, a line for each. Checking the model's settings imports transformers.
    """
    path = find_recipe(path_or_name)
    document = read_yaml(read_text(path), printable(path))
    if document.value is None:
        raise RecipeError(f"{document.filename} is empty. `kit copy` makes a shipped recipe yours to start from.")
    if not isinstance(document.value, dict):
        raise RecipeError(
            f"{document.filename}: a recipe is made of sections (task:, model:, …), not a list or a text."
        )
    for argument in overrides:
        document.override(argument)
    # a section of which every line is commented out reads as null
    value = {name: {} if part is None and name in SECTIONS else part for name, part in document.value.items()}

    recipe, problems = None, []
    try:
        recipe = Recipe.model_validate(value)
    except ValidationError as error:
        problems = field_problems(error, Recipe, value)
    settings, more = _model_settings(value["model"]) if isinstance(value.get("model"), dict) else ({}, [])
    problems += more
    if recipe is not None and recipe.model.type is not None and not problems:
        config = recipe_model.config_class(recipe.model.type)
        complaint = recipe_model.combination_problem(config, settings, recipe.tokenizer.shared)
        problems = [(("model",), f"model: {complaint}")] if complaint else []
    if recipe is None or problems:
        problems.sort(key=lambda problem: document.order(problem[0]))
        raise RecipeError("\n".join(f"{document.where(path)}: {message}" for path, message in problems))
    model = ModelSection.model_validate({**recipe.model.model_dump(), **settings})
    return recipe.model_copy(update={"model": model})


def _model_settings(section: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The settings of a `model` section in the types of its config class, and what is wrong with them.

    The class of a pretrained model on the Hub is known only once it is loaded: whoever loads it checks then.
    """
    model_type, pretrained = section.get("type"), section.get("pretrained")
    settings = {key: value for key, value in section.items() if key not in ModelSection.model_fields}
    if isinstance(pretrained, str) and model_type is None:
        model_type = recipe_model.pretrained_type(pretrained)
    if not isinstance(model_type, str):
        return settings, []
    try:
        config = recipe_model.config_class(model_type)
    except RecipeError as error:
        return settings, [(("model", "type"), str(error))]
    return recipe_model.check_settings(config, settings)


__all__ = [
    "SECTIONS",
    "DataSection",
    "EvalSection",
    "HubSection",
    "ModelSection",
    "Recipe",
    "Section",
    "TokenizerSection",
    "TrainSection",
    "load_recipe",
]
