"""The recipe book: the list, copies, explanations, the schema, and figures recorded into a file."""

import json
import os
import re
import shlex
from functools import partial
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import KitError, RecipeError, RunError
from kit.recipe import catalog as shipped
from kit.recipe.base import Recipe, sections_of
from kit.recipe.catalog import copy_recipe, list_recipes
from kit.recipe.document import read_yaml
from kit.recipe.explain import explain as explain_key
from kit.recipe.model_settings import model_fields
from kit.recipe.schema import recipe_schema
from kit.runs.measured import record, with_measured
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

RESULTS = {
    "validation": {"loss": 0.123456, "exact_match": 97.51, "by": {"language": {"de": {"loss": 1.0}}}},
    "test": {"loss": 0.2, "exact_match": 96.0},
    "train": {"seconds": 93.0, "steps": 10, "tokens_per_second": 5000.0},
    "parameters": 123456,
    "hardware": "2 cores, no GPU",
    "versions": {"kit": "0.1.0", "torch": "2.13.0", "evaluate": "0.4.6"},
}

FIGURES = {
    "test_loss": 0.2,
    "test_exact_match": 96.0,
    "validation_loss": 0.1235,
    "validation_exact_match": 97.51,
    "minutes": 1.55,
    "steps": 10,
    "parameters": 123456,
    "hardware": "2 cores, no GPU",
    "versions": "kit 0.1.0, torch 2.13.0",
}

explain = partial(explain_key, recipes=recipe_classes())


