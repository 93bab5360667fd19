"""`Join`: ranks with different amounts of data. A rank that has no more stands in for itself until all are through."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from wayfare.core.errors import ArgumentError, DistributedError
from wayfare.distributed.process_group import ProcessGroup

__all__ = ["Join", "Joinable"]


class Joinable:
    """What can take part in a `Join`: it can stand in for a step of the others, and catch up at the end."""

    @property
    def join_process_group(self) -> ProcessGroup:
        """The group whose ranks are joined."""
        raise NotImplementedError

    def joined(self, join: Join | None) -> None:
        """A block of `Join` begins or ends."""

    def divide_by(self, count: int) -> None:
        """By how much sums of gradients are divided from now on."""

    def stand_in(self, active: int, divide_by_active: bool) -> None:
        """Make the transfers of one step without data."""
        raise NotImplementedError

    def catch_up(self, rank: int) -> None:
        """Take over the state of a rank that was there to the end."""


class Join:
    """`with Join([model]): for batch in loader: …`, where loaders of the ranks may have different lengths.

    A rank that is through takes part in the transfers of the others with zeros, and at the end all ranks have the
    weights of one that was there to the last step. The first of the `joinables` must be a DistributedDataParallel: its
    backward pass tells the others that a rank still has data. Means divide by all ranks, or with
    `divide_by_initial_world_size=False` by those that still have data.
    """

    def __init__(
        self, joinables: Sequence[Joinable], enable: bool = True, throw_on_early_termination: bool = False,
        **options: Any,
    ) -> None:  # fmt: skip
        if not joinables or not all(isinstance(each, Joinable) for each in joinables):
            raise ArgumentError("Join: takes a list with a DistributedDataParallel, and optimisers of its model",
                                fix="Write Join([model]).")  # fmt: skip
        self._joinables = list(joinables)
        self._group = joinables[0].join_process_group
        self._enabled = enable
        self._throws = throw_on_early_termination
        self._by_active = not options.get("divide_by_initial_world_size", True)
        self._last = 0

    def comes(self) -> None:
        """This rank has data for another step."""
        active = self._count(True)
        if active < self._group.size() and self._throws:
            raise DistributedError("Join: a rank has run out of data", fix="throw_on_early_termination=True asked for "
                                   "this error.")  # fmt: skip
        self._joinables[0].divide_by(active if self._by_active else self._group.size())

    def _count(self, here: bool) -> int:
        """How many ranks have data."""
        mine = np.array([here], np.uint8)
        every = np.empty((self._group.size(), 1), mine.dtype)
        self._group.work(self._group.engine.all_gather(mine, every), "the count of ranks with data").wait()
        present = np.flatnonzero(every)
        if present.size:
            self._last = int(present[0])
        return int(present.size)

    def __enter__(self) -> Join:
        if self._enabled:
            self._joinables[0].joined(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._enabled:
            return
        self._joinables[0].joined(None)
        if error is not None:
            return
        while True:
            active = self._count(False)
            if not active:
                break
            if self._throws:
                raise DistributedError("Join: this rank has run out of data, and others have not",
                                       fix="throw_on_early_termination=True asked for this error.")  # fmt: skip
            for each in self._joinables:
                each.stand_in(active, self._by_active)
        for each in self._joinables:
            each.divide_by(self._group.size())
            each.catch_up(self._last)
