"""Pairs of segments: neither segment alone, nor the lengths of both, give the label away, and `kit data` warns where
they do."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.articles import bert_pairs, write_articles
from support.labeling_runs import write_rows
from support.recipes import BERT, make_recipe

from kit.data.batching.ragged import RaggedTokens
from kit.data.shortcuts import LabeledPairs, Rule, try_rules
from kit.errors import DataError
from kit.runs.prepare import Prepared, prepare
from kit.tasks.masked_lm import sentence_pairs
from kit.tasks.masked_lm.sentence_pairs import Consecutive, SentencePair, couple, make_pairs

SENTENCES = st.lists(st.lists(st.integers(5, 30), min_size=1, max_size=9), max_size=9)


@given(documents=st.lists(SENTENCES, max_size=9), seed=st.integers(0, 9), length=st.integers(2, 40))
@settings(max_examples=80, deadline=None)
def test_both_labels_have_the_same_segments_and_lengths(documents: Any, seed: int, length: int) -> None:
    """With every coin turned over, which is as probable, the same segments and the same lengths have the other label:
    no function of one segment, or of both lengths, is right more often than a coin."""
    half = sentence_pairs.half
    with pytest.MonkeyPatch.context() as patch:
        pairs = make_pairs(documents, length, np.random.default_rng(seed)).pairs
        patch.setattr(sentence_pairs, "half", lambda *arguments: [not coin for coin in half(*arguments)])
        turned = make_pairs(documents, length, np.random.default_rng(seed)).pairs
    for property_of in (
        lambda pair: tuple(pair.first),
        lambda pair: tuple(pair.second),
        lambda pair: (len(pair.first), len(pair.second)),
    ):
        for label in (0, 1):
            mine = Counter(property_of(pair) for pair in pairs if pair.label == label)
            assert mine == Counter(property_of(pair) for pair in turned if pair.label != label)
    negative = sum(pair.label for pair in pairs)
    assert abs(2 * negative - len(pairs)) <= 2


@given(numbers=st.lists(st.integers(0, 4), max_size=24), seed=st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_coupling_is_maximal(numbers: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    pairs = [Consecutive(number, [1], [1] * int(random.integers(1, 9))) for number in numbers]
    couples = couple(pairs, random)
    members = [index for match in couples for index in match]
    assert len(members) == len(set(members))
    assert all(numbers[first] != numbers[second] for first, second in couples)
    most_frequent = max(Counter(numbers).values(), default=0)
    assert len(numbers) - len(members) == max(2 * most_frequent - len(numbers), len(numbers) % 2)


# ---- headings --------------------------------------------------------------------------------------------------------


def recipe(folder: Path, path: Path, **data: Any) -> Any:
    keys = {"path": str(path), "block_size": 48, "pairs": "next_sentence", "pair_passes": 4, **data}
    train = {"max_steps": 2, "batch_size": 8}
    return make_recipe(folder, "masked_lm", keys, model=BERT, train=train, eval={"steps": 0, "examples": 0})


@pytest.fixture(scope="module")
def articles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_articles(tmp_path_factory.mktemp("articles"))


def rules(pairs: list[SentencePair], tokenizer: Any) -> list[Rule]:
    sides = [RaggedTokens(getattr(pair, side) for pair in pairs) for side in ("first", "second")]
    labels = np.array([pair.label for pair in pairs])
    return try_rules(LabeledPairs(*sides, labels, ("next", "not next"), ("first", "second"), tokenizer))


def test_headings_reveal_labels_of_bert_pairs_but_not_of_these(articles: Path, tmp_path: Path) -> None:
    prepared = prepare(recipe(tmp_path, articles))
    tokenizer = prepared.tokenizers.source
    lines = (articles / "train.txt").read_text(encoding="utf-8").split("\n")
    documents = [
        [tokenizer(f"{part} .", add_special_tokens=False)["input_ids"] for part in line.split(" .") if part.strip()]
        for line in lines
        if line.strip()
    ]
    pairs = list(bert_pairs(documents, 45, np.random.default_rng(0)))
    rule = next(rule for rule in rules(pairs, tokenizer) if rule.name == "the first token of the first")
    assert rule.is_shortcut
    assert rule.accuracy > 0.7
    assert rule.example == '"▁=": not next'
    generated = make_pairs(documents, 45, np.random.default_rng(0))
    assert generated.one_sentence > 150  # the headings among them
    assert len(generated.pairs) > 60
    passes = [make_pairs(documents, 45, np.random.default_rng(seed)).pairs for seed in range(8)]
    for rule in rules([pair for of_pass in passes for pair in of_pass], tokenizer):
        assert not rule.is_shortcut
        assert abs(rule.accuracy - 0.5) < 6 * rule.error


def rules_of_train(prepared: Prepared) -> list[Rule]:
    rows, examples = prepared.splits.datasets["train"], prepared.encoded["train"].examples
    return try_rules(prepared.task.labeled_pairs(rows, examples, prepared.state))


@pytest.mark.parametrize("documents", ["row", "blank_line", "heading"])
def test_no_trivial_rule_predicts_next_sentences(documents: str, articles: Path, tmp_path: Path) -> None:
    prepared = prepare(recipe(tmp_path, articles, documents=documents))
    assert len(rules_of_train(prepared)) == 6
    assert not [rule for rule in rules_of_train(prepared) if rule.is_shortcut]
    alone = prepared.encoded["train"].dropped["one_sentence"]
    assert (alone == 0) if documents == "heading" else 180 < alone < 300  # three headings an article, and more
    lines = prepared.report.lines()
    assert any("has blank lines" in line for line in lines) == (documents == "row")
    assert any(line.startswith("validation: ") and "of one sentence" in line for line in lines) == bool(alone)
    assert any("of one sentence" in line for line in prepared.summary() if line.startswith("  train")) == bool(alone)


def test_kit_data_warns_of_headings_in_sentence_order(articles: Path, tmp_path: Path, kit_here: Any) -> None:
    """The title of an article always comes first: which of two segments has it shows their order."""
    path = recipe(tmp_path, articles, documents="heading", pairs="sentence_order") and tmp_path / "masked_lm.yaml"
    done = kit_here("data", path)
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert re.search('first token of the (first|second) segment alone predicts .*"▁=": (in order|swapped)', text)
    assert "Labels of pairs" in text
    assert "pair swapped" in text or "pair in order" in text


def test_kit_data_warns_of_labeled_pairs(tmp_path: Path, kit_here: Any) -> None:
    """Pairs with labels: a word that only one label has, and a balanced set without."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(400):
        same = bool(number % 2)
        first = " ".join(random.choice(list("abcdefgh"), 5))
        second = " ".join(random.choice(list("abcdefgh"), 5))
        rows.append({"text": first, "text_pair": first if same else second, "label": "same" if same else "different"})
    shortcut = [
        row | {"text_pair": "not" + row["text_pair"][1:]} if row["label"] == "different" else row for row in rows
    ]
    recipes = {}
    for name, of_set in (("fair", rows), ("shortcut", shortcut)):
        write_rows(tmp_path / name, train=of_set, validation=of_set[:40])
        data = {"path": str(tmp_path / name), "text_pair": "text_pair"}
        tokenizer, train = {"train": "word", "min_frequency": 1}, {"max_steps": 1, "batch_size": 8}
        recipes[name] = make_recipe(tmp_path / name, "classification", data, tokenizer=tokenizer, train=train)
    assert not [rule for rule in rules_of_train(prepare(recipes["fair"])) if rule.is_shortcut]
    text = " ".join(kit_here("data", tmp_path / "shortcut" / "classification.yaml").stdout.split())
    assert "first token of the text_pair alone predicts 100.0%" in text
    assert '("▁not": different)' in text
    assert "train different 200 50.0%" in text
    assert "label same" in text or "label different" in text


