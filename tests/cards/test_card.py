"""The model card: metadata that the Hub can read, figures as measured, and data that cannot become markup."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cards import RESULTS, body, inline, parse, recipe, tables, write_card

from kit.cards.markdown import code_block, escape, table
from kit.recipe.base import Recipe
from kit.recipe.catalog import model_cards_folder, shipped_recipes
from kit.tasks.registry import load_recipe

HOSTILE = [
    "a | b | c |\n| d",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "`code` ``` \n```\n# heading",
    "[link](javascript:alert(1)) ![image](http://example.org/x.png) <http://example.org>",
    "**bold** __bold__ ~~gone~~ $$x$$ \\| \\\\| &lt;b&gt; {{ card_data }} {% raw %}",
    "\u202egnp.exe \x00\x1b[31m \ud800 \u2028---\u2029",
    "---\nlicense: mit\n---",
    '"); import os  # ',
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "dates_rnn"
    (folder / "predictions").mkdir(parents=True)
    (folder / "plots").mkdir()
    rows = [{"source": text, "target": text, "prediction": text, "score": 0.0} for text in HOSTILE]
    (folder / "predictions" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("validation_bleu.png", "loss.png", "attention 1.png", ".tmp.png"):
        (folder / "plots" / name).write_bytes(b"")
    return folder


def test_metadata_is_read_back_by_the_hub_library(run: Path) -> None:
    data = ModelCard(write_card(run, recipe(), RESULTS)).data
    assert data.library_name == "transformers"
    assert data.pipeline_tag == "translation"
    assert data.license == "apache-2.0"
    assert data.language == ["de", "no"]
    assert data.datasets == ["owner/dates"]
    assert {"dates", "rnn_seq2seq", "seq2seq-kit"} <= set(data.tags)
    assert data.metrics == ["bleu", "exact_match"]
    assert data.model_name == "dates_rnn"
    assert data.base_model is None
    values = {(result.dataset_split, result.metric_type): result for result in data.eval_results}
    assert values["test", "bleu"].metric_value == 29.1235
    assert values["validation", "bleu"].metric_value == 31.25
    assert values["test", "exact_match"].metric_value == 0.9877
    assert values["test", "bleu"].metric_args == {"signature": "nrefs:1|case:mixed|eff:no|tok:13a"}
    assert values["test", "bleu"].task_type == "translation"
    assert ("test", "perplexity") not in values  # infinity is no result
    assert all(result.dataset_type == "builtin:dates" for result in data.eval_results)


def test_names_of_splits_and_data_on_the_hub(run: Path) -> None:
    data = {"path": "bentrevett/multi30k", "name": "de-en", "revision": "abc", "test": "flickr", "source": "de"}
    card = write_card(run, recipe(data=data, hub={"datasets": [], "license": None, "language": []}), RESULTS)
    metadata = ModelCard(card).data
    assert metadata.datasets == ["bentrevett/multi30k"]
    assert metadata.license is None
    assert metadata.language is None
    result = metadata.eval_results[0]
    assert (result.dataset_type, result.dataset_config) == ("bentrevett/multi30k", "de-en")
    assert (result.dataset_split, result.dataset_revision) == ("flickr", "abc")
    assert "configuration de-en, revision abc" in card


def test_a_missing_file_is_no_dataset_on_the_hub(run: Path) -> None:
    """Its path looks like one: `kit push` may run in another folder than `kit train` did."""
    card = write_card(run, recipe(data={"path": "data/mine"}, hub={"datasets": []}), RESULTS)
    metadata = ModelCard(card).data
    assert metadata.datasets is None
    assert {result.dataset_type for result in metadata.eval_results} == {"data/mine"}


def test_a_pretrained_model_is_named_as_the_base(run: Path) -> None:
    changed = recipe().model_copy(
        update={"model": recipe().model.model_copy(update={"type": None, "pretrained": "Helsinki-NLP/opus-mt-de-en"})}
    )
    card = write_card(run, changed, RESULTS)
    assert ModelCard(card).data.base_model == "Helsinki-NLP/opus-mt-de-en"
    assert "AutoModelForSeq2SeqLM.from_pretrained(model)\n" in card


def test_the_task_on_the_hub_is_what_the_model_does(run: Path) -> None:
    card = write_card(run, recipe(hub={"pipeline_tag": "summarization"}), RESULTS)
    assert ModelCard(card).data.pipeline_tag == "summarization"
    assert "A summarization model of type" in card
    assert 'kit.pipeline("summarization", model=model)' in card
    assert "translation" not in card.split("## Reproducing this run")[0]


def test_regression_is_not_called_classification(run: Path) -> None:
    regression = load_recipe(
        "fine_tuning/classification_sst2",
        ["data.problem_type=regression", "eval.metrics=[mse]", "eval.metric_for_best_model=mse"],
    )
    assert "A text regression model, fine-tuned from" in write_card(run.parent / "bare", regression, {})


@pytest.mark.parametrize(
    ("changes", "origin"),
    [
        ({}, "bpe, trained on the training data; one vocabulary, at most 8,000 tokens"),
        ({"tokenizer": {"train": "word", "shared": False}}, "word, trained on the training data; one for each side"),
        ({"tokenizer": {"pretrained": "/home/jane/tokenizers/mine"}}, "| mine |"),
        ({"model": {"type": None, "cell": None, "pretrained": "owner/base"}}, "| of owner/base |"),
    ],
)
def test_the_tokenizer_is_named(run: Path, changes: dict[str, Any], origin: str) -> None:
    (line,) = [line for line in write_card(run, recipe(**changes), RESULTS).splitlines() if "| tokenizer |" in line]
    assert origin in line


def test_tables_hold_what_was_measured(run: Path) -> None:
    tokens = body(write_card(run, recipe(), RESULTS))
    all_tables = tables(tokens)
    results = {row[0]: row[1:] for row in all_tables[0]}
    assert all_tables[0][0] == ["metric", "test", "validation"]
    assert results["BLEU"] == ["29.12", "31.25"]
    assert results["Exact match"] == ["0.9877", "0.9877"]
    assert results["Loss (lower is better)"] == ["0.25", "0.25"]
    assert ["fr|x", "1", "3", "0"] in all_tables[1]
    flat = [row for rows in all_tables for row in rows]
    assert ["train", "train", "1,200", "f1"] in flat
    assert ["test", "test", "8", "f3"] in flat
    assert ["tokens per second", "23,457"] in flat
    assert ["hardware", "2 cores of a <b>fast</b> CPU"] in flat
    assert ["parameters", "1,234,567"] in flat
    assert ["torch", "2.13.0"] in flat
    lists = [token.content for token in tokens if token.type == "inline" and token.level == 3]
    assert lists[0] == "train: 2234 rows, 3 left out (&#60;empty&#62;)"
    assert "1,034 by max" in lists[1]


def test_hostile_examples_stay_in_their_cells(run: Path) -> None:
    card = write_card(run, recipe(), RESULTS)
    card.encode("utf-8")
    tokens = body(card)
    examples = next(rows for rows in tables(tokens) if rows[0] == ["source", "reference", "output"])
    assert [len(row) for row in examples] == [3] * (1 + len(HOSTILE))
    for row, text in zip(examples[1:], HOSTILE, strict=True):
        assert row == [displayed(text)] * 3
    assert not [token for token in tokens if token.type == "html_block"]
    kinds = {token.type for token in inline(tokens)}
    assert kinds <= {"text", "text_special", "code_inline", "softbreak", "hardbreak", "image"}
    images = [token.attrs["src"] for token in inline(tokens) if token.type == "image"]
    assert images == ["plots/loss.png", "plots/validation_bleu.png", "plots/attention%201.png"]
    headings = [tokens[index + 1].content for index, token in enumerate(tokens) if token.type == "heading_open"]
    assert "heading" not in headings
    assert headings[0] == "dates_rnn"
    assert ModelCard(card).data.license == "apache-2.0"


def displayed(text: str) -> str:
    """A text as displayed: one line, with replacements for undisplayable characters."""
    bad = {"\x00", "\x1b", "\ud800", "\u202e"}
    return "".join("\ufffd" if letter in bad else letter for letter in " ".join(text.split()))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Cf"]), max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_comes_out_of_a_cell_as_it_went_in(text: str) -> None:
    tokens = parse(table(("a", "b"), [(text, "end"), ("next", text)]))
    shown = " ".join(text.split())
    assert tables(tokens) == [[["a", "b"], [shown, "end"], ["next", shown]]]
    assert {token.type for token in inline(tokens)} <= {"text", "text_special"}


@given(st.text(alphabet="`~\n\r a#", max_size=40) | st.text(max_size=80))
@settings(max_examples=300, deadline=None)
def test_no_text_ends_a_code_block_or_breaks_a_line(text: str) -> None:
    tokens = parse(code_block(f"{text}\nend", "yaml") + "\n\nafter")
    assert [token.type for token in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert len(escape(text).splitlines()) <= 1


def test_long_texts_are_truncated() -> None:
    assert escape("x" * 5000) == "x" * 300 + "…"


def test_the_code_of_the_card_is_python_and_uses_an_example(run: Path) -> None:
    rows = [{"source": text, "target": "t", "prediction": "p"} for text in ['say "hi"\n```\\', "b"]]
    (run / "predictions" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for shared in (True, False):
        card = write_card(run, recipe(tokenizer={"shared": shared}) if shared else separate(), RESULTS)
        blocks = [token.content for token in body(card) if token.type == "fence" and token.info == "python"]
        assert len(blocks) == 3
        for block in blocks:
            compile(block, "card", "exec")
            assert json.dumps('say "hi" ```\\') in block
        assert "kit.pipeline(" in blocks[0]
        assert "trust_remote_code=True" in blocks[1]
        assert "AutoTokenizer.from_pretrained(model, trust_remote_code=True)" in blocks[2]


def separate() -> Recipe:
    plain = recipe()
    return plain.model_copy(update={"tokenizer": plain.tokenizer.model_copy(update={"shared": False})})


def test_the_recipe_in_the_card_is_the_recipe(run: Path, tmp_path: Path) -> None:
    from kit.tasks.registry import load_recipe

    card = write_card(run, recipe(), RESULTS)
    (block,) = [token.content for token in body(card) if token.type == "fence" and token.info == "yaml"]
    (tmp_path / "recipe.yaml").write_text(block)
    assert load_recipe(tmp_path / "recipe.yaml").differences(load_recipe_of(tmp_path)) == []
    assert "`kit train recipe.yaml`" in card


def load_recipe_of(folder: Path) -> Recipe:
    from kit.tasks.registry import load_recipe

    (folder / "whole.yaml").write_text(recipe().to_yaml())
    return load_recipe(folder / "whole.yaml")


def test_local_paths_are_not_in_the_card(run: Path) -> None:
    card = write_card(run, recipe(data={"path": "/home/jane/it's/data/pairs.tsv"}), RESULTS)
    assert "jane" not in card
    assert "pairs.tsv" in card
    assert str(run.parent) not in card


def test_a_run_without_predictions_pictures_and_figures(tmp_path: Path) -> None:
    card = write_card(tmp_path / "bare", recipe(hub={"license": None}), {})
    assert ModelCard(card).data.eval_results is None
    headings = [line for line in card.splitlines() if line.startswith("## ")]
    assert headings == ["## Usage", "## Training data", "## Reproducing this run", "## Limitations"]
    assert "![" not in card


def test_examples_are_spread_over_the_split(run: Path) -> None:
    rows = [{"source": f"s{number}", "target": ["t", "u"], "prediction": "p"} for number in range(100)]
    (run / "predictions" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    all_tables = tables(body(write_card(run, recipe(eval={"examples": 4}), RESULTS)))
    examples = next(rows for rows in all_tables if rows[0] == ["source", "reference", "output"])
    assert examples[1:] == [[f"s{number}", "t", "p"] for number in (0, 25, 50, 75)]
    without = write_card(run, recipe(eval={"examples": 0}), RESULTS)
    assert "## Examples" not in without


def test_card_has_the_figures_of_its_own_run_only(run: Path) -> None:
    recorded = recipe().model_copy(update={"measured": {"test_bleu": 12.34, "steps": 5, "hardware": "another machine"}})
    card = write_card(run, recorded, RESULTS)
    assert [text for text in ("12.34", "another machine", "measured:") if text in card] == []


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if "none" not in load_recipe(name).measured])
def test_finished_card_has_the_figures_of_its_recipe(name: str) -> None:
    written = load_recipe(name)
    path = model_cards_folder() / "finished" / f"{Path(name).stem}.md"
    assert path.is_file(), f"python recipes/scripts/record.py RUN {name} --card {path}"
    text = path.read_text(encoding="utf-8")
    card = ModelCard(text)
    assert not re.search(r"(^|[\s`\"'(])/(home|root|tmp|work|mnt|Users)/", text), "a path of a machine"
    assert "](plots/" not in text
    library = "transformers" if written.peft.method is None else "peft"
    assert (card.data.library_name, card.data.license) == (library, written.hub.license)
    assert "seq2seq-kit" in card.data.tags
    card_values = {(each.dataset_split, each.metric_type): each.metric_value for each in card.data.eval_results}
    assert card_values
    compared = []
    roles = {getattr(written.data, role) or written.data.train: role for role in ("validation", "test")}
    for (split, metric), value in card_values.items():
        role = roles.get(split, "test")  # that of a run may have been named by data.test
        measured = written.measured.get(f"{role}_{metric}")
        if isinstance(measured, float | int):
            assert value == pytest.approx(measured, rel=1e-3, abs=1e-4), (split, metric)
            compared.append(metric)
    assert compared
