"""The base class of recipe sections: typed fields with descriptions, validated one by one and against each other."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Self

from annotated_types import Ge, Lt
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationInfo, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

Seed = Annotated[int, Ge(0), Lt(2**32)]
Fraction = Annotated[float, Ge(0), Lt(1)]

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


class Section(BaseModel):
    """A section of a recipe; its fields are validated one by one, then checked for contradictions."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def without_effect(self) -> dict[str, str]:
        """Fields that have no effect given the other values, each with the reason; they must keep their defaults."""
        return {}

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Yields the key (or "" for the whole section) and the message of each mistake that involves several fields."""
        yield from ()

    @model_validator(mode="after")
    def _check_fields_together(self) -> Self:
        problems = list(self.contradictions())
        for name, reason in self.without_effect().items():
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
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


def exactly_one(section: Section, name: str, first: str, second: str) -> Iterator[tuple[str, str]]:
    """The mistake, if any, of setting neither or both of two keys."""
    keys_set = [key for key in (first, second) if getattr(section, key) is not None]
    if not keys_set:
        yield "", f"set {name}.{first} or {name}.{second}."
    elif len(keys_set) == 2:
        yield (
            second,
            f"it cannot be combined with {name}.{first}. "
            f"Remove one of them (on the command line: {name}.{first}=null).",
        )