def test_built_in_pairs_have_no_shortcut(tmp_path: Path) -> None:
    data = {
        "path": "builtin:date_pairs",
        "text_pair": "text_pair",
        "sizes": {"train": 2000, "validation": 5, "test": 5},
    }
    prepared = prepare(make_recipe(tmp_path, "classification", data, model=BERT | {"max_position_embeddings": 128}))
    assert not [rule for rule in rules_of_train(prepared) if rule.is_shortcut]


# ---- what makes no pair ----------------------------------------------------------------------------------------------


def test_text_without_pairs_is_refused_with_the_reason(tmp_path: Path) -> None:
    for name in ("train", "validation"):
        (tmp_path / f"{name}.txt").write_text("One sentence.\nAnother one.\nA third one.\n", encoding="utf-8")
    message = (
        "next_sentence needs at least two documents of several sentences, and of the 3 documents there 3 have one. "
        "data.documents decides"
    )
    with pytest.raises(DataError, match=re.escape(message)):
        prepare(recipe(tmp_path, tmp_path))
    with pytest.raises(DataError, match="sentence_order needs at least one document of several sentences"):
        prepare(recipe(tmp_path, tmp_path, pairs="sentence_order"))


def test_a_stream_makes_the_same_kind_of_pairs(tmp_path: Path) -> None:
    """A chunk with a single document makes none: its pairs would all be in sequence."""
    random = np.random.default_rng(0)
    texts = [
        " ".join(f"{chr(97 + number % 26)}{n} goes on." for n in range(random.integers(2, 30))) for number in range(90)
    ]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in [*texts, "Alone."])
    (tmp_path / "train.jsonl").write_text(rows, encoding="utf-8")
    (tmp_path / "validation.jsonl").write_text(rows[:2000].rpartition("\n")[0] + "\n", encoding="utf-8")
    prepared = prepare(recipe(tmp_path, tmp_path, streaming=True, buffer_size=40))
    task, state, plan = prepared.task, prepared.state, prepared.stream_plan
    plan.step(0)
    assert plan.examples.pair_labels.mean() == pytest.approx(0.5, abs=0.1)
    assert plan.examples.pair_labels.dtype == plan.examples.first_lengths.dtype == np.int64
    plan.close()
    encoder = task.stream_encoder(state)
    validation = prepared.splits.datasets["validation"]
    examples, left_out = encoder.encode(validation.select([0]))
    assert len(examples) == 0
    assert left_out["uncoupled"] > 0
    assert encoder.concat([examples, encoder.encode(validation)[0]]).first_lengths.dtype == np.int64


