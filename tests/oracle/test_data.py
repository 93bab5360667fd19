"""Data side by side with torch.utils.data: structure and values of batches, lengths of samplers, classes of errors."""

from __future__ import annotations

import inspect
import itertools
from collections import OrderedDict, namedtuple

import numpy as np
import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

import torch
import torch.utils.data as theirs

import wayfare as wf
import wayfare.data as ours

Point = namedtuple("Point", "x y")

BATCHES = {
    "ints": lambda m: [1, 2],
    "bools": lambda m: [True, False],
    "floats": lambda m: [1.5, 2.0],
    "int then float": lambda m: [1, 2.5],
    "strings": lambda m: ["a", "b"],
    "bytes": lambda m: [b"a", b"b"],
    "tensors": lambda m: [m.zeros(2), m.ones(2)],
    "0-dim tensors": lambda m: [m.tensor(1), m.tensor(2)],
    "arrays": lambda m: [np.zeros((2, 1), np.float32), np.ones((2, 1), np.float32)],
    "0-dim arrays": lambda m: [np.array(1.5), np.array(2.5)],
    "numpy numbers": lambda m: [np.float32(1), np.float32(2)],
    "numpy float64": lambda m: [np.float64(1), np.float64(2)],
    "numpy bools": lambda m: [np.bool_(True), np.bool_(False)],
    "pairs": lambda m: [(m.zeros(2), 1), (m.ones(2), 2)],
    "lists": lambda m: [[1, 2.0], [3, 4.0]],
    "dicts": lambda m: [{"a": 1, "b": m.zeros(1)}, {"a": 2, "b": m.ones(1)}],
    "more keys later": lambda m: [{"a": 1}, {"a": 2, "b": 3}],
    "ordered dicts": lambda m: [OrderedDict(a=1), OrderedDict(a=2)],
    "named tuples": lambda m: [Point(1, "u"), Point(2, "v")],
    "deep": lambda m: [{"a": [(1, {"b": 2.0})]}, {"a": [(3, {"b": 4.0})]}],
    "empty tuples": lambda m: [(), ()],
    "shapes differ": lambda m: [m.zeros(2), m.zeros(3)],
    "lengths differ": lambda m: [[1, 2], [3]],
    "keys differ": lambda m: [{"a": 1}, {"b": 1}],
    "sets": lambda m: [{1}, {2}],
    "none": lambda m: [None, None],
    "string arrays": lambda m: [np.array(["a"]), np.array(["b"])],
    "requires grad": lambda m: [m.zeros(2, requires_grad=True), m.ones(2)],
}


