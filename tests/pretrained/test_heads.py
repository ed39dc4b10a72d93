"""The rows of a pretrained head follow the names of their labels, and everything else about it is reported."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import RunKit
from safetensors.torch import load_file
from support.labeling_runs import TINY, recipe, write_rows
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    pipeline,
)

from kit import train
from kit.data.text.tokenizer import train_tokenizer
from kit.pretrained.heads import row_parameters
from kit.recipe.model import TokenizerSection
from kit.runs.merge import merge
from kit.runs.prepare import Prepared, prepare

SIZES = {name: value for name, value in TINY.items() if name != "type"}
TEXTS = ["aa b", "c dd", "b a", "d"]
MULTI = "multi_label_classification"


def save(folder: Path, labels: list[str], model_class: Any = BertForSequenceClassification, **config: Any) -> Path:
    """A pretrained model with these labels, of random weights."""
    section = TokenizerSection(**{"train": "char", "min_frequency": 1})
    tokenizer = train_tokenizer(section, TEXTS, "masked")
    torch.manual_seed(zlib.crc32(folder.name.encode()))
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: row for row, label in enumerate(labels)}}
    pad = {"pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)}
    model = model_class(model_class.config_class(**SIZES, **names, **pad, **config))
    for name in row_parameters(model):
        torch.nn.init.normal_(model.get_parameter(name))  # new heads have biases of zero
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def fine_tune(folder: Path, pretrained: Path, labels: list[Any], task: str = "classification", **data: Any) -> Prepared:
    """The prepared training on texts with these labels."""
    if task == "tagging":
        rows = [{"tokens": [text], "tags": [label]} for text, label in zip(TEXTS * 2, labels * 8, strict=False)]
        data["scheme"] = "none"
    else:
        rows = [{"text": text, "label": label} for text, label in zip(TEXTS * 2, labels * 8, strict=False)]
    path = write_rows(folder / "data", train=rows, validation=rows)
    return prepare(recipe(folder, task, {"path": str(path), **data}, model={"pretrained": str(pretrained)}))


@torch.inference_mode()
def scores(model: PreTrainedModel, pretrained: Path) -> Iterator[dict[str, torch.Tensor]]:
    """The logits of each text, by label."""
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    for text in TEXTS:
        logits = model.eval()(**tokenizer([text], return_tensors="pt")).logits[0]
        yield {name: logits[..., row] for row, name in model.config.id2label.items()}


CASES = [
    (["x", "y", "z"], "head: kept: x, y, z"),
    (["z", "y", "x"], "head: kept: y; kept, in another position: z, x"),
    (["y", "x"], "head: kept, in another position: y, x; dropped: z"),
    (["w", "z", "x", "y"], "head: kept, in another position: z, x, y; new: w"),
    (["p", "q", "z"], "head: kept: z; new: p, q; dropped: x, y"),
    (["p", "q", "r"], "head: new, because model.pretrained has other labels (x, y, z)"),
    (["p", "q"], "head: new, because model.pretrained has other labels (x, y, z)"),
]


@pytest.mark.parametrize(("labels", "note"), CASES)
@pytest.mark.parametrize("kind", ["bert", "roberta", "tagging", MULTI])
def test_each_label_keeps_its_logits(tmp_path: Path, kind: str, labels: list[str], note: str) -> None:
    model_class = {"roberta": RobertaForSequenceClassification, "tagging": BertForTokenClassification}.get(
        kind, BertForSequenceClassification
    )
    pretrained = save(tmp_path / "pretrained", ["x", "y", "z"], model_class)
    task, data = ("tagging", {}) if kind == "tagging" else ("classification", {})
    targets = [[label] for label in labels] if kind == MULTI else labels
    data = {"problem_type": MULTI} if kind == MULTI else data
    built = fine_tune(tmp_path, pretrained, targets, task, label_names=labels, **data).built
    if task == "classification":  # tags are sorted
        assert list(built.notes) == [note]
        assert list(built.model.config.id2label.values()) == labels
    before = list(scores(model_class.from_pretrained(pretrained), pretrained))
    for old, new in zip(before, scores(built.model, pretrained), strict=True):
        for label in labels:
            if label in "xyz":
                torch.testing.assert_close(old[label], new[label], rtol=0, atol=1e-5)
            else:
                assert all((new[label] - other).abs().max() > 1e-3 for other in old.values())
    assert bool(built.new_modules) is (sorted(labels) != ["x", "y", "z"] if kind == "tagging" else note != CASES[0][1])


@pytest.mark.parametrize("count", [2, 3])
def test_labels_without_names_are_not_those_of_the_data(tmp_path: Path, count: int) -> None:
    pretrained = save(tmp_path / "pretrained", [f"LABEL_{row}" for row in range(3)])
    built = fine_tune(tmp_path, pretrained, [f"LABEL_{row}" for row in range(count)]).built
    assert built.notes == [
        "head: new, because model.pretrained has no names for its labels (LABEL_0, LABEL_1, LABEL_2)"
    ]
    old = AutoModelForSequenceClassification.from_pretrained(pretrained).classifier.weight
    assert not torch.isin(built.model.classifier.weight, old).any()
    assert float(built.model.classifier.bias.detach().abs().max()) == 0
    again = fine_tune(tmp_path, pretrained, [f"LABEL_{row}" for row in range(count)]).built
    assert torch.equal(again.model.classifier.weight, built.model.classifier.weight)  # by the seed


def test_the_head_of_a_regression_is_kept_by_regressions_only(tmp_path: Path) -> None:
    number = save(tmp_path / "number", ["LABEL_0"], problem_type="regression")
    named = save(tmp_path / "named", ["x", "y"])
    classifier = save(tmp_path / "one", ["toxic"], problem_type=MULTI)
    regression = {"problem_type": "regression"}
    weight = AutoModelForSequenceClassification.from_pretrained(number).classifier.weight
    cases: list[tuple[Path, list[Any], dict[str, Any], str]] = [
        (number, [0.5, 2.5], regression, "head: kept from model.pretrained"),
        (named, [0.5, 2.5], regression, "head: new, because model.pretrained predicts labels"),
        (classifier, [0.5, 2.5], regression, "head: new, because model.pretrained predicts labels"),
        (number, ["x", "y"], {}, "head: new, because model.pretrained predicts a number"),
        (number, [["toxic"]], {"problem_type": MULTI}, "head: new, because model.pretrained predicts a number"),
        (classifier, [["toxic"]], {"problem_type": MULTI}, "head: kept: toxic"),
    ]
    for pretrained, labels, data, note in cases:
        built = fine_tune(tmp_path, pretrained, labels, **data).built
        assert list(built.notes) == [note]
        copied = torch.isin(built.model.classifier.weight, weight).all()
        assert bool(copied) == (pretrained == number and note.startswith("head: kept"))


def test_a_head_of_another_kind_is_new(tmp_path: Path) -> None:
    """Heads of texts and of tokens have the same names and shapes."""
    pretrained = save(tmp_path / "pretrained", ["x", "y"])
    tags = fine_tune(tmp_path, pretrained, ["x", "y"], "tagging").built
    assert list(tags.notes) == ["head: new, because model.pretrained has no head of this kind"]
    AutoModel.from_pretrained(pretrained, add_pooling_layer=False).save_pretrained(tmp_path / "bare")
    AutoTokenizer.from_pretrained(pretrained).save_pretrained(tmp_path / "bare")
    bare = fine_tune(tmp_path, tmp_path / "bare", ["x", "y"]).built
    assert list(bare.notes) == [
        "head: new, because model.pretrained has no head of this kind",
        "new weights, which model.pretrained does not have: bert.pooler.dense",
    ]
    assert {"classifier", "bert.pooler.dense"} == set(bare.new_modules)
    data = {"path": "builtin:date_questions", "languages": ["en"], "sizes": {"train": 4, "validation": 2, "test": 2}}
    three = save(tmp_path / "three", ["x", "y", "z"])
    data |= {"max_length": 64, "doc_stride": 8, "max_question_length": 20}
    answers = prepare(recipe(tmp_path, "question_answering", data, model={"pretrained": str(three)}))
    assert answers.model.qa_outputs.out_features == 2
    assert list(answers.built.notes) == ["new weights, which model.pretrained does not have: qa_outputs"]


def test_an_adapter_saves_a_head_whose_rows_moved(tmp_path: Path, kit_here: RunKit) -> None:
    """In its folder, merged, and in pipelines, the adapter has the rows that it was trained from."""
    pretrained = save(tmp_path / "pretrained", ["x", "y", "z"], RobertaForSequenceClassification)
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS * 4, ["z", "x", "w"] * 5, strict=False)]
    path = write_rows(tmp_path / "data", train=rows, validation=rows)
    steps: dict[str, Any] = {"max_steps": 1, "learning_rate": 1e-30}  # which changes nothing
    run = train(
        recipe(
            tmp_path, "classification", {"path": str(path)}, model={"pretrained": str(pretrained)},
            peft={"method": "lora"}, train=steps, eval={"metrics": ["accuracy"]},
        ),
        tmp_path / "run",
    )  # fmt: skip
    note = "head: kept: z; kept, in another position: x; new: w; dropped: y"
    assert run.results["initialization"] == [note]
    assert f"- {note}" in (run.folder / "README.md").read_text()
    saved = load_file(run.folder / "model" / "adapter_model.safetensors")
    assert any("out_proj" in name for name in saved)
    merge(run.folder, tmp_path / "merged")
    before = list(scores(AutoModelForSequenceClassification.from_pretrained(pretrained), pretrained))
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    for old, new in zip(before, scores(merged, pretrained), strict=True):
        for label in ("x", "z"):
            torch.testing.assert_close(old[label], new[label], rtol=0, atol=1e-5)
    use = pipeline("text-classification", str(tmp_path / "merged"))
    done = kit_here("predict", run.folder, tmp_path / "data" / "validation.jsonl")
    predicted = [json.loads(line)["prediction"] for line in done.stdout.splitlines()]
    assert predicted == [use(row["text"])[0]["label"] for row in rows]


def test_roberta_has_its_rows_in_its_last_layer() -> None:
    model = RobertaForSequenceClassification(RobertaConfig(vocab_size=10, **SIZES))
    assert row_parameters(model) == ["classifier.out_proj.weight", "classifier.out_proj.bias"]
    assert row_parameters(BertForSequenceClassification(BertConfig(vocab_size=10, **SIZES, num_labels=1))) == [
        "classifier.weight", "classifier.bias",
    ]  # fmt: skip
