"""DataLoader in one process: batches, seeds, and going on after an interruption."""

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wayfare as wf
from wayfare.data import (
    BatchSampler,
    BucketSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)


class Noisy(Dataset):
    """Each example draws from all three generators."""

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return i, wf.rand(2), random.random(), np.random.rand()


class Stream(IterableDataset):
    def __init__(self, n, noise=False):
        self.n, self.noise = n, noise

    def __iter__(self):
        return ((i + wf.rand(1).item() if self.noise else i) for i in range(self.n))


def numbers(loader):
    """Everything a loader gives in an epoch, as nested lists."""

    def plain(value):
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value.tolist()

    return [plain(batch) for batch in loader]


@given(st.integers(1, 40), st.integers(1, 9), st.booleans(), st.booleans())
def test_every_example_once(n, size, shuffle, drop_last):
    loader = DataLoader(TensorDataset(wf.arange(n)), size, shuffle=shuffle, drop_last=drop_last)
    batches = [batch.tolist() for (batch,) in loader]
    flat = [i for batch in batches for i in batch]
    kept = n - n % size if drop_last else n
    assert len(batches) == len(loader) == -(-kept // size) and len(flat) == len(set(flat)) == kept
    assert shuffle or flat == list(range(kept))


@given(st.integers(0, 30), st.integers(1, 7), st.booleans())
def test_streams_in_batches(n, size, drop_last):
    batches = [b.tolist() for b in DataLoader(Stream(n), size, drop_last=drop_last)]
    kept = n - n % size if drop_last else n
    assert [i for b in batches for i in b] == list(range(kept)) and all(len(b) == size for b in batches[:-1])


def test_without_batches_samples_come_by_themselves():
    data = [np.zeros(2), np.ones(2)]
    assert [x.tolist() for x in DataLoader(data, batch_size=None)] == [[0, 0], [1, 1]]
    assert list(DataLoader(Stream(3), batch_size=None)) == [0, 1, 2] and len(DataLoader(data, batch_size=None)) == 2
    whole = TensorDataset(wf.arange(4))
    batches = DataLoader(whole, batch_size=None, sampler=BatchSampler(SequentialSampler(whole), 2, False))
    assert [x.tolist() for (x,) in batches] == [[0, 1], [2, 3]]


def test_given_samplers_and_collate():
    data = list(range(6))
    assert numbers(DataLoader(data, 2, sampler=[5, 0, 3])) == [[5, 0], [3]]
    assert numbers(DataLoader(data, batch_sampler=[[1, 2, 3], [0]])) == [[1, 2, 3], [0]]
    assert list(DataLoader(data, 3, collate_fn=sum)) == [3, 12]
    empty = DataLoader([], 2)
    assert list(empty) == [] and len(empty) == 0


def test_a_loader_is_iterated_again_and_again():
    loader = DataLoader(TensorDataset(wf.arange(30)), 30, shuffle=True)
    first, second = numbers(loader), numbers(loader)
    assert first != second and sorted(first[0][0]) == sorted(second[0][0])
    iterator = iter(loader)
    assert iter(iterator) is iterator and len(list(iterator)) == 1 and list(iterator) == []


def test_the_default_generator_decides_without_a_seed():
    def order():
        wf.manual_seed(5)
        return numbers(DataLoader(TensorDataset(wf.arange(30)), 7, shuffle=True))

    assert order() == order()


def test_a_generator_decides():
    def loader():
        return DataLoader(list(range(30)), 7, shuffle=True, generator=wf.Generator().manual_seed(5))

    first, second = loader(), loader()
    assert [numbers(first), numbers(first)] == [numbers(second), numbers(second)]


SAMPLERS = {
    "shuffle": lambda seed: {"shuffle": True, "batch_size": 4},
    "subset": lambda seed: {"sampler": SubsetRandomSampler(range(3, 19)), "batch_size": 4},
    "weighted": lambda seed: {"sampler": WeightedRandomSampler(wf.ones(20), 15), "batch_size": 4},
    "replacement": lambda seed: {"sampler": RandomSampler(range(20), replacement=True), "batch_size": 4},
    "batches": lambda seed: {"batch_sampler": BatchSampler(RandomSampler(range(20)), 4, True)},
    "buckets": lambda seed: {"batch_sampler": BucketSampler(range(20), 4)},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_seed_decides_order_and_noise(name):
    def epochs(seed, other):
        wf.manual_seed(other)
        random.seed(other)
        loader = DataLoader(Noisy(), seed=seed, **SAMPLERS[name](seed))
        return [numbers(loader), numbers(loader)]

    first = epochs(3, 0)
    assert first == epochs(3, 1) and first[0] != first[1] and first != epochs(4, 0)


@pytest.mark.parametrize("dataset", [Noisy(), TensorDataset(wf.arange(20)), Stream(20, noise=True)])
def test_a_seeded_loader_leaves_the_generators_alone(dataset):
    def draws(with_loader):
        wf.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        drawn = []
        for _ in DataLoader(dataset, 4, seed=9) if with_loader else range(5):
            drawn.append((wf.rand(1).item(), random.random(), np.random.rand()))
        return drawn

    assert draws(True) == draws(False)


def state_through_json(loader):
    return json.loads(json.dumps(loader.state_dict()))


def generator(seed):
    return wf.Generator().manual_seed(seed)


LOADERS = {
    "seed": lambda: DataLoader(Noisy(), 3, shuffle=True, seed=1),
    "seeded stream": lambda: DataLoader(Stream(20, noise=True), 3, seed=1),
    "generator": lambda: DataLoader(list(range(20)), 3, shuffle=True, generator=generator(1)),
    "sampler's generator": lambda: DataLoader(
        list(range(20)), 3, sampler=RandomSampler(range(20), generator=generator(2))
    ),
    "buckets": lambda: DataLoader(list(range(20)), batch_sampler=BucketSampler(range(20), 3, seed=2)),
    "no shuffle": lambda: DataLoader(list(range(20)), 3),
}


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("stop", [0, 1, 4, 7, 9])
def test_going_on_is_as_if_never_interrupted(name, stop):
    """Runs three epochs, saves after `stop` batches, and goes on with a new loader."""
    unbroken = LOADERS[name]()
    expected = [batch for _ in range(3) for batch in numbers(unbroken)]

    interrupted = LOADERS[name]()
    seen, state = [], state_through_json(interrupted)
    while len(seen) < stop:
        for batch in interrupted:
            seen += numbers([batch])
            if len(seen) == stop:
                state = state_through_json(interrupted)
                break
    resumed = LOADERS[name]()
    list(resumed)  # whatever it did before
    resumed.load_state_dict(state)
    assert state_through_json(resumed) == state
    while len(seen) < len(expected):
        seen += numbers(resumed)
    assert seen == expected


def test_between_two_loops_the_state_is_that_of_the_next():
    loader = DataLoader(list(range(20)), 3, shuffle=True, seed=1)
    for _ in loader:
        break
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (1, 0)
    other = DataLoader(list(range(20)), 3, shuffle=True, seed=1)
    other.load_state_dict(state)
    assert numbers(other) == numbers(loader)


def test_states_that_do_not_fit():
    loader = DataLoader(list(range(20)), 3, seed=1)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(ValueError, match="epoch of 7 batches, this loader has 10"):
        DataLoader(list(range(20)), 2, seed=1).load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="0 generators, this loader has 1"):
        DataLoader(list(range(20)), 3, generator=wf.Generator()).load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="the state has no batches"):
        loader.load_state_dict({"epoch": 1})


