"""Prompts and answers: which tokens are read, which are learned, and what the model answers."""

import json
import re
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.recipes import make_recipe
from transformers import pipeline

import kit
from kit import DataError, RecipeError, evaluate, train
from kit.data.batching.ragged import IGNORE_INDEX
from kit.data.builtin import load_builtin
from kit.data.builtin.date_instructions import KINDS
from kit.data.builtin.dates import days_of_splits
from kit.prediction.issues import LineIssues
from kit.prediction.options import GenerateOptions
from kit.pretrained.folder import ModelFolder
from kit.recipe.base import Recipe
from kit.runs.merge import merge
from kit.runs.prepare import prepare
from kit.runs.verify import verify
from kit.tasks.instruction_tuning.inference import Answerer

ROWS = [
    {"prompt": "say a", "answer": "a"},
    {"prompt": "say b twice", "answer": "b b"},
    {"prompt": "say a dot", "answer": "."},
    {"prompt": "end", "answer": "</s> is no end"},
]
GPT = {"type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 48}


def tiny_recipe_of(folder: Path, rows: Any = ROWS, **sections: Any) -> Recipe:
    """A recipe of a tiny model on these rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "validation", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    defaults = {
        "data": {"path": str(folder)},
        "train": {"max_steps": 2, "batch_size": 4, "learning_rate": 1e-2},
        "eval": {"steps": 0, "max_new_tokens": 8},
    }
    sections |= {name: {**section, **sections.get(name, {})} for name, section in defaults.items()}
    return make_recipe(folder, "instruction_tuning", **{"model": GPT, **sections})


def test_the_loss_is_on_the_answer_and_its_end_token_by_token(tmp_path: Path) -> None:
    prepared = prepare(tiny_recipe_of(tmp_path, data={"template": "Q: {prompt}\nA: "}))
    tokenizer, examples = prepared.tokenizers.source, prepared.encoded["train"].examples
    batch = examples.batch(np.arange(len(ROWS)))
    for row, ids, mask, labels in zip(
        ROWS, *(batch[n] for n in ("input_ids", "attention_mask", "labels")), strict=True
    ):
        read = ids[mask.bool()].tolist()
        # one token per character
        whole = f"Q: {row['prompt']}\nA: {row['answer']}"
        assert [tokenizer.decode([token]) for token in read] == list(whole)
        after = [*read[1:], tokenizer.eos_token_id]
        boundary = len(whole) - len(row["answer"])
        for index, (label, following) in enumerate(zip(labels.tolist(), after, strict=False)):
            assert label == (following if index >= boundary - 1 else IGNORE_INDEX), index
        assert (labels[len(read) :] == IGNORE_INDEX).all()
        assert tokenizer.eos_token_id not in read  # a text that looks like the end is none
    model, objective = prepared.model.eval(), prepared.task.objective(prepared.model, prepared.state)
    by_hand = 0.0
    for index in range(len(ROWS)):  # without padding, one by one
        prompt, answer = examples.prompts[index].tolist(), examples.answers[index].tolist()
        with torch.inference_mode():
            spread = model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
        by_hand -= sum(float(spread[len(prompt) - 1 + at, token]) for at, token in enumerate(answer))
    with torch.inference_mode():
        assert float(objective.summed_loss(batch)) == pytest.approx(by_hand, rel=1e-5)
    assert objective.normalizers(batch) == [sum(len(row["answer"]) + 1 for row in ROWS)]


SAY = [{"prompt": f"say {letter}", "answer": f"{letter}{letter}"} for letter in "abcdef"]
METRICS = {"metrics": ["exact_match", "rouge1"]}
RNN = {"type": "rnn_lm", "hidden_size": 48, "embedding_size": 48, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned to say a letter twice."""
    folder = tmp_path_factory.mktemp("fluent")
    return train(tiny_recipe_of(folder / "a", SAY, train={"max_steps": 120}, eval=METRICS), folder / "run").folder


def predictions_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "predictions" / "test.jsonl").read_text().splitlines()]


def test_model_learns_to_answer_and_to_stop(trained_run: Path, tmp_path: Path) -> None:
    tokenizer = {"train": "char", "min_frequency": 1}
    rnn = tiny_recipe_of(tmp_path, SAY, model=RNN, tokenizer=tokenizer, train={"max_steps": 120}, eval=METRICS)
    for run in (trained_run, train(rnn, tmp_path / "run").folder):
        assert [row["prediction"] for row in predictions_of(run)] == [row["answer"] for row in SAY]
        assert all(row["finished"] for row in predictions_of(run))
        assert "A text-generation model" in (run / "README.md").read_text(encoding="utf-8")
        evaluation = evaluate(run)
        assert evaluation.rows == predictions_of(run)
        assert evaluation.figures["exact_match"] == 1.0


def test_generate_reads_prompts_in_the_template_of_training(trained_run: Path, tmp_path: Path, kit_here: Any) -> None:
    """With or without the recipe, a line is a prompt, and its output equals the answer of the evaluation."""
    rows = [json.loads(line) for line in (trained_run / "predictions" / "test.jsonl").read_text().splitlines()]
    (tmp_path / "in.txt").write_text("".join(row["prompt"] + "\n" for row in rows) + "\n")
    for model in (trained_run, trained_run / "model"):
        done = kit_here("generate", model, "in.txt")
        assert done.returncode == 0, done.stderr
        assert done.stdout.split("\n")[:-1] == [*(row["prediction"] for row in rows), ""]


def test_verify_passes(trained_run: Path) -> None:
    checks = verify(trained_run)
    assert {check.name for check in checks} >= {"padding", "left padding", "cache", "loss", "accumulation"}
    assert [check for check in checks if not check.passed] == []


