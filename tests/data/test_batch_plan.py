"""Batch plans: every example once per epoch, within the token budget, as a pure function of seed and step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.data.batching.plan import BatchPlan, bucket_lengths, length_sorted_batches, micro_batch_seed
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens, TokenPairs
from kit.errors import DataError

lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=8, max_size=120)


def plan_of(pairs: list[tuple[int, int]], budget: int = 64, parts: int = 1, seed: int = 0) -> BatchPlan:
    source, target = np.array(pairs).T
    smallest = int(max(source.max(), target.max())) * parts
    return BatchPlan([source, target], seed=seed, size=max(budget, smallest), micro_batches=parts)


@given(lengths, st.integers(60, 400), st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_every_example_is_in_one_batch_per_epoch_within_the_budget(
    pairs: list[tuple[int, int]], budget: int, parts: int, seed: int
) -> None:
    plan = plan_of(pairs, budget, parts, seed)
    longer = np.array(pairs).max(axis=1)
    for epoch in (0, 1):
        steps = [plan.step(epoch * plan.steps_per_epoch + i) for i in range(plan.steps_per_epoch)]
        seen = np.concatenate([part for step in steps for part in step])
        assert sorted(seen) == list(range(len(pairs)))
        assert all(len(step) == parts and all(len(part) for part in step) for step in steps)
        over = [step for step in steps if sum(map(len, step)) * max(longer[part].max() for part in step) > plan.size]
        # only a last batch that was merged with a small remainder may exceed the budget, by less than half
        assert len(over) <= 1
        for step in over:
            assert sum(map(len, step)) < 2 * parts


@given(lengths, st.integers(1, 4), st.integers(0, 500))
@settings(max_examples=100, deadline=None)
def test_steps_are_independent_of_each_other(pairs: list[tuple[int, int]], parts: int, number: int) -> None:
    whole = plan_of(pairs, parts=parts)
    for earlier in range(min(number, 20)):
        whole.step(earlier)
    fresh = plan_of(pairs, parts=parts)
    assert [list(part) for part in whole.step(number)] == [list(part) for part in fresh.step(number)]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=40, max_size=150), st.integers(0, 50))
@settings(max_examples=100, deadline=None)
def test_the_number_of_micro_batches_does_not_change_a_step(pairs: list[tuple[int, int]], number: int) -> None:
    sides = list(np.array(pairs).T)
    whole = [
        sorted(np.concatenate(BatchPlan(sides, seed=1, size=16 * 9, micro_batches=parts).step(number)).tolist())
        for parts in (1, 2, 4, 8)
    ]
    assert whole[0] == whole[1] == whole[2] == whole[3]


def test_epochs_differ_and_seeds_differ() -> None:
    pairs = [(10, 10)] * 100
    plan = plan_of(pairs, 100)
    first = [list(plan.step(i)[0]) for i in range(plan.steps_per_epoch)]
    second = [list(plan.step(plan.steps_per_epoch + i)[0]) for i in range(plan.steps_per_epoch)]
    assert first != second
    other = plan_of(pairs, 100, seed=1)
    assert first != [list(other.step(i)[0]) for i in range(other.steps_per_epoch)]


def test_bucketing_leaves_little_padding_and_counts_it_exactly() -> None:
    random = np.random.default_rng(0)
    source = random.integers(1, 80, 3000)
    target = np.maximum(1, source + random.integers(-8, 8, 3000))
    plan = BatchPlan([source, target], seed=0, size=2048, micro_batches=2)
    padded = sum(
        len(part) * (int(source[part].max()) + int(target[part].max()))
        for i in range(plan.steps_per_epoch)
        for part in plan.step(i)
    )
    assert plan.padding().padded_tokens == padded
    assert plan.padding().real_tokens == int(source.sum() + target.sum())
    assert plan.padding().share < 0.08
    shuffled = random.permutation(3000)
    unsorted = sum(
        len(part) * (int(source[part].max()) + int(target[part].max())) for part in np.array_split(shuffled, 100)
    )
    assert 1 - plan.padding().real_tokens / unsorted > 0.3


def test_batches_by_examples() -> None:
    plan = BatchPlan([np.arange(1, 101)], seed=0, size=16, unit="examples", micro_batches=4)
    sizes = sorted(sum(map(len, plan.step(i))) for i in range(plan.steps_per_epoch))
    assert sum(sizes) == 100
    assert sizes == [8, 12, 16, 16, 16, 16, 16]  # the last four would be few, so they are joined by four more


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=50))
def test_bucket_lengths_are_at_most_a_sixteenth_too_long(values: list[int]) -> None:
    array = np.array(values)
    classes = bucket_lengths(array)
    assert (classes >= array).all()
    assert (classes <= array * (1 + 1 / 16) + 1e-9).all()


def test_impossible_batch_sizes_are_rejected() -> None:
    with pytest.raises(DataError, match=r"too few for train\.micro_batches=4"):
        BatchPlan([np.array([3, 3])], seed=0, size=100, micro_batches=4)
    with pytest.raises(DataError, match=r"Set train\.tokens_per_batch to 90 or more"):
        BatchPlan([np.array([30, 3, 5])], seed=0, size=80, micro_batches=3)
    with pytest.raises(DataError, match=r"train\.batch_size=2 is smaller"):
        BatchPlan([np.array([30, 3, 5])], seed=0, size=2, unit="examples", micro_batches=3)


@given(st.lists(st.integers(0, 90), max_size=60), st.integers(1, 200))
def test_length_sorted_batches_have_every_example_once(values: list[int], tokens: int) -> None:
    array = np.array(values, dtype=np.int64)
    batches = length_sorted_batches(array, tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(values)))
    assert all(len(batch) == 1 or len(batch) * array[batch].max() <= tokens for batch in batches)


def test_seeds_of_micro_batches_are_distinct() -> None:
    seeds = {micro_batch_seed(s, t, j) for s in range(5) for t in range(50) for j in range(8)}
    assert len(seeds) == 5 * 50 * 8


@given(st.lists(st.tuples(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9))), min_size=1, max_size=10))
def test_a_batch_contains_the_tokens_of_its_examples(examples: list[tuple[list[int], list[int]]]) -> None:
    pairs = TokenPairs(RaggedTokens(source for source, _ in examples), RaggedTokens(target for _, target in examples))
    order = np.arange(len(examples))[::-1].copy()
    batch = pairs.batch(order, pad=1)
    for row, index in enumerate(order):
        source, target = examples[index]
        real = batch["attention_mask"][row].bool()
        assert batch["input_ids"][row][real].tolist() == source
        assert batch["input_ids"][row][~real].tolist() == [1] * int((~real).sum())
        assert [label for label in batch["labels"][row].tolist() if label != IGNORE_INDEX] == target
    chosen = pairs.select(order[:1])
    assert chosen.source[0].tolist() == examples[order[0]][0]
