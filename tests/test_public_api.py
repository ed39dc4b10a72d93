"""The public API: these names, with documentation. Everything else in kit may change without notice.

A name that is added or removed here belongs into CHANGELOG.md, too.
"""

import inspect

import pytest

import kit

EXCEPTIONS = ["DataError", "HubError", "KitError", "NetworkError", "RecipeError", "RunError"]
CLASSES = ["Callback", "FinishedRun", "Recipe", "TrainingState", "Translator"]
FUNCTIONS = [
    "compare_runs", "evaluate", "load_metric", "load_recipe", "pipeline", "register", "register_metric", "train",
]  # fmt: skip


def public_methods(cls: type) -> list[str]:
    """What a class of kit defines itself or inherits from another one of kit."""
    bases = [base for base in cls.__mro__ if base.__module__.startswith("kit")]
    names = {name for base in bases for name, member in vars(base).items() if callable(member)}
    return sorted(name for name in names if not name.startswith("_"))


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(kit.__all__) == sorted([*EXCEPTIONS, *CLASSES, *FUNCTIONS, "__version__"])
    assert dir(kit) == sorted(kit.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        kit.nothing  # noqa: B018


@pytest.mark.parametrize("name", [*EXCEPTIONS, *CLASSES, *FUNCTIONS])
def test_every_public_name_is_documented(name: str) -> None:
    value = getattr(kit, name)
    assert inspect.getdoc(value), name
    if name in CLASSES:
        undocumented = [method for method in public_methods(value) if not inspect.getdoc(getattr(value, method))]
        assert undocumented == []


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_every_exception_can_be_caught_as_a_kit_error(name: str) -> None:
    assert issubclass(getattr(kit, name), kit.KitError)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_is_typed(name: str) -> None:
    signature = inspect.signature(getattr(kit, name))
    assert signature.return_annotation is not signature.empty
    assert all(parameter.annotation is not parameter.empty for parameter in signature.parameters.values())
