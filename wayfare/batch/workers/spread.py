"""A map over workers: examples are dealt by cost, results come back, and so do gradients.

In this process the results of all workers are outputs of one node of the graph. Its gradient rule sends each worker the
gradients of its results; the workers run backward at the same time, and their gradients are added up in the order of
the workers. Which worker gets which example depends on the examples alone, so equal maps give equal bits.
"""

from __future__ import annotations

import pickle
import warnings
import weakref
from time import perf_counter
from typing import Any

import numpy as np

from wayfare.api.functions.creation import get_default_dtype
from wayfare.batch.fibers.example import Example
from wayfare.batch.function_profile import FunctionProfile
from wayfare.batch.run.backward import MapNode, map_node
from wayfare.batch.stats import Stats
from wayfare.batch.workers.choose import WorkerProfile
from wayfare.batch.workers.pool import NewClass, Pool, SentFunction, pool_of, unpickling
from wayfare.batch.workers.process import Backward, Pulled, Refused, Run, RunExamples
from wayfare.batch.workers.sending import NotSpread, cannot_be_sent
from wayfare.batch.workers.stats import WorkerStats
from wayfare.codegen.routines.rows import Rows
from wayfare.core.balance import deal
from wayfare.core.errors import GraphError
from wayfare.core.mode import current
from wayfare.core.tensor import Tensor


def spread(
    examples: list[Example], workers: int, batch: bool | None, known: WorkerProfile, profile: FunctionProfile,
    run_examples: RunExamples,
) -> Stats:  # fmt: skip
    """Run examples in workers; raises NotSpread if that cannot be right."""
    try:
        return _Spread(pool_of(workers, run_examples), examples, batch, known).run(profile)
    except NewClass:
        # Started anew, the workers have all classes that there are now.
        return _Spread(pool_of(workers, run_examples, anew=True), examples, batch, known).run(profile)


class _Spread:
    def __init__(self, pool: Pool, examples: list[Example], batch: bool | None, known: WorkerProfile) -> None:
        self.pool, self.examples, self.batch, self.known = pool, examples, batch, known
        self.inputs: list[list[Tensor]] = []

    def run(self, profile: FunctionProfile) -> Stats:
        """Run the examples and set their results."""
        began = perf_counter()
        with self.pool.lock:
            first, last = self.examples[0].args, self.examples[-1].args
            same = [len(self.examples) > 1 and all([e.args[i] is first[i] for e in self.examples])
                    if first[i] is last[i] else False for i in range(len(first))]  # fmt: skip
            common = [(first[i],) if flag else None for i, flag in enumerate(same)]
            function, tensors = self.pool.send_function(self.examples[0].function, common)
            known = {id(t): number for number, t in enumerate(tensors)}
            sent = [self._pickled(example, same, known) for example in self.examples]
            parts = deal(self.known.costs([len(data) for data in sent]), self.pool.count)
            forget = self.pool.forgotten()
            messages = [self._message(function, part, sent, forget) if part else None for part in parts]
            numbers = [None if m is None else m.number for m in messages]
            answers = self.pool.ask(messages)
            self._check(answers)
            outputs = self._take(answers, parts, tensors)
        stats = _added([a.stats for a in answers if a is not None])
        stats.workers = WorkerStats(
            examples=[len(part) for part in parts], seconds=[0.0 if a is None else a.seconds for a in answers],
            sent=sum(map(len, sent)), shared=function.values.bytes, whole=perf_counter() - began,
        )  # fmt: skip
        self.known.learn([[len(part), sum([len(sent[i]) for i in part])] for part in parts],
                         [0 if a is None or a.stats is None else a.stats.nodes for a in answers])  # fmt: skip
        if outputs:
            inputs = [[t for i in part for t in self.inputs[i]] for part in parts]
            _Tape(self.pool, function, numbers, outputs, tensors, inputs, stats).attach()
        stats.profile, stats.seconds = profile, perf_counter() - began
        return stats

    def _pickled(self, example: Example, same: list[bool], known: dict[int, int]) -> bytes:
        args = tuple([value for value, flag in zip(example.args, same, strict=True) if not flag])
        try:
            data, inputs = self.pool.pickled(args, known)
        except (NewClass, NotSpread):
            raise
        except Exception as error:
            raise cannot_be_sent(f"example {example.number}", error) from error
        self.inputs.append(inputs)
        return data

    def _message(self, function: SentFunction, part: list[int], sent: list[bytes], forget: list[int]) -> Run:
        mode, first = current(), self.examples[0]
        return Run(self.pool.next_number(), function.number, [sent[i] for i in part],
                   [self.examples[i].number for i in part], first.key, first.site, mode.grad, mode.inference,
                   get_default_dtype(), self.batch, forget)  # fmt: skip

    def _check(self, answers: list[Any]) -> None:
        refused = [a for a in answers if isinstance(a, Refused)]
        if any([a.missing for a in refused]):
            raise NewClass
        for answer in refused:
            if answer.why:
                raise NotSpread(answer.why)
        for answer in sorted(refused, key=lambda a: a.example)[:1]:
            assert answer.failure is not None
            error = answer.failure.raised_again(answer.failure.message)
            for note in answer.failure.notes:
                error.add_note(note)
            error.add_note(f"In the worker:\n{answer.failure.trace}")
            raise error

    def _take(self, answers: list[Any], parts: list[list[int]], tensors: list[Tensor]) -> list[list[Tensor]]:
        """Set the results of all examples. Returns the computed tensors among them, for each worker."""
        outputs: list[list[Tensor]] = []
        for answer, part in zip(answers, parts, strict=True):
            made = unpickling(tensors)
            if answer is not None:
                results = pickle.loads(answer.data, buffers=answer.buffers)
                for i, result in zip(part, results, strict=True):
                    self.examples[i].result = result
                for warned in answer.warned:
                    warnings.warn_explicit(*warned)
            outputs.append([made[i] for i in sorted(made)])
        return outputs if any(outputs) else []


