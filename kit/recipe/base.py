"""The recipe and its sections, checked as a whole; each task has a subclass with its additional keys."""

from collections.abc import Iterator
from typing import Any, ClassVar

from kit.recipe.document import write_yaml
from kit.recipe.inputs import DataSection, ModelSection, TokenizerSection
from kit.recipe.section import Section
from kit.recipe.training import EvalSection, HubSection, PeftSection, TrainSection


class Recipe(Section):
    """A recipe: the task, and one section for each part of a run. Each task has a subclass with its own sections."""

    own_types: ClassVar[tuple[str, ...]] = ()
    """kit's model types that the task supports."""

    mapping: ClassVar[str | None] = None
    """Name of transformers' mapping of the model types that the task supports."""

    pipeline_tag: ClassVar[str] = ""
    """Pipeline tag of the task on the Hub."""

    hub_tags: ClassVar[tuple[str, ...]] = ()
    """Additional Hub tags of the task."""

    auto_class: ClassVar[str] = ""
    """Name of transformers' Auto class that loads models of the task."""

    peft_task_type: ClassVar[str | None] = None
    """PEFT's name of the task; None if the task does not support adapters."""

    task: str
    """What the model learns to do."""

    model: ModelSection
    """The model: a model type and its settings, or a pretrained model."""

    tokenizer: TokenizerSection = TokenizerSection()
    """The tokenizer: trained on the training data, or an existing one."""

    data: DataSection
    """The data: location, splits and filters."""

    train: TrainSection
    """Training: duration, batch size, optimizer and learning rate."""

    peft: PeftSection = PeftSection()
    """Adapters: whether to train one on top of a pretrained model, and of which kind."""

    eval: EvalSection = EvalSection()
    """Evaluation: frequency and metrics."""

    hub: HubSection = HubSection()
    """Metadata for the model card."""

    measured: dict[str, int | float | str] | None = None
    """Results of a real run of this recipe, or `none: reason` if there are none. The last section of a shipped
    recipe."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.train.early_stopping_patience is not None and self.eval.steps == 0:
            yield (
                "train.early_stopping_patience",
                "it counts evaluations, but eval.steps is 0: there is only the last.",
            )
        if self.model.pretrained is not None and self.tokenizer.pretrained is None:
            for name in self.tokenizer.of_training:
                if getattr(self.tokenizer, name) != type(self.tokenizer).model_fields[name].default:
                    yield f"tokenizer.{name}", "it has no effect on the tokenizer of model.pretrained. Leave it out."
        yield from self.of_pretrained_models()
        for name in ("sampling_start", "sampling_steps"):
            if getattr(self.train, name) and not self.model.settings.get("scheduled_sampling"):
                yield f"train.{name}", "it has no effect without model.scheduled_sampling. Leave it out."
        if self.data.streaming:
            yield from self.beyond_a_stream()
        if self.measured and "none" in self.measured and len(self.measured) > 1:
            yield "measured.none", "there are figures beside the reason why there are none. Keep one of both."

    def of_pretrained_models(self) -> Iterator[tuple[str, str]]:
        """Mistakes in keys that need a pretrained model, or that conflict with adapters."""
        method = self.peft.method
        if method is not None and self.peft_task_type is None:
            yield "peft.method", f"{method} does not work with task: {self.task}: leave the section peft out."
        given = {"peft.method": method, "train.freeze": self.train.freeze, "train.layer_decay": self.train.layer_decay}
        for key, value in given.items():
            if value is not None and self.model.pretrained is None:
                yield key, "it is for pretrained models (model.pretrained), and this one is new. Leave it out."
        if method is not None and self.train.freeze is not None:
            yield "train.freeze", "with peft.method all of the pretrained model is frozen already. Leave it out."

    def beyond_a_stream(self) -> Iterator[tuple[str, str]]:
        """Mistakes in keys that need all training data before the first step."""
        if self.train.num_train_epochs is not None:
            yield (
                "train.num_train_epochs",
                "with data.streaming nobody knows how many steps an epoch has. Give train.max_steps instead.",
            )

    def to_yaml(self) -> str:
        """The whole recipe, including defaults, as YAML that `load_recipe` reads back as an equal recipe."""
        parts = {name: getattr(self, name) for name in type(self).model_fields}
        shown = {name: part.values() if isinstance(part, Section) else part for name, part in parts.items()}
        if self.peft.method is None:
            del shown["peft"]
        return "".join(write_yaml({name: part}) for name, part in shown.items() if part is not None)

    def differences(self, other: "Recipe") -> list[str]:
        """The dotted keys ("train.max_steps") whose values differ, in recipe order."""
        mine, theirs = self.flat(), other.flat()
        missing = object()
        return [key for key in mine | theirs if mine.get(key, missing) != theirs.get(key, missing)]

    def with_values(self, section: str, **values: Any) -> "Recipe":
        """A copy of this recipe with other values in a section. The values come from the program and are not
        validated."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})

    def flat(self) -> dict[str, Any]:
        """Every value by its dotted key; `task` and `measured` keep their names."""
        found: dict[str, Any] = {}
        for name, part in self.model_dump().items():
            if isinstance(getattr(self, name), Section):
                found |= {f"{name}.{key}": value for key, value in part.items()}
            else:
                found[name] = part
        return found


def sections_of(recipe_class: type[Recipe]) -> dict[str, type[Section]]:
    """The section class of each section of a recipe class."""
    annotations = {name: field.annotation for name, field in recipe_class.model_fields.items()}
    return {name: kind for name, kind in annotations.items() if isinstance(kind, type) and issubclass(kind, Section)}


SECTIONS = sections_of(Recipe)
"""The sections that every recipe has; the sections of a task have additional keys."""
