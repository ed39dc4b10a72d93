"""What every recipe is: the task and its sections, checked as a whole; each task has a kind with keys of its own."""

from collections.abc import Iterator
from typing import Any, ClassVar

from kit.recipe.document import write_yaml
from kit.recipe.inputs import DataSection, ModelSection, TokenizerSection
from kit.recipe.section import Section
from kit.recipe.training import EvalSection, HubSection, PeftSection, TrainSection


class Recipe(Section):
    """A whole recipe: the task and one section for each part of a run. Each task has sections of its own kind."""

    own_types: ClassVar[tuple[str, ...]] = ()
    """Model types of kit that suit the task."""

    mapping: ClassVar[str | None] = None
    """Name of transformers' mapping of model types that suit it."""

    pipeline_tag: ClassVar[str] = ""
    """The Hub's name of the task."""

    hub_tags: ClassVar[tuple[str, ...]] = ()
    """Further tags of the task on the Hub."""

    auto_class: ClassVar[str] = ""
    """Name of the Auto class of transformers that loads models of the task."""

    peft_task_type: ClassVar[str | None] = None
    """PEFT's name of the task; None if adapters do not suit it."""

    task: str
    """What the model learns to do."""

    model: ModelSection
    """The model: a type and its settings, or a pretrained one."""

    tokenizer: TokenizerSection = TokenizerSection()
    """How text becomes numbers."""

    data: DataSection
    """The data: where it is and what to use of it."""

    train: TrainSection
    """Training: how long, how many examples at a time, and how the optimizer moves."""

    peft: PeftSection = PeftSection()
    """Adapters: whether to train a few new weights beside those of a pretrained model, and which."""

    eval: EvalSection = EvalSection()
    """Evaluation: when, and by which metrics."""

    hub: HubSection = HubSection()
    """What the model card says when the model is shared."""

    measured: dict[str, int | float | str] | None = None
    """Figures of a real run of this recipe, or `none: why` if there are none; the last section of a shipped recipe."""

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
        """What makes no sense on new weights, or not with adapters."""
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
        """What needs to know all of the training data before the first step."""
        if self.train.num_train_epochs is not None:
            yield (
                "train.num_train_epochs",
                "with data.streaming nobody knows how many steps an epoch has. Give train.max_steps instead.",
            )

    def to_yaml(self) -> str:
        """The whole recipe, defaults included, as YAML that `load_recipe` reads as an equal recipe."""
        parts = {name: getattr(self, name) for name in type(self).model_fields}
        shown = {name: part.values() if isinstance(part, Section) else part for name, part in parts.items()}
        if self.peft.method is None:
            del shown["peft"]
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


def sections_of(recipe_class: type[Recipe]) -> dict[str, type[Section]]:
    """The section class of each section of a recipe class."""
    annotations = {name: field.annotation for name, field in recipe_class.model_fields.items()}
    return {name: kind for name, kind in annotations.items() if isinstance(kind, type) and issubclass(kind, Section)}


SECTIONS = sections_of(Recipe)
"""The sections that every recipe has; a task's own sections have more keys."""
