"""Tagging end to end: evaluation is by word and independent of subwords; unusual words and sentences are reported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.labeling_runs import plain, recipe, write_rows
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, pipeline

from kit import train
from kit.data.batching.ragged import IGNORE_INDEX
from kit.errors import DataError, RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.metrics import compute_metrics
from kit.runs.evaluate import evaluate
from kit.runs.finished import FinishedRun
from kit.runs.prepare import Prepared, prepare
from kit.tasks.families.labeling.objectives import TaggingObjective
from kit.tasks.registry import create_task, load_recipe
from kit.tasks.tagging.task import best_tags_and_scores

ROWS = [
    {"tokens": ["Anna", "Li", "lives", "in", "Oslo"], "tags": ["B-PER", "I-PER", "O", "O", "B-LOC"]},
    {"tokens": ["Bo", "Anna"], "tags": ["B-PER", "B-PER"]},
    {"tokens": ["lives"], "tags": ["O"]},
] * 3


def prepared(
    folder: Path, rows: Any = ROWS, validation: Any = None, tokenizer: dict[str, Any] | None = None, **data: Any
) -> Prepared:
    path = write_rows(folder / "data", train=rows, validation=rows if validation is None else validation)
    sections = {} if tokenizer is None else {"tokenizer": tokenizer}
    return prepare(recipe(folder, "tagging", {"path": str(path), **data}, **sections))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    folder = tmp_path_factory.mktemp("tags")
    data = {
        "path": "builtin:date_tags",
        "languages": ["en", "de"],
        "sizes": {"train": 80, "validation": 10, "test": 10},
    }
    sections = {
        "tokenizer": {"train": "wordpiece", "vocab_size": 150, "min_frequency": 1},
        "train": {"max_steps": 30, "learning_rate": 1e-2},
        "eval": {"metrics": ["entity_f1", "tag_accuracy"], "metric_for_best_model": "entity_f1"},
    }
    return train(recipe(folder, "tagging", data, **sections), folder / "run")


def test_eval_and_stock_pipeline_match_training(run: FinishedRun) -> None:
    lines = (run.folder / "predictions" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    rows, again = [json.loads(line) for line in lines], evaluate(run.folder)
    assert again.rows == rows
    assert plain(again.figures) == pytest.approx(plain(run.results["test"]))
    assert again.figures["labels"] == run.results["test"]["labels"]
    assert len({tag for row in rows for tag in row["prediction"]}) > 2
    use = pipeline("token-classification", str(run.folder / "model"), ignore_labels=[])
    for row in rows:
        (entities,) = use(row["tokens"], is_split_into_words=True)
        starts = np.cumsum([0, *(len(word) + 1 for word in row["tokens"])])[:-1]
        tags: dict[int, str] = {}
        for entity in entities:  # the first token of each word comes first
            tags.setdefault(int(np.searchsorted(starts, entity["start"], side="right")) - 1, entity["entity"])
        assert [tags[index] for index in range(len(row["tokens"]))] == row["prediction"]


def test_run_folder_has_plots_and_card(run: FinishedRun) -> None:
    assert {path.name for path in (run.folder / "plots").glob("*.png")} >= {"confusion.png", "types.png", "loss.png"}
    card = (run.folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: token-classification" in card
    assert 'aggregation_strategy="first"' in card


class Oracle(TaggingObjective):
    """Predicts the labels of the tokens, regardless of its input."""

    def __init__(self, labels: int) -> None:
        from transformers import BertConfig, BertForTokenClassification

        small = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
        super().__init__(BertForTokenClassification(BertConfig(vocab_size=8, num_labels=labels, **small)))
        self.labels = labels

    def output(self, batch: Any) -> Any:
        import torch

        right = batch["labels"].masked_fill(batch["labels"] == IGNORE_INDEX, 0)
        return {"logits": torch.nn.functional.one_hot(right, self.labels).float() * 9}


def evaluated(ready: Prepared) -> Evaluation:
    from accelerate import Accelerator

    objective = Oracle(ready.state.config.num_labels)
    rows, encoded = ready.splits.datasets["validation"], ready.encoded["validation"]
    return ready.task.evaluate(ready.evaluator(Accelerator()), objective, rows, encoded, ready.state)


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
tagged = st.lists(st.tuples(words, st.sampled_from(["O", "B-X", "I-X", "B-Y"])), min_size=1, max_size=6)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sentences=st.lists(tagged, min_size=2, max_size=4), everything=st.booleans())
def test_evaluation_is_independent_of_subwords(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[tuple[str, str]]], everything: bool
) -> None:
    """With tags read off the labels, all words that have tokens are right, however they are split."""
    learned = [("ab", "B-X"), ("cd", "I-X"), ("e", "B-Y"), ("f", "I-Y"), ("g", "O")]
    rows = [
        {"tokens": [word for word, _ in sentence], "tags": [tag for _, tag in sentence]}
        for sentence in [learned, *sentences]
    ]
    for kind in ("char", "wordpiece", "byte_bpe"):
        tokenizer = {"train": kind, "min_frequency": 1, "vocab_size": 2000}
        folder = tmp_path_factory.mktemp("cut")
        ready = prepared(folder, rows, tokenizer=tokenizer, label_all_tokens=everything)
        examples, evaluation = ready.encoded["validation"].examples, evaluated(ready)
        right, expected = [row["tags"] for row in evaluation.rows], []
        for index, row in enumerate(evaluation.rows):
            firsts = examples.first_tokens[index]
            expected.append([tag if first >= 0 else "O" for tag, first in zip(row["tags"], firsts, strict=True)])
        assert [row["prediction"] for row in evaluation.rows] == expected
        if not examples.without_tokens:
            assert compute_metrics(["entity_f1"], expected, right)["entity_f1"] == 1.0


SENTENCE = "Anna Li lives in Oslo"


def tagger(ready: Prepared) -> Any:
    return pipeline(
        "token-classification", model=ready.model, tokenizer=ready.state.tokenizers.source, ignore_labels=[]
    )


@pytest.mark.parametrize("kind", ["word", "bpe", "byte_bpe", "unigram", "char"])
def test_stock_pipeline_reports_word_starts(tmp_path: Path, kind: str) -> None:
    ready = prepared(tmp_path, tokenizer={"train": kind, "vocab_size": 2000})
    ready.state.tokenizers.source.save_pretrained(tmp_path / "saved")
    entities = tagger(ready)(SENTENCE)
    starts = {entity["start"] for entity in entities if SENTENCE[entity["start"] : entity["end"]].strip()}
    assert starts >= {position for position in range(len(SENTENCE)) if f" {SENTENCE}"[position] == " "}
    assert all(SENTENCE[entity["start"]] != " " for entity in entities if entity["end"] - entity["start"] > 1)


def test_the_stock_pipeline_groups_the_word_pieces_of_a_word(tmp_path: Path) -> None:
    ready = prepared(tmp_path, tokenizer={"train": "wordpiece", "vocab_size": 40, "min_frequency": 1})
    use = tagger(ready)
    assert len(use(SENTENCE)) > 5
    ready.model.config.id2label = dict(enumerate(f"B-{n}" for n in range(ready.model.config.num_labels)))
    entities = use(SENTENCE, aggregation_strategy="first")
    assert [SENTENCE[entity["start"] : entity["end"]].strip() for entity in entities] == SENTENCE.split()


def test_foreign_byte_level_tokenizers_report_word_starts(tmp_path: Path) -> None:
    """Like that of RoBERTa, whose post-processor trims the space before a word."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: n for n, token in enumerate(["<s>", "</s>", "<unk>", *letters])}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=False)
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="</s>", sep_token="</s>", cls_token="<s>", unk_token="<unk>"
    ).save_pretrained(tmp_path / "tokenizer")
    entities = tagger(prepared(tmp_path, tokenizer={"pretrained": str(tmp_path / "tokenizer")}))(SENTENCE)
    shown = "".join(SENTENCE[entity["start"] : entity["end"]] for entity in entities)
    assert shown == SENTENCE.replace(" ", "")


