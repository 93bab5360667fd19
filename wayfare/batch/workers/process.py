"""The life of a worker of `wf.map`: it runs examples, keeps their graphs, and runs backward through them."""

from __future__ import annotations

import gc
import os
import pickle
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import numpy as np

from wayfare.api.functions.creation import set_default_dtype
from wayfare.api.functions.threads import set_num_threads
from wayfare.autograd.backward import backward
from wayfare.batch.fibers.errors import example_of
from wayfare.batch.fibers.example import Example
from wayfare.batch.stats import Stats
from wayfare.batch.workers.sending import STAGE, Missing, captured, computed, dumps
from wayfare.batch.workers.shared import Block, TensorSpec, as_sent, tensor_in
from wayfare.codegen.routines.rows import Rows
from wayfare.core.errors import InPlaceError
from wayfare.core.mode import changed_mode
from wayfare.core.processes.failure import Failure
from wayfare.core.processes.parcel import Message, Parcel
from wayfare.core.processes.starting import own_signals
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.write_clock import version

RunExamples = Callable[[Any, list[Example], bool | None], Stats | None]


@dataclass
class Function:
    """A message: a function, the arguments that all examples have in common, and where its tensors lie."""

    number: int
    data: bytes
    specs: list[TensorSpec]
    values: str
    gradients: str
    # Functions, and runs, that are not needed any more.
    forget: list[int]


@dataclass
class Run:
    """A message: run these examples."""

    number: int
    function: int
    examples: list[bytes]
    numbers: list[int]
    key: tuple[int, int]
    site: Any
    grad: bool
    inference: bool
    dtype: Any
    batch: bool | None
    forget: list[int]


@dataclass
class Backward:
    """A message: gradients of some results of a run."""

    run: int
    outputs: list[int]
    gradients: list[Any]


@dataclass
class Ran:
    """An answer: results, as pickled bytes and buffers, and what is to be told about the run."""

    data: bytes
    buffers: list[Any]
    stats: Stats | None
    seconds: float
    warned: list[tuple[Any, ...]]


@dataclass
class Refused:
    """An answer: the run failed, or did what a worker must not do (`why`), or a class is missing (`missing`)."""

    failure: Failure | None = None
    example: list[int] = field(default_factory=list)
    why: str = ""
    missing: bool = False


@dataclass
class Pulled:
    """An answer: which gradients of what the function sees lie in shared memory, others, and those of examples."""

    shared: list[int]
    rows: dict[int, Rows]
    inputs: list[Any]
    seconds: float


class _Held:
    """A function in a worker."""

    def __init__(self, message: Function, worker: int, count: int) -> None:
        self.values = Block(message.specs, name=message.values)
        wanted = [spec for spec in message.specs if spec[2]]
        self._block = gradients = Block(wanted, count, message.gradients)
        self.tensors: dict[int, Tensor] = {}
        STAGE.captured = self.tensors
        STAGE.make = lambda number, *spec: tensor_in(self.values, number, message.specs[number])
        self.function, self.common = pickle.loads(message.data)
        numbers = [number for number, spec in enumerate(message.specs) if spec[2]]
        self.gradients = {number: gradients.array(i, worker) for i, number in enumerate(numbers)}


class _Before:
    """What the tensors that the function sees, and those it is given, are like before the examples run."""

    def __init__(self, seen: Iterable[Tensor], given: Iterable[Tensor]) -> None:
        self._kept = [(t, t._array, version(t._array), t._requires_grad, whose)
                      for tensors, whose in ((seen, "all of them see"), (given, "they are given"))
                      for t in tensors]  # fmt: skip

    def explain_write(self) -> str:
        """Which of them was written since then; "" for none."""
        for t, array, count, wanted, whose in self._kept:
            if t._array is not array or version(array) != count or t._requires_grad != wanted:
                return f"its examples write to a tensor of {t.spec} that {whose}"
        return ""


