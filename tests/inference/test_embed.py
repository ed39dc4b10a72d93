"""Embeddings of texts: independent of the batch, in order, from every kind of model that has them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import RunKit
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

from kit import RunError
from kit.data.text.tokenizer import train_tokenizer
from kit.inference.embed import Embedder
from kit.prediction.issues import LineIssues
from kit.recipe.model import TokenizerSection

TEXTS = ["one two three", "", "two", "three three one two two one", "one two", "two " * 40]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = train_tokenizer(TokenizerSection(train="word", min_frequency=1), TEXTS, "masked")
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors_are_independent_of_the_batch(encoder: Path, pooling: Any) -> None:
    vectors = list(Embedder(encoder, pooling, tokens_per_batch=16).stream(TEXTS, LineIssues()))
    model, tokenizer = AutoModel.from_pretrained(encoder).eval(), AutoTokenizer.from_pretrained(encoder)
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, truncation=True, max_length=32, return_tensors="pt")).last_hidden_state[0]
        expected = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)


def test_command_writes_in_order_and_reports_truncation(
    encoder: Path, tmp_path: Path, kit: RunKit, kit_here: RunKit
) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    done = kit("embed", encoder, "in.txt", "--output", "out.npy")
    assert done.returncode == 0, done.stderr
    assert "1 line had more than 32 tokens, only the beginning was embedded: line 6" in done.stderr
    matrix = np.load(tmp_path / "out.npy")
    np.testing.assert_allclose(matrix, np.stack(list(Embedder(encoder).stream(TEXTS, LineIssues()))), atol=1e-5)
    printed = kit_here("embed", encoder, "in.txt", "--pooling", "cls").stdout.splitlines()
    assert np.array([json.loads(line) for line in printed]).shape == matrix.shape
    for wrong in (("--pooling", "max"), ("--output", "out.txt"), ("--output", "none/out.npy")):
        refused = kit_here("embed", encoder, "in.txt", *wrong)
        assert refused.returncode == 2
        assert "Traceback" not in refused.stderr


def test_a_model_that_needs_a_target_is_refused(trained: Path) -> None:
    with pytest.raises(RunError, match="needs a target"):
        Embedder(trained)