def test_words_without_tokens_are_tagged_outside_and_counted(tmp_path: Path) -> None:
    rows = [*ROWS, {"tokens": ["Anna", "\u200b \t", ""], "tags": ["B-PER", "B-PER", "O"]}]
    ready = prepared(tmp_path, rows, tokenizer={"train": "wordpiece", "min_frequency": 1})
    evaluation = evaluated(ready)
    assert evaluation.rows[-1]["prediction"][0] == "B-PER"
    assert evaluation.rows[-1]["prediction"][2] == "O"
    assert evaluation.figures["words_without_tokens"] >= 1
    assert any("words without a token" in line for line in ready.summary())


def test_long_words_and_sentences_are_truncated_and_counted(tmp_path: Path) -> None:
    long = [
        {"tokens": ["x" * 300, "Anna"], "tags": ["B-LOC", "B-PER"]},
        {"tokens": ["Bo"] * 90, "tags": ["B-PER"] * 90},
    ]
    ready = prepared(tmp_path / "a", [*ROWS, *long])
    examples, evaluation = ready.encoded["validation"].examples, evaluated(ready)
    assert examples.lengths.max() == 64
    assert examples.truncated == evaluation.figures["truncated"] == 2
    assert evaluation.rows[-2]["prediction"] == ["B-LOC", "O"]
    assert evaluation.rows[-1]["prediction"][:31] == ["B-PER"] * 31
    assert set(evaluation.rows[-1]["prediction"][31:]) == {"O"}
    out = prepared(tmp_path / "b", [*ROWS, *long], truncation="do_not_truncate")
    assert (len(out.encoded["train"].examples), out.dropped) == (len(ROWS), {"max_length": 2})