class _Worker:
    def __init__(self, number: int, count: int, run: RunExamples) -> None:
        self.number, self.count, self.run = number, count, run
        self.functions: dict[int, _Held] = {}
        self.runs: dict[int, tuple[_Held, list[Tensor], list[Tensor]]] = {}

    def do(self, message: Any) -> Any:
        """Answer a message; None for one that needs no answer."""
        if isinstance(message, Backward):
            return self._backward(message)
        for number in message.forget:
            self.runs.pop(number, None)
            self.functions.pop(number, None)
        if isinstance(message, Function):
            self.functions[message.number] = _Held(message, self.number, self.count)
            return True
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = self._run(message)
        if isinstance(answer, Ran):
            answer.warned = [(str(w.message), w.category, w.filename, w.lineno) for w in caught]
        return answer

    def _run(self, message: Run) -> Any:
        began = perf_counter()
        held = self.functions[message.function]
        STAGE.captured, STAGE.inputs, STAGE.arguments = held.tensors, [], []
        arguments = [pickle.loads(data) for data in message.examples]
        inputs = STAGE.inputs
        args = [tuple([next(own) if common is None else common[0] for common in held.common])
                for own in map(iter, arguments)]  # fmt: skip
        examples = [Example(held.function, given, number, message.key, message.site)
                    for given, number in zip(args, message.numbers, strict=True)]  # fmt: skip
        before = _Before(held.tensors.values(), STAGE.arguments)
        set_default_dtype(message.dtype)
        with changed_mode(grad=message.grad, inference=message.inference):
            try:
                stats = self.run(held.function, examples, message.batch)
            except Exception as error:
                # A tensor with a history is a leaf here, which refuses what it may allow in the parent.
                refused = "its examples write to a tensor in a way that a worker cannot"
                why = before.explain_write() or (refused if isinstance(error, InPlaceError) else "")
                if why:
                    return Refused(why=why)
                raise
        results = [example.result for example in examples]
        for example in examples:
            example.release()
        why = before.explain_write()
        if why:
            return Refused(why=why)
        known = {id(t): number for number, t in held.tensors.items()}
        outputs: list[Tensor] = []

        def reduced(t: Tensor) -> Any:
            if id(t) in known:
                return captured, (known[id(t)],)
            if not t.requires_grad:
                return t.__reduce_ex__(5)
            outputs.append(t)
            return computed, (len(outputs) - 1, as_sent(t))

        buffers: list[pickle.PickleBuffer] = []
        try:
            data = dumps(results, reduced, False, buffers.append)
        except Exception as error:
            return Refused(why=f"a result cannot be sent back: {error}")
        if outputs:
            self.runs[message.number] = held, inputs, outputs
        if stats is not None:
            stats.profile, stats.waits = "", dict(stats.waits)
        return Ran(data, buffers, stats, perf_counter() - began, [])

    def _backward(self, message: Backward) -> Pulled:
        began = perf_counter()
        held, inputs, outputs = self.runs[message.run]
        # The graph is kept: the parent says when nobody can ask for it again.
        backward([outputs[i] for i in message.outputs], [wrap(np.asarray(g)) for g in message.gradients],
                 retain_graph=True)  # fmt: skip
        answer = Pulled([], {}, [], 0.0)
        for number, place in held.gradients.items():
            t = held.tensors.get(number)
            if t is None:
                continue
            g, t._grad = t._grad, None
            if isinstance(g, Rows):
                answer.rows[number] = g
            elif g is not None:
                place[...] = g._array
                answer.shared.append(number)
        for t in inputs:
            answer.inputs.append(None if t.grad is None else t.grad._array)
            t._grad = None
        answer.seconds = perf_counter() - began
        return answer


def run(
    number: int, count: int, threads: int, tasks: Connection, answers: Connection, slots: Any, run_examples: RunExamples
) -> None:
    """Work until told to stop or until the parent is gone."""
    own_signals()
    set_num_threads(threads)
    # What was inherited is not this process's to collect; looking at it would copy its memory.
    gc.collect()
    gc.freeze()
    worker = _Worker(number, count, run_examples)
    take, give = slots if slots else (None, None)
    while True:
        try:
            message = Message(tasks, lambda head: take)
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone without a word
        if message.head is None:
            return
        try:
            answer = worker.do(message.body())
        except Missing:
            answer = Refused(missing=True)
        except BaseException as error:
            answer = Refused(Failure.of(error), example_of(error))
        try:
            Parcel("answer", answer, give).send(answers)
        except OSError:
            return
