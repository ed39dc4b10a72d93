"""Every number of a recipe has bounds, and a model that cannot be built is refused before it is built."""

import inspect
import math
import time
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
import torch
from annotated_types import Ge, Gt, Le, Lt
from transformers import AutoModelForMaskedLM, BertConfig

from kit import RecipeError
from kit.cli import infer
from kit.models import MODELS, config_class
from kit.pretrained.loading import build_from_config
from kit.recipe.base import Recipe, sections_of
from kit.recipe.model_settings import model_fields
from kit.recipe.section import Beams, LengthPenalty, NewTokens
from kit.runs.prepare import build_model, prepare
from kit.tasks.registry import recipe_classes


def unbounded(annotation: Any, metadata: list[Any]) -> bool:
    """True if a type allows unbounded numbers."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return unbounded(inner[0], [*metadata, *inner[1:]])
    if origin in (Union, UnionType, list):
        return any(unbounded(member, metadata) for member in inner)
    if origin is dict:
        return unbounded(inner[1], metadata)
    low, high = (any(isinstance(item, kinds) for item in metadata) for kinds in ((Ge, Gt), (Le, Lt)))
    return annotation in (int, float) and not (low and high)


def every_field() -> Iterator[tuple[str, Any]]:
    for task, recipe in recipe_classes().items():
        for section, kind in sections_of(recipe).items():
            yield from ((f"{task}: {section}.{name}", field) for name, field in kind.model_fields.items())
    for model_type in MODELS:
        yield from ((f"{model_type}: {name}", field) for name, field in model_fields(model_type).items())


def test_every_number_of_a_recipe_has_bounds() -> None:
    assert [name for name, field in every_field() if unbounded(field.annotation, list(field.metadata))] == []


@pytest.mark.parametrize("model_type", MODELS)
def test_configurations_have_the_same_bounds(model_type: str) -> None:
    kind = config_class(model_type)
    for name, (low, high) in kind.bounds().items():
        if name == "decoder_vocab_size":  # 0 stands for its default
            continue
        value = getattr(kind(), name)
        wrong = [low - 1, high * 2 + 1] if not isinstance(value, float) else [low - 1.0, high * 2 + 1.0, math.nan]
        for number in wrong:
            with pytest.raises((ValueError, TypeError), match=name):
                kind(**{name: [number] if isinstance(value, list) else number})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hidden_act": "geluu"}, "geluu"),
        ({"hidden_size": 1_000_000, "num_attention_heads": 1}, r"parameters, whose weights and gradients need .* GB"),
        ({"num_hidden_layers": 10**8}, "num_hidden_layers: a bert has at most 1,000 layers, not 100,000,000"),
        ({"num_attention_heads": -1}, "num_attention_heads: it must be at least 1, not -1"),
        ({"num_attention_heads": 3}, "a bert cannot be built"),
        ({"type_vocab_size": 0}, "type_vocab_size: it must be at least 1, not 0"),
        ({"vocab_size": 2**63}, "a bert cannot be built|parameters"),
    ],
)
def test_impossible_models_of_transformers_are_refused_at_once(change: dict[str, Any], expected: str) -> None:
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    began = time.monotonic()
    with pytest.raises(RecipeError, match=expected):
        build_from_config(AutoModelForMaskedLM, BertConfig(**sizes | {"intermediate_size": 8} | change))
    assert time.monotonic() - began < 10


def test_size_estimate_leaves_the_random_state_alone(make_recipe: Callable[..., Recipe]) -> None:
    """The weights are those that the seed gives."""
    prepared = prepare(make_recipe("translation"))
    torch.manual_seed(prepared.recipe.train.seed)
    expected = type(prepared.model)(prepared.model.config)
    again = build_model(prepared.task, prepared.state).model
    assert all(
        parameter.equal(other) for parameter, other in zip(expected.parameters(), again.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("task", "change"),
    [
        ("translation", "model.encoder_layers=100000000"), ("translation", "tokenizer.vocab_size=9223372036854775807"),
        ("translation", "eval.length_penalty=1e9"), ("translation", "eval.num_beams=9223372036854775807"),
        ("captioning", "model.cnn_blocks=9223372036854775807"), ("captioning", "model.cnn_channels=[0]"),
        ("captioning", "eval.max_new_tokens=2147483648"), ("dialogue", "model.context_layers=100000000"),
        ("forecasting", "model.min_scale=1e308"), ("translation", "train.learning_rate=1e308"),
    ],
)  # fmt: skip
def test_numbers_out_of_bounds_name_the_key(make_recipe: Callable[..., Recipe], task: str, change: str) -> None:
    with pytest.raises(RecipeError, match=rf"{change.partition('=')[0]}.*expected a"):
        make_recipe(task, overrides=[change])


def test_options_of_the_command_line_have_the_bounds_of_their_keys() -> None:
    parameters = inspect.signature(infer.generate).parameters
    for name, bounds in {"num_beams": Beams, "max_new_tokens": NewTokens, "length_penalty": LengthPenalty}.items():
        (option,) = get_args(parameters[name].annotation)[1:]
        low, high = get_args(bounds)[1:]
        assert option.min == (low.gt + 1 if isinstance(low, Gt) else low.ge), name
        assert option.max == high.le, name