@pytest.fixture
def run(tmp_path):
    """A finished run of HEAD."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "head.yaml").write_text(HEAD)
    recipe = load_recipe(folder / "head.yaml").with_values("data", fingerprints={"train": "abc"})
    (folder / "recipe.yaml").write_text(recipe.to_yaml())
    (folder / "results.json").write_text(json.dumps(RESULTS))
    return folder


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


def test_a_copy_is_the_same_and_overwrites_nothing(book, tmp_path):
    mine = copy_recipe("measured", tmp_path / "mine.yaml")
    assert mine.read_bytes() == (book / "measured.yaml").read_bytes()
    assert copy_recipe("translation/measured", tmp_path) == tmp_path / "measured.yaml"
    mine.write_text("changed")
    for target in (mine, tmp_path):
        with pytest.raises(RecipeError, match="exists already"):
            copy_recipe("measured", target)
    assert mine.read_text() == "changed"
    with pytest.raises(RecipeError, match="cannot be written"):
        copy_recipe("measured", tmp_path / "missing" / "mine.yaml")


def test_every_key_can_be_explained_and_every_section_lists_its_keys():
    for section, model in (pair for kind in recipe_classes().values() for pair in sections_of(kind).items()):
        listing = explain(section)
        fields = model.model_fields | (model_fields("rnn_seq2seq") if section == "model" else {})
        for name, field in fields.items():
            words = " ".join(field.description.split())
            assert f"{section}.{name} " in listing
            assert words in listing
            assert words in explain(f"{section}.{name}")
    for name in Recipe.model_fields:
        assert f"  {name} " in explain("")
    assert "expects: one of" in explain("task")
    assert "translation" in explain("task")


def test_an_explanation_says_what_is_allowed_and_what_is_the_default():
    text = explain("train.optimizer")
    assert "expects: one of adamw, adam, sgd, adafactor\n  default: adamw\n" in text
    assert "expects: a whole number (above 0) or null\n  default: null\n" in explain("train.max_steps")
    assert "default: none, it must be given" in explain("data.path")
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
def test_unknown_keys_get_the_nearest(key, hint):
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


# ---- record --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", ["", "measured:\n  none: not yet\n", "measured:\n", "hub: {license: mit}\n", "\n\n"])
def test_figures_are_recorded_and_all_else_stays(run, tmp_path, tail):
    path = tmp_path / "r.yaml"
    path.write_text(HEAD + tail)
    path.chmod(0o640)
    assert record(run, path) == FIGURES
    text = path.read_text()
    assert text.startswith(HEAD)
    assert load_recipe(path).measured == FIGURES
    assert set(load_recipe(path).differences(load_recipe(run / "head.yaml"))) <= {"hub.license", "measured"}
    assert path.stat().st_mode & 0o777 == 0o640
    assert record(run, path) == FIGURES
    assert path.read_text() == text
    assert sorted(file.name for file in tmp_path.iterdir()) == ["r.yaml", "run"]


def test_a_run_of_another_recipe_is_refused(run, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(HEAD.replace("hidden_size: 64", "hidden_size: 32").replace("max_steps: 10", "max_steps: 11"))
    before = path.read_bytes()
    with pytest.raises(RecipeError) as error:
        record(run, path)
    assert "model.hidden_size: 64 in the run, 32 in" in str(error.value)
    assert "train.max_steps: 10 in the run, 11 in" in str(error.value)
    assert "fingerprints" not in str(error.value)
    assert path.read_bytes() == before


def test_where_the_data_was_is_recorded_and_another_card_does_not_matter(run, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(HEAD.replace('"builtin:dates"', "org/dates, test: held_out") + "hub: {tags: [x]}\n")
    assert record(run, path) == FIGURES | {"changes": "data.path=builtin:dates data.test=test"}
    assert load_recipe(path).measured["changes"] == "data.path=builtin:dates data.test=test"


def test_changes_are_recorded_so_that_a_shell_takes_them(run, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(HEAD.replace('"builtin:dates"', "org/dates"))
    columns = ["source", "target", "a column with a long name", "another column with a long name"]
    ours = HEAD.replace('"builtin:dates"', f'"data/pairs.txt", columns: {json.dumps(columns)}, delimiter: "\\t"')
    (run / "recipe.yaml").write_text(ours)
    arguments = shlex.split(record(run, path)["changes"])
    assert load_recipe(path, arguments).flat()["data.columns"] == columns
    assert load_recipe(path, arguments).differences(load_recipe(run / "recipe.yaml")) == ["measured"]


def test_a_card_is_kept_without_its_pictures(run, tmp_path, kit_here):
    (run / "README.md").write_text("# a card\n\n![loss](plots/loss.png)\n\nmore\n")
    (tmp_path / "r.yaml").write_text(HEAD)
    done = kit_here("record", run, "r.yaml", "--card", "cards/own.md")
    assert (done.returncode, "cards/own.md cannot be written" in done.stderr) == (2, True)
    done = kit_here("record", run, "r.yaml", "--card", "own.md")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own.md").read_text() == "# a card\n\n(Picture of the run: `plots/loss.png`.)\n\nmore\n"


def test_the_mean_of_checkpoints_is_told_beside_the_best_step(run, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(HEAD)
    compared = {"chosen": "best_step", "steps": [3, 4, 5], "average": {"loss": 0.5}, "best_step": {"loss": 0.25}}
    (run / "results.json").write_text(json.dumps({**RESULTS, "averaging": compared}))
    told = "loss on validation 0.25 at the best step, 0.5 as the mean of 3 checkpoints"
    assert record(run, path)["averaging"] == told


def test_a_pretrained_model_may_have_been_a_folder_of_this_machine(run, tmp_path):
    folder = tmp_path / "somewhere" / "minilm"
    folder.mkdir(parents=True)
    own = HEAD.replace("type: rnn_seq2seq   # ours\n  hidden_size: 64", "pretrained: org/minilm")
    (run / "recipe.yaml").write_text(own.replace("org/minilm", str(folder)))
    (tmp_path / "r.yaml").write_text(own)
    assert record(run, tmp_path / "r.yaml")["changes"] == "model.pretrained=somewhere/minilm"
    (run / "recipe.yaml").write_text(own.replace("org/minilm", "org/another"))
    with pytest.raises(RecipeError, match=r"model\.pretrained"):
        record(run, tmp_path / "r.yaml")


@pytest.mark.parametrize(
    ("results", "message"),
    [
        (None, "is not finished"),
        ("{", "cannot be read"),
        ("[]", "not that of a finished run"),
        (json.dumps({"train": {}}), "not that of a finished run"),
        (json.dumps(RESULTS | {"train": {"steps": 1}}), "does not say minutes"),
        (json.dumps({**RESULTS, "hardware": None}), "does not say hardware"),
        (json.dumps({**RESULTS, "test": {"loss": float("nan")}}), "test.loss is nan"),
    ],
)
def test_unfinished_or_broken_runs_are_refused(run, tmp_path, results, message):
    path = tmp_path / "r.yaml"
    path.write_text(HEAD)
    (run / "results.json").unlink()
    if results is not None:
        (run / "results.json").write_text(results)
    with pytest.raises(RunError, match=message):
        record(run, path)
    assert path.read_text() == HEAD


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    (tmp_path / "r.yaml").write_text(HEAD)
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunError, match="is not a run folder"):
            record(folder, tmp_path / "r.yaml")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(run, tmp_path, monkeypatch):
    path = tmp_path / "r.yaml"
    path.write_text(HEAD)

    def fail(source, target):
        assert Path(source).read_text().startswith(HEAD)
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(RecipeError, match="disk full"):
        record(run, path)
    assert path.read_text() == HEAD
    assert sorted(file.name for file in tmp_path.iterdir()) == ["r.yaml", "run"]


def test_comments_in_and_around_the_section_are_kept():
    text = """\