def _added(parts: list[Stats | None]) -> Stats:
    """The statistics of several workers, added up; the times are those of the slowest."""
    found = [part for part in parts if part is not None]
    total = Stats()
    for name in ("nodes", "groups", "gathers", "copies_avoided", "looped"):
        setattr(total, name, sum([getattr(part, name) for part in found]))
    for name in ("rounds", "seconds_scheduling", "seconds_running"):
        setattr(total, name, max([getattr(part, name) for part in found], default=0))
    kinds: dict[str, Any] = {}
    for part in found:
        for kind in part.kinds:
            old = kinds.get(kind.name)
            if old is None:
                kinds[kind.name] = kind
            else:
                old.nodes, old.groups = old.nodes + kind.nodes, old.groups + kind.groups
                old.largest = max(old.largest, kind.largest)
    total.kinds = list(kinds.values())
    return total


class _WorkersNode(MapNode):
    """The node of a map that ran in workers."""

    __slots__ = ()

    def unroll(self) -> None:
        """The single calls are not here; hooks of results work on this node too."""


class _Tape:
    """What that node saves: where the graphs are. They are forgotten when nothing refers to it any more."""

    def __init__(
        self, pool: Pool, function: SentFunction, runs: list[Any], outputs: list[list[Tensor]], tensors: list[Tensor],
        inputs: list[list[Tensor]], stats: Stats,
    ) -> None:  # fmt: skip
        self.pool, self.function, self.runs, self.stats = pool, function, runs, stats
        self.seeds = [t for part in outputs for t in part]
        # (worker, number there) of each output.
        self._origin = [(worker, i) for worker, part in enumerate(outputs) for i in range(len(part))]
        self._inputs = [len(part) for part in inputs]
        self.outside = [tensors[i] for i in function.wanted] + [t for part in inputs for t in part]
        self.last: list[int] = []
        self.used: set[int] = set()
        weakref.finalize(self, pool.forget.extend, [run for run in runs if run is not None])

    def attach(self) -> None:
        """Make the results outputs of one node."""
        node = map_node(_WorkersNode(), self, [(t._array.shape, t._array.dtype) for t in self.seeds])
        node.results = [weakref.ref(t) for t in self.seeds]
        for number, t in enumerate(self.seeds):
            t._edge, t._requires_grad = (node, number), True
        self.seeds = [None] * len(self.seeds)  # type: ignore[list-item]

    def pull(self, given: list[Any], wanted: tuple[bool, ...]) -> list[Any]:
        """The gradients of what the function sees and of the examples, from those of the results."""
        if not self.pool.usable:
            raise GraphError("backward: the workers that ran this map have ended, and its graph with them",
                             fix="Run the map again before going backward.")  # fmt: skip
        began = perf_counter()
        asked = [Backward(run, [], []) for run in self.runs]
        for (worker, number), g in zip(self._origin, given, strict=True):
            if g is not None:
                asked[worker].outputs.append(number)
                asked[worker].gradients.append(np.asarray(g.dense() if isinstance(g, Rows) else g))
        with self.pool.lock:
            answers = self.pool.ask([message if message.outputs else None for message in asked])
            for answer in answers:
                if isinstance(answer, Refused) and answer.failure is not None:
                    raise answer.failure.raised_again(answer.failure.message)
            made = [self._sum(position, number, answers) if wanted[position] else None
                    for position, number in enumerate(self.function.wanted)]  # fmt: skip
        for answer, count in zip(answers, self._inputs, strict=True):
            made += [None] * count if answer is None else answer.inputs
        if self.stats.workers is not None:
            self.stats.workers.backward += perf_counter() - began
        return made

    def _sum(self, position: int, number: int, answers: list[Pulled | None]) -> Any:
        """The gradient of one tensor: that of all workers, in their order."""
        total: Any = None
        for worker, answer in enumerate(answers):
            if answer is None:
                continue
            if number in answer.shared:
                g = self.function.gradient(position, worker)
                total = total.dense() if isinstance(total, Rows) else total
                total = g.copy() if total is None else np.add(total, g, out=total)
            elif number in answer.rows:
                rows = answer.rows[number]
                if total is None:
                    total = rows
                elif isinstance(total, Rows):
                    total = total.absorb(rows)
                else:
                    rows.add_into(total)
        return total

    def pull_recorded(self, given: list[Any], wanted: tuple[bool, ...]) -> list[Any]:
        """Not for `create_graph=True`: the graph is elsewhere."""
        raise GraphError("backward: a map that ran in workers cannot be differentiated twice (create_graph)",
                         fix="Leave workers= out of this map.")  # fmt: skip

