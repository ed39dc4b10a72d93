"""The catalog of shipped recipes, copies, `kit explain`, and the JSON schema."""

import json
import math
import re
from functools import partial

import pytest

from kit.errors import RecipeError
from kit.models import MODELS
from kit.recipe import catalog as shipped
from kit.recipe.base import Recipe, sections_of
from kit.recipe.catalog import RecipeRow, list_recipes
from kit.recipe.copying import copy_recipe
from kit.recipe.explain import explain as explain_key
from kit.recipe.keys import OTHER_NAMES, key_variants
from kit.recipe.model_settings import model_fields
from kit.recipe.schema import recipe_schema
from kit.tasks.registry import load_recipe, recipe_classes

HEAD = """\
# Dates in many languages to ISO dates.
#   kit train recipes/translation/dates.yaml
task: translation

model:
  type: rnn_seq2seq   # ours
  hidden_size: 64
data: {path: "builtin:dates"}
train:
  max_steps: 10  # few
  batch_size: 8
"""

explain = partial(explain_key, recipes=recipe_classes())


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A folder of shipped recipes with three in it."""
    folder = tmp_path / "kit" / "recipes" / "translation"
    folder.mkdir(parents=True)
    (folder / "measured.yaml").write_text(HEAD + "measured:\n  test_bleu: 30.5\n")
    (folder / "reason.yaml").write_text(HEAD + "measured: {none: needs a GPU}\n")
    (folder / "bare.yaml").write_text("task: translation\n")
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "kit")
    return folder


# ---- list, copy, explain, schema ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("book")
def test_the_list_has_titles_figures_and_reasons():
    rows = {row.name: row for row in list_recipes()}
    assert list(rows) == ["translation/bare", "translation/measured", "translation/reason"]
    assert rows["translation/measured"].title == "Dates in many languages to ISO dates."
    assert rows["translation/measured"].task == "translation"
    assert (rows["translation/measured"].measured, rows["translation/measured"].reason) == ({"test_bleu": 30.5}, "")
    assert (rows["translation/reason"].measured, rows["translation/reason"].reason) == ({}, "needs a GPU")
    assert (rows["translation/bare"].title, rows["translation/bare"].reason) == ("", "not measured yet")


@pytest.mark.parametrize("name", shipped.shipped_recipes())
def test_every_line_of_a_shipped_recipe_is_explained(name):
    text, measured, _ = shipped.shipped_recipes()[name].read_text(encoding="utf-8").partition("\nmeasured:")
    assert measured
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"\w+:|task: \w+|.*\S +# \S.*", line), line


def test_a_copy_overwrites_nothing(book, tmp_path):
    classes = recipe_classes()
    mine = copy_recipe("measured", tmp_path / "mine.yaml", [], classes)
    assert load_recipe(mine).flat() == load_recipe(book / "measured.yaml").flat() | {"measured": None}
    assert copy_recipe("translation/measured", tmp_path, [], classes) == tmp_path / "measured.yaml"
    mine.write_text("changed")
    for target in (mine, tmp_path):
        with pytest.raises(RecipeError, match="already exists"):
            copy_recipe("measured", target, [], classes)
    assert mine.read_text() == "changed"
    with pytest.raises(RecipeError, match="there is no folder"):
        copy_recipe("measured", tmp_path / "missing" / "mine.yaml", [], classes)


def test_every_key_can_be_explained_and_every_section_lists_its_keys():
    descriptions: dict[str, dict[str, set[str]]] = {}
    for section, model in (pair for kind in recipe_classes().values() for pair in sections_of(kind).items()):
        fields = model.model_fields | (model_fields("rnn_seq2seq") if section == "model" else {})
        for name, field in fields.items():
            words = " ".join(field.description.split())
            descriptions.setdefault(section, {}).setdefault(name, set()).add(words)
    for section, names in descriptions.items():
        listing = explain(section)
        for name, texts in names.items():
            assert f"{section}.{name} " in listing
            explanation = explain(f"{section}.{name}")
            for words in texts:
                assert words in listing
                assert words in explanation
    for name in Recipe.model_fields:
        assert f"  {name} " in explain("")
    assert "expects: one of" in explain("task")
    assert "translation" in explain("task")


def test_an_explanation_has_accepted_values_and_default():
    text = explain("train.optimizer")
    assert "expects: one of adamw, adam, sgd, adafactor\n  default: adamw\n" in text
    assert "expects: a whole number (above 0, at most 2147483647) or null\n  default: null\n" in explain(
        "train.max_steps"
    )
    assert "default: none (required)" in explain("data.path")
    assert "expects: one of rnn, lstm, gru\n" in explain("model.cell")
    assert 'default: ["input", "readout"]' in explain("model.context_to")
    assert "size of the tokenizer" in explain("model.vocab_size")


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("train.max_step", 'Did you mean "train.max_steps"?'),
        ("max_steps", "Did you mean train.max_steps?"),
        ("seed", "Did you mean data.seed or train.seed?"),
        ("model.hiden_size", 'Did you mean "model.hidden_size"?'),
        ("zzz", "`kit explain` lists the sections"),
        ("train.", "is not a recipe key"),
    ],
)
def test_unknown_keys_get_the_nearest_name(key, hint):
    with pytest.raises(RecipeError) as error:
        explain(key)
    assert hint in str(error.value)


def test_the_schema_knows_every_key_and_the_settings_of_the_model():
    schema = recipe_schema(recipe_classes())
    json.dumps(schema)
    definitions = schema["$defs"]
    for section, model in (pair for kind in recipe_classes().values() for pair in sections_of(kind).items()):
        assert set(definitions[model.__name__]["properties"]) == set(model.model_fields), section
    conditions = definitions["ModelSection"]["allOf"]
    condition = next(each for each in conditions if each["if"]["properties"]["type"]["const"] == "rnn_seq2seq")
    properties = condition["then"]["properties"]
    assert set(properties) == {"type", "pretrained", *model_fields("rnn_seq2seq")}
    assert properties["cell"]["enum"] == ["rnn", "lstm", "gru"]
    assert "recurrent cell" in properties["cell"]["description"]
    assert condition["then"]["additionalProperties"] is False


# ---- kit recipes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 40, 200])
def test_each_recipe_is_one_line_of_the_terminal(kit_here, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    header, *lines, hint = kit_here("recipes").stdout.splitlines()
    assert header.split()[:2] == ["recipe", "min"]
    assert [line.split()[0].rstrip("…") for line in lines] == [
        name.rpartition("/")[2] for name in shipped.shipped_recipes()
    ]
    assert max(len(line) for line in [header, *lines]) <= columns
    assert "kit recipes NAME" in hint


def test_filters_narrow_the_list(kit_here):
    rows = json.loads(kit_here("recipes", "--json").stdout)
    assert {row["name"] for row in rows} == set(shipped.shipped_recipes())
    matching = json.loads(kit_here("recipes", "--task", "translation", "--offline", "--minutes", "5", "--json").stdout)
    assert matching == [
        row
        for row in rows
        if row["task"] == "translation"
        and not row["needs_download"]
        and row["measured"]
        and row["measured"].get("minutes", 99) <= 5
    ]
    assert "translation/dates_rnn" in {row["name"] for row in matching}
    failed = kit_here("recipes", "--task", "translate")
    assert failed.returncode == 2
    assert 'Did you mean "translation"' in failed.stderr
    assert kit_here("recipes", "dates_rnn", "--offline").returncode == 2


def test_a_recipe_is_shown_with_all_its_figures(kit_here):
    shown = kit_here("recipes", "dates_rnn").stdout
    row = next(row for row in list_recipes() if row.short_name == "dates_rnn")
    assert all(f"{name} " in shown and str(value) in shown for name, value in row.measured.items())
    assert row.title in shown


@pytest.mark.parametrize("content", ["model: text\n", "data: 5\n", "measured: [1]\n", "measured: 3\n", "[1]\n"])
def test_a_file_that_is_no_recipe_is_listed_without_details(kit_here, tmp_path, content):
    (tmp_path / "x.yaml").write_text(content, encoding="utf-8")
    done = kit_here("recipes", "x.yaml")
    assert done.returncode == 0, done.stderr
    assert "not measured yet" in done.stdout


@pytest.mark.parametrize(
    ("wrong", "right"), [("train.lr", "train.learning_rate"), ("beam_size", "eval.num_beams"), ("lora", "peft.method")]
)
def test_names_of_other_libraries_lead_to_the_key(kit_here, wrong, right):
    failed = kit_here("explain", wrong)
    assert failed.returncode == 2
    assert f"kit calls it {right}" in failed.stderr


def test_a_recipe_with_a_name_of_another_library_gets_the_key(kit_here):
    failed = kit_here("train", "dates_rnn", "train.gradient_accumulation_steps=2")
    assert failed.returncode == 2
    assert "kit calls it train.micro_batches" in failed.stderr


def test_every_other_name_leads_to_a_key_and_is_none_itself():
    variants = key_variants(recipe_classes())
    keys = {f"{section}.{name}" for section, names in variants.items() for name in names}
    keys |= {f"model.{name}" for model_type in MODELS for name in model_fields(model_type)}
    assert set(OTHER_NAMES.values()) <= keys
    assert not {key.rpartition(".")[2] for key in keys} & set(OTHER_NAMES)


@pytest.mark.parametrize("row", list_recipes(), ids=lambda row: row.name)
def test_headers_have_one_form(row: RecipeRow) -> None:
    """What it trains, in one sentence; then the commands. The first `kit train` has the measured duration as a note."""
    title, *lines = row.header
    assert title.endswith((".", "?"))
    command = next(line for line in lines if line.startswith("  kit train "))
    assert lines[0].startswith(("  kit ", "  python "))
    assert re.search(rf"kit train recipes/{row.name}\.yaml", command)
    if row.minutes is not None:
        number = f"{row.minutes * 60:.0f} seconds" if row.minutes < 1 else f"{rounded(row.minutes):g} minutes"
        assert f"{number} on {str(row.measured['hardware']).split(', ')[1]}" in command


def rounded(minutes: float) -> float:
    """The minutes to one decimal below 10, and to whole ones above; halves are rounded up."""
    scale = 10 if minutes < 10 else 1
    return math.floor(minutes * scale + 0.5) / scale
