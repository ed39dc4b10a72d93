"""Several directions for one model (data.directions)."""

import gzip
import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cards import write_card

from kit.data import splits as kit_splits
from kit.data.splits import Splits
from kit.errors import DataError, RecipeError
from kit.tasks.registry import load_recipe
from kit.tasks.translation.directions import DirectionSteps
from kit.tasks.translation.recipe import TranslationData


def load_splits(data: TranslationData) -> Splits:
    """The splits as the task loads them."""
    return kit_splits.load_splits(data, DirectionSteps(data) if data.directions is not None else None)


SIZES = {"train": 40, "val": 4, "test": 5}
LANGUAGES = ("de", "en", "fr")
COLUMNS = ["source", "target", "source_language", "target_language", "direction"]
in_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)


def text(split: str, number: int, language: str) -> str:
    return f"{split} {number} {language}"


@pytest.fixture
def folder(tmp_path):
    """Parallel text in three languages."""
    path = tmp_path / "parallel"
    path.mkdir()
    for split, size in SIZES.items():
        for language in LANGUAGES:
            lines = "".join(f"{text(split, n, language)}\n" for n in range(size)).encode()
            (path / f"{split}.{language}.gz").write_bytes(gzip.compress(lines))
    return path


def load(path, *directions: str, **keys) -> Splits:
    return load_splits(TranslationData(path=str(path), directions=list(directions), **keys))


def pairs_by_direction(splits: Splits, split: str = "train") -> dict[str, list[tuple[str, str]]]:
    pairs: dict[str, list[tuple[str, str]]] = {}
    for row in splits.datasets[split]:
        assert row["direction"] == f"{row['source_language']}-{row['target_language']}"
        pairs.setdefault(row["direction"], []).append((row["source"], row["target"]))
    return pairs


def accounted(splits: Splits) -> bool:
    counts = splits.report.splits
    return all(
        counts[split].read + counts[split].repeated == len(rows) + counts[split].dropped.total()
        for split, rows in splits.datasets.items()
    )


# ---- directions --------------------------------------------------------------------------------------------------


def test_every_row_is_an_example_in_each_direction(folder):
    splits = load(folder, "de-en", "en-fr", "fr-de")
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        assert splits.datasets[split].column_names == COLUMNS
        assert pairs_by_direction(splits, split) == {
            f"{a}-{b}": [(text(name, n, a), text(name, n, b)) for n in range(SIZES[name])]
            for a, b in (("de", "en"), ("en", "fr"), ("fr", "de"))
        }
    assert accounted(splits)


def test_languages_without_a_direction_are_not_read(folder):
    (folder / "train.fr.gz").write_bytes(b"broken")
    assert set(pairs_by_direction(load(folder, "de-en", "en-de"))) == {"de-en", "en-de"}
    with pytest.raises(DataError, match=r"train\.fr\.gz is not a valid gzip file"):
        load(folder, "de-fr")


def test_one_direction_is_the_same_pairs_as_source_and_target(folder):
    plain = load_splits(TranslationData(path=str(folder), source="fr", target="en"))
    tagged = load(folder, "fr-en")
    for split, rows in plain.datasets.items():
        assert rows["source"] == tagged.datasets[split]["source"]
        assert rows["target"] == tagged.datasets[split]["target"]


@pytest.mark.parametrize("nested", [False, True])
def test_tables_with_a_column_for_each_language(folder, tmp_path, nested):
    for split, size in SIZES.items():
        rows = [{name: text(split, n, name) for name in LANGUAGES} for n in range(size)]
        shown = [{"id": n, "translation": row} if nested else {"id": n, **row} for n, row in enumerate(rows)]
        (tmp_path / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in shown))
    splits, others = (load(path, "de-en", "fr-de") for path in (tmp_path, folder))
    for split in splits.datasets:
        assert pairs_by_direction(splits, split) == pairs_by_direction(others, split)
    assert splits.datasets["train"]["id"] == [*range(SIZES["train"])] * 2


