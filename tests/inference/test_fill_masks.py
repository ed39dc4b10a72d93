"""`kit predict` with masked language models: tokens of the stock fill-mask pipeline, and sentence pairs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.articles import write_articles
from support.labeling_runs import write_rows
from support.recipes import make_recipe
from transformers import BertForPreTraining, pipeline

from kit import train


def test_masks_are_filled_as_by_the_stock_pipeline(run_of_task: Any, tmp_path: Path, kit_here: Any) -> None:
    run = run_of_task("masked_lm")
    texts = ["the [MASK] method", "a [MASK] and [MASK]", "no mask", ""]
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    done = kit_here("predict", run, "in.txt", "--top-k", 3)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(row["tokens"]) for row in rows] == [1, 2, 0, 0]
    fill = pipeline("fill-mask", str(run / "model"), top_k=3)
    expected = [fill(texts[0]), *fill(texts[1])]
    masks = [mask for row in rows for mask in row["top_tokens"]]
    for ours, theirs in zip(masks, expected, strict=True):
        assert [token["score"] for token in ours] == pytest.approx([token["score"] for token in theirs], rel=1e-4)
    assert rows[2]["prediction"] == "no mask"
    assert "2 rows had no [MASK], nothing was filled" in done.stderr
    refused = kit_here("predict", run, write_rows(tmp_path, two=[{"text": "a", "text_pair": "b"}]) / "two.jsonl")
    assert (refused.returncode, "was not trained on pairs" in refused.stderr) == (2, True)


def test_pairs_are_judged(tmp_path: Path, kit_here: Any) -> None:
    data = {"path": str(write_articles(tmp_path / "data", 12)), "documents": "heading", "pairs": "next_sentence",
            "block_size": 32, "pair_passes": 1}  # fmt: skip
    run = train(
        make_recipe(tmp_path, "masked_lm", data, ["train.max_steps=2", "eval.steps=0"]), tmp_path / "run"
    ).folder
    pairs = [("The old bridge .", "People walk under trees ."), ("A wide [MASK] .", "The old river .")]
    write_rows(tmp_path, new=[{"text": first, "text_pair": second} for first, second in pairs])
    done = kit_here("predict", run, tmp_path / "new.jsonl")
    assert done.returncode == 0, done.stderr
    model = BertForPreTraining.from_pretrained(run / "model").eval()
    tokenizer = pipeline("fill-mask", str(run / "model")).tokenizer
    for line, (first, second) in zip(done.stdout.splitlines(), pairs, strict=True):
        row = json.loads(line)
        inputs = tokenizer(first, second, return_token_type_ids=True, return_tensors="pt")
        with torch.no_grad():
            scores = model(**inputs).seq_relationship_logits.softmax(-1)[0]
        assert row["pair"] == ("next", "not next")[int(scores.argmax())]
        assert row["pair_score"] == pytest.approx(float(scores.max()), rel=1e-4)
