"""Samplers: in which order the examples of a dataset are visited, and in which batches.

A random sampler has `order(generator)`, which is one epoch's order as a function of the generator alone; iterating
over it draws from its own generator, or from a seed of the default one. A DataLoader calls `order` itself, so that its
seed decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.data.permutation import all_at_once, random_order
from wayfare.data.randomness import drawn_seed

__all__ = [
    "Sampler", "SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler", "BatchSampler",
    "RandomOrder",
]  # fmt: skip

Index = TypeVar("Index", covariant=True)

# Numbers that are drawn at a time where an epoch has very many.
_CHUNK = 1 << 16


def check_count(name: str, what: str, value: Any, least: int = 1) -> int:
    """A whole number of at least `least`, or a sentence."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentError(f"{name}: {what} must be an int, not {value!r}")
    if value < least:
        raise ArgumentError(f"{name}: {what} must be at least {least}, it is {value}")
    return value


def check_generator(name: str, generator: Any) -> wf.Generator | None:
    """A generator or None, or a sentence."""
    if generator is not None and not isinstance(generator, wf.Generator):
        raise ArgumentTypeError(f"{name}: generator must be a wf.Generator, not {type(generator).__name__}",
                                fix="Write wf.Generator().manual_seed(0), for instance.")  # fmt: skip
    return generator


def length_of(name: str, source: Any) -> int:
    """How many examples there are, or why that cannot be known."""
    try:
        return len(source)
    except TypeError:
        raise ArgumentTypeError(f"{name}: an order needs a length, and {type(source).__name__} has no __len__",
                                fix="Define __len__, or give a sampler that knows the indices.") from None  # fmt: skip


def fresh_generator() -> wf.Generator:
    """A generator with a seed drawn from the default one."""
    return wf.Generator().manual_seed(drawn_seed(None))


def own_stream(count: int, generator: wf.Generator) -> tuple[wf.Generator, bool]:
    """The generator that so many numbers are drawn from, and whether that may be done bit by bit.

    What is drawn bit by bit comes from a stream of its own, so that draws of others in between change nothing.
    """
    if all_at_once(count):
        return generator, False
    return wf.Generator().manual_seed(drawn_seed(generator)), True


def in_chunks(
    count: int, generator: wf.Generator, draw: Callable[[int, wf.Generator], wf.Tensor]
) -> Iterator[int]:
    """So many numbers of `draw(count, generator)`: all at once, or chunk by chunk where they are very many."""
    own, lazily = own_stream(count, generator)
    if not lazily:
        return iter(draw(count, own).tolist())
    parts = (draw(min(_CHUNK, count - start), own).tolist() for start in range(0, count, _CHUNK))
    return itertools.chain.from_iterable(parts)


class Sampler(Generic[Index]):
    """An order of indices: a subclass has `__iter__`, and `__len__` where it is known."""

    def __init__(self, data_source: Any = None) -> None:
        pass

    def __iter__(self) -> Iterator[Index]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__: define it to yield the indices")


class SequentialSampler(Sampler[int]):
    """The examples in their own order."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(length_of("SequentialSampler", self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomOrder(Sampler[Index]):
    """A sampler whose order is a function of a generator: the base of the random ones."""

    generator: wf.Generator | None = None

    def order(self, generator: wf.Generator) -> Iterator[Index]:
        """One epoch's order, drawn from this generator."""
        raise NotImplementedError(f"{type(self).__name__} has no order(generator): define it to yield the indices")

    def __iter__(self) -> Iterator[Index]:
        return self.order(self.generator or fresh_generator())


