"""The keys of `model` are the fields of its configuration class, with their types, docstrings and checks."""

import dataclasses
import json
import sys
from typing import Literal

import pytest
from support.recipe_texts import VALID, changed, error_of
from transformers import PreTrainedConfig

from kit.models import MODELS
from kit.models.configuration_rnn_seq2seq import RNNSeq2SeqConfig
from kit.recipe import model_settings
from kit.tasks.registry import load_recipe
from kit.tasks.translation.recipe import TranslationRecipe


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
    fields = model_settings.model_fields("toy")
    assert {name: field.description for name, field in fields.items()} == {
        "width": "Width of the toy, in bricks.",
        "kind": "Color of the toy.",
        "share": "Share of the bricks.",
        "parts": "Names of the parts.",
    }
    assert fields["parts"].get_default(call_default_factory=True) == ["a"]


@pytest.mark.usefixtures("toy")
def test_settings_are_converted_to_field_types_and_checked_together(write_file):
    path = write_file(
        changed("type: rnn_seq2seq\n  cell: gru\n  hidden_size: 64", "type: toy\n  share: 1\n  kind: blue")
    )
    settings = load_recipe(path).model.settings
    assert repr(settings) == "{'share': 1.0, 'kind': 'blue'}"
    error = error_of(path, "model.width=6")
    assert error == "r.yaml, line 3: model: blue toys are small: width must be at most 5"


def test_settings_of_every_rnn_field_reach_the_config(write_file):
    fields = model_settings.model_fields("rnn_seq2seq")
    defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    text = VALID.replace("  cell: gru\n  hidden_size: 64\n", "")
    overrides = [f"model.{name}={json.dumps(value)}" for name, value in defaults.items()]
    settings = load_recipe(write_file(text), overrides).model.settings
    assert settings == defaults
    assert RNNSeq2SeqConfig(**settings).to_dict() == RNNSeq2SeqConfig().to_dict()
    assert not set(fields) & {"vocab_size", "pad_token_id", "dtype", "id2label", "is_encoder_decoder"}


def test_settings_for_a_pretrained_folder_are_checked_by_its_model_type(write_file):
    RNNSeq2SeqConfig().save_pretrained("run/model")
    path = write_file(
        changed("type: rnn_seq2seq\n  cell: gru", "pretrained: run").replace("hidden_size: 64", "dropot: 0.1")
    )
    assert 'model.dropot is not a setting of rnn_seq2seq. Did you mean "dropout"?' in error_of(path)
    recipe = load_recipe(path, ["model={pretrained: run, dropout: 0.1}"])
    assert (recipe.model.pretrained, recipe.model.settings) == ("run", {"dropout": 0.1})
    hub = load_recipe(path, ["model.pretrained=someone/something"])
    assert hub.model.settings == {"dropot": 0.1}
