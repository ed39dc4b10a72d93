"""Recipes: accepted values, the message about each mistake, overrides, and writing recipes as YAML."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Literal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedConfig

from kit.errors import RecipeError
from kit.models import MODELS
from kit.models.configuration_rnn_seq2seq import RNNSeq2SeqConfig
from kit.recipe import catalog as shipped
from kit.recipe import model_settings as recipe_model
from kit.recipe.base import Recipe, sections_of
from kit.recipe.document import write_yaml
from kit.tasks.registry import load_recipe, recipe_classes
from kit.tasks.translation.recipe import TranslationRecipe

VALID = """\
# Dates, the smallest recipe.
task: translation
model:
  type: rnn_seq2seq
  cell: gru
  hidden_size: 64
data:
  path: builtin:dates
train:
  max_steps: 10
  tokens_per_batch: 512
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function that writes a recipe to the working folder and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write_file(text: str, name: str = "r.yaml") -> str:
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write_file


def error_of(path: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as error:
        load_recipe(path, overrides)
    return str(error.value)


def changed(old: str, new: str) -> str:
    assert VALID.count(old) == 1
    return VALID.replace(old, new)


# ---- what is accepted ----------------------------------------------------------------------------------------


def test_the_command_line_wins_over_yaml_and_yaml_over_defaults(write):
    path = write(VALID)
    recipe = load_recipe(path)
    assert (recipe.train.max_steps, recipe.train.learning_rate, recipe.tokenizer.vocab_size) == (10, 1e-3, 8000)
    assert recipe.model.settings == {"cell": "gru", "hidden_size": 64}
    overrides = ["train.max_steps=20", "model.cell=lstm", "eval.metrics=[bleu]", "eval.metric_for_best_model=bleu"]
    other = load_recipe(path, overrides)
    assert (other.train.max_steps, other.model.settings["cell"], other.eval.metric_for_best_model) == (
        20,
        "lstm",
        "bleu",
    )
    assert recipe.differences(other) == ["model.cell", "train.max_steps", "eval.metrics", "eval.metric_for_best_model"]
    assert recipe.differences(load_recipe(path)) == []


def test_integers_become_floats_and_words_stay_text(write):
    text = changed("max_steps: 10", "num_train_epochs: 2\n  mixed_precision: no") + "hub:\n  language: [no, en]\n"
    recipe = load_recipe(write(text))
    assert recipe.train.num_train_epochs == 2.0
    assert (recipe.train.mixed_precision, recipe.hub.language) == ("no", ["no", "en"])


def test_an_empty_section_has_its_defaults(write):
    recipe = load_recipe(write(VALID + "eval:\n  # steps: 5\nhub:\n"))
    assert recipe.eval.steps == 500


def test_recipes_cannot_be_changed(write):
    recipe = load_recipe(write(VALID))
    with pytest.raises(ValueError, match="frozen"):
        recipe.train.max_steps = 5


def test_every_field_has_a_description():
    fields = {
        f"{task}: {section}.{name}": field
        for task, kind in recipe_classes().items()
        for section, model in sections_of(kind).items()
        for name, field in model.model_fields.items()
    }
    fields |= Recipe.model_fields
    fields |= {f"model.{name}": field for name, field in recipe_model.model_fields("rnn_seq2seq").items()}
    assert [name for name, field in fields.items() if len(field.description or "") < 15] == []


# ---- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_steps", "max_step", 'r.yaml, line 10: train.max_step is not a key of "train". Did you mean "max_steps"?'),
        (
            "max_steps: 10",
            "num_beams: 4",
            'line 10: train.num_beams is not a key of "train". There is a "num_beams" under "eval:".',
        ),
        ("data:\n", "dta: {}\ndata:\n", 'r.yaml, line 7: dta is not a section of a recipe. Did you mean "data"?'),
        (
            "max_steps: 10",
            "max_steps: fast",
            'line 10: train.max_steps: expected a whole number (above 0, at most 2147483647) or null, got "fast".',
        ),
        (
            "max_steps: 10",
            "max_steps: 0",
            "line 10: train.max_steps: expected a whole number (above 0, at most 2147483647) or null, got 0.",
        ),
        ("max_steps: 10", "max_steps: 1e3", "got 1000.0; write 1000."),
        ("max_steps: 10", "max_steps: 1_000", 'got "1_000"; write 1000.'),
        ("max_steps: 10", "max_steps: true", "got true."),
        (
            "max_steps: 10",
            "max_steps: 10\n  learning_rate: .nan",
            "line 11: train.learning_rate: expected a number (above 0, at most 1e+38), got NaN.",
        ),
        (
            "max_steps: 10",
            "max_steps: 10\n  label_smoothing_factor: 1",
            "expected a number (0 or more, below 1), got 1.",
        ),
        ("max_steps: 10", "max_steps: 10\n  torch_compile: yes", 'expected true or false, got "yes".'),
        ("max_steps: 10", "max_steps: 10\n  optimizer: adamww", 'got "adamww". Did you mean "adamw"?'),
        ("max_steps: 10", "max_steps: 10\n  report_to: wandb", 'got "wandb"; write [wandb].'),
        (
            "max_steps: 10",
            "max_steps: 10\n  num_train_epochs: 1",
            "line 11: train.num_train_epochs: it cannot be combined with train.max_steps",
        ),
        ("max_steps: 10", "save_steps: 10", "r.yaml, line 9: train: set train.max_steps or train.num_train_epochs."),
        ("tokens_per_batch: 512", "save_steps: 5", "line 9: train: set train.tokens_per_batch or train.batch_size."),
        (
            "tokens_per_batch: 512",
            "batch_size: 2\n  micro_batches: 3",
            "line 12: train.micro_batches: a batch_size of 2",
        ),
        (
            "max_steps: 10",
            "max_steps: 10\n  momentum: 0.9",
            "line 11: train.momentum: it has no effect with train.optimizer: adamw",
        ),
        (
            "max_steps: 10",
            "max_steps: 10\n  optimizer: sgd\n  adam_beta1: 0.8",
            "line 12: train.adam_beta1: it has no effect",
        ),
        (
            "max_steps: 10",
            "max_steps: 10\n  lr_scheduler_type: constant\n  warmup_steps: 5",
            "line 12: train.warmup_steps: it has",
        ),
        (
            "max_steps: 10",
            "max_steps: 10\n  mixed_precision: bf16\n  dtype: float64",
            "line 11: train.mixed_precision: bf16",
        ),
        ("  type: rnn_seq2seq\n", "", "r.yaml, line 3: model: set model.type or model.pretrained."),
        (
            "type: rnn_seq2seq",
            "type: rnn_seq2seq\n  pretrained: x/y",
            "line 5: model.pretrained: it cannot be combined with model.type",
        ),
        (
            "rnn_seq2seq",
            "rnn_seqseq",
            'line 4: model.type: "rnn_seqseq" is not a model type of kit (rnn_seq2seq, transformer_seq2seq). '
            'Did you mean "rnn_seq2seq"?',
        ),
        (
            "hidden_size",
            "hiden_size",
            'line 6: model.hiden_size is not a setting of rnn_seq2seq. Did you mean "hidden_size"?',
        ),
        (
            "cell: gru",
            "cell: gur",
            'line 5: model.cell: expected one of rnn, lstm, gru, got "gur". Did you mean "gru"?',
        ),
        (
            "hidden_size: 64",
            "hidden_size: big",
            'line 6: model.hidden_size: expected a whole number (1 or more, at most 1048576), got "big".',
        ),
        (
            "cell: gru",
            "vocab_size: 5",
            "line 5: model.vocab_size cannot be set in a recipe: it is the size of the tokenizer",
        ),
        (
            "cell: gru",
            "context_to: input",
            'model.context_to: expected a list, each item text, got "input"; write [input].',
        ),
        ("cell: gru", "dtype: float64", "line 5: model.dtype is not a setting of rnn_seq2seq."),
        ("cell: gru", "attention: none", "r.yaml, line 3: model: attention=none has no context"),
        ("  path: builtin:dates\n", "  seed: 1\n", "r.yaml, line 7: data.path is missing: expected text."),
        ("path: builtin:dates", "path: x/y\n  languages: [de]", "line 9: data.languages: it has no effect"),
        (
            "path: builtin:dates",
            "path: builtin:dates\n  sizes: {trian: 5}",
            'one of train, validation, test. Did you mean "train"?',
        ),
        (
            "path: builtin:dates",
            "path: builtin:dates\n  sizes: {train: 0}",
            "line 9: data.sizes.train: expected a whole number (above 0, at most 2147483647), got 0.",
        ),
        (
            "path: builtin:dates",
            "path: builtin:dates\n  delimiter: ','",
            "line 9: data.delimiter: it has no effect on built-in data",
        ),
        (
            "path: builtin:dates",
            "path: builtin:dates\n  quoting: true",
            "line 9: data.quoting: it has no effect on built-in data",
        ),
        (
            "path: builtin:dates",
            "path: a.tsv\n  encoding: utf-88",
            'line 9: data.encoding: Python has no encoding "utf-88"',
        ),
        (
            "path: builtin:dates",
            "path: a.tsv\n  columns: [de, en]\n  source: de\n  target: eng",
            'line 11: data.target: "eng" is not among data.columns',
        ),
        (
            "path: builtin:dates",
            "path: a.tsv\n  source: de\n  target: de",
            'line 10: data.target: source and target are both "de"',
        ),
        (
            "path: builtin:dates",
            "path: a.tsv\n  min_length: 5\n  max_length: 4",
            "line 10: data.max_length: 4 is below",
        ),
        (
            "task: translation",
            "task: translation\neval:\n  metric_for_best_model: bleu",
            'line 4: eval.metric_for_best_model: "bleu" is not computed',
        ),
        ("task: translation", "task: translation\neval: {early_stopping: nevre}", 'got "nevre". Did you mean "never"?'),
        (
            "task: translation",
            "task: translation\neval: 5",
            "r.yaml, line 3: eval: expected a section with keys, got 5.",
        ),
        (
            "task: translation",
            "task: translation\ntokenizer: {pretrained: x, train: word}",
            "line 3: tokenizer.train: it has no effect",
        ),
        (
            "task: translation",
            "task: translation\ntokenizer: {train: unigram, min_frequency: 3}",
            "tokenizer.min_frequency: it has",
        ),
        (
            "task: translation",
            "task: translation\nmeasured: {a: [1]}",
            "line 3: measured.a: expected a number or text, got [1].",
        ),
        (
            "task: translation",
            "task: translation\nmeasured: {none: x, a: 1}",
            "line 3: measured.none: there are figures",
        ),
        ("task: translation", "task: translations", "line 2: task: expected one of translation, masked_lm, "),
        ("task: translation", "task: translations", 'got "translations". Did you mean "translation"?'),
        ("task: translation\n", "", "r.yaml: task is missing: expected one of translation, masked_lm, "),
    ],
)
def test_each_mistake_is_reported_with_file_line_and_key(write, old, new, message):
    error = error_of(write(changed(old, new)))
    assert message in error
    assert error.startswith("r.yaml")
    assert "\n" not in error


