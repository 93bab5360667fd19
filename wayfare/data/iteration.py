"""Iterating over a loader: in this process, or through workers that prepare the next batches meanwhile."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from wayfare.data.collate import pinned
from wayfare.data.fetch import END, Recipe
from wayfare.data.randomness import OwnRandomness, mixed
from wayfare.data.worker import BATCH, FAILED
from wayfare.data.workers import Workers


@dataclass(frozen=True)
class Epoch:
    """What decides an epoch: its number, its seed, whether its batches have seeds of their own, how many to skip."""

    number: int
    seed: int
    seeded: bool
    skip: int

    def seed_of(self, batch: int) -> int | None:
        """The seed of a batch, the same in every worker."""
        return mixed(self.seed, batch) if self.seeded else None


class EpochIterator:
    """One pass over a loader's batches."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        # How many batches of the epoch were given out, those skipped included.
        self.given = epoch.skip
        self.finished = False
        # Are the tensors of batches put where a GPU reads them directly?
        self.pins = False

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        if self.finished:
            raise StopIteration
        try:
            batch = self._next()
        except BaseException:
            self._finish(failed=True)
            raise
        if batch is END:
            self._finish(failed=False)
            raise StopIteration
        self.given += 1
        return pinned(batch) if self.pins else batch

    def _next(self) -> Any:
        raise NotImplementedError

    def _finish(self, failed: bool) -> None:
        self.finished = True


class HereIterator(EpochIterator):
    """Fetches in this process."""

    def __init__(self, recipe: Recipe, order: Iterator[Any] | None, epoch: Epoch) -> None:
        super().__init__(epoch)
        self._order = order
        self._own = OwnRandomness() if epoch.seeded and not recipe.draws_nothing else None
        self._numbers = itertools.count(epoch.skip)
        if self._own is not None and recipe.is_stream:
            self._own.seed(epoch.seed)
        with self._own or contextlib.nullcontext():
            self._fetch = recipe.fetcher()
        if order is not None:
            # Only the numbers are passed over; nothing is fetched.
            deque(itertools.islice(order, epoch.skip), maxlen=0)
        else:
            for _ in range(epoch.skip):
                if self._fetch_next(None) is END:
                    break

    def _fetch_next(self, indices: Any) -> Any:
        if self._own is None:
            return self._fetch(indices)
        with self._own:
            return self._fetch(indices)

    def _next(self) -> Any:
        if self._order is None:
            return self._fetch_next(None)
        indices = next(self._order, END)
        if indices is END:
            return END
        if self._own is not None:
            self._own.seed(mixed(self.epoch.seed, next(self._numbers)))
        return self._fetch_next(indices)


class WorkersIterator(EpochIterator):
    """Gives batch after batch to the workers in turn, and hands on their answers in the same order."""

    def __init__(
        self, workers: Workers, order: Iterator[Any] | None, epoch: Epoch, timeout: float, keep: bool
    ) -> None:
        super().__init__(epoch)
        self._workers = workers
        self._order = enumerate(order) if order is not None else None
        self._timeout = timeout
        self._keep = keep
        # Whose answers are to come, in the order of the batches.
        self._turns: deque[int] = deque()
        try:
            if self._order is not None:
                deque(itertools.islice(self._order, epoch.skip), maxlen=0)
            workers.begin_epoch(epoch.seed)
            count = len(workers)
            for turn in range(count * workers.prefetch):
                self._give((epoch.skip if order is not None else 0) + turn)
            if self._order is None:
                for _ in range(epoch.skip):
                    if self._next() is END:
                        break
        except BaseException:
            self._finish(failed=True)
            raise

    def _give(self, turn: int) -> None:
        """Give the next batch, if there is one, to the worker whose turn it is."""
        number = turn % len(self._workers)
        if self._order is None:
            self._workers.give(number, None, None)
        else:
            batch, indices = next(self._order, (0, END))
            if indices is END:
                return
            self._workers.give(number, indices, self.epoch.seed_of(batch))
        self._turns.append(number)

    def _next(self) -> Any:
        while self._turns:
            number = self._turns.popleft()
            kind, body = self._workers.answer(number, self._timeout)
            if kind == FAILED:
                raise body.raised_again(
                    f"{body.name} in DataLoader worker {number}: {body.message}\n\nIn the worker:\n{body.trace}"
                )
            if kind == BATCH:
                self._give(number)
                return body
        return END

    def _finish(self, failed: bool) -> None:
        super()._finish(failed)
        if failed or not self._keep:
            self._workers.stop()
