"""Datasets: examples by number, put together, taken apart, and their batches in one step."""

import pytest

import wayfare as wf
from wayfare.data import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Stacked,
    Subset,
    TensorDataset,
    random_split,
)


class Squares(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        return i * i


class Count(IterableDataset):
    def __init__(self, start, stop):
        self.start, self.stop = start, stop

    def __iter__(self):
        return iter(range(self.start, self.stop))


def test_tensor_dataset():
    x, y = wf.arange(6).reshape(3, 2), wf.tensor([7, 8, 9])
    data = TensorDataset(x, y)
    assert len(data) == 3
    assert [t.tolist() for t in data[1]] == [[2, 3], 8]
    assert [t.tolist() for t in data[-1]] == [[4, 5], 9]
    assert [t.tolist() for t in data[1:]] == [[[2, 3], [4, 5]], [8, 9]]


def test_a_batch_of_a_tensor_dataset_is_its_examples():
    data = TensorDataset(wf.randn(5, 2), wf.arange(5))
    batch = data.__getitems__([4, 0, -1, 4])
    assert isinstance(batch, Stacked) and len(batch) == 4
    for got, index in zip(batch, [4, 0, -1, 4], strict=True):
        assert [t.tolist() for t in got] == [t.tolist() for t in data[index]]
    assert [t.tolist() for t in batch[1]] == [t.tolist() for t in data[0]]
    with pytest.raises(IndexError):
        data.__getitems__([5])


def test_a_batch_shares_no_memory_with_the_dataset():
    x = wf.zeros(4, 2)
    for (batch,) in DataLoader(TensorDataset(x), batch_size=2):
        batch += 1
    assert x.sum() == 0


@pytest.mark.parametrize("base", [TensorDataset, Subset, StackDataset])
def test_a_subclass_that_changes_an_example_changes_batches(base):
    class Negative(base):
        def __getitem__(self, index):
            return -1

    plain = TensorDataset(wf.arange(4))
    arguments = {TensorDataset: [wf.arange(4)], Subset: [plain, [0, 1]], StackDataset: [plain]}
    assert next(iter(DataLoader(Negative(*arguments[base]), batch_size=2))).tolist() == [-1, -1]


def test_tensor_dataset_says_what_is_wrong():
    with pytest.raises(AssertionError, match=r"first sizes of the tensors differ: 3, 4"):
        TensorDataset(wf.zeros(3), wf.zeros(4))
    with pytest.raises(ValueError, match=r"0-dim"):
        TensorDataset(wf.tensor(1.0))
    with pytest.raises(TypeError, match=r"takes tensors, not list"):
        TensorDataset([1, 2])
    with pytest.raises(TypeError, match=r"at least one tensor"):
        TensorDataset()


def test_concatenation():
    both = Squares(3) + Squares(2)
    assert isinstance(both, ConcatDataset) and both.cumulative_sizes == [3, 5]
    assert [both[i] for i in range(5)] == [0, 1, 4, 0, 1]
    assert both[-1] == 1 and both[-5] == 0
    three = ConcatDataset([Squares(1), Squares(0), Squares(3)])
    assert [three[i] for i in range(len(three))] == [0, 0, 1, 4]
    for index in (5, -6):
        with pytest.raises(IndexError, match="out of range for 5 examples"):
            both[index]
    with pytest.raises(ValueError, match="at least one"):
        ConcatDataset([])
    with pytest.raises(TypeError, match="ChainDataset"):
        ConcatDataset([Count(0, 2)])


def test_chain_of_streams():
    assert list(Count(0, 3) + Count(7, 9)) == [0, 1, 2, 7, 8]
    with pytest.raises(TypeError, match="takes IterableDatasets, not Squares"):
        ChainDataset([Squares(2)])


def test_stack_of_datasets():
    x = TensorDataset(wf.arange(3))
    assert StackDataset(Squares(3), Squares(3))[2] == (4, 4)
    named = StackDataset(square=Squares(3), row=x)
    assert named[2]["square"] == 4 and named[2]["row"][0].item() == 2 and len(named) == 3
    batch = next(iter(DataLoader(named, batch_size=3)))
    assert batch["square"].tolist() == [0, 1, 4] and batch["row"][0].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="3, 2 examples"):
        StackDataset(Squares(3), Squares(2))
    with pytest.raises(ValueError, match="either"):
        StackDataset()


def test_subset():
    data = TensorDataset(wf.arange(10))
    inner = Subset(Subset(data, [9, 8, 7, 6]), [3, 0])
    assert [inner[i][0].item() for i in range(2)] == [6, 9] and len(inner) == 2
    assert isinstance(inner.__getitems__([0, 1]), Stacked)
    assert inner.__getitems__([0, 1]).fields[0].tolist() == [6, 9]
    assert Subset(Squares(4), [3, 1]).__getitems__([1, 0]) == [1, 9]


def test_random_split_is_a_partition():
    parts = random_split(Squares(10), [5, 3, 2])
    assert [len(part) for part in parts] == [5, 3, 2]
    assert sorted(i for part in parts for i in part.indices) == list(range(10))


@pytest.mark.parametrize(
    "total, fractions, counts",
    [(10, [0.5, 0.5], [5, 5]), (10, [0.3, 0.3, 0.4], [3, 3, 4]), (7, [0.5, 0.5], [4, 3]), (3, [1.0], [3]),
     (100, [0.7, 0.2, 0.1], [70, 20, 10])],
)  # fmt: skip
def test_random_split_by_fractions(total, fractions, counts):
    assert [len(part) for part in random_split(Squares(total), fractions)] == counts


def test_random_split_draws_from_its_generator():
    def indices(seed):
        parts = random_split(Squares(20), [10, 10], wf.Generator().manual_seed(seed))
        return parts[0].indices

    assert indices(1) == indices(1) != indices(2)


@pytest.mark.parametrize(
    "lengths, sentence",
    [([5, 4], "add up to 9, the dataset has 10"), ([0.5, 0.4], "add up to 0.9"), ([-1, 11], "must not be negative")],
)
def test_random_split_says_what_is_wrong(lengths, sentence):
    with pytest.raises(ValueError, match=sentence):
        random_split(Squares(10), lengths)


def test_a_dataset_without_its_methods_says_so():
    with pytest.raises(NotImplementedError, match="__getitem__"):
        Dataset()[0]
    with pytest.raises(NotImplementedError, match="__iter__"):
        iter(IterableDataset())


def test_getitems_must_return_all_samples():
    class Short(Squares):
        def __getitems__(self, indices):
            return [0]

    with pytest.raises(ValueError, match=r"Short.__getitems__ returned 1 samples for 2 indices"):
        next(iter(DataLoader(Short(4), batch_size=2)))
