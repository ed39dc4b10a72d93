"""Overrides that make other keys of a recipe meaningless."""

from pathlib import Path

import pytest
from datasets import Dataset

from kit.errors import RecipeError
from kit.recipe.catalog import find_recipe, shipped_recipes
from kit.recipe.copying import copy_recipe
from kit.tasks.registry import load_recipe, recipe_classes


def test_an_override_replaces_the_alternative_in_the_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_bytes(find_recipe("dates_rnn").read_bytes())
    for name in ("dates_rnn", mine):
        recipe = load_recipe(name, ["train.num_train_epochs=2", "train.batch_size=8"])
        assert (recipe.train.num_train_epochs, recipe.train.max_steps) == (2, None)
        assert (recipe.train.batch_size, recipe.train.tokens_per_batch) == (8, None)
        assert recipe.dropped == {
            "train.max_steps": "train.num_train_epochs replaces it",
            "train.tokens_per_batch": "train.batch_size replaces it",
        }
    assert load_recipe("dates_rnn").dropped == {}


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
    name: str, override: str, dropped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(name, [override])
    file = find_recipe(name)
    monkeypatch.chdir(file.parent)
    assert load_recipe(file.name, [override]).dropped == recipe.dropped  # as `kit train recipes/…/NAME.yaml`
    assert dropped in recipe.dropped
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


# ---- other data --------------------------------------------------------------------------------------------------

OTHER = ["data.path=mine.csv"]
DESCRIPTIONS = ("license", "language", "tags", "datasets")


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_on_other_data_claims_nothing_of_its_own_data(name: str) -> None:
    original = load_recipe(name)
    rows = {"train": Dataset.from_dict({"a": ["b"]})}
    for recipe in (load_recipe(name, OTHER), load_recipe(name, rows=rows)):
        assert not any(getattr(recipe.hub, key) for key in DESCRIPTIONS)
        claimed = {f"hub.{key}" for key in DESCRIPTIONS if getattr(original.hub, key)}
        assert claimed == {key for key in recipe.dropped if key.startswith("hub.")}
        assert recipe.hub_task == original.hub_task  # which the data does not change
    kept = load_recipe(name, [*OTHER, "hub.license=mit", "hub.language=[fr]"])
    assert (kept.hub.license, kept.hub.language) == ("mit", ["fr"])
    assert load_recipe(name, ["hub={license: mit}", *OTHER]).hub.license == "mit"
    same = load_recipe(name, [f"data.path={original.data.path}"])
    assert (same.hub, same.dropped) == (original.hub, {})


def test_a_recipe_of_the_users_own_claims_nothing_of_its_former_data(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_bytes(find_recipe("summarization").read_bytes())
    recipe = load_recipe(mine, ["data.path=mine.csv", "data.name=null"])
    assert (recipe.hub.license, recipe.hub.tags, recipe.hub_task) == (None, [], "summarization")
    assert load_recipe(mine, ["train.max_steps=3"]).hub == load_recipe("summarization").hub


def test_a_recipe_with_another_pretrained_model_claims_no_license_of_its_own() -> None:
    recipe = load_recipe("classification_sst2", ["model.pretrained=OWNER/NAME"])
    assert recipe.dropped == {"hub.license": "it describes the model that model.pretrained replaces"}
    assert recipe.hub.language == ["en"]
    assert load_recipe("dates_rnn", ["model.pretrained=OWNER/NAME"]).hub.license is None


# ---- kit copy ----------------------------------------------------------------------------------------------------

OWN_DATA = ["data.path=mine.csv", "train.learning_rate=1e-4", "train.max_steps=3"]


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_copy_with_overrides_is_the_recipe_with_these_values(name: str, tmp_path: Path) -> None:
    copied = load_recipe(copy_recipe(name, tmp_path / "mine.yaml", OWN_DATA, recipe_classes())).flat()
    expected = load_recipe(name, OWN_DATA).flat()
    gone = ("measured", "eval.group_by", "data.languages", "data.sizes", "data.name", "data.revision")
    differing = {key for key in expected | copied if expected.get(key) != copied.get(key)}
    assert all(key.startswith(gone) for key in differing), differing
    assert not copied.get("eval.group_by")
    assert not any(copied.get(f"hub.{key}") for key in DESCRIPTIONS)
    assert copied.get("hub.pipeline_tag") == expected.get("hub.pipeline_tag")


def test_a_copy_keeps_comments_and_loses_the_figures_of_the_original(tmp_path: Path) -> None:
    overrides = ["data.path=corpus", "model.encoder_layers=2"]
    copy = copy_recipe("dates_rnn", tmp_path / "mine.yaml", overrides, recipe_classes())
    text = copy.read_text(encoding="utf-8")
    assert text.startswith(f"# A copy of the recipe dates_rnn.\n#   kit train {copy}\n")
    assert "  path: corpus\n" in text
    assert "  cell: gru                  # rnn | lstm | gru" in text
    assert "  encoder_layers: 2\n" in text
    for gone in ("measured", "hub:", "apache", "group_by", "32 languages → ISO"):
        assert gone not in text


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lr=1", "kit calls it train.learning_rate"),
        ("data.sizes.train=3", "data.sizes as a whole"),
        ("model.cell=x", "one of rnn, lstm, gru"),
    ],
)
def test_an_invalid_copy_is_not_written(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        copy_recipe("dates_rnn", tmp_path / "mine.yaml", [override], recipe_classes())
    assert not (tmp_path / "mine.yaml").exists()


def test_a_recipe_of_any_style_can_be_copied(tmp_path: Path) -> None:
    source = tmp_path / "source.yaml"
    source.write_text(
        "task: translation\nmodel: {type: rnn_seq2seq}\ndata:\n  path: a.csv\n  source: x\n  target: y\n"
        "train:\n  max_steps: 5\n  batch_size: 4\neval:\n  metrics:\n    - bleu\n    - chrf\n"
    )
    overrides = ["model.cell=lstm", "eval.metrics=[chrf]", "data.path=b.csv", "hub.license=mit"]
    copied = load_recipe(copy_recipe(str(source), tmp_path / "mine.yaml", overrides, recipe_classes()))
    assert copied.flat() == load_recipe(source, overrides).flat()
