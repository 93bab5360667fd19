"""DataLoader: a dataset in batches, in a reproducible order, with or without worker processes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, overload

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.data.bucket import BucketSampler
from wayfare.data.collate import default_collate, default_convert
from wayfare.data.dataset import Dataset, IterableDataset
from wayfare.data.fetch import Recipe
from wayfare.data.iteration import Epoch, EpochIterator, HereIterator, WorkersIterator
from wayfare.data.randomness import drawn_seed, mixed
from wayfare.data.samplers import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    check_count,
    check_generator,
    length_of,
    one_epoch,
    own_generators,
)
from wayfare.data.workers import Workers, context_for

__all__ = ["DataLoader"]

# What has been decided when the loader is made; another value later would have no effect.
_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


Sample = TypeVar("Sample")
Made = TypeVar("Made")
if TYPE_CHECKING:
    # A loader without a type argument has batches of any type.
    from typing_extensions import TypeVar as WithDefault

    Batch = WithDefault("Batch", default=Any)
else:
    Batch = TypeVar("Batch")


class _Options(TypedDict, total=False):
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    num_workers: int
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], Any] | None
    multiprocessing_context: Any
    generator: wf.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    seed: int | None


class DataLoader(Generic[Batch]):
    """Iterate over a dataset in batches.

    The arguments are PyTorch's (`pin_memory` has an effect if a GPU is in use; `pin_memory_device` and `in_order` are
    accepted and change nothing: the order is always kept), and one more:

    seed: with it, the order of every epoch and all that a dataset draws from wf, random or NumPy depend on nothing but
        this number, the epoch and the batch: the same in every process, whatever `num_workers` is. Streams
        (IterableDataset) are reproducible for a given `num_workers`.

    `state_dict()` and `load_state_dict()` continue a run where it was, in the middle of an epoch too.
    """

    @overload
    def __init__(
        self: DataLoader[Made], dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None, *,
        collate_fn: Callable[[list[Any]], Made], **options: Unpack[_Options],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: DataLoader[Sample], dataset: Dataset[Sample], batch_size: None, shuffle: bool | None = None, *,
        collate_fn: None = None, **options: Unpack[_Options],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: DataLoader[wf.Tensor], dataset: Dataset[wf.Tensor], batch_size: int = 1, shuffle: bool | None = None, *,
        collate_fn: None = None, **options: Unpack[_Options],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: DataLoader[list[wf.Tensor]], dataset: Dataset[tuple[wf.Tensor, ...]], batch_size: int = 1,
        shuffle: bool | None = None, *, collate_fn: None = None, **options: Unpack[_Options],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Any] | None = None, num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False, drop_last: bool = False,
        timeout: float = 0, worker_init_fn: Callable[[int], Any] | None = None, multiprocessing_context: Any = None,
        generator: wf.Generator | None = None, *, prefetch_factor: int | None = None, persistent_workers: bool = False,
        pin_memory_device: str = "", in_order: bool = True, seed: int | None = None,
    ) -> None: ...  # fmt: skip
    def __init__(
        self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Any] | None = None, num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False, drop_last: bool = False,
        timeout: float = 0, worker_init_fn: Callable[[int], Any] | None = None, multiprocessing_context: Any = None,
        generator: wf.Generator | None = None, *, prefetch_factor: int | None = None, persistent_workers: bool = False,
        pin_memory_device: str = "", in_order: bool = True, seed: int | None = None,
    ) -> None:  # fmt: skip
        check_count("DataLoader", "num_workers", num_workers, 0)
        if not isinstance(timeout, int | float) or not timeout >= 0:
            raise ArgumentError(f"DataLoader: timeout must be a number of seconds of at least 0, it is {timeout!r}")
        if num_workers == 0:
            for name, given in (
                ("prefetch_factor", prefetch_factor is not None), ("persistent_workers", persistent_workers),
                ("multiprocessing_context", multiprocessing_context is not None), ("timeout", timeout != 0),
            ):  # fmt: skip
                if given:
                    raise ArgumentError(f"DataLoader: {name} is about worker processes, and num_workers is 0",
                                        fix="Give num_workers=2, for instance.")  # fmt: skip
        if prefetch_factor is not None:
            check_count("DataLoader", "prefetch_factor", prefetch_factor)
        for name, function in (("collate_fn", collate_fn), ("worker_init_fn", worker_init_fn)):
            if function is not None and not callable(function):
                raise ArgumentTypeError(f"DataLoader: {name} must be a function, not {type(function).__name__}")
        if seed is not None:
            wf.Generator().manual_seed(seed)  # raises if it is not a seed
            if generator is not None:
                raise ArgumentError("DataLoader: seed and generator both decide the order", fix="Give one of them.")
        self._ready = False
        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = 2 if prefetch_factor is None and num_workers else prefetch_factor
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = context_for(multiprocessing_context) if num_workers else None
        self.generator = check_generator("DataLoader", generator)
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self.seed = seed
        self._choose_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
        batched = self.batch_size is not None or self.batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if batched else default_convert)
        self._epoch = 0
        self._told: Any = 0  # the epoch that the sampler has from here
        self._tells = True
        self._resume: tuple[int, int] | None = None  # the seed of the epoch to go on with, and how much of it is done
        self._current: Callable[[], EpochIterator | None] = lambda: None
        self._before: list[Any] = []  # the states of the generators when the current epoch began
        self._workers: Workers | None = None
        self._ready = True

    def _choose_order(self, batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: Any) -> None:
        """Check what was said about the order, and make the samplers that were not given."""
        if shuffle is not None and not isinstance(shuffle, bool):
            raise ArgumentTypeError(f"DataLoader: shuffle must be a bool, not {shuffle!r}")
        stream = isinstance(self.dataset, IterableDataset)
        if stream:
            for name, value in (("shuffle", shuffle), ("sampler", sampler), ("batch_sampler", batch_sampler)):
                if value not in (None, False):
                    raise ArgumentError(f"DataLoader: {name} has no meaning for an IterableDataset, whose order is its "
                                        "own", fix="Shuffle inside the dataset.")  # fmt: skip
        elif not hasattr(self.dataset, "__getitem__"):
            raise ArgumentTypeError(f"DataLoader: {type(self.dataset).__name__} objects have no examples by number",
                                    fix="Give a list or a Dataset, or make it an IterableDataset.")  # fmt: skip
        if sampler is not None and shuffle:
            raise ArgumentError("DataLoader: sampler and shuffle both decide the order", fix="Leave shuffle out.")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ArgumentError("DataLoader: batch_sampler decides alone about batches and their order",
                                    fix="Leave out batch_size, shuffle, sampler and drop_last.")  # fmt: skip
            batch_size = None
        elif batch_size is None:
            if drop_last:
                raise ArgumentError("DataLoader: without batches (batch_size=None) there is no last one to drop")
        else:
            check_count("DataLoader", "batch_size", batch_size)
            if isinstance(sampler, BucketSampler):
                raise ArgumentError("DataLoader: a BucketSampler makes batches, not single indices",
                                    fix="Give it as batch_sampler=, and leave batch_size out.")  # fmt: skip
        if sampler is None and not stream and batch_sampler is None:
            if shuffle:
                if length_of("DataLoader(shuffle=True)", self.dataset) == 0:
                    raise ArgumentError("DataLoader: an empty dataset cannot be shuffled",
                                        fix="Look at what the dataset found; its length is 0.")  # fmt: skip
                sampler = RandomSampler(self.dataset)
            else:
                sampler = SequentialSampler(self.dataset)
        if batch_size is not None and not stream:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and self.__dict__.get("_ready"):
            raise ArgumentError(f"DataLoader: {name} cannot change once the loader is made", fix="Make a new one.")
        super().__setattr__(name, value)

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def __len__(self) -> int:
        """How many batches an epoch has."""
        if not isinstance(self.dataset, IterableDataset):
            batches: int = len(self._index_sampler)
            return batches
        count: int = len(self.dataset)  # type: ignore[arg-type]
        if self.batch_size is None:
            return count
        size: int = self.batch_size
        return count // size if self.drop_last else -(-count // size)

    # -- iterating --------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        epoch = self._next_epoch()
        self._tell_sampler(epoch.number)
        self._before = [generator.get_state() for generator in self._generators()]
        recipe = Recipe(self.dataset, self.collate_fn, self.batch_size, self.batch_size is not None
                        or self.batch_sampler is not None, self.drop_last)  # fmt: skip
        order = None if recipe.is_stream else one_epoch(
            self._index_sampler, wf.Generator().manual_seed(mixed(epoch.seed, -1)))  # fmt: skip
        iterator: EpochIterator
        if self.num_workers == 0:
            iterator = HereIterator(recipe, order, epoch)
        else:
            iterator = WorkersIterator(self._free_workers(recipe, epoch.seed), order, epoch, self.timeout,
                                       self.persistent_workers)  # fmt: skip
        iterator.pins = self.pin_memory
        self._current = weakref.ref(iterator)
        return iterator

    def _tell_sampler(self, epoch: int) -> None:
        """Call `set_epoch` of the sampler, unless the script does: its number counts, after a resume for instance."""
        for sampler in (self._index_sampler, self.sampler):
            if hasattr(sampler, "set_epoch"):
                self._tells = self._tells and getattr(sampler, "epoch", self._told) == self._told
                if self._tells:
                    sampler.set_epoch(epoch)
                    self._told = getattr(sampler, "epoch", epoch)
                return

    def _next_epoch(self) -> Epoch:
        if self._resume is not None:
            (seed, skip), self._resume = self._resume, None
        else:
            seed = drawn_seed(self.generator) if self.seed is None else mixed(self.seed, self._epoch)
            skip = 0
        epoch = Epoch(self._epoch, seed, self.seed is not None, skip)
        self._epoch += 1
        return epoch

    def _free_workers(self, recipe: Recipe, seed: int) -> Workers:
        """Workers for an epoch: those kept from the last epoch, if they are free, or new ones."""
        current = self._current()
        busy = current is not None and not current.finished
        if self._workers is not None and self._workers.stop.alive and not busy:
            return self._workers
        assert self.prefetch_factor is not None
        workers = Workers(recipe, self.num_workers, self.prefetch_factor, seed, self.worker_init_fn,
                          self.multiprocessing_context)  # fmt: skip
        if self.persistent_workers and not busy:
            self._workers = workers
        return workers

    # -- going on after an interruption -----------------------------------------------------------------------

    def _generators(self) -> list[wf.Generator]:
        found = [] if self.generator is None else [self.generator]
        return found + own_generators(self._index_sampler)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, in plain numbers: the epoch, the batches given out of it, seeds and generators.

        Called inside a loop over the loader, the rest of that epoch comes first after `load_state_dict`; called between
        two loops, the next epoch comes. The default generator is not part of it: save `wf.get_rng_state()` too if
        neither seed nor generator is given.
        """
        state: dict[str, Any] = {"epoch": self._epoch, "batches": 0, "seed": self.seed, "epoch_seed": None}
        states = [generator.get_state() for generator in self._generators()]
        current = self._current()
        if self._resume is not None:
            state["epoch_seed"], state["batches"] = self._resume
        elif current is not None and not current.finished:
            state |= {"epoch": current.epoch.number, "batches": current.given, "epoch_seed": current.epoch.seed}
            states = self._before
        try:
            state["length"] = len(self)
        except TypeError:
            state["length"] = None
        state["generators"] = [item.tolist() for item in states]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state of `state_dict`: the next loop gives the batches that were still to come."""
        missing = {"epoch", "batches", "seed", "epoch_seed", "length", "generators"} - set(state_dict)
        if missing:
            raise ArgumentError(f"DataLoader.load_state_dict: the state has no {', '.join(sorted(missing))}",
                                fix="Give what state_dict() of a DataLoader returned.")  # fmt: skip
        generators, states = self._generators(), state_dict["generators"]
        if len(generators) != len(states):
            raise ArgumentError(f"DataLoader.load_state_dict: the state is of {len(states)} generators, this loader "
                                f"has {len(generators)}", fix="Make the loader with the same arguments.")  # fmt: skip
        batches = int(state_dict["batches"])
        if batches:
            length = None if state_dict["length"] is None else len(self)
            if length != state_dict["length"]:
                raise ArgumentError(f"DataLoader.load_state_dict: the state is in the middle of an epoch of "
                                    f"{state_dict['length']} batches, this loader has {length}",
                                    fix="Use the same dataset and batch size.")  # fmt: skip
        for generator, values in zip(generators, states, strict=True):
            generator.set_state(wf.tensor(values, dtype=wf.uint8))
        self.seed = state_dict["seed"]
        self._epoch = int(state_dict["epoch"])
        seed = state_dict["epoch_seed"]
        self._resume = None if seed is None else (int(seed), batches)
        self._current = lambda: None