def described(value):
    """A batch as plain values: classes, dtypes, shapes and numbers."""
    if isinstance(value, torch.Tensor | wf.Tensor):
        dtype = str(value.dtype).rpartition(".")[2]
        return "tensor", dtype, tuple(value.shape), value.detach().tolist(), value.requires_grad
    if isinstance(value, dict):
        return type(value).__name__, [(key, described(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [described(item) for item in value]
    return value


def both(function):
    """What a function of (tensor module, data module) gives on each side: its description, or the error's class."""
    outcomes = []
    for module, data in ((torch, theirs), (wf, ours)):
        try:
            outcomes.append(described(function(module, data)))
        except Exception as error:
            outcomes.append(error)
    expected, actual = outcomes
    if isinstance(expected, Exception):
        family = next(kind for kind in type(expected).__mro__ if kind.__module__ == "builtins")
        assert isinstance(actual, family), f"{actual!r} where PyTorch raises {expected!r}"
    else:
        assert actual == expected
    return expected


@pytest.mark.parametrize("name", BATCHES)
def test_default_collate(name):
    both(lambda m, data: data.default_collate(BATCHES[name](m)))


@pytest.mark.parametrize("name", BATCHES)
def test_default_convert(name):
    both(lambda m, data: data.default_convert([s for s in BATCHES[name](m) if not isinstance(s, set)]))


GRID = list(itertools.product([0, 1, 7, 12], [1, 3, 12], [False, True]))


@pytest.mark.parametrize("n, size, drop_last", GRID)
def test_batches(n, size, drop_last):
    both(lambda m, data: list(data.BatchSampler(data.SequentialSampler(range(n)), size, drop_last)))
    both(lambda m, data: len(data.BatchSampler(data.SequentialSampler(range(n)), size, drop_last)))
    pairs = lambda m, data: data.TensorDataset(m.arange(n), m.ones(n, 2))
    both(lambda m, data: list(data.DataLoader(pairs(m, data), size, drop_last=drop_last)))
    both(lambda m, data: len(data.DataLoader(range(n), size, drop_last=drop_last)))


@pytest.mark.parametrize(
    "n, size, drop_last, workers",
    [*((*case, 0) for case in GRID), (7, 3, False, 2), (12, 3, True, 2), (16, 3, False, 3)],
)
def test_streams(n, size, drop_last, workers):
    def run(m, data):
        class Stream(data.IterableDataset):
            def __iter__(self):
                info = data.get_worker_info()
                return iter(range(info.id, n, info.num_workers) if info else range(n))

            def __len__(self):
                return n

        loader = data.DataLoader(Stream(), size, drop_last=drop_last, num_workers=workers)
        return [list(loader), len(loader)]

    both(run)


@pytest.mark.parametrize("n, samples, replacement", list(itertools.product([1, 5], [None, 1, 5, 12], [False, True])))
def test_random_sampler_counts(n, samples, replacement):
    def run(m, data):
        sampler = data.RandomSampler(range(n), replacement, samples)
        counts = [0] * n
        for index in sampler:
            counts[index] += 1
        return [len(sampler), sum(counts), max(counts) - min(counts) if not replacement else 0]

    both(run)


@pytest.mark.parametrize(
    "lengths", [[5, 5], [0.5, 0.5], [0.35, 0.35, 0.3], [0.1] * 10, [10], [10, 0], [4, 4], [0.5, 0.4]]
)
def test_random_split_lengths(lengths):
    both(lambda m, data: [len(part) for part in data.random_split(range(10), lengths)])


WRONG = {
    "batch_size 0": lambda m, data: data.DataLoader([1], 0),
    "batch_size -1": lambda m, data: data.DataLoader([1], -1),
    "shuffle and sampler": lambda m, data: data.DataLoader([1], shuffle=True, sampler=[0]),
    "batch_sampler and batch_size": lambda m, data: data.DataLoader([1], 2, batch_sampler=[[0]]),
    "no batches, drop_last": lambda m, data: data.DataLoader([1], None, drop_last=True),
    "negative workers": lambda m, data: data.DataLoader([1], num_workers=-1),
    "negative timeout": lambda m, data: data.DataLoader([1], timeout=-1),
    "prefetch without workers": lambda m, data: data.DataLoader([1], prefetch_factor=2),
    "persistent without workers": lambda m, data: data.DataLoader([1], persistent_workers=True),
    "context without workers": lambda m, data: data.DataLoader([1], multiprocessing_context="spawn"),
    "unknown context": lambda m, data: data.DataLoader([1], num_workers=1, multiprocessing_context="thread"),
    "sizes differ": lambda m, data: data.TensorDataset(m.zeros(2), m.zeros(3)),
    "stacked sizes differ": lambda m, data: data.StackDataset([1], [1, 2]),
    "weights 2-dim": lambda m, data: data.WeightedRandomSampler([[1.0]], 1),
    "num_samples 0": lambda m, data: data.WeightedRandomSampler([1.0], 0),
    "batch_size changed": lambda m, data: setattr(data.DataLoader([1]), "batch_size", 2),
    "subset out of range": lambda m, data: data.Subset([1, 2], [5])[0],
    "concat out of range": lambda m, data: data.ConcatDataset([[1], [2]])[5],
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_caught_by_the_same_class(name):
    assert isinstance(both(WRONG[name]), Exception)


def test_every_public_name_of_theirs_is_known():
    """Data pipes are PyTorch's own affair; sampling for several machines is not part of this package."""
    pipes = {name for name in theirs.__all__ if "Pipe" in name or "pipe" in name or name.startswith("_")}
    others = {"DataChunk", "DistributedSampler", "argument_validation", "runtime_validation",
              "runtime_validation_disabled", "non_deterministic"}  # fmt: skip
    missing = set(theirs.__all__) - pipes - others - set(ours.__all__)
    assert not missing


def test_signature_of_the_loader():
    expected = list(inspect.signature(theirs.DataLoader.__init__).parameters.values())
    actual = inspect.signature(ours.DataLoader.__init__).parameters
    for parameter in expected:
        assert parameter.name in actual
        assert (actual[parameter.name].default, actual[parameter.name].kind) == (parameter.default, parameter.kind)
