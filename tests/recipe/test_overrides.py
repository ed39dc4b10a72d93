"""Overrides that make other keys of a recipe meaningless."""

from pathlib import Path

import pytest

from kit.errors import RecipeError
from kit.recipe.catalog import find_recipe
from kit.tasks.registry import load_recipe


def test_an_override_replaces_the_alternative_in_the_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_bytes(find_recipe("dates_rnn").read_bytes())
    for name in ("dates_rnn", mine):
        recipe = load_recipe(name, ["train.num_train_epochs=2", "train.batch_size=8"])
        assert (recipe.train.num_train_epochs, recipe.train.max_steps) == (2, None)
        assert (recipe.train.batch_size, recipe.train.tokens_per_batch) == (8, None)
        assert recipe.notes == (
            "recipe: train.max_steps is dropped: train.num_train_epochs replaces it",
            "recipe: train.tokens_per_batch is dropped: train.batch_size replaces it",
        )
    assert load_recipe("dates_rnn").notes == ()


def test_two_alternatives_on_the_command_line_are_rejected() -> None:
    with pytest.raises(RecipeError, match="max_steps"):
        load_recipe("dates_rnn", ["train.num_train_epochs=2", "train.max_steps=8"])


@pytest.mark.parametrize(
    ("name", "override", "dropped"),
    [
        ("lora_classification", "peft.method=ia3", "peft.dropout"),
        ("gpt_tiny", "model.type=llama", "model.n_embd"),
        ("dates_rnn", "model.pretrained=OWNER/NAME", "tokenizer.vocab_size"),
        ("dates_rnn", "tokenizer.pretrained=OWNER/NAME", "tokenizer.min_frequency"),
    ],
)
def test_keys_of_a_shipped_recipe_that_lose_their_meaning_are_dropped_with_a_note(
    name: str, override: str, dropped: str, tmp_path: Path
) -> None:
    recipe = load_recipe(name, [override])
    assert any(f"recipe: {dropped} is dropped: " in note for note in recipe.notes)
    assert dropped not in recipe.flat() or recipe.flat()[dropped] != load_recipe(name).flat()[dropped]
    # the same key is a mistake in a recipe of the user's own, and on the command line
    mine = tmp_path / "mine.yaml"
    mine.write_bytes(find_recipe(name).read_bytes())
    with pytest.raises(RecipeError, match=dropped):
        load_recipe(mine, [override])
    value = load_recipe(name).flat()[dropped]
    with pytest.raises(RecipeError, match=dropped):
        load_recipe(name, [override, f"{dropped}={value}"])


def test_other_mistakes_are_reported_as_they_are() -> None:
    with pytest.raises(RecipeError, match=r"model\.n_embd is not a setting of llama[\s\S]*train\.foo"):
        load_recipe("gpt_tiny", ["model.type=llama", "train.foo=1"])
    with pytest.raises(RecipeError, match=r"train\.foo"):
        load_recipe("dates_rnn", ["train.foo=1"])
