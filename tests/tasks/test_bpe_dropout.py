"""BPE dropout: the library's distribution, but seeded; and without dropout the tokenizer itself."""

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from conftest import RunKit
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens, TokenPairs
from kit.data.text.tokenizer import Tokenizers, train_tokenizers
from kit.recipe.model import Seq2SeqTokenizerSection
from kit.tasks.translation.bpe_dropout import BPEDropoutPairs, Segmenter

TEXTS = ["the lower and the lowest of the widest", "a newer, newest (new) widening", "Löwe und Löwin, wider"] * 4


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return train_tokenizers(Seq2SeqTokenizerSection(vocab_size=70, min_frequency=1), TEXTS, TEXTS)


@given(text=st.text(alphabet="lowernstd aiLöü,().\u2581x ", max_size=40))
@settings(max_examples=200, deadline=None)
def test_without_dropout_segments_equal_the_tokenizer(tokenizers: Tokenizers, text: str) -> None:
    segmenter = Segmenter(tokenizers.source.backend_tokenizer)
    pieces = [p for word in segmenter.words(text) for p in segmenter.merge(segmenter.characters(word), 0.0, Random(0))]
    assert [*pieces, 2] == tokenizers.encode_source([text])[0]


def test_segmentations_are_as_frequent_as_those_of_tokenizers(tokenizers: Tokenizers) -> None:
    backend = tokenizers.source.backend_tokenizer
    segmenter, draws, dropout = Segmenter(backend), 4000, 0.3
    [word] = segmenter.words("lowest")
    random = Random(7)
    ours = Counter(tuple(segmenter.merge(segmenter.characters(word), dropout, random)) for _ in range(draws))
    backend.model.dropout = dropout
    try:
        library = Counter(tuple(backend.encode("lowest", add_special_tokens=False).ids) for _ in range(draws))
    finally:
        backend.model.dropout = None
    assert len(ours) > 3
    for segmentation in ours.keys() | library.keys():
        share = (ours[segmentation] + library[segmentation]) / (2 * draws)
        # five standard errors of the difference of two shares
        assert (
            abs(ours[segmentation] - library[segmentation]) / draws <= 5 * (2 * share * (1 - share) / draws) ** 0.5
        ), segmentation


@given(seed=st.integers(0, 2**32), dropout=st.floats(0.05, 0.95))
@settings(max_examples=50, deadline=None)
def test_segmented_batch_spells_the_text_and_follows_its_seed(
    tokenizers: Tokenizers, seed: int, dropout: float
) -> None:
    ids = RaggedTokens(tokenizers.encode_source(TEXTS[:3]))
    pairs = BPEDropoutPairs.of(TokenPairs(ids, ids), TEXTS[:3], TEXTS[:3], tokenizers, dropout)
    first, again = (pairs.segmented_batch(np.arange(3), 1, np.random.default_rng(seed)) for _ in range(2))
    assert all((first[name] == again[name]).all() for name in first)
    labels = [[token for token in row if token != IGNORE_INDEX] for row in first["labels"].tolist()]
    assert tokenizers.decode(labels) == TEXTS[:3]
    assert all(row[-1] == 2 for row in labels)
    assert tokenizers.decode(first["input_ids"].tolist()) == TEXTS[:3]


def test_a_run_with_dropout_resumes_exactly_and_other_tokenizers_refuse_it(
    kit_here: RunKit, tiny_recipe: Path, tmp_path: Path
) -> None:
    import shutil

    from safetensors.numpy import load_file

    refused = kit_here("train", tiny_recipe, "tokenizer.bpe_dropout=0.1")
    assert refused.returncode == 2
    assert "bpe_dropout" in refused.stderr
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    arguments = [tiny_recipe, "tokenizer.train=bpe", "tokenizer.vocab_size=200", "tokenizer.bpe_dropout=0.3"]
    done = kit_here("train", *arguments, "--output", whole)
    assert not done.returncode, done.stderr
    shutil.copytree(whole, resumed)
    (resumed / "results.json").unlink()
    for step in (8, 12):
        shutil.rmtree(resumed / f"checkpoints/step-{step}", ignore_errors=True)
    assert not kit_here("train", *arguments, "--resume", "--output", resumed).returncode
    first, second = (load_file(run / "checkpoints/step-12/model.safetensors") for run in (whole, resumed))
    assert all((first[name] == second[name]).all() for name in first)
