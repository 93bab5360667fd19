"""Samplers and splits of very many examples: memory for what is drawn now, not for the whole epoch."""

import itertools
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

import wayfare as wf
from wayfare.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler, permutation, samplers
from wayfare.data.permutation import Permutation

# What a process may take: far less than one number for each example.
LIMIT = 6 << 30
HUGE = 10**10

TAKES = {
    "with replacement": f"data.RandomSampler(range({HUGE}), replacement=True, num_samples={HUGE})",
    "many samples of few": f"data.RandomSampler(range(100), replacement=True, num_samples={HUGE})",
    "without replacement": f"data.RandomSampler(range({HUGE}))",
    "few of many": f"data.RandomSampler(range({HUGE}), num_samples=5)",
    "many rounds": f"data.RandomSampler(range(7), num_samples={HUGE})",
    "subset": f"data.SubsetRandomSampler(range({HUGE}))",
    "weighted": f"data.WeightedRandomSampler([1.0, 2.0], {HUGE})",
    "batches": f"data.BatchSampler(data.RandomSampler(range({HUGE})), 3)",
    "loader": f"data.DataLoader(range({HUGE}), shuffle=True, batch_size=4)",
    "loader with a sampler": f"data.DataLoader(range(9), sampler=data.RandomSampler(range(9), True, {HUGE}))",
    "split": f"data.random_split(range({HUGE}), [0.9, 0.1])[1]",
    "loader of a split": f"data.DataLoader(data.random_split(range({HUGE}), [0.9, 0.1])[0], shuffle=True)",
}


SCRIPT = f"""
import itertools, resource
resource.setrlimit(resource.RLIMIT_AS, ({LIMIT}, {LIMIT}))
import wayfare as wf
from wayfare import data

for name, made in {TAKES}.items():
    try:
        sampler = eval(made)
        print(name, "|", *[len(list(itertools.islice(sampler, 5))) for _ in range(2)], sep=" ")
    except Exception as error:
        print(name, "|", error)
"""


def test_a_huge_epoch_begins_within_little_memory():
    pytest.importorskip("resource", reason="a limit on memory needs a POSIX system")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [f"{name} | 5 5" for name in TAKES]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 63, 64, 65, 1000, 70_001])
def test_a_permutation_has_every_number_once(size):
    order = Permutation(size, seed=size)
    numbers = list(order)
    assert sorted(numbers) == list(range(size))
    assert [order[i] for i in (0, size // 2, -1)] == [numbers[0], numbers[size // 2], numbers[-1]]
    assert list(order[1:][::2]) == numbers[1::2] and len(order[: size // 3]) == size // 3
    with pytest.raises(IndexError):
        order[size]


def test_a_permutation_is_decided_by_its_seed_and_looks_random():
    size = 1 << 16
    a, b, again = (np.array(list(Permutation(size, seed))) for seed in (1, 2, 1))
    assert (a == again).all() and (a == b).sum() < 20  # one is expected to be at the same place
    assert abs(np.corrcoef(a, np.arange(size))[0, 1]) < 0.02 and abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < 0.02
    # Where the first number goes is spread evenly over many seeds: chi-square of 16 cells, 15 degrees of freedom.
    cells = np.bincount([Permutation(size, seed)[0] * 16 // size for seed in range(4000)], minlength=16)
    assert ((cells - 250) ** 2 / 250).sum() < 45


@pytest.fixture
def small_limit(monkeypatch):
    """Epochs of more than 50 are drawn in chunks."""
    monkeypatch.setattr(permutation, "AT_ONCE", 50)
    monkeypatch.setattr(samplers, "_CHUNK", 16)


def seeded(seed):
    return wf.Generator().manual_seed(seed)


MAKERS = {
    "replacement": lambda g: RandomSampler(range(20), True, 500, generator=g),
    "order": lambda g: RandomSampler(range(300), generator=g),
    "rounds": lambda g: RandomSampler(range(20), num_samples=505, generator=g),
    "subset": lambda g: SubsetRandomSampler(range(100, 400), generator=g),
    "weighted": lambda g: WeightedRandomSampler([0.0, 1.0, 3.0], 2000, generator=g),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_an_epoch_in_chunks_is_the_generators(small_limit, make):
    sampler = make(seeded(3))
    first, second = list(sampler), list(sampler)
    again = make(seeded(3))
    assert [list(again), list(again)] == [first, second] and first != second
    assert len(first) == len(sampler)


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_draws_in_between_change_nothing(small_limit, make):
    whole = list(make(seeded(3)))
    generator = seeded(3)
    drawn = iter(make(generator))
    found = list(itertools.islice(drawn, 60))
    wf.rand(10, generator=generator)
    assert found + list(drawn) == whole


def test_what_is_drawn_in_chunks(small_limit):
    assert sorted(MAKERS["order"](seeded(0))) == list(range(300))
    assert sorted(MAKERS["subset"](seeded(0))) == list(range(100, 400))
    rounds = list(MAKERS["rounds"](seeded(0)))
    assert all(sorted(rounds[i : i + 20]) == list(range(20)) for i in range(0, 500, 20))
    assert len({tuple(rounds[i : i + 20]) for i in range(0, 500, 20)}) == 25
    drawn = list(MAKERS["replacement"](seeded(0)))
    assert set(drawn) == set(range(20)) and drawn[:50] != drawn[50:100]
    counts = Counter(MAKERS["weighted"](seeded(0)))
    assert counts[0] == 0 and 1350 < counts[2] < 1650


def test_a_split_in_chunks_gives_every_example_once(small_limit):
    parts = wf.data.random_split(range(300), [0.5, 0.3, 0.2], generator=seeded(1))
    assert [len(part) for part in parts] == [150, 90, 60]
    assert sorted(example for part in parts for example in part) == list(range(300))
    again = wf.data.random_split(range(300), [0.5, 0.3, 0.2], generator=seeded(1))
    assert [list(part) for part in again] == [list(part) for part in parts]
