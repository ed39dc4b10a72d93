"""A small recipe as text, for tests of how recipes are read."""

import pytest

from kit.errors import RecipeError
from kit.tasks.registry import load_recipe

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
"""A translation recipe of few lines; messages name them by number."""


def changed(old: str, new: str) -> str:
    """The recipe with one passage replaced, which must occur once."""
    assert VALID.count(old) == 1
    return VALID.replace(old, new)


def error_of(path: str, *overrides: str) -> str:
    """The message with which a recipe is rejected."""
    with pytest.raises(RecipeError) as error:
        load_recipe(path, overrides)
    return str(error.value)