cells = st.sampled_from([None, "", "a", "b", "c"])


@in_folder
@given(rows=st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=12))
def test_row_is_used_where_both_texts_exist(tmp_path, rows):
    file = "".join(f"{json.dumps(dict(zip(LANGUAGES, row, strict=True)))}\n" for row in rows)
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text(file)
    directions = ("de-en", "en-fr", "fr-en")
    expected = {}
    for direction in directions:
        source, target = (LANGUAGES.index(name) for name in direction.split("-"))
        pairs = [(row[source], row[target]) for row in rows if row[source] and row[target]]
        if pairs:
            expected[direction] = pairs
    if not expected:
        with pytest.raises(DataError, match="no row of the train split can be used"):
            load(tmp_path, *directions)
        return
    splits = load(tmp_path, *directions)
    assert pairs_by_direction(splits) == expected
    assert splits.report.splits["train"].read == len(directions) * len(rows)
    assert accounted(splits)
    missing = ", ".join(sorted(set(directions) - set(expected)))
    assert (f"train: no example in the direction {missing}" in splits.report.notes) == bool(missing)


@in_folder
@given(
    rows=st.lists(st.tuples(*[st.sampled_from(["", "a", "b", "c", "d", "e", "f"])] * 3), min_size=5, max_size=30),
    seed=st.integers(0, 5),
)
def test_held_out_rows_are_in_no_training_direction(tmp_path, rows, seed):
    path = tmp_path / "all.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in [LANGUAGES, *rows]))
    directions = ("de-en", "en-de", "fr-en")
    try:
        splits = load(path, *directions, validation_size=2, test_size=1, seed=seed)
    except DataError as error:
        # so much is linked that nothing, or all, would have to be held out; or all texts are empty
        if "_size: " not in str(error) and "no row of the train split can be used" not in str(error):
            raise
        return
    texts = {
        split: {(row[f"{role}_language"], row[role]) for row in data for role in ("source", "target") if row[role]}
        for split, data in splits.datasets.items()
    }
    assert not texts["train"] & texts["validation"]
    assert not texts["train"] & texts["test"]
    assert not texts["validation"] & texts["test"]
    assert len(splits.datasets["validation"]) <= 2 * len(directions)
    assert sum(len(data) for data in splits.datasets.values()) + sum(
        count
        for report in splits.report.splits.values()
        for reason, count in report.dropped.items()
        if not reason.startswith("held out")
    ) == len(directions) * len(rows)
    assert accounted(splits)


def test_held_out_rows_are_chosen_by_seed_and_not_by_order(folder, tmp_path):
    lines = [[text("train", n, name) for name in LANGUAGES] for n in range(100)]

    def held_out(order, seed):
        (tmp_path / "a.tsv").write_text("".join("\t".join(row) + "\n" for row in [LANGUAGES, *order]))
        return set(load(tmp_path / "a.tsv", "de-en", validation_size=10, seed=seed).datasets["validation"]["source"])

    assert len(held_out(lines, 0)) == 10
    assert held_out(lines, 0) == held_out(lines[::-1], 0) != held_out(lines, 1)


def test_the_size_of_a_direction_limits_its_training_examples_only(folder):
    directions = ("de-en", "en-fr", "fr-en")
    whole = load(folder, *directions)
    small = load(folder, *directions, direction_sizes={"fr-en": 10, "en-fr": 20, "de-en": 1000})
    pairs, before = pairs_by_direction(small), pairs_by_direction(whole)
    assert pairs["de-en"] == before["de-en"]
    assert (len(pairs["fr-en"]), len(pairs["en-fr"])) == (10, 20)
    for direction in ("fr-en", "en-fr"):
        positions = [before[direction].index(pair) for pair in pairs[direction]]
        assert positions == sorted(positions)
        assert positions != list(range(len(positions)))
    # both directions of a pair have the same rows, and fewer are a part of more
    assert {(en, fr) for fr, en in pairs["fr-en"]} < set(pairs["en-fr"])
    assert small.report.splits["train"].dropped == Counter({"beyond data.direction_sizes": 50})
    for split in ("validation", "test"):
        assert pairs_by_direction(small, split) == pairs_by_direction(whole, split)
    again = load(folder, *directions, direction_sizes={"fr-en": 10, "en-fr": 20, "de-en": 1000})
    other = load(folder, *directions, direction_sizes={"fr-en": 10}, seed=1)
    assert again.fingerprints == small.fingerprints
    assert set(pairs_by_direction(other)["fr-en"]) != set(pairs["fr-en"])
    assert accounted(small)