class RandomSampler(RandomOrder[int]):
    """The examples in random order, or drawn at random with replacement.

    Without replacement, more than `len(data_source)` samples are several orders one after the other.
    """

    def __init__(
        self, data_source: Any, replacement: bool = False, num_samples: int | None = None,
        generator: wf.Generator | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(replacement, bool):
            raise ArgumentTypeError(f"RandomSampler: replacement must be a bool, not {replacement!r}")
        if num_samples is not None:
            check_count("RandomSampler", "num_samples", num_samples)
        if not length_of("RandomSampler", data_source) and num_samples is None:
            raise ArgumentError("RandomSampler: there are no examples to draw from",
                                fix="Leave the sampler out for an empty dataset.")  # fmt: skip
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = check_generator("RandomSampler", generator)

    @property
    def num_samples(self) -> int:
        """How many indices an epoch has."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def order(self, generator: wf.Generator) -> Iterator[int]:
        """One epoch's order, drawn from this generator."""
        size, wanted = len(self.data_source), self.num_samples
        if wanted and not size:
            raise ArgumentError(f"RandomSampler: {wanted} samples cannot be drawn from no examples")
        if self.replacement and wanted:
            return in_chunks(wanted, generator, lambda count, own: wf.randint(0, size, (count,), generator=own))
        rounds = -(-wanted // size) if size else 0
        own, lazily = own_stream(wanted, generator)
        orders: Iterable[Sequence[int]] = (random_order(size, own) for _ in range(rounds))
        # Else all are drawn now, so that a later iteration, perhaps after other draws, gives the same.
        return itertools.islice(itertools.chain.from_iterable(orders if lazily else list(orders)), wanted)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(RandomOrder[int]):
    """These indices in random order."""

    def __init__(self, indices: Sequence[int], generator: wf.Generator | None = None) -> None:
        self.indices = indices
        self.generator = check_generator("SubsetRandomSampler", generator)

    def order(self, generator: wf.Generator) -> Iterator[int]:
        """One epoch's order, drawn from this generator."""
        return map(self.indices.__getitem__, random_order(len(self.indices), generator))

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(RandomOrder[int]):
    """Indices 0 … len(weights) - 1 drawn in proportion to their weights, which need not add up to 1."""

    def __init__(
        self, weights: Any, num_samples: int, replacement: bool = True, generator: wf.Generator | None = None
    ) -> None:
        check_count("WeightedRandomSampler", "num_samples", num_samples)
        if not isinstance(replacement, bool):
            raise ArgumentError(f"WeightedRandomSampler: replacement must be a bool, not {replacement!r}")
        self.weights = wf.as_tensor(weights, dtype=wf.float64)
        if self.weights.ndim != 1:
            raise ArgumentError("WeightedRandomSampler: weights must have one dimension, they have the shape "
                                f"{list(self.weights.shape)}")  # fmt: skip
        if bool((~(self.weights >= 0)).any()) or not bool(self.weights.sum() > 0):
            raise ArgumentError("WeightedRandomSampler: weights must not be negative or NaN, and one must be above 0")
        self.num_samples = num_samples
        self.replacement = replacement
        possible = int((self.weights > 0).sum())
        if not replacement and num_samples > possible:
            raise ArgumentError(f"WeightedRandomSampler: without replacement, {num_samples} samples cannot be drawn "
                                f"from {possible} indices with a weight above 0")  # fmt: skip
        self.generator = check_generator("WeightedRandomSampler", generator)

    def order(self, generator: wf.Generator) -> Iterator[int]:
        """One epoch's order, drawn from this generator."""
        if not self.replacement:
            return iter(wf.multinomial(self.weights, self.num_samples, generator=generator).tolist())
        return in_chunks(self.num_samples, generator,
                         lambda count, own: wf.multinomial(self.weights, count, True, generator=own))  # fmt: skip

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of `batch_size` indices of another sampler; the last one may be shorter, or is dropped."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool = False) -> None:
        check_count("BatchSampler", "batch_size", batch_size)
        if not isinstance(drop_last, bool):
            raise ArgumentError(f"BatchSampler: drop_last must be a bool, not {drop_last!r}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def batches(self, indices: Iterator[int]) -> Iterator[list[int]]:
        """The batches that these indices make."""
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield batch

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches(iter(self.sampler))

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)


def one_epoch(sampler: Any, generator: wf.Generator) -> Iterator[Any]:
    """The next epoch of a sampler: drawn from `generator` where the sampler has none of its own."""
    if isinstance(sampler, BatchSampler) and type(sampler).__iter__ is BatchSampler.__iter__:
        return sampler.batches(one_epoch(sampler.sampler, generator))
    if isinstance(sampler, RandomOrder) and type(sampler).__iter__ is RandomOrder.__iter__:
        return sampler.order(sampler.generator or generator)
    return iter(sampler)


def own_generators(sampler: Any) -> list[wf.Generator]:
    """The generators that a sampler, and the sampler inside it, draw from."""
    found = [getattr(sampler, "generator", None)]
    if isinstance(sampler, BatchSampler):
        found.append(getattr(sampler.sampler, "generator", None))
    return [generator for generator in found if isinstance(generator, wf.Generator)]
