"""How a run is spread over processes: `fit(..., strategy="ddp")` on every rank trains one model.

Each rank trains on its part of the batches, gradients are averaged, scores are those of all ranks together, and rank 0
alone prints, logs and writes checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import wayfare as wf
from wayfare import distributed as dist
from wayfare.core.errors import ArgumentError, DistributedError
from wayfare.distributed.samplers import DistributedSampler

__all__ = ["OneProcess", "Ranks", "strategy_of"]


class OneProcess:
    """No strategy: the run is this process's own."""

    is_first = True

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model = model
        self.optimizer = optimizer

    def part(self, data: Any) -> Any:
        """The batches of this process."""
        return data

    def place_in(self, data: Any) -> Any:
        """Where the run is in the data, as a part of a checkpoint; None if the data do not know it."""
        return _Place(data, dealt=False) if _is_stateful(data) else None

    def begin(self, data: Any, epoch: int) -> None:
        """An epoch is about to begin."""

    def training(self, update: Callable[[], None]) -> AbstractContextManager[Any]:
        """The block around the steps of an epoch; `update` is what follows a backward pass."""
        return nullcontext()

    def merged(self, values: Any) -> list[Any]:
        """These values of every process."""
        return [values]

    def gather_state(self, everywhere: bool) -> None:
        """A checkpoint is about to be written, by the first process, or read, `everywhere`."""


class Ranks(OneProcess):
    """One of several processes that train together."""

    def __init__(self, model: Any, optimizer: Any, splits_state: bool) -> None:
        if not dist.is_initialized():
            dist.init_process_group()
        self.is_first = dist.get_rank() == 0
        self._bare = model
        ddp = model if isinstance(model, wf.nn.parallel.DistributedDataParallel) else (
            wf.nn.parallel.DistributedDataParallel(model))  # fmt: skip
        zero = dist.optim.ZeroRedundancyOptimizer
        super().__init__(ddp, zero.around(optimizer) if splits_state else optimizer)
        self._zero = self.optimizer if isinstance(self.optimizer, zero) else None

    def part(self, data: Any) -> Any:
        """The batches of this rank."""
        return data if isinstance(data, _Part) else _Part(data)

    def place_in(self, data: Any) -> Any:
        """The same of the data behind a rank's part of them."""
        return _Place(data.data, data.deals) if _is_stateful(data.data) else None

    def begin(self, data: Any, epoch: int) -> None:
        """Another order for every epoch, the same on every rank."""
        data.set_epoch(epoch - 1)

    def training(self, update: Callable[[], None]) -> AbstractContextManager[Any]:
        """Ranks may have different numbers of batches: one without makes the updates of the others."""
        return dist.Join([self.model, _Update(update)], divide_by_initial_world_size=False)

    def merged(self, values: Any) -> list[Any]:
        """These values of every rank."""
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, values)
        return every

    def gather_state(self, everywhere: bool) -> None:
        """Rank 0, or every rank, gets the state of all."""
        if self._zero is not None:
            self._zero.consolidate_state_dict(to=None if everywhere else 0)


class _Update(dist.Joinable):
    """The update of a rank that has no more data: with the gradients of the others it is theirs."""

    def __init__(self, update: Callable[[], None]) -> None:
        self._update = update

    def stand_in(self, active: int, divide_by_active: bool) -> None:
        """The update after a pass of the others."""
        self._update()


def _is_stateful(data: Any) -> bool:
    return hasattr(data, "state_dict") and hasattr(data, "load_state_dict")


