"""The workers of `wf.map`, as the parent sees them. They are started by the first map that wants them, and kept."""

from __future__ import annotations

import multiprocessing
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import numpy as np

from wayfare.batch.workers.process import Function, Refused, RunExamples, run
from wayfare.batch.workers.sending import KNOWN, STAGE, NotSpread, cannot_be_sent, captured, dumps, given, given_plain
from wayfare.batch.workers.shared import Block, TensorSpec, as_sent, spec_of
from wayfare.core.errors import OperationError
from wayfare.core.processes.parcel import Message, Parcel, shared_slots
from wayfare.core.processes.starting import default_context, end, how_it_ended, quiet_start, two_pipes, undisturbed
from wayfare.core.tensor import Tensor

# Functions whose tensors stay in shared memory, the latest ones.
_FUNCTIONS = 8


class SentFunction:
    """A function that the workers have."""

    def __init__(self, number: int, data: bytes, specs: list[TensorSpec], workers: int) -> None:
        self.number = number
        self.data = data
        self.specs = specs
        self.values = Block(specs)
        self.wanted = [i for i, spec in enumerate(specs) if spec[2]]
        self.gradients = Block([specs[i] for i in self.wanted], workers)
        self.remove = weakref.finalize(self, _remove, os.getpid(), self.values, self.gradients)

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Write the values that the tensors have now."""
        for number, t in enumerate(tensors):
            np.copyto(self.values.array(number), t._read("pickle"))

    def gradient(self, position: int, worker: int) -> Any:
        """A worker's gradient of the wanted tensor at this position."""
        return self.gradients.array(position, worker)


def _remove(pid: int, *blocks: Block) -> None:
    if os.getpid() == pid:  # a process that was forked from this one has copies of everything but the memory
        for block in blocks:
            block.remove()


