"""The base class of recipe sections: typed fields with descriptions, validated one by one and against each other.

A section is composed of key groups. A group is a `Section` with a few related keys and their checks; the section of a
task inherits the groups that the task supports, so that any other key is unknown to it. For shared code, the base
section declares the value of a key that a task does not have: `streaming: ClassVar[bool] = absent(False)`.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationInfo, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

T = TypeVar("T")

MAX_COUNT = 2**31 - 1
"""Largest whole number of a recipe: tokenizers, Arrow's lists and many kernels count with 32 bits."""
MAX_NUMBER = 1e38
"""Largest number of a recipe: about what float32 can hold."""

MAX_NEW_TOKENS = 2**17
"""Longest output, in tokens: an untrained model never writes an end token."""

PositiveInt = Annotated[int, Gt(0), Le(MAX_COUNT)]
NonNegativeInt = Annotated[int, Ge(0), Le(MAX_COUNT)]
PositiveFloat = Annotated[float, Gt(0), Le(MAX_NUMBER)]
NonNegativeFloat = Annotated[float, Ge(0), Le(MAX_NUMBER)]
NewTokens = Annotated[int, Gt(0), Le(MAX_NEW_TOKENS)]
Beams = Annotated[int, Gt(0), Le(1000)]
LengthPenalty = Annotated[float, Ge(-10), Le(10)]
Seed = Annotated[int, Ge(0), Lt(2**32)]  # NumPy's legacy generators accept no larger one
Fraction = Annotated[float, Ge(0), Lt(1)]
Share = Annotated[float, Gt(0), Lt(1)]

SAVED = {"saved": True}
"""Validation context for the recipe of a run: names that were registered in that process may be unknown in this one."""


@dataclass(frozen=True)
class Extensible:
    """Marks a choice whose names can be registered at run time: `Annotated[Literal["a", "b"], Extensible(…)]`.

    Messages and the JSON schema list the names of the Literal.
    """

    registered: Callable[[], Collection[str]]
    description: str
    """What else is accepted, in words: "a metric added with kit.register_metric"."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(
            self._validate, handler(source), serialization=core_schema.simple_ser_schema("str")
        )

    def _validate(self, value: Any, validate: Callable[[Any], Any], info: ValidationInfo) -> Any:
        if isinstance(value, str) and (value in self.registered() or info.context == SAVED):
            return value
        return validate(value)


class _Absent:
    """The value of a key on the instances of a section that lacks it.

    On the class it does not exist: pydantic would take it for the default of the field in subclasses that have the key.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __get__(self, section: "Section | None", owner: type["Section"]) -> Any:
        if section is None:
            raise AttributeError("a class has no values of keys")
        return self.value


def absent(value: T) -> T:
    """The value that a key has in sections without it; a subclass or a key group may have a field of the same name."""
    return cast(T, _Absent(value))


class Section(BaseModel):
    """A section of a recipe, or a group of keys: its fields are validated one by one, then checked together.

    `without_effect` and `contradictions` of a group extend those of `super()`.
    """

    # Strict, because YAML has types: "3" and 3.0 are mistakes, not counts. Frozen, because all stages of a run share
    # the recipe, and the run stores it as it was at the start.
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    evaluation_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of this group that can be changed when a trained model is evaluated; the others have no effect then, or
    describe another model."""

    prediction_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of this group that can be changed when a trained model predicts the rows of a file."""

    @classmethod
    def keys_of(cls, kind: str) -> list[str]:
        """The keys that any group of the section lists as `kind`, such as `evaluation_keys`, in their order."""
        listed = {name for base in cls.__mro__ for name in vars(base).get(kind, ())}
        return [name for name in cls.model_fields if name in listed]

    def unused_in_evaluation(self) -> dict[str, str]:
        """The `evaluation_keys` that would not change an evaluation, given the other values, each with the reason."""
        return {}

    def without_effect(self) -> dict[str, str]:
        """Fields that have no effect given the other values, each with the reason; they must keep their defaults."""
        return {}

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Yields the key (or "" for the whole section) and the message of each mistake that involves several fields."""
        yield from ()

    def is_set(self, key: str) -> bool:
        """Whether the section has this key, with a value other than its default."""
        field = type(self).model_fields.get(key)
        return field is not None and getattr(self, key) != field.get_default(call_default_factory=True)

    @model_validator(mode="after")
    def _check_fields_together(self) -> Self:
        problems = list(self.contradictions())
        for name, reason in self.without_effect().items():
            if self.is_set(name):
                problems.append((name, f"it has no effect {reason}. Leave it out."))
        if problems:
            raise PydanticCustomError("contradictions", "fields contradict each other", {"problems": problems})
        return self

    def values(self) -> dict[str, Any]:
        """The values to write to a resolved recipe: all but those that have no effect or are not set."""
        ineffective = self.without_effect()
        fields = type(self).model_fields
        return {
            name: value
            for name, value in self.model_dump().items()
            if name not in ineffective and not (value is None and name in fields and fields[name].default is None)
        }


def at_most_one(section: Section, name: str, first: str, second: str) -> Iterator[tuple[str, str]]:
    """The mistake, if any, of setting both of two keys; `name` is the name of the section."""
    if getattr(section, first) is not None and getattr(section, second) is not None:
        yield (
            second,
            f"it cannot be combined with {name}.{first}. "
            f"Remove one of them (on the command line: {name}.{first}=null).",
        )


def exactly_one(section: Section, name: str, first: str, second: str) -> Iterator[tuple[str, str]]:
    """The mistake, if any, of setting neither or both of two keys; `name` is the name of the section."""
    if getattr(section, first) is None and getattr(section, second) is None:
        yield "", f"set {name}.{first} or {name}.{second}."
    yield from at_most_one(section, name, first, second)