class _Place:
    """Where a run is in its data, so that a run with another strategy can go on.

    Data that are dealt to the ranks have only an epoch, which decides their order. What is not dealt has the same state
    on every rank as in one process.
    """

    def __init__(self, data: Any, dealt: bool) -> None:
        self._data = data
        self._dealt = dealt

    def state_dict(self) -> dict[str, Any]:
        """The epoch, or the whole state."""
        return {"epoch": getattr(self._data, "_epoch", 0)} if self._dealt else {"whole": self._data.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state: where only one side is dealt, from its epoch."""
        if "whole" in state_dict and not self._dealt:
            self._data.load_state_dict(state_dict["whole"])
        elif isinstance(self._data, wf.data.DataLoader):
            self._data._epoch = int(state_dict.get("whole", state_dict).get("epoch", 0))


class _Part:
    """The batches of one rank: those that its sampler deals to it, or every n-th of those that all ranks see."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.deals = hasattr(getattr(data, "sampler", None), "set_epoch") or hasattr(
            getattr(data, "batch_sampler", None), "set_epoch"
        )
        if isinstance(data, wf.data.DataLoader) and not self.deals:
            dealt = _dealt(data)
            if dealt is not None:
                self.data, self.deals = dealt, True

    def __iter__(self) -> Iterator[Any]:
        if self.deals:
            yield from self.data
            return
        rank, size = dist.get_rank(), dist.get_world_size()
        for number, batch in enumerate(self.data):
            if number % size == rank:
                yield batch

    def __len__(self) -> int:
        rank, size = dist.get_rank(), dist.get_world_size()
        count = len(self.data)
        return count if self.deals else len(range(rank, count, size))

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader, whose seeds go by the epoch too, and the sampler: after a resume they would begin anew."""
        if isinstance(self.data, wf.data.DataLoader):
            self.data._epoch = epoch
        for name in ("sampler", "batch_sampler"):
            sampler: Any = getattr(self.data, name, None)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)


def _dealt(loader: Any) -> Any:
    """The same loader with a DistributedSampler; None where its order is the user's own."""
    plain = (wf.data.RandomSampler, wf.data.SequentialSampler)
    if loader.batch_size is None or type(getattr(loader, "sampler", None)) not in plain:
        return None
    if type(loader.batch_sampler) is not wf.data.BatchSampler:
        return None
    shuffles = isinstance(loader.sampler, wf.data.RandomSampler)
    if shuffles and (loader.sampler.replacement or loader.sampler.num_samples != len(loader.dataset)):
        return None
    sampler = DistributedSampler(loader.dataset, shuffle=shuffles, seed=loader.seed or 0)
    options: dict[str, Any] = {}
    if loader.num_workers:
        options = {"prefetch_factor": loader.prefetch_factor, "persistent_workers": loader.persistent_workers,
                   "timeout": loader.timeout, "multiprocessing_context": loader.multiprocessing_context}  # fmt: skip
    return wf.data.DataLoader(
        loader.dataset, loader.batch_size, sampler=sampler, num_workers=loader.num_workers,
        collate_fn=loader.collate_fn, drop_last=loader.drop_last, worker_init_fn=loader.worker_init_fn,
        seed=loader.seed, **options,
    )  # fmt: skip


def strategy_of(name: Any, model: Any, optimizer: Any) -> OneProcess:
    """What `fit` was told, as an object."""
    if name is None:
        return OneProcess(model, optimizer)
    if name not in ("ddp", "zero"):
        raise ArgumentError(f"fit: strategy must be 'ddp', 'zero' or None, it is {name!r}")
    return Ranks(model, optimizer, splits_state=name == "zero")


def same_file(strategy: OneProcess, path: Any) -> None:
    """All ranks must see the checkpoint that rank 0 goes on from."""
    every = strategy.merged(None if path is None else path.name)
    if len(set(every)) > 1:
        rank = next(r for r, name in enumerate(every) if name != every[0])
        raise DistributedError(f"fit: rank 0 goes on from {every[0]}, and rank {rank} finds {every[rank]}",
                               fix="The folder must be one that all ranks see.")  # fmt: skip


def merged_meters(strategy: OneProcess, total: float, examples: int, batches: int, metrics: dict[str, Any]) -> Any:
    """The sums of all ranks, and the metrics with what all ranks have counted."""
    states = {name: m.state_dict() for name, m in metrics.items() if isinstance(m, wf.metrics.Metric)}
    every = strategy.merged([total, examples, batches, states])
    if len(every) > 1:
        for name in states:
            _merge(metrics[name], [rank[3][name] for rank in every])
    return sum(rank[0] for rank in every), sum(rank[1] for rank in every), max(rank[2] for rank in every)


def _merge(metric: Any, states: Iterable[Any]) -> None:
    parts = []
    for state in states:
        part = metric.copy()
        part.load_state_dict(state)
        parts.append(part)
    metric.reset()
    metric.merge(*parts)
