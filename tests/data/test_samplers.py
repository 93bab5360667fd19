"""Samplers: what each visits, how often, and in batches of which sizes."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wayfare as wf
from wayfare.data import (
    BatchSampler,
    BucketSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

sizes = st.integers(0, 60)


def seeded(seed):
    return wf.Generator().manual_seed(seed)


@given(sizes)
def test_every_index_once(n):
    assert list(SequentialSampler(range(n))) == list(range(n))
    assert not n or sorted(RandomSampler(range(n))) == list(range(n))
    assert sorted(SubsetRandomSampler([3 * i for i in range(n)])) == [3 * i for i in range(n)]


def test_no_order_of_nothing():
    with pytest.raises(ValueError, match="no examples"):
        RandomSampler([])


@given(st.integers(1, 20), st.integers(1, 60))
def test_num_samples_beyond_the_dataset_are_further_rounds(n, wanted):
    drawn = list(RandomSampler(range(n), num_samples=wanted))
    assert len(drawn) == wanted
    counts = Counter(drawn)
    assert {counts[i] for i in range(n)} <= {wanted // n, -(-wanted // n)}


def test_replacement_repeats():
    drawn = list(RandomSampler(range(5), replacement=True, num_samples=100))
    assert len(drawn) == 100 and set(drawn) == set(range(5))


def test_orders_follow_the_generator():
    for make in (
        lambda g: RandomSampler(range(50), generator=g),
        lambda g: RandomSampler(range(50), replacement=True, generator=g),
        lambda g: SubsetRandomSampler(range(50), generator=g),
        lambda g: WeightedRandomSampler(wf.ones(50), 50, generator=g),
        lambda g: BucketSampler(range(50), 5, generator=g),
    ):
        first, same, other = make(seeded(1)), make(seeded(1)), make(seeded(2))
        epochs = [list(first), list(first)]
        assert epochs == [list(same), list(same)]
        assert epochs[0] != epochs[1] and list(other) != epochs[0]


def test_without_a_generator_the_default_one_decides():
    sampler = RandomSampler(range(30))
    wf.manual_seed(4)
    first = list(sampler)
    wf.manual_seed(4)
    assert list(sampler) == first != list(sampler)


def test_weights_decide_how_often():
    drawn = Counter(WeightedRandomSampler([0.0, 1.0, 3.0], 4000, generator=seeded(0)))
    assert drawn[0] == 0 and abs(drawn[2] / drawn[1] - 3) < 0.4
    assert sorted(WeightedRandomSampler([1.0, 2.0, 3.0], 3, replacement=False)) == [0, 1, 2]


@given(sizes, st.integers(1, 9), st.booleans())
def test_batches(n, size, drop_last):
    sampler = BatchSampler(SequentialSampler(range(n)), size, drop_last)
    batches = list(sampler)
    flat = [i for batch in batches for i in batch]
    assert len(batches) == len(sampler) == (n // size if drop_last else -(-n // size))
    assert flat == list(range(n - n % size if drop_last else n))
    assert all(len(batch) == size for batch in batches[:-1])


@given(st.lists(st.integers(0, 40), max_size=80), st.integers(1, 9), st.booleans(), st.booleans(), st.integers(1, 5))
def test_buckets_hold_every_index_once(lengths, size, drop_last, shuffle, bucket):
    sampler = BucketSampler(lengths, size, shuffle=shuffle, drop_last=drop_last, bucket=bucket)
    for _ in range(2):
        batches = list(sampler)
        flat = [i for batch in batches for i in batch]
        n = len(lengths)
        assert len(batches) == len(sampler)
        assert len(set(flat)) == len(flat) == (n - n % size if drop_last else n)
        assert sum(len(batch) != size for batch in batches) <= (0 if drop_last else 1)
        padding = sum(max(lengths[i] for i in b) * len(b) for b in batches)
        expected = 1 - sum(lengths[i] for i in flat) / padding if padding else 0
        assert sampler.waste() == pytest.approx(expected)


def test_buckets_waste_little_and_are_shuffled():
    lengths = np.random.default_rng(0).integers(1, 200, 2000)
    sampler = BucketSampler(lengths, 16, seed=1)
    example = sampler.waste()
    random = sampler.waste(BatchSampler(RandomSampler(lengths), 16))
    first, second = list(sampler), list(sampler)
    assert example < 0.05 < 0.3 < random and sampler.waste() < 0.05
    assert first != second and list(BucketSampler(lengths, 16, seed=1)) == first
    # Neither the batches nor the lengths come in order.
    means = [lengths[batch].mean() for batch in first]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.3
    assert {frozenset(b) for b in first} != {frozenset(b) for b in second}


def test_buckets_in_order_waste_least():
    lengths = np.random.default_rng(0).integers(1, 200, 500)
    in_order = BucketSampler(lengths, 16, shuffle=False)
    assert list(in_order) == list(in_order)
    assert in_order.waste() <= BucketSampler(lengths, 16, bucket=2, seed=0).waste()


def test_buckets_take_tensors_of_lengths_and_go_into_a_loader():
    data = [wf.ones(length) for length in (3, 1, 3, 1)]
    sampler = BucketSampler(wf.tensor([len(x) for x in data]), 2)
    assert sorted(batch.shape[1] for (batch) in DataLoader(data, batch_sampler=sampler)) == [1, 3]


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: BatchSampler(range(3), 0, False), "batch_size must be at least 1, it is 0"),
        (lambda: BatchSampler(range(3), 1.5, False), "batch_size must be an int, not 1.5"),
        (lambda: BatchSampler(range(3), 2, "no"), "drop_last must be a bool"),
        (lambda: RandomSampler(range(3), num_samples=0), "num_samples must be at least 1"),
        (lambda: iter(RandomSampler([], num_samples=2)), "2 samples cannot be drawn from no examples"),
        (lambda: WeightedRandomSampler([1.0, -1.0], 2), "must not be negative"),
        (lambda: WeightedRandomSampler([[1.0]], 2), "one dimension"),
        (lambda: WeightedRandomSampler([1.0, 0.0], 2, replacement=False), "from 1 indices with a weight above 0"),
        (lambda: BucketSampler([1, 2], 0), "batch_size must be at least 1"),
        (lambda: BucketSampler([1.5], 2), "whole numbers"),
        (lambda: BucketSampler([-1], 2), "a length is negative: -1"),
        (lambda: BucketSampler([1], 2, seed=1, generator=seeded(1)), "both decide"),
    ],
)
def test_bad_arguments(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_bad_kinds():
    with pytest.raises(TypeError, match="object has no __len__"):
        RandomSampler(object())
    with pytest.raises(TypeError, match="must be a wf.Generator, not int"):
        RandomSampler(range(3), generator=3)
    with pytest.raises(NotImplementedError, match="__iter__"):
        iter(Sampler())