# ---- documents -------------------------------------------------------------------------------------------------------


def test_a_heading_of_the_first_level_starts_a_document(tmp_path: Path) -> None:
    text = " \n = One = \n \n Text .\n \n = = Part = = \n \n 1 = 1 .\n== Other ==\n=Two=\nText = .\n = x = y = \nend"
    (tmp_path / "train.txt").write_text(text, encoding="utf-8")
    (tmp_path / "validation.txt").write_text("Before.\n= A =\n", encoding="utf-8")
    splits = prepare(recipe(tmp_path, tmp_path, documents="heading", pairs="none", pair_passes=5, block_size=16)).splits
    first, second, third = splits.datasets["train"]["text"]
    assert [line.strip() for line in first.split("\n") if line.strip()] == [
        "= One =", "Text .", "= = Part = =", "1 = 1 .", "== Other ==",
    ]  # fmt: skip
    assert (second, third) == ("=Two=\nText = .", " = x = y = \nend")
    assert list(splits.datasets["validation"]["text"]) == ["Before.", "= A ="]
    (tmp_path / "validation.txt").write_text("== A ==\nText.\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"validation\.txt has no line with a heading of the first level, such as `= Ti"
    ):
        prepare(recipe(tmp_path, tmp_path, documents="heading"))


@pytest.mark.parametrize(
    ("text", "warns"), [("a b.\n\nc d.\n", True), ("a b.\nc d.\n\n\n", False), ("\na\nb\n", False)]
)
@pytest.mark.parametrize("streaming", [False, True])
def test_blank_lines_between_documents_are_noted(text: str, warns: bool, streaming: bool, tmp_path: Path) -> None:
    for name in ("train", "validation"):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    data = {"path": str(tmp_path), "streaming": streaming, "block_size": 8}
    lines = prepare(make_recipe(tmp_path, "causal_lm", data)).report.lines()
    assert any("train.txt has blank lines, but each of its lines is a document" in line for line in lines) == warns
