"""The life of a worker process: it takes tasks from a pipe, fetches batches and sends them back in the same order."""

from __future__ import annotations

import math
import mmap
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import wayfare as wf
from wayfare.core.processes.failure import Failure
from wayfare.core.processes.parcel import Parcel
from wayfare.core.processes.starting import own_signals
from wayfare.data.fetch import END, Recipe
from wayfare.data.randomness import seed_all

__all__ = ["WorkerInfo", "get_worker_info"]


@dataclass
class WorkerInfo:
    """Which worker this process is: its number, how many there are, its seed, and its copy of the dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any = field(repr=False)


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """What this worker process is; None in a process that is not a worker of a DataLoader."""
    return _info


@dataclass(frozen=True)
class Epoch:
    """A message to a worker: an epoch begins. Tasks of an earlier one are not worth doing any more."""

    number: int
    seed: int


@dataclass(frozen=True)
class Task:
    """A message to a worker: fetch a batch, and leave large arrays in this slot."""

    epoch: int
    slot: int
    indices: Any
    seed: int | None


@dataclass(frozen=True)
class Duties:
    """What a worker is told when it starts."""

    number: int
    num_workers: int
    recipe: Recipe
    init: Callable[[int], Any] | None
    seed: int
    default_dtype: Any


# What an answer is: its kind is the head of the message.
BATCH, ENDED, SKIPPED, FAILED = "batch", "ended", "skipped", "failed"


def run(duties: Duties, tasks: Connection, answers: Connection, slots: list[mmap.mmap]) -> None:
    """Work until told to stop or until the parent is gone."""
    own_signals()
    try:
        _Worker(duties, tasks, answers, slots).work()
    except _Unwanted:
        pass


class _Unwanted(BaseException):
    """The parent does not listen any more."""


class _Worker:
    def __init__(self, duties: Duties, tasks: Connection, answers: Connection, slots: list[mmap.mmap]) -> None:
        self.duties = duties
        self.tasks = tasks
        self.answers = answers
        self.slots = slots
        self.latest_epoch: float = -1
        self.waiting: queue.SimpleQueue[Epoch | Task | None] = queue.SimpleQueue()
        self.trouble: Failure | None = None
        self.fetch: Callable[[Any], Any] | None = None

    def work(self) -> None:
        self._begin()
        # Read by a thread of its own, so that a parent that sends never waits for a worker that sends.
        threading.Thread(target=self._listen, daemon=True).start()
        while (message := self.waiting.get()) is not None:
            if isinstance(message, Epoch):
                self._start_epoch(message)
            elif message.epoch < self.latest_epoch:
                self._answer(SKIPPED, None, message)
            else:
                self._do(message)

    def _begin(self) -> None:
        global _info
        duties = self.duties
        wf.set_num_threads(1)
        wf.set_default_dtype(duties.default_dtype)
        _info = WorkerInfo(duties.number, duties.num_workers, duties.seed + duties.number, duties.recipe.dataset)
        seed_all(_info.seed)
        try:
            if duties.init is not None:
                duties.init(duties.number)
        except Exception as error:
            self.trouble = Failure.of(error)

    def _listen(self) -> None:
        try:
            while True:
                message = self.tasks.recv()
                if isinstance(message, Epoch):
                    self.latest_epoch = message.number
                elif message is None:
                    self.latest_epoch = math.inf  # nothing that still waits is wanted
                self.waiting.put(message)
                if message is None:
                    return
        except (EOFError, OSError):
            os._exit(1)  # the parent has died: the batch would not be read

    def _start_epoch(self, epoch: Epoch) -> None:
        assert _info is not None
        # The first epoch goes on from the seeds of the start, which worker_init_fn may have replaced.
        if epoch.seed != self.duties.seed:
            _info.seed = epoch.seed + self.duties.number
            seed_all(_info.seed)
        self.fetch = None

    def _do(self, task: Task) -> None:
        try:
            if self.trouble is not None:
                self._answer(FAILED, self.trouble, task)
                return
            if task.seed is not None:
                seed_all(task.seed)
            if self.fetch is None:
                self.fetch = self.duties.recipe.fetcher()
            batch = self.fetch(task.indices)
            if batch is END:
                self._answer(ENDED, None, task)
            else:
                self._answer(BATCH, batch, task)
        except (_Unwanted, SystemExit):
            raise  # who wants to exit does, and the parent will notice
        except BaseException as error:
            self._answer(FAILED, Failure.of(error), task)

    def _answer(self, kind: str, body: Any, task: Task) -> None:
        parcel = Parcel((kind, task.epoch, task.slot), body, self.slots[task.slot] if self.slots else None)
        try:
            parcel.send(self.answers)
        except OSError:
            raise _Unwanted from None