def test_an_adapter_learns_other_answers_and_writes_them_merged_too(trained_run: Path, tmp_path: Path) -> None:
    other = [{"prompt": row["prompt"], "answer": row["answer"][:1]} for row in SAY]
    section = {"model": {"pretrained": str(trained_run)}, "peft": {"method": "lora"}}
    run = train(
        tiny_recipe_of(tmp_path, other, train={"max_steps": 60}, eval=METRICS, **section), tmp_path / "run"
    ).folder
    merge(run, tmp_path / "merged")
    for write in (kit.pipeline("text-generation", run), pipeline("text-generation", str(tmp_path / "merged"))):
        answers = [write(f"{row['prompt']}\n", return_full_text=False)[0]["generated_text"] for row in other]
        assert answers == [row["prediction"] for row in predictions_of(run)] == [row["answer"] for row in other]


def test_long_examples_are_dropped_or_truncated_and_counted(tmp_path: Path) -> None:
    rows = [*ROWS, {"prompt": "x" * 60, "answer": "y"}, {"prompt": "x", "answer": "y" * 60}]
    prepared = prepare(tiny_recipe_of(tmp_path, rows))
    assert prepared.dropped == {"max_length": 2}
    assert len(prepared.encoded["train"].examples) == len(ROWS)
    test = prepared.encoded["test"].examples
    assert (len(test), test.truncated) == (len(rows), 2)
    assert test.lengths.max() <= 48
    assert test.prompts[4].tolist() == prepared.tokenizers.source("x" * 39 + "\n")["input_ids"]  # 8 for the answer


def test_truncated_prompts_are_counted_in_the_figures(tmp_path: Path) -> None:
    rows = [*ROWS, {"prompt": "x" * 60, "answer": "y"}]
    run = train(tiny_recipe_of(tmp_path, rows, train={"max_steps": 1}), tmp_path / "run")
    saved = json.loads((run.folder / "results.json").read_text(encoding="utf-8"))
    assert [saved[split]["truncated"] for split in ("validation", "test")] == [1, 1]


def test_long_prompts_get_the_same_answers_in_evaluation_and_from_generate(tmp_path: Path) -> None:
    """Whatever the length of the reference, and with more new tokens than half of the positions."""
    long = "say a dot or the end " * 4
    rows = [*ROWS, {"prompt": long, "answer": "."}, {"prompt": long[::-1], "answer": "end " * 11}]
    settings = {"max_new_tokens": 30, "metrics": ["exact_match"]}
    run = train(tiny_recipe_of(tmp_path, rows, eval=settings), tmp_path / "run")
    predicted = [row["prediction"] for row in predictions_of(run.folder)]
    answerer = Answerer(ModelFolder.open(run.folder), GenerateOptions())
    outputs = answerer.stream([row["prompt"] for row in rows], LineIssues())
    assert [best.text for best, *_ in outputs] == predicted
    assert max(map(len, predicted)) > 24


def test_mistakes_are_reported(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"template: expected exactly one \{prompt\}"):
        tiny_recipe_of(tmp_path, data={"template": "answer"})
    with pytest.raises(RecipeError, match="48 leaves no room for a prompt"):
        prepare(tiny_recipe_of(tmp_path, eval={"max_new_tokens": 48}))
    with pytest.raises(DataError, match="no training example is short enough"):
        prepare(tiny_recipe_of(tmp_path, data={"max_length": 2}))


# ---- builtin:date_instructions ---------------------------------------------------------------------------------------

SIZES = {"train": 140, "validation": 70, "test": 70}


def test_instructions_are_balanced_made_by_seed_and_about_days_of_one_split() -> None:
    first, same, other = (load_builtin("date_instructions", sizes=SIZES, seed=seed) for seed in (1, 1, 2))
    assert first == same
    days = days_of_splits(1)
    for split, table in first.items():
        rows = table.to_pylist()
        assert table != other[split]
        assert len({row["prompt"] for row in rows}) == len(rows) == SIZES[split]
        assert set(Counter(row["kind"] for row in rows).values()) == {SIZES[split] // len(KINDS)}
        for row in rows:
            for asked_about in re.findall(r"\d{4}-\d\d-\d\d", row["prompt"]):
                assert date.fromisoformat(asked_about) in set(days[split])
            if row["kind"] == "iso":
                assert date.fromisoformat(row["answer"]) in set(days[split])


def test_instructions_have_the_right_answer() -> None:
    months = [date(2000, month, 1).strftime("%B") for month in range(1, 13)]
    rows = load_builtin("date_instructions", languages=["en", "de"], sizes=SIZES | {"train": 700})["train"].to_pylist()
    for row in rows:
        dates = [date.fromisoformat(text) for text in re.findall(r"\d{4}-\d\d-\d\d", row["prompt"])]
        match row["kind"]:
            case "next":
                assert row["answer"] == (dates[0] + timedelta(days=1)).isoformat()
            case "earlier":
                assert row["answer"] == min(dates).isoformat()
            case "write":
                number, month, year = dates[0].day, months[dates[0].month - 1], dates[0].year
                if row["language"] == "en":
                    assert row["answer"] == f"{month} {number}, {year}"
                else:
                    assert row["answer"].startswith(f"{number}. ")
                    assert row["answer"].endswith(str(year))
            case "year":
                assert row["answer"][2:] in row["prompt"]
            case "month":
                assert row["answer"] in months
                assert row["language"] != "en" or row["answer"][:3] in row["prompt"] or re.search(r"\d/", row["prompt"])
            case "weekday" if row["language"] == "en":
                assert row["answer"][:3] in row["prompt"]