def test_early_stopping_needs_evaluations(write):
    text = changed("max_steps: 10", "max_steps: 10\n  early_stopping_patience: 2") + "eval:\n  steps: 0\n"
    assert "line 11: train.early_stopping_patience: it counts evaluations" in error_of(write(text))


def test_sharing_embeddings_needs_the_tokenizer_to_be_shared(write):
    path = write(changed("cell: gru", "share_encoder_decoder_embeddings: true"))
    assert load_recipe(path).model.settings["share_encoder_decoder_embeddings"] is True
    assert "line 3: model: share_encoder_decoder_embeddings needs one vocabulary" in error_of(
        path, "tokenizer.shared=false"
    )


def test_several_mistakes_are_listed_in_the_order_of_the_file(write):
    text = changed("cell: gru", "cel: gru").replace("max_steps: 10", "max_step: 10").replace("builtin:dates", "5")
    lines = error_of(write(text), "eval.num_beams=0").splitlines()
    starts = ["r.yaml, line 5: model.cel ", "r.yaml, line 8: data.path:", "r.yaml, line 10: train.max_step "]
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=False)] == starts
    assert lines[-1].startswith("on the command line (eval.num_beams=0): eval.num_beams: expected a whole number")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("train.max_step=5", 'on the command line (train.max_step=5): train.max_step is not a key of "train". Did you'),
        (
            "max_steps=5",
            'on the command line (max_steps=5): max_steps is not a section of a recipe. There is a "max_steps"',
        ),
        ("model.cell=5", "on the command line (model.cell=5): model.cell: expected one of rnn, lstm, gru, got 5."),
        ("train.max_steps", 'on the command line: "train.max_steps" is not of the form key=value'),
        ("train.max_steps.x=1", "train.max_steps is not a section"),
        ("eval.metrics.0=bleu", "on the command line (eval.metrics.0=bleu): eval.metrics: expected a list"),
    ],
)
def test_mistakes_on_the_command_line(write, argument, message):
    assert message in error_of(write(VALID), argument)


