"""Datasets: what the examples are and how one is fetched by its number, or, for streams, in what order they come."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, IndexRangeError, RequirementError
from wayfare.data.permutation import random_order

__all__ = [
    "Dataset", "IterableDataset", "TensorDataset", "StackDataset", "ConcatDataset", "ChainDataset", "Subset", "Stacked",
    "random_split",
]  # fmt: skip

Sample = TypeVar("Sample", covariant=True)


class Dataset(Generic[Sample]):
    """Examples by number: a subclass has `__getitem__(index)`, and `__len__` if it can be shuffled.

    It may also have `__getitems__(indices)`, which fetches the examples of a batch at once: a list of samples, or a
    `Stacked`.
    """

    def __getitem__(self, index: Any) -> Sample:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__(index): define it to return one example")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        """`a + b`: the examples of a, then those of b."""
        return ConcatDataset([self, other])


class IterableDataset(Dataset[Sample]):
    """A stream of examples: a subclass has `__iter__`.

    With worker processes each of them iterates over its own copy: use `get_worker_info()` in `__iter__` to give each
    its share, or every example comes once per worker.
    """

    def __iter__(self) -> Iterator[Sample]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__: define it to yield the examples")

    def __add__(self, other: Dataset[Any]) -> ChainDataset:  # type: ignore[override]
        """`a + b`: the stream a, then the stream b."""
        return ChainDataset([self, other])


class Stacked(Sequence[tuple[Any, ...]]):
    """The samples of a batch, already stacked: one tensor [batch, …] for each field.

    `__getitems__` may return it in place of a list of samples. `default_collate` takes the tensors as they are; whoever
    iterates over it sees the samples one by one.
    """

    def __init__(self, *fields: wf.Tensor) -> None:
        self.fields = fields

    def __len__(self) -> int:
        return len(self.fields[0])

    def __getitem__(self, index: Any) -> Any:
        return tuple(field[index] for field in self.fields)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.fields, strict=True)


class TensorDataset(Dataset[tuple[wf.Tensor, ...]]):
    """Tensors of the same first size: example i is the tuple of their rows i."""

    def __init__(self, *tensors: wf.Tensor) -> None:
        if not tensors:
            raise ArgumentTypeError("TensorDataset: needs at least one tensor")
        for tensor in tensors:
            if not isinstance(tensor, wf.Tensor):
                raise ArgumentTypeError(f"TensorDataset: takes tensors, not {type(tensor).__name__}",
                                        fix="Use wf.tensor(…) or wf.from_numpy(…) first.")  # fmt: skip
            if tensor.ndim == 0:
                raise ArgumentError("TensorDataset: a 0-dim tensor has no rows to be examples",
                                    fix="Give tensors of at least one dimension.")  # fmt: skip
        sizes = [len(tensor) for tensor in tensors]
        if len(set(sizes)) > 1:
            raise SizesDiffer(f"TensorDataset: the first sizes of the tensors differ: {', '.join(map(str, sizes))}",
                              fix="Every tensor needs one row for each example.")  # fmt: skip
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[wf.Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __getitems__(self, indices: Sequence[int]) -> Sequence[tuple[wf.Tensor, ...]]:
        """The rows of a batch, each tensor's in one step."""
        # A subclass that changes what an example is changes what a batch of them is.
        if type(self).__getitem__ is not TensorDataset.__getitem__:
            return [self[index] for index in indices]
        rows = wf.tensor(indices, dtype=wf.int64, device="cpu")
        if any(tensor.device.type != "cpu" for tensor in self.tensors):
            return Stacked(*(tensor[rows] for tensor in self.tensors))
        try:
            return Stacked(*(wf.index_select(tensor, 0, rows) for tensor in self.tensors))
        except IndexError:
            # Numbers from the end, or one out of range, as `__getitem__` sees them.
            return Stacked(*(tensor[rows] for tensor in self.tensors))

    def __len__(self) -> int:
        return len(self.tensors[0])


class SizesDiffer(ArgumentError, AssertionError):
    """PyTorch raises an AssertionError where the sizes of a TensorDataset differ, and a ValueError elsewhere."""