task: x # a
measured:   # written by kit
  # what it was
  steps: 5      # many
  none: why     # because

  old: 1
# before eval
eval:
  steps: 3  # b
"""
    assert (
        with_measured(text, {"test_bleu": 30.5, "steps": 7}, "r.yaml")
        == """\
task: x # a
measured:   # written by kit
  # what it was
  steps: 7      # many
  # because

  test_bleu: 30.5
# before eval
eval:
  steps: 3  # b
"""
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1", "a: 1\nmeasured:\n  b: 2\n"),
        ("a: 1\r\nmeasured: {none: x}   # c\r\nz: 1\r\n", "a: 1\r\nmeasured:   # c\r\n  b: 2\r\nz: 1\r\n"),
        ("measured: null # c\na: 1", "measured: # c\n  b: 2\na: 1"),
        ("measured:\n    none: x", "measured:\n    b: 2\n"),
        ("\ufeffmeasured: {}\na: '\ufeff' # ä", "\ufeffmeasured:\n  b: 2\na: '\ufeff' # ä"),
        ("  a: 1\n", "  a: 1\n  measured:\n    b: 2\n"),
    ],
)
def test_the_section_is_put_where_it_was_or_at_the_end(text, expected):
    assert with_measured(text, {"b": 2}, "r.yaml") == expected


@pytest.mark.parametrize(
    "text",
    [
        "measured: {a: 1, # c\n  b: 2}\n",
        "measured:\n  a: # c\n    text\n",
        "measured:\n  a: |\n    text\n",
        "{task: x}\n",
        "task: x\n...\n",
    ],
)
def test_a_section_that_cannot_be_changed_safely_is_refused(text):
    with pytest.raises(RecipeError, match="lines of `key: value`"):
        with_measured(text, {"b": 2}, "r.yaml")


names = st.sampled_from(["none", "test_bleu", "minutes", "steps", "hardware", "yes", "a b"])
figures = st.integers(0, 99) | st.floats(0, 1) | st.sampled_from(["no", "why: so", "2 cores # fast", "1e3", "ä", ""])
comments = st.sampled_from(["", "  # why: not", " # {x: 1}", "  # '"])
fillers = st.lists(st.sampled_from(["", "# a comment", "  # an indented one: 1"]), max_size=2)


@st.composite
def texts(draw):
    """A recipe-like text with a measured section somewhere, in some style, with comments anywhere."""
    lines = [*draw(fillers), f"task: x{draw(comments)}", *draw(fillers)]
    old = draw(st.dictionaries(names, st.integers(0, 9), max_size=4))
    style = draw(st.sampled_from(["block", "braces", "absent"]))
    if style == "block":
        lines.append(f"measured:{draw(comments)}")
        for name, figure in old.items():
            lines += [*draw(fillers), f"  {name}: {figure}{draw(comments)}"]
    elif style == "braces":
        lines.append(f"measured: {json.dumps(old)}{draw(comments)}")
    lines += [*draw(fillers), *(["train:", f"  steps: 3{draw(comments)}"] if draw(st.booleans()) else [])]
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    return newline.join(lines) + newline * draw(st.integers(0, 1))


@given(texts(), st.dictionaries(names, figures, min_size=1, max_size=5))
def test_recording_changes_the_section_only(text, new):
    changed = with_measured(text, new, "r.yaml")
    before, after = read_yaml(text, "r.yaml").value, read_yaml(changed, "r.yaml").value
    assert after == before | {"measured": new}
    comments_in = [line.partition("#")[2] for line in text.splitlines() if "#" in line]
    kept = iter(changed.splitlines())
    assert all(any(line.endswith("#" + comment) for line in kept) for comment in comments_in)
    others = [line for line in text.splitlines() if line.startswith(("#", "task", "train"))]
    assert [line for line in changed.splitlines() if line.startswith(("#", "task", "train"))] == others
    assert with_measured(changed, new, "r.yaml") == changed
    assert yaml.safe_load(changed)["measured"] == new


@given(st.text(max_size=60), st.dictionaries(names, figures, max_size=3))
def test_any_text_is_changed_rightly_or_refused(text, new):
    try:
        changed = with_measured(text, new, "r.yaml")
    except KitError:
        return
    assert read_yaml(changed, "r.yaml").value["measured"] == new