def test_a_direction_is_repeated_in_train_only(folder):
    keys = {"direction_sizes": {"fr-en": 3}, "drop_duplicates": True}
    once = load(folder, "de-en", "fr-en", **keys)
    often = load(folder, "de-en", "fr-en", **keys, direction_repeats={"fr-en": 4})
    pairs, before = pairs_by_direction(often), pairs_by_direction(once)
    assert pairs["de-en"] == before["de-en"]
    assert Counter(pairs["fr-en"]) == Counter(before["fr-en"] * 4)
    assert often.datasets["train"].features == once.datasets["train"].features
    counts = often.report.splits["train"]
    assert counts.repeated == 3 * len(before["fr-en"])
    assert counts.flagged["repetitions (data.direction_repeats)"] == len(before["fr-en"])
    for split in ("validation", "test"):
        assert often.fingerprints[split] == once.fingerprints[split]
    assert accounted(often)


def test_equal_texts_are_duplicates_within_a_direction_only(tmp_path):
    rows = [("OK", "OK", "OK"), ("ja", "yes", "oui"), ("OK", "OK", "OK"), ("ja", "yes", "si")]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.tsv").write_text("".join("\t".join(row) + "\n" for row in [LANGUAGES, *rows]))
    splits = load(tmp_path, "en-de", "en-fr", drop_duplicates=True)
    assert pairs_by_direction(splits) == {
        "en-de": [("OK", "OK"), ("yes", "ja")],
        "en-fr": [("OK", "OK"), ("yes", "oui"), ("yes", "si")],
    }
    assert splits.report.splits["train"].dropped == Counter({"duplicate": 3})


def test_conflicting_columns_are_dropped_with_a_note(tmp_path):
    for split in ("train", "validation"):
        (tmp_path / f"{split}.tsv").write_text("de\ten\tdirection\ttopic\nja\tyes\tup\tx\n")
    splits = load(tmp_path, "de-en")
    assert splits.datasets["train"][0] | {"topic": "x", "direction": "de-en"} == splits.datasets["train"][0]
    assert "left out, since its name is needed: column direction" in splits.report.notes


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"directions": ["de-en", "en-ru"]}, r'data\.directions: .* has no file "train\.ru"\.'),
        ({"directions": ["ru-be"]}, r'data\.directions: .* has no file "train\.ru"\.'),
        ({"directions": ["de-en"], "test": "tset"}, r'data\.test: .* has no split "tset"\. Did you mean "test"\?'),
    ],
)
def test_mistakes_about_a_folder_are_named(folder, keys, message):
    with pytest.raises(DataError, match=message):
        load_splits(TranslationData(path=str(folder), **keys))


def test_mistakes_about_tables_and_line_numbers_are_named(folder, tmp_path):
    (tmp_path / "a.tsv").write_text("de\ten\nja\tyes\n")
    with pytest.raises(DataError, match=r'data\.directions: the train split .* has no column "fr"\. It has de, en'):
        load(tmp_path / "a.tsv", "de-fr", validation_size=1)
    (folder / "train.fr.gz").write_bytes(gzip.compress(b"un\n"))
    with pytest.raises(DataError, match=r"train\.de\.gz has 40 lines and .*train\.fr\.gz has 1: parallel text needs"):
        load(folder, "de-en", "en-fr")


