"""Fetching a batch: by indices from a dataset, or the next samples of a stream. Workers and loaders use it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wayfare.core.errors import OperationError
from wayfare.data.collate import default_collate, default_convert
from wayfare.data.dataset import ConcatDataset, IterableDataset, StackDataset, Subset, TensorDataset, fetch_many
from wayfare.data.variable import list_collate, pad_collate

# What a stream gives when it has ended.
END = object()


@dataclass(frozen=True)
class Recipe:
    """How batches are made of a dataset."""

    dataset: Any
    collate: Callable[[Any], Any]
    # Samples in a batch of a stream; None where every sample is given by itself.
    batch_size: int | None
    batched: bool
    drop_last: bool

    @property
    def is_stream(self) -> bool:
        """Has the dataset an order of its own, and no numbers?"""
        return isinstance(self.dataset, IterableDataset)

    @property
    def draws_nothing(self) -> bool:
        """Is it certain that making a batch draws no random numbers?"""
        return _plain(self.dataset) and self.collate in (default_collate, default_convert, list_collate, pad_collate)

    def fetcher(self) -> Callable[[Any], Any]:
        """The function from indices to a batch; a stream starts again."""
        return self._stream() if self.is_stream else self._by_number

    def _by_number(self, indices: Any) -> Any:
        try:
            if self.batched:
                return self.collate(fetch_many(self.dataset, indices))
            return self.collate(self.dataset[indices])
        except StopIteration as error:  # To the loop over the batches it would mean that the epoch is over.
            raise OperationError(f"DataLoader: {type(self.dataset).__name__} raised StopIteration for an example",
                                 fix="Give every number below its length an example, or make it an IterableDataset."
                                 ) from error  # fmt: skip

    def _stream(self) -> Callable[[Any], Any]:
        samples = iter(self.dataset)
        if self.batch_size is None:

            def next_sample(_indices: Any) -> Any:
                sample = next(samples, END)
                return END if sample is END else self.collate(sample)

            return next_sample
        size = self.batch_size

        def next_batch(_indices: Any) -> Any:
            batch = list(itertools.islice(samples, size))
            if not batch or (self.drop_last and len(batch) < size):
                return END
            return self.collate(batch)

        return next_batch


def _plain(dataset: Any) -> bool:
    """Is it certain that fetching an example draws no random numbers?"""
    kind = type(dataset)
    if kind is Subset:
        return _plain(dataset.dataset)
    if kind is StackDataset or kind is ConcatDataset:
        parts = dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets
        return all(map(_plain, parts))
    return kind is TensorDataset or kind is list
