"""The base class of recipes: the sections that every task has, and the checks across sections."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import PrivateAttr

from kit.recipe.data import DataSection
from kit.recipe.document import write_yaml
from kit.recipe.messages import show
from kit.recipe.model import ModelSection, PeftSection, TokenizerSection
from kit.recipe.section import Section, absent
from kit.recipe.suggestion import DataSample, Suggestion
from kit.recipe.training import EvalSection, HubSection, TrainSection

RESUMABLE_KEYS = (
    "train.max_minutes",
    "train.micro_batches",  # checked by `resolve_micro_batches`
    "train.save_steps",
    "train.save_total_limit",
    "train.logging_steps",
    "train.report_to",
    "eval.examples",
    "eval.group_by",
    "eval.bleu_tokenize",
    "eval.lowercase",
    "eval.length_penalty",  # of the final search, as `num_beams` is
    "eval.metrics",
    "eval.num_beams",
    "eval.tokens_per_batch",
    "data.num_proc",
    "data.cache",
    "hub",
    "measured",
)
"""Keys and sections that may change when a run is resumed: none of them affects what the model learns."""

LENGTH_KEYS = ("train.max_steps", "train.num_train_epochs")
"""The keys with the length of a run. They may change, too, unless the learning rate of its steps depends on it."""
SCHEDULE = "train.lr_scheduler_type"


class Recipe(Section):
    """A recipe: the task, and one section for each part of a run.

    Each task has a subclass, whose sections have the keys that the task supports.
    """

    kit_types: ClassVar[tuple[str, ...]] = ()
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
    """Model type and settings of a new model, or a pretrained model to start from."""

    tokenizer: ClassVar[TokenizerSection] = absent(TokenizerSection())

    data: DataSection
    """Location, splits and filters of the data."""

    train: TrainSection
    """Duration, batch size, optimizer and learning rate of training."""

    peft: ClassVar[PeftSection] = absent(PeftSection())

    eval: EvalSection[Any] = EvalSection[Any]()
    """Frequency and metrics of evaluation."""

    hub: HubSection = HubSection()
    """Metadata for the model card."""

    measured: dict[str, int | float | str] | None = None
    """Results of a real run of this recipe, or `none: reason` if there are none. The last section of a shipped
    recipe."""

    _dropped: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @property
    def model_kind(self) -> str:
        """What the card calls a model of this recipe, before the word "model"."""
        return self.hub_task

    @property
    def hub_task(self) -> str:
        """The pipeline tag of the model on the Hub, and the task of `pipeline()` in its card."""
        return self.pipeline_tag

    @property
    def dropped(self) -> Mapping[str, str]:
        """Keys of the recipe file that `key=value` arguments made meaningless, and why."""
        return self._dropped

    def with_dropped(self, dropped: Mapping[str, str]) -> Self:
        """The recipe with these dropped keys."""
        copied = self.model_copy()
        copied._dropped = dropped
        return copied

    @classmethod
    def suggest(cls, sample: DataSample) -> Suggestion | None:
        """How the task would learn from such data; None if it cannot."""
        return None

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.train.early_stopping_patience is not None and self.eval.steps == 0:
            yield (
                "train.early_stopping_patience",
                "it counts evaluations, and with eval.steps: 0 only the final one runs.",
            )
        if self.model.pretrained is not None and self.tokenizer.pretrained is None:
            for name in filter(self.tokenizer.is_set, self.tokenizer.training_keys):
                yield f"tokenizer.{name}", "it has no effect on the tokenizer of model.pretrained. Leave it out."
        if self.model.pretrained is None:
            keys = [f"train.{name}" for name in ("freeze", "layer_decay") if self.train.is_set(name)]
            for key in ["peft.method"] * self.peft.is_set("method") + keys:
                yield key, "it applies only to a pretrained model (model.pretrained); this one is new. Leave it out."
        if self.peft.method is not None and self.train.freeze is not None:
            yield "train.freeze", "peft.method already freezes the whole pretrained model. Leave it out."
        if not self.model.settings.get("scheduled_sampling"):
            for name in filter(self.train.is_set, ("sampling_start", "sampling_steps")):
                yield f"train.{name}", "it has no effect without model.scheduled_sampling. Leave it out."
        if self.data.streaming and self.train.num_train_epochs is not None:
            yield (
                "train.num_train_epochs",
                "with data.streaming, the number of steps in an epoch is unknown. Set train.max_steps instead.",
            )
        if self.hub.base_model is not None and self.model.pretrained is None:
            yield "hub.base_model", "the model is new: it has no base model (model.pretrained). Leave it out."
        if self.measured and "none" in self.measured and len(self.measured) > 1:
            yield "measured.none", "there are figures in addition to the reason for having none. Keep one or the other."

    def keys_after_training(self, kind: str) -> list[str]:
        """The keys of this `kind`, such as `evaluation_keys`, in the sections that matter to a trained model."""
        return [f"{name}.{key}" for name in ("data", "eval") for key in getattr(self, name).keys_of(kind)]

    def to_yaml(self) -> str:
        """The whole recipe, including defaults, as YAML that `load_recipe` reads back as an equal recipe."""
        sections = {name: getattr(self, name) for name in type(self).model_fields}
        values = {name: part.values() if isinstance(part, Section) else part for name, part in sections.items()}
        if self.peft.method is None:
            values.pop("peft", None)
        return "".join(write_yaml({name: part}) for name, part in values.items() if part is not None)

    def differences(self, other: "Recipe") -> list[str]:
        """The dotted keys ("train.max_steps") whose values differ, in recipe order."""
        mine, theirs = self.flat(), other.flat()
        missing = object()
        return [key for key in mine | theirs if mine.get(key, missing) != theirs.get(key, missing)]

    def has_length_of(self, other: "Recipe") -> bool:
        """Whether both recipes ask for the same number of steps or epochs."""
        return not set(LENGTH_KEYS).intersection(self.differences(other))

    def fixed_values(self) -> dict[str, Any]:
        """The values that cannot change within a run, by dotted key, as JSON has them."""
        may_change = RESUMABLE_KEYS if self.train.rate_depends_on_length else (*RESUMABLE_KEYS, *LENGTH_KEYS)
        values = {
            key: value
            for key, value in self.flat().items()
            if not any(key == allowed or key.startswith(f"{allowed}.") for allowed in may_change)
        }
        fixed: dict[str, Any] = json.loads(json.dumps(values, default=str))
        return fixed

    def changes_since(self, before: Mapping[str, Any]) -> str:
        """What differs from the `fixed_values` of an earlier state of this recipe, for a message; empty if none.

        A key that a later version of kit has added, and that has its default, is not a change.
        """
        now = self.fixed_values()
        changed = [key for key, value in before.items() if key not in now or now[key] != value]
        changed += [key for key in now if key not in before and not self._is_default(key)]
        if SCHEDULE in changed:  # it decides whether the length is fixed: perhaps only one of the states has it
            changed = [key for key in changed if key not in LENGTH_KEYS]
        return "; ".join(f"{key} was {show(before.get(key))}, now {show(now.get(key))}" for key in changed)

    def _is_default(self, dotted_key: str) -> bool:
        section, _, key = dotted_key.partition(".")
        part = getattr(self, section)
        return isinstance(part, Section) and key in type(part).model_fields and not part.is_set(key)

    def with_values(self, section: str, **values: Any) -> "Recipe":
        """A copy of this recipe with other values in a section. The values come from the program and are not
        validated."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})

    def with_rows(self, rows: Mapping[str, Any] | None) -> Self:
        """A copy of this recipe whose data is these datasets of train, validation and test."""
        return self.model_copy(update={"data": self.data.with_rows(rows)})

    def flat(self) -> dict[str, Any]:
        """Every value by its dotted key; `task` and `measured` keep their names."""
        values: dict[str, Any] = {}
        for name, part in self.model_dump().items():
            if isinstance(getattr(self, name), Section):
                values |= {f"{name}.{key}": value for key, value in part.items()}
            else:
                values[name] = part
        return values


class UsesTokenizer(Section):
    """The section of tasks whose models read text."""

    tokenizer: TokenizerSection = TokenizerSection()
    """Tokenizer to train on the training data, or an existing one to use."""


class SupportsAdapters(Section):
    """The section of tasks whose pretrained models can be trained through adapters."""

    peft: PeftSection = PeftSection()
    """Adapter to train on top of a frozen pretrained model."""


def sections_of(recipe_class: type[Recipe]) -> dict[str, type[Section]]:
    """The section class of each section of a recipe class."""
    annotations = {name: field.annotation for name, field in recipe_class.model_fields.items()}
    return {name: kind for name, kind in annotations.items() if isinstance(kind, type) and issubclass(kind, Section)}