BASE = ["data.path=somewhere"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data.directions=[deen]"], r'data\.directions: "deen" does not name two languages as SOURCE-TARGET'),
        (["data.directions=[de-en-fr]"], r'"de-en-fr" does not name two languages .* contains a hyphen'),
        (["data.directions=[de-de]"], r'"de-de" does not name two languages'),
        (["data.directions=[-de]"], r'"-de" does not name two languages'),
        (["data.directions=[]"], r"data\.directions"),
        (["data.directions=[de-en, de-en]"], r'data\.directions: "de-en" occurs twice'),
        (["data.directions=[de-en]", "data.source=de"], r"data\.source: it has no effect with data\.directions"),
        (["data.directions=[de-en]", "data.target=de"], r"data\.target: it has no effect with data\.directions"),
        (["data.direction_sizes={de-en: 5}"], r"data\.direction_sizes: it has no effect without data\.directions"),
        (
            ["data.directions=[de-en, fr-en]", "data.direction_sizes={fr-de: 5}"],
            r'data\.direction_sizes: "fr-de" is not among data\.directions\. Did you mean "fr-en"\?',
        ),
        (["data.direction_repeats={de-en: 5}"], r"data\.direction_repeats: it has no effect without data\.directions"),
        (
            ["data.directions=[de-en]", "data.direction_repeats={de-fr: 5}"],
            r'data\.direction_repeats: "de-fr" is not among data\.directions',
        ),
        (["data.directions=[de-en]", "data.direction_sizes={de-en: 0}"], r"data\.direction_sizes\.de-en"),
        (
            ["data.directions=[de-en]", "data.columns=[de, fr]"],
            r'data\.directions: "en" is not among data\.columns',
        ),
        (["data.join=3"], r"data\.join is not a key of"),
    ],
)
def test_contradictory_recipes_are_rejected(tiny_recipe, arguments, message):
    plain = [*BASE, "data.languages=null", "data.sizes=null"]
    with pytest.raises(RecipeError, match=message):
        load_recipe(tiny_recipe, [*plain, *arguments])


def test_directions_survive_a_yaml_round_trip(tiny_recipe, tmp_path):
    arguments = ["data.directions=[de-en, en-de]", "data.direction_sizes={de-en: 5}"]
    recipe = load_recipe(tiny_recipe, [*BASE, "data.languages=null", "data.sizes=null", *arguments])
    (tmp_path / "again.yaml").write_text(recipe.to_yaml())
    assert load_recipe(tmp_path / "again.yaml") == recipe
    assert (recipe.data.directions, recipe.data.direction_sizes) == (["de-en", "en-de"], {"de-en": 5})


# ---- the way through kit -----------------------------------------------------------------------------------------


def test_an_inspection_shows_directions(folder, tiny_recipe):
    from kit.diagnostics.dry_run import inspect_recipe

    overrides = [f"data.path={folder}", "data.languages=null", "data.sizes=null", "data.directions=[en-de, en-fr]"]
    inspection = inspect_recipe(load_recipe(tiny_recipe, [*overrides, "data.direction_sizes={en-fr: 9}"]))
    train = inspection.splits["train"]
    assert train.read == 2 * SIZES["train"]
    assert train.left_out == {"beyond data.direction_sizes": SIZES["train"] - 9}
    tags = {example.sides["source"].tokens[0] for example in inspection.examples}
    assert tags <= {"<2de>", "<2fr>"}
    assert tags


def test_the_card_names_the_directions(folder, tiny_recipe, tmp_path):

    overrides = [f"data.path={folder}", "data.languages=null", "data.sizes=null", "data.directions=[en-de, en-fr]"]
    card = write_card(tmp_path, load_recipe(tiny_recipe, overrides), {})
    assert "Directions: `en-de`, `en-fr`." in card
