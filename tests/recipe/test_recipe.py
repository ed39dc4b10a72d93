"""Recipes: accepted values, precedence of the command line, shipped recipes, and recipes written as YAML."""

from pathlib import Path

import pytest
import yaml
from support.recipe_texts import VALID, changed, error_of

from kit.recipe import catalog, model_settings
from kit.recipe.base import Recipe, sections_of
from kit.tasks.registry import load_recipe, recipe_classes


def test_the_command_line_wins_over_yaml_and_yaml_over_defaults(write_file):
    path = write_file(VALID)
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


def test_integers_become_floats_and_words_stay_text(write_file):
    text = changed("max_steps: 10", "num_train_epochs: 2\n  mixed_precision: no") + "hub:\n  language: [no, en]\n"
    recipe = load_recipe(write_file(text))
    assert recipe.train.num_train_epochs == 2.0
    assert (recipe.train.mixed_precision, recipe.hub.language) == ("no", ["no", "en"])


def test_an_empty_section_has_its_defaults(write_file):
    recipe = load_recipe(write_file(VALID + "eval:\n  # steps: 5\nhub:\n"))
    assert recipe.eval.steps == 500


def test_recipes_cannot_be_changed(write_file):
    recipe = load_recipe(write_file(VALID))
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
    fields |= {f"model.{name}": field for name, field in model_settings.model_fields("rnn_seq2seq").items()}
    assert [name for name, field in fields.items() if len(field.description or "") < 15] == []


def test_a_local_file_wins_over_a_shipped_recipe_of_the_same_name(write_file, tmp_path, monkeypatch):
    package = tmp_path / "site" / "kit"
    for task, name in (("translation", "dates"), ("translation", "both"), ("other", "both")):
        (package / "recipes" / task).mkdir(parents=True, exist_ok=True)
        (package / "recipes" / task / f"{name}.yaml").write_text(VALID)
    monkeypatch.setattr(catalog, "_PACKAGE", package)
    for name in ("dates", "translation/dates", "recipes/translation/dates.yaml", "./recipes/translation/dates.yaml"):
        assert load_recipe(name).train.max_steps == 10
    assert "is ambiguous: it matches other/both, translation/both" in error_of("both")
    assert 'Did you mean "dates"?' in error_of("date")
    Path("dates").write_text(changed("max_steps: 10", "max_steps: 11"))
    assert load_recipe("dates").train.max_steps == 11


def test_the_shipped_folders_of_this_tree_exist():
    assert catalog.recipes_folder().is_dir()
    assert catalog.model_cards_folder().is_dir()
    for name, path in catalog.shipped_recipes().items():
        assert path.is_file()
        assert load_recipe(name) == load_recipe(path)


def test_resolved_yaml_has_defaults_and_no_keys_without_effect(write_file):
    text = load_recipe(write_file(VALID), ["train.max_grad_norm=null"]).to_yaml()
    shown = yaml.safe_load(text)
    assert shown["train"]["learning_rate"] == 1e-3
    assert shown["train"]["max_grad_norm"] is None
    assert "momentum" not in shown["train"]
    assert "batch_size" not in shown["train"]
    assert "languages" in load_recipe(write_file(VALID), ["data.languages=[no]"]).to_yaml()
    assert shown["model"] == {"type": "rnn_seq2seq", "cell": "gru", "hidden_size": 64}


def test_with_values_changes_the_written_recipe(write_file):
    recipe = load_recipe(write_file(VALID))
    marked = recipe.with_values("data", fingerprints={"train": "abc"})
    assert recipe.differences(marked) == ["data.fingerprints"]
    assert load_recipe(write_file(marked.to_yaml())) == marked