class StackDataset(Dataset[Any]):
    """Datasets side by side: example i is the tuple (or, for named ones, the dict) of their examples i."""

    def __init__(self, *datasets: Any, **named: Any) -> None:
        if bool(datasets) == bool(named):
            raise ArgumentError("StackDataset: takes datasets, either all positional or all by name",
                                fix="Write StackDataset(a, b) or StackDataset(x=a, y=b).")  # fmt: skip
        self.datasets: Any = datasets or named
        lengths = [len(dataset) for dataset in self._parts()]
        if len(set(lengths)) > 1:
            raise ArgumentError(f"StackDataset: the datasets have {', '.join(map(str, lengths))} examples",
                                fix="All of them need equally many.")  # fmt: skip
        self._length = lengths[0]

    def _parts(self) -> list[Any]:
        return list(self.datasets.values() if isinstance(self.datasets, dict) else self.datasets)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple(dataset[index] for dataset in self.datasets)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The examples of a batch; the parts that can fetch many at once do."""
        if type(self).__getitem__ is not StackDataset.__getitem__:
            return [self[index] for index in indices]
        columns = [fetch_many(dataset, indices) for dataset in self._parts()]
        if isinstance(self.datasets, dict):
            return [dict(zip(self.datasets, row, strict=True)) for row in zip(*columns, strict=True)]
        return list(zip(*columns, strict=True))

    def __len__(self) -> int:
        return self._length


class ConcatDataset(Dataset[Any]):
    """Datasets one after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise RequirementError("ConcatDataset: needs at least one dataset")
        for dataset in self.datasets:
            if isinstance(dataset, IterableDataset):
                raise ArgumentTypeError("ConcatDataset: a stream has no length and no numbers",
                                        fix="Use ChainDataset for IterableDatasets.")  # fmt: skip
        self.cumulative_sizes = list(itertools.accumulate(len(dataset) for dataset in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def _find(self, index: int) -> tuple[int, int]:
        """Which dataset, and which of its examples."""
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexRangeError(f"ConcatDataset: index {index} is out of range for {len(self)} examples")
        part = bisect.bisect_right(self.cumulative_sizes, at)
        return part, at - (self.cumulative_sizes[part - 1] if part else 0)

    def __getitem__(self, index: int) -> Any:
        part, inner = self._find(index)
        return self.datasets[part][inner]


class ChainDataset(IterableDataset[Any]):
    """Streams one after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise ArgumentTypeError(f"ChainDataset: takes IterableDatasets, not {type(dataset).__name__}")

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.datasets)

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets)


class Subset(Dataset[Any]):
    """The examples of a dataset that have these numbers, in this order."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """The examples of a batch, fetched at once if the dataset can."""
        if type(self).__getitem__ is not Subset.__getitem__:
            return [self[index] for index in indices]
        return fetch_many(self.dataset, [self.indices[index] for index in indices])

    def __len__(self) -> int:
        return len(self.indices)


def fetch_many(dataset: Any, indices: Sequence[int]) -> Sequence[Any]:
    """The samples with these numbers, by `__getitems__` where the dataset has it."""
    fetch = getattr(dataset, "__getitems__", None)
    if fetch is None:
        return [dataset[index] for index in indices]
    samples: Sequence[Any] = fetch(indices)
    if len(samples) != len(indices):
        raise ArgumentError(f"{type(dataset).__name__}.__getitems__ returned {len(samples)} samples for "
                            f"{len(indices)} indices", fix="Return one sample for each index.")  # fmt: skip
    return samples


def random_split(
    dataset: Any, lengths: Sequence[float], generator: wf.Generator | None = None
) -> list[Subset]:
    """Split a dataset at random into parts of these lengths, or of these fractions, which add up to 1.

    Of what rounding down leaves over, the first parts get one more each.
    """
    total = len(dataset)
    given = list(lengths)
    if any(length < 0 for length in given):
        raise ArgumentError(f"random_split: lengths must not be negative, they are {given}")
    if math.isclose(sum(given), 1) or any(length % 1 for length in given):
        if not math.isclose(sum(given), 1):
            raise ArgumentError(f"random_split: the fractions {given} add up to {sum(given):g}",
                                fix="They must add up to 1.")  # fmt: skip
        counts = [math.floor(total * fraction) for fraction in given]
        for part in range(total - sum(counts)):
            counts[part % len(counts)] += 1
    else:
        counts = [int(length) for length in given]
        if sum(counts) != total:
            raise ArgumentError(f"random_split: the lengths {counts} add up to {sum(counts)}, the dataset has {total} "
                                "examples", fix="Give lengths that add up to it, or fractions.")  # fmt: skip
    order = random_order(total, generator)
    ends = list(itertools.accumulate(counts))
    return [Subset(dataset, order[end - count : end]) for end, count in zip(ends, counts, strict=True)]