class Pool:
    """Worker processes that run examples."""

    def __init__(self, count: int, run_examples: RunExamples) -> None:
        self.count = count
        self.lock = threading.RLock()
        self._pid = os.getpid()
        self._processes: list[Any] = []
        self._tasks: list[Connection] = []
        self._answers: list[Connection] = []
        self._functions: OrderedDict[bytes, SentFunction] = OrderedDict()
        self._numbers = iter(range(1, 1 << 62))
        # Runs and functions that nobody can ask for any more; the workers hear of it with the next message.
        self.forget: list[int] = []
        context = default_context()
        self.forked = context.get_start_method() == "fork"
        self.known = len(KNOWN.objects)
        self.stop = weakref.finalize(self, end, self._pid, self._processes, self._tasks, self._answers)
        resource_tracker.ensure_running()  # one for all processes: the parent removes what they share
        threads = max(1, len(os.sched_getaffinity(0)) // count) if hasattr(os, "sched_getaffinity") else 1
        self._slots = [shared_slots(2) if self.forked else [] for _ in range(count)]
        try:
            with undisturbed():
                for number in range(count):
                    self._start(context, number, threads, run_examples)
        except BaseException:
            self.stop()
            raise

    def _start(self, context: Any, number: int, threads: int, run_examples: RunExamples) -> None:
        take, give, hear, tell = two_pipes(context)
        self._tasks.append(give)
        self._answers.append(hear)
        arguments = (number, self.count, threads, take, tell, self._slots[number], run_examples)
        process = context.Process(target=run, args=arguments, daemon=True, name=f"wayfare-map-{number}")
        try:
            with quiet_start():
                process.start()
            self._processes.append(process)
        except AssertionError as error:
            raise OperationError("map: this process is itself a worker, and may start none",
                                 fix="Leave workers= out here.") from error  # fmt: skip
        finally:
            take.close()
            tell.close()

    @property
    def usable(self) -> bool:
        """Whether the workers belong to this process and nothing has gone wrong."""
        return self.stop.alive and os.getpid() == self._pid

    def next_number(self) -> int:
        """A number that nothing else has."""
        return next(self._numbers)

    def send_function(self, function: Any, common: list[Any]) -> tuple[SentFunction, list[Tensor]]:
        """Make sure that the workers have the function as it is now. Returns it, and the tensors it sees."""
        tensors: list[Tensor] = []
        numbers: dict[int, int] = {}

        def reduced(t: Tensor) -> Any:
            number = numbers.setdefault(id(t), len(tensors))
            if number == len(tensors):
                tensors.append(t)
            return captured, (number, *spec_of(t))

        try:
            data = dumps((function, common), reduced, self.forked)
        except NotSpread:
            raise
        except Exception as error:
            raise cannot_be_sent(f"{getattr(function, '__qualname__', type(function).__name__)}, or what it refers to,",
                                 error) from error  # fmt: skip
        if len(KNOWN.objects) > self.known:
            raise NewClass
        found = self._functions.get(data)
        if found is None:
            found = SentFunction(self.next_number(), data, [spec_of(t) for t in tensors], self.count)
            found.share(tensors)
            message = Function(found.number, data, found.specs, found.values.name, found.gradients.name,
                               self.forgotten())  # fmt: skip
            for answer in self.ask([message] * self.count):
                if isinstance(answer, Refused):
                    if answer.missing:
                        raise NewClass
                    assert answer.failure is not None
                    raise cannot_be_sent("the function", RuntimeError(answer.failure.message))
            self._functions[data] = found
            while len(self._functions) > _FUNCTIONS:
                _, old = self._functions.popitem(last=False)
                self.forget.append(old.number)
                old.remove()
        else:
            self._functions.move_to_end(data)
            found.share(tensors)
        return found, tensors

    def pickled(self, args: tuple[Any, ...], tensors: dict[int, int]) -> tuple[bytes, list[Tensor]]:
        """The arguments of one example, and those of its tensors that want a gradient."""
        inputs: list[Tensor] = []

        def reduced(t: Tensor) -> Any:
            if id(t) in tensors:
                return captured, (tensors[id(t)],)
            if not t.requires_grad:
                return given_plain, cast(tuple[Any, ...], t.__reduce_ex__(5))
            inputs.append(t)
            return given, (as_sent(t),)

        data = dumps(args, reduced, self.forked)
        if len(KNOWN.objects) > self.known:
            raise NewClass
        return data, inputs

    def forgotten(self) -> list[int]:
        """What the workers may forget."""
        taken = list(self.forget)
        del self.forget[: len(taken)]
        return taken

    def ask(self, messages: Sequence[Any]) -> list[Any]:
        """Send each worker a message (None for none) and return the answers. Ends all workers if one is lost."""
        try:
            for number, message in enumerate(messages):
                if message is not None:
                    try:
                        slot = self._slots[number][0] if self._slots[number] else None
                        Parcel("task", message, slot).send(self._tasks[number])
                    except OSError:
                        raise self._death(number) from None
            return [None if message is None else self._answer(number) for number, message in enumerate(messages)]
        except BaseException:
            # Also after Ctrl-C: what is still under way would be taken for the answer to something else.
            self.stop()
            raise

    def _answer(self, number: int) -> Any:
        pipe = self._answers[number]
        sentinels = {process.sentinel: other for other, process in enumerate(self._processes)}
        ready = wait([pipe, *sentinels])
        if pipe not in ready:
            raise self._death(next(sentinels[item] for item in ready if isinstance(item, int)))
        try:
            slot = self._slots[number][1] if self._slots[number] else None
            return Message(pipe, lambda head: slot).body()
        except (EOFError, OSError):
            raise self._death(number) from None

    def _death(self, number: int) -> OperationError:
        process = self._processes[number]
        how, signal = how_it_ended(process)
        fix = ("Often the system had no memory left: use fewer workers or smaller batches." if signal == "SIGKILL" else
               "Look in the function for what ends the process; without workers= it runs here.")  # fmt: skip
        return OperationError(f"map: worker {number} (pid {process.pid}) {how} in the middle of its examples", fix=fix)


class NewClass(Exception):
    """The function needs a class that the workers, forked earlier, do not have."""


_pool: Pool | None = None
_lock = threading.Lock()


def in_a_worker() -> bool:
    """Whether this process is a worker itself, of a map or of a loader: such processes may start none."""
    return bool(multiprocessing.current_process().daemon)


def pool_of(count: int, run_examples: RunExamples, anew: bool = False) -> Pool:
    """The workers of this process, started if there are none or another number."""
    global _pool
    with _lock:
        if _pool is not None and (anew or not _pool.usable or _pool.count != count):
            _pool.stop()
            _pool = None
        if _pool is None:
            _pool = Pool(count, run_examples)
        return _pool


def unpickling(tensors: Sequence[Tensor]) -> dict[int, Tensor]:
    """Prepare for results: tensors that the function sees are themselves. Returns where computed ones will be."""
    STAGE.captured = dict(enumerate(tensors))
    STAGE.outputs = {}
    return STAGE.outputs
