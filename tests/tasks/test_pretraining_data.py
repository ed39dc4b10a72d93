"""Masking, packing and sentence pairs: statistics over many samples, and no token lost or doubled."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.data.batching.packing import CausalBlocks, document_positions, pack_masked_rows
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.tasks.masked_lm.masking import Masking
from kit.tasks.masked_lm.sentence_pairs import IS_NEXT, IS_NOT_NEXT, make_pairs

MASK, SPECIAL = 4, 5
ORDINARY = np.arange(SPECIAL, 200)


def share(part: np.ndarray, whole: np.ndarray) -> float:
    return float(part.sum() / whole.sum())


@pytest.mark.parametrize("whole_word_mask", [False, True])
def test_masking_follows_its_shares_and_spares_special_tokens(whole_word_mask: bool) -> None:
    random = np.random.default_rng(0)
    ids = random.integers(SPECIAL, 200, (400, 100))
    ids[:, 0], ids[:, 50], ids[:, 90:] = 2, 3, 1
    maskable = ids >= SPECIAL
    words = np.cumsum(random.random(ids.shape) < 0.6, axis=1) if whole_word_mask else None
    masked, labels = Masking(MASK, ORDINARY)(ids, maskable, random, words)
    chosen = labels != IGNORE_INDEX
    assert share(chosen & maskable, maskable) == pytest.approx(0.15, abs=0.01)
    assert not (chosen & ~maskable).any()
    assert (labels[chosen] == ids[chosen]).all()
    assert (masked[~chosen] == ids[~chosen]).all()
    assert share(chosen & (masked == MASK), chosen) == pytest.approx(0.8, abs=0.02)
    same = chosen & (masked == ids)
    assert share(same, chosen) == pytest.approx(0.1 + 0.1 / len(ORDINARY), abs=0.015)
    replaced = chosen & ~same & (masked != MASK)
    assert set(masked[replaced]) <= set(ORDINARY)
    assert len(set(masked[replaced])) > 150
    if words is not None:
        for row in range(len(ids)):
            for word in np.unique(words[row]):
                same_word = (words[row] == word) & maskable[row]
                assert chosen[row][same_word].all() or not chosen[row][same_word].any()


def test_masks_differ_and_follow_the_generator() -> None:
    ids = np.full((4, 60), 7)
    masking = Masking(MASK, ORDINARY)
    first, again, other = (masking(ids, ids > 0, np.random.default_rng(seed))[1] for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


documents = st.lists(st.lists(st.integers(SPECIAL, 30), max_size=30), max_size=12)


@given(texts=documents, length=st.integers(1, 17))
@settings(max_examples=200, deadline=None)
def test_causal_blocks_predict_every_token_once(texts: list[list[int]], length: int) -> None:
    blocks = CausalBlocks.pack(RaggedTokens(texts), 0, length)
    stream = [0, *(token for text in texts if text for token in (*text, 0))]
    assert blocks.stream.tolist() == stream
    tokens, labels = blocks.batch(np.arange(len(blocks)))
    real = labels != IGNORE_INDEX
    assert labels[real].tolist() == stream[1:]
    assert tokens[real].tolist() == stream[:-1]
    assert real.sum(1).tolist() == blocks.lengths.tolist()
    if len(blocks):
        assert (blocks.lengths[:-1] == length).all()


@given(texts=documents, length=st.integers(2, 17))
@settings(max_examples=100, deadline=None)
def test_positions_restart_with_every_document(texts: list[list[int]], length: int) -> None:
    blocks = CausalBlocks.pack(RaggedTokens(texts), 0, length)
    tokens, _ = blocks.batch(np.arange(len(blocks)))
    for row, positions in zip(tokens, document_positions(tokens, 0), strict=True):
        expected, position = [], -1
        for token in row:
            position = 0 if token == 0 else position + 1
            expected.append(position)
        assert positions.tolist() == expected


@given(texts=documents, length=st.integers(3, 20))
@settings(max_examples=200, deadline=None)
def test_packed_rows_hold_every_token_once(texts: list[list[int]], length: int) -> None:
    rows = pack_masked_rows(RaggedTokens(texts), 2, 3, length)
    body = [token for i in range(len(rows)) for token in rows[i].tolist() if token >= SPECIAL]
    assert body == [token for text in texts for token in text]
    for i in range(len(rows)):
        row = rows[i].tolist()
        assert len(row) <= length
        assert row[0] == 2
        assert row[-1] == 3
        assert row[1] != 3
        assert 2 not in row[1:]


def test_packed_rows_are_full() -> None:
    random = np.random.default_rng(0)
    texts = RaggedTokens([random.integers(SPECIAL, 30, size) for size in random.integers(5, 800, 50)])
    rows = pack_masked_rows(texts, 2, 3, 128)
    assert rows.lengths.sum() / (128 * len(rows)) > 0.98


def books(random: np.random.Generator, number: int) -> list[list[list[int]]]:
    """Documents in which each token encodes its position: document · 10,000 + position."""
    documents = []
    for document in range(number):
        position, sentences = 0, []
        for size in random.integers(1, 20, random.integers(1, 30)):
            sentences.append([document * 10_000 + position + i for i in range(size)])
            position += int(size)
        documents.append(sentences)
    return documents


@pytest.mark.parametrize("swap", [False, True])
def test_pairs_are_balanced_and_labeled_right(swap: bool) -> None:
    random = np.random.default_rng(3)
    pairs = make_pairs(books(random, 60), 40, random, swap).pairs
    labels = Counter(pair.label for pair in pairs)
    assert len(pairs) > 200
    assert abs(labels[IS_NEXT] - labels[IS_NOT_NEXT]) <= 2
    for pair in pairs:
        assert pair.first
        assert pair.second
        assert len(pair.first) + len(pair.second) <= 40
        for part in (pair.first, pair.second):
            assert part == list(range(part[0], part[0] + len(part)))
        same_document = pair.first[0] // 10_000 == pair.second[0] // 10_000
        if swap:
            assert same_document
            assert (pair.first[0] > pair.second[0]) == (pair.label == IS_NOT_NEXT)
        else:
            assert same_document == (pair.label == IS_NEXT)
            assert pair.label == IS_NOT_NEXT or pair.first[0] < pair.second[0]


def test_pairs_fill_the_length_except_some_short_ones() -> None:
    random = np.random.default_rng(5)
    lengths = [len(p.first) + len(p.second) for p in make_pairs(books(random, 200), 40, random).pairs]
    assert np.mean(np.array(lengths) >= 30) > 0.6
    assert np.mean(np.array(lengths) < 20) > 0.03


def test_one_document_gives_no_next_sentences_but_both_orders() -> None:
    random = np.random.default_rng(0)
    document = [[number] for number in range(40)]
    alone = make_pairs([document, [[1]]], 2, random)
    assert (alone.pairs, alone.one_sentence, alone.uncoupled) == ([], 1, 20)
    assert {pair.label for pair in make_pairs([document], 2, random, swap=True).pairs} == {IS_NEXT, IS_NOT_NEXT}
    assert make_pairs([], 8, random).pairs == []
    assert make_pairs([[], [[]]], 8, random).pairs == []