def test_schemes_are_detected_and_converted(tmp_path: Path) -> None:
    rows = [{"tokens": ["Anna", "Li", "Bo", "met"], "tags": ["I-PER", "I-PER", "B-PER", "O"]}] * 3
    ready = prepared(tmp_path, rows, scheme="IOBES")
    assert list(ready.state.labels) == ["O", "B-PER", "I-PER", "E-PER", "S-PER"]
    assert evaluated(ready).rows[0]["tags"] == ["B-PER", "E-PER", "S-PER", "O"]
    assert any("tags are IOB1, and become IOBES" in line for line in ready.summary())


def test_later_subwords_are_ignored_or_continue_the_tag(tmp_path: Path) -> None:
    first = prepared(tmp_path / "a").encoded["train"].examples.batch(np.array([1]))["labels"][0].tolist()
    every = prepared(tmp_path / "b", label_all_tokens=True)
    names = every.state.labels
    labels = every.encoded["train"].examples.batch(np.array([1]))["labels"][0].tolist()
    assert [names[label] for label in labels if label != IGNORE_INDEX] == ["B-PER", "I-PER", "B-PER", *["I-PER"] * 3]
    assert [names[label] for label in first if label != IGNORE_INDEX] == ["B-PER", "B-PER"]


def test_tags_that_are_no_spans(tmp_path: Path) -> None:
    rows = [{"tokens": ["the", "cat"], "tags": [0, 1]}] * 3
    ready = prepared(tmp_path, rows, scheme="none", label_names=["DET", "NOUN"])
    assert list(ready.state.labels) == ["DET", "NOUN"]
    assert evaluated(ready).rows[0]["prediction"] == ["DET", "NOUN"]


def test_the_best_tag_is_that_of_the_logits_where_probabilities_are_equal() -> None:
    logits = torch.tensor([[[0.0, 1e-9]]])
    assert logits.softmax(-1).unique().numel() == 1
    ((indices, scores),) = best_tags_and_scores({"logits": logits}, {})
    assert indices.tolist() == [1]
    assert scores.tolist() == [0.5]


@pytest.mark.parametrize(
    ("scheme", "names", "expected"),
    [
        ("none", ["DET", "NOUN", "VERB"], ["DET", "NOUN", "VERB"]),
        ("BIO", ["O", "B-PER", "I-PER", "B-LOC", "padding"], ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]),
    ],
)
def test_tags_that_the_data_names_are_known_even_if_train_has_none_of_them(
    tmp_path: Path, scheme: str, names: list[str], expected: list[str]
) -> None:
    rows = [{"tokens": ["the", "cat"], "tags": [0, 1]}] * 3
    for keys in ({"label_names": names}, {}):
        sentences = Dataset.from_list(rows)
        if not keys:  # a data set with class labels
            features = Features({"tokens": List(Value("string")), "tags": List(ClassLabel(names=names))})
            sentences = sentences.cast(features)
        path = recipe(tmp_path, "tagging", {"path": "unused", "scheme": scheme, **keys})
        task = create_task(load_recipe(path, rows={"train": sentences, "validation": sentences}))
        splits = task.load_training_splits()
        assert list(task.fit(splits, task.build_tokenizers(splits)).labels) == expected


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"tokens": "Anna lives", "tags": ["O"]}] * 2, "data.tokens: .*expected a list of words"),
        ([{"tokens": ["Anna"], "tags": ["O", "O"]}] * 2, "row 1: 2 tags for 1 words"),
        ([{"tokens": ["Anna"], "tags": ["PERSON"]}] * 2, '"PERSON" is not a span tag.*data.scheme: none'),
        ([{"tokens": ["Anna"], "tags": ["O"]}] * 2, 'only the tag "O"'),
        ([{"tokens": ["Anna"], "tags": "O"}] * 2, "expected a list of labels"),
    ],
)
def test_unlearnable_data_is_rejected(tmp_path: Path, rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepared(tmp_path, rows)


def test_contradictory_recipes_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"eval.metrics: entity_f1 measures spans"):
        recipe(tmp_path, "tagging", {"path": "x", "scheme": "none"}, eval={"metrics": ["entity_f1"]})
    with pytest.raises(RecipeError, match=r"data.tags"):
        recipe(tmp_path, "tagging", {"path": "x", "tags": "tokens"})