def test_set_epoch_of_a_sampler_is_called():
    class ByEpoch(SequentialSampler):
        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([self.epoch] * 2)

    loader = DataLoader(list(range(9)), 2, sampler=ByEpoch(range(9)))
    assert [numbers(loader), numbers(loader)] == [[[0, 0]], [[1, 1]]]


def test_an_epoch_that_the_script_sets_counts():
    sampler = wf.utils.data.DistributedSampler(range(20), 1, 0)
    loader = DataLoader(list(range(20)), 20, sampler=sampler)
    whole = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        whole += numbers(loader)
    resumed = wf.utils.data.DistributedSampler(range(20), 1, 0)
    loader = DataLoader(list(range(20)), 20, sampler=resumed)
    for epoch in (2, 3):
        resumed.set_epoch(epoch)
        assert numbers(loader) == [whole[epoch]]


def test_an_error_ends_the_iteration_and_the_next_one_is_fresh():
    class Bad(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return 1 / (i - 2)

    iterator = iter(DataLoader(Bad()))
    next(iterator), next(iterator)
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert list(iterator) == []


def test_here_is_no_worker():
    assert get_worker_info() is None


class NoLength(Dataset):
    def __getitem__(self, i):
        return i


SIX = list(range(6))


@pytest.mark.parametrize(
    "make, error, sentence",
    [
        (lambda: DataLoader([], 2, shuffle=True), ValueError, "an empty dataset cannot be shuffled"),
        (lambda: DataLoader(SIX, 0), ValueError, "batch_size must be at least 1, it is 0"),
        (lambda: DataLoader(SIX, -3), ValueError, "batch_size must be at least 1, it is -3"),
        (lambda: DataLoader(SIX, 2.0), ValueError, "batch_size must be an int, not 2.0"),
        (lambda: DataLoader(SIX, 2, shuffle=True, sampler=[1]), ValueError, "sampler and shuffle both decide"),
        (lambda: DataLoader(SIX, 2, batch_sampler=[[1]]), ValueError, "batch_sampler decides alone"),
        (lambda: DataLoader(SIX, batch_sampler=[[1]], drop_last=True), ValueError, "batch_sampler decides alone"),
        (lambda: DataLoader(SIX, None, drop_last=True), ValueError, "no last one to drop"),
        (lambda: DataLoader(SIX, 2, sampler=BucketSampler(SIX, 2)), ValueError, "Give it as batch_sampler="),
        (lambda: DataLoader(NoLength(), 2, shuffle=True), TypeError, "NoLength has no __len__"),
        (lambda: list(DataLoader(NoLength(), 2)), TypeError, "NoLength has no __len__"),
        (lambda: DataLoader(iter(SIX), 2), TypeError, "have no examples by number"),
        (lambda: DataLoader(Stream(3), 2, shuffle=True), ValueError, "shuffle has no meaning"),
        (lambda: DataLoader(Stream(3), 2, sampler=[1]), ValueError, "sampler has no meaning"),
        (lambda: DataLoader(SIX, num_workers=-1), ValueError, "num_workers must be at least 0, it is -1"),
        (lambda: DataLoader(SIX, prefetch_factor=2), ValueError, "prefetch_factor is about worker processes"),
        (lambda: DataLoader(SIX, persistent_workers=True), ValueError, "persistent_workers is about worker"),
        (lambda: DataLoader(SIX, num_workers=1, prefetch_factor=0), ValueError, "prefetch_factor must be at least 1"),
        (lambda: DataLoader(SIX, num_workers=1, timeout=-1), ValueError, "timeout must be a number of seconds"),
        (lambda: DataLoader(SIX, num_workers=1, multiprocessing_context="thread"), ValueError, "this system has"),
        (lambda: DataLoader(SIX, num_workers=1, multiprocessing_context=3), TypeError, "must be a name or a context"),
        (lambda: DataLoader(SIX, collate_fn=3), TypeError, "collate_fn must be a function, not int"),
        (lambda: DataLoader(SIX, shuffle="yes"), TypeError, "shuffle must be a bool"),
        (lambda: DataLoader(SIX, generator=3), TypeError, "must be a wf.Generator"),
        (lambda: DataLoader(SIX, seed="x"), TypeError, "a seed is an int"),
        (lambda: DataLoader(SIX, seed=1, generator=wf.Generator()), ValueError, "seed and generator both decide"),
        (lambda: len(DataLoader(Stream(3), 2)), TypeError, "has no len"),
    ],
)
def test_bad_arguments(make, error, sentence):
    with pytest.raises(error, match=sentence):
        make()


def test_a_dataset_that_raises_stop_iteration_does_not_end_the_epoch_in_silence():
    class Short(Dataset):
        def __init__(self):
            self.left = iter(range(3))

        def __len__(self):
            return 8

        def __getitem__(self, i):
            return next(self.left)

    for size in (2, None):
        with pytest.raises(RuntimeError, match="Short raised StopIteration for an example"):
            list(DataLoader(Short(), size))


def test_what_is_decided_cannot_change():
    loader = DataLoader(SIX, 2)
    with pytest.raises(ValueError, match="batch_size cannot change"):
        loader.batch_size = 3
    loader.collate_fn = sum
    assert list(loader) == [1, 5, 9]
