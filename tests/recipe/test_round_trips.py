"""Any content of a recipe is accepted or rejected with one message, and an accepted recipe survives a round trip."""

from pathlib import Path

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.recipe_texts import VALID

from kit.errors import RecipeError
from kit.recipe import model_settings
from kit.recipe.base import Recipe, sections_of
from kit.recipe.document import write_yaml
from kit.tasks.registry import load_recipe, recipe_classes

fuzzing = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.integers(-1, 20)
    | st.floats()
    | words
    | st.sampled_from(["no", "1e3", "adamw", "sgd", "bleu", "never", "builtin:x", "rnn_seq2seq", "utf-8", "none"])
)
SECTIONS_AND_KEYS = sorted(
    {
        (section, name)
        for kind in recipe_classes().values()
        for section, model in sections_of(kind).items()
        for name in model.model_fields
    }
)
keys = words | st.sampled_from([*Recipe.model_fields, *sorted({name for _, name in SECTIONS_AND_KEYS}), "cell", "none"])
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)
dotted = [f"{section}.{name}" for section, name in SECTIONS_AND_KEYS] + [
    *Recipe.model_fields,
    *(f"model.{name}" for name in model_settings.model_fields("rnn_seq2seq")),
]


def outcome(content: bytes, folder: Path, overrides: list[str] | None = None) -> Recipe | None:
    """The recipe, or None if a RecipeError was raised; each of its lines must name the file or the argument."""
    path = folder / "fuzz.yaml"
    path.write_bytes(content)
    message = ""
    try:
        return load_recipe(path, overrides or [])
    except RecipeError as error:
        message = str(error)
    message.encode("utf-8")
    assert all(line.startswith((str(path), "on the command line")) for line in message.split("\n"))
    return None


@fuzzing
@given(st.binary() | words.map(str.encode) | st.text("task:modelrain-[]{}'\"#&*!|>\n ").map(str.encode))
def test_any_bytes_are_a_recipe_or_a_recipe_error(tmp_path, content):
    outcome(content, tmp_path)


@fuzzing
@given(st.dictionaries(keys, anything, max_size=6))
def test_any_mapping_is_a_recipe_or_a_recipe_error(tmp_path, value):
    outcome(write_yaml(value).encode(), tmp_path)


@fuzzing
@given(st.dictionaries(st.sampled_from(dotted), anything, min_size=1, max_size=2))
def test_any_value_of_any_key_is_rejected_or_survives_a_round_trip(tmp_path, changes):
    value = yaml.safe_load(VALID)
    for key, new in changes.items():
        section, _, name = key.partition(".")
        if name and isinstance(value.setdefault(section, {}), dict):
            value[section][name] = new
        elif not name:
            value[section] = new
    recipe = outcome(write_yaml(value).encode(), tmp_path)
    if recipe is not None:
        assert outcome(recipe.to_yaml().encode(), tmp_path) == recipe


@fuzzing
@given(st.lists(st.text(max_size=20) | st.builds("{}={}".format, st.sampled_from(dotted), st.text()), max_size=2))
def test_any_arguments_are_accepted_or_rejected(tmp_path, arguments):
    outcome(VALID.encode(), tmp_path, arguments)


@fuzzing
@given(
    st.fixed_dictionaries(
        {
            "data": st.fixed_dictionaries(
                {"path": words, "source": st.just("a"), "fingerprints": st.dictionaries(words, words)}
            ),
            "hub": st.fixed_dictionaries({"license": words, "tags": st.lists(words)}),
            "measured": st.dictionaries(
                words.filter(lambda word: word != "none"), words | st.integers(0, 9) | st.floats(0, 1)
            ),
            "train": st.fixed_dictionaries(
                {
                    "max_steps": st.integers(1, 10**9),
                    "batch_size": st.integers(1, 10**6),
                    "learning_rate": st.floats(0, 1e38, exclude_min=True),
                    "max_grad_norm": st.none() | st.floats(0.1, 9),
                    "optimizer": st.sampled_from(["adamw", "adam", "sgd", "adafactor"]),
                }
            ),
        }
    )
)
def test_a_recipe_survives_a_round_trip_through_yaml(tmp_path, parts):
    value = {**yaml.safe_load(VALID), **parts}
    recipe = outcome(write_yaml(value).encode(), tmp_path)
    assert recipe is not None
    again = outcome(recipe.to_yaml().encode(), tmp_path)
    assert again == recipe
    assert again.differences(recipe) == []
    assert again.to_yaml() == recipe.to_yaml()