def test_null_on_the_command_line_removes_a_value(write):
    recipe = load_recipe(write(VALID), ["train.max_steps=null", "train.num_train_epochs=0.5", "train.max_grad_norm="])
    assert (recipe.train.max_steps, recipe.train.num_train_epochs, recipe.train.max_grad_norm) == (None, 0.5, None)


def test_files_that_are_not_recipes_are_rejected(write, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.yaml").write_bytes("task: é".encode("latin-1"))
    (tmp_path / "nul.yaml").write_bytes(b"task: \0")
    assert "no such file" in error_of("missing.yaml")
    assert "folder is a folder" in error_of("folder")
    assert "latin.yaml, line 1: byte 0xe9 is not UTF-8" in error_of("latin.yaml")
    assert "nul.yaml, line 1: the file contains a NUL byte" in error_of("nul.yaml")
    assert "r.yaml is empty" in error_of(write("# only a comment\n"))
    assert "consists of sections" in error_of(write("- a\n- b\n"))
    assert "consists of sections" in error_of(write("text"))
    for name in ("", "x" * 5000, "a\0b", "\udcff"):
        error_of(name).encode("utf-8")


# ---- shipped recipes -----------------------------------------------------------------------------------------


def test_a_local_file_wins_over_a_shipped_recipe_of_the_same_name(write, tmp_path, monkeypatch):
    package = tmp_path / "site" / "kit"
    for task, name in (("translation", "dates"), ("translation", "both"), ("other", "both")):
        (package / "recipes" / task).mkdir(parents=True, exist_ok=True)
        (package / "recipes" / task / f"{name}.yaml").write_text(VALID)
    monkeypatch.setattr(shipped, "_PACKAGE", package)
    for name in ("dates", "translation/dates", "recipes/translation/dates.yaml", "./recipes/translation/dates.yaml"):
        assert load_recipe(name).train.max_steps == 10
    assert "is ambiguous: it matches other/both, translation/both" in error_of("both")
    assert 'Did you mean "dates"?' in error_of("date")
    Path("dates").write_text(changed("max_steps: 10", "max_steps: 11"))
    assert load_recipe("dates").train.max_steps == 11


def test_the_shipped_folders_of_this_tree_exist():
    assert shipped.recipes_folder().is_dir()
    assert shipped.model_cards_folder().is_dir()
    for name, path in shipped.shipped_recipes().items():
        assert path.is_file()
        assert load_recipe(name) == load_recipe(path)


# ---- the fields of a model come from its config class -----------------------------------------------------------


class BaseToyConfig(PreTrainedConfig):
    width: int = 3
    """Width of the toy, in bricks."""


class ToyConfig(BaseToyConfig):
    model_type = "toy"
    vocab_size: int = 5
    kind: Literal["red", "blue"] = "red"
    """Color of the toy."""
    share: float = 0.5
    """Share of the bricks."""
    parts: list[str] = dataclasses.field(default_factory=lambda: ["a"])
    """Names of the parts."""

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        if self.kind == "blue" and self.width > 5:
            raise ValueError("blue toys are small:\n  width must be at most 5")


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(MODELS, "toy", "Toy")
    monkeypatch.setitem(sys.modules, "kit.models.configuration_toy", sys.modules[__name__])
    monkeypatch.setattr(TranslationRecipe, "kit_types", ("toy",))


@pytest.mark.usefixtures("toy")
def test_model_keys_are_the_fields_of_the_config_class_with_its_docstrings():
    fields = recipe_model.model_fields("toy")
    assert {name: field.description for name, field in fields.items()} == {
        "width": "Width of the toy, in bricks.",
        "kind": "Color of the toy.",
        "share": "Share of the bricks.",
        "parts": "Names of the parts.",
    }
    assert fields["parts"].get_default(call_default_factory=True) == ["a"]


@pytest.mark.usefixtures("toy")
def test_settings_are_converted_to_field_types_and_checked_together(write):
    path = write(changed("type: rnn_seq2seq\n  cell: gru\n  hidden_size: 64", "type: toy\n  share: 1\n  kind: blue"))
    settings = load_recipe(path).model.settings
    assert repr(settings) == "{'share': 1.0, 'kind': 'blue'}"
    error = error_of(path, "model.width=6")
    assert error == "r.yaml, line 3: model: blue toys are small: width must be at most 5"


def test_settings_of_every_rnn_field_reach_the_config(write):
    fields = recipe_model.model_fields("rnn_seq2seq")
    defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    text = VALID.replace("  cell: gru\n  hidden_size: 64\n", "")
    overrides = [f"model.{name}={json.dumps(value)}" for name, value in defaults.items()]
    settings = load_recipe(write(text), overrides).model.settings
    assert settings == defaults
    assert RNNSeq2SeqConfig(**settings).to_dict() == RNNSeq2SeqConfig().to_dict()
    assert not set(fields) & {"vocab_size", "pad_token_id", "dtype", "id2label", "is_encoder_decoder"}


def test_settings_for_a_pretrained_folder_are_checked_by_its_model_type(write):
    RNNSeq2SeqConfig().save_pretrained("run/model")
    path = write(changed("type: rnn_seq2seq\n  cell: gru", "pretrained: run").replace("hidden_size: 64", "dropot: 0.1"))
    assert 'model.dropot is not a setting of rnn_seq2seq. Did you mean "dropout"?' in error_of(path)
    recipe = load_recipe(path, ["model={pretrained: run, dropout: 0.1}"])
    assert (recipe.model.pretrained, recipe.model.settings) == ("run", {"dropout": 0.1})
    hub = load_recipe(path, ["model.pretrained=someone/something"])
    assert hub.model.settings == {"dropot": 0.1}


# ---- anything at all -------------------------------------------------------------------------------------------

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
    *(f"model.{name}" for name in recipe_model.model_fields("rnn_seq2seq")),
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


def test_resolved_yaml_has_defaults_and_no_keys_without_effect(write):
    text = load_recipe(write(VALID), ["train.max_grad_norm=null"]).to_yaml()
    shown = yaml.safe_load(text)
    assert shown["train"]["learning_rate"] == 1e-3
    assert shown["train"]["max_grad_norm"] is None
    assert "momentum" not in shown["train"]
    assert "batch_size" not in shown["train"]
    assert "languages" in load_recipe(write(VALID), ["data.languages=[no]"]).to_yaml()
    assert shown["model"] == {"type": "rnn_seq2seq", "cell": "gru", "hidden_size": 64}


def test_with_values_changes_the_written_recipe(write):
    recipe = load_recipe(write(VALID))
    marked = recipe.with_values("data", fingerprints={"train": "abc"})
    assert recipe.differences(marked) == ["data.fingerprints"]
    assert load_recipe(write(marked.to_yaml())) == marked
