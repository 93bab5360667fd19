"""Batches of similar lengths: little padding, and still a random order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentError
from wayfare.data.samplers import RandomOrder, check_count, check_generator

__all__ = ["BucketSampler"]


class BucketSampler(RandomOrder[list[int]]):
    """Batches of examples of similar lengths, each example once per epoch: give it as `batch_sampler=`.

    The examples are put in random order and cut into buckets of `bucket` batches; within a bucket they are sorted by
    length and cut into batches, and the batches of all buckets are put in random order. A larger bucket pads less, a
    smaller one mixes more. Without `shuffle` everything is sorted by length.

    The order comes from `generator` or `seed`, or else from the DataLoader, or else from the default generator; each
    epoch has another one.
    """

    def __init__(
        self, lengths: Any, batch_size: int, shuffle: bool = True, drop_last: bool = False, bucket: int = 50,
        seed: int | None = None, generator: wf.Generator | None = None,
    ) -> None:  # fmt: skip
        values = np.array(lengths.tolist() if isinstance(lengths, wf.Tensor) else list(lengths))
        if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
            raise ArgumentError("BucketSampler: lengths must be a list of whole numbers, one for each example",
                                fix="Write [len(x) for x in dataset], for instance.")  # fmt: skip
        if values.size and values.min() < 0:
            raise ArgumentError(f"BucketSampler: a length is negative: {values.min()}")
        if seed is not None and generator is not None:
            raise ArgumentError("BucketSampler: seed and generator both decide the order", fix="Give one of them.")
        if seed is not None:
            generator = wf.Generator().manual_seed(seed)
        self.lengths = values.astype(np.int64)
        self.batch_size = check_count("BucketSampler", "batch_size", batch_size)
        self.bucket = check_count("BucketSampler", "bucket", bucket)
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.generator = check_generator("BucketSampler", generator)
        self._latest: list[list[int]] | None = None

    def order(self, generator: wf.Generator) -> Iterator[list[int]]:
        """One epoch's batches, drawn from this generator."""
        self._latest = self._batches(generator)
        return iter(self._latest)

    def __len__(self) -> int:
        count = len(self.lengths)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def _batches(self, generator: wf.Generator) -> list[list[int]]:
        size = self.batch_size
        if not self.shuffle:
            order = np.argsort(self.lengths, kind="stable")
            return self._cut(order, len(order) - len(order) % size if self.drop_last else len(order))
        order = wf.randperm(len(self.lengths), generator=generator).cpu().numpy()
        # Who is left over was chosen at random, before anything is sorted: no length is dropped more than another.
        kept = len(order) - len(order) % size if self.drop_last else len(order)
        batches: list[list[int]] = []
        step = self.bucket * size
        for start in range(0, kept, step):
            part = order[start : min(start + step, kept)]
            batches += self._cut(part[np.argsort(self.lengths[part], kind="stable")], len(part))
        return [batches[i] for i in wf.randperm(len(batches), generator=generator).tolist()]

    def _cut(self, order: Any, end: int) -> list[list[int]]:
        return [order[at : min(at + self.batch_size, end)].tolist() for at in range(0, end, self.batch_size)]

    def waste(self, batches: Iterable[Iterable[int]] | None = None) -> float:
        """The fraction of a padded epoch that is padding: 0 for none.

        Of the latest epoch, or, before the first one, of an example epoch; or of any other batches of indices.
        """
        if batches is None:
            batches = self._batches(wf.Generator()) if self._latest is None else self._latest
        filled = total = 0
        for batch in batches:
            lengths = self.lengths[list(batch)]
            filled += int(lengths.sum())
            total += len(lengths) * int(lengths.max(initial=0))
        return 1 - filled / total if total else 0.0
