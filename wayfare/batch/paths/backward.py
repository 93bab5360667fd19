"""The gradient of a run along recorded paths: one node of the graph outside; inside, block by block from the last."""

from __future__ import annotations

from time import thread_time
from typing import Any, NoReturn

import numpy as np

from wayfare.autograd.backward import grad as gradients_of
from wayfare.batch.function_profile import MapTiming
from wayfare.batch.paths.blocks import evaluate
from wayfare.batch.paths.run import Finished, PathRun, Stored
from wayfare.batch.record.call import Row, row_of
from wayfare.batch.record.memory import Memory, memory_of
from wayfare.batch.run.backward import Tape, eagerly, without_history, without_hooks
from wayfare.codegen.routines.rows import Rows
from wayfare.core.device import as_array
from wayfare.core.errors import InPlaceError
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.write_clock import latest_write, written_after

# If fewer than one in so many examples have a gradient, those are differentiated one by one.
_FEW = 4


class Result:
    """One result of one example: row number `position` of output number `number` of a finished group."""

    __slots__ = ("example", "finished", "number", "position", "row")

    def __init__(self, finished: Finished, number: int, index: int, example: int, row: Row) -> None:
        self.finished = finished
        self.number = number
        self.position = finished.start + index
        self.example = example
        self.row = row


class PathTape(Tape):
    """What the autograd node of a run saves."""

    __slots__ = ("_examples", "_places", "_run")

    def __init__(self, run: PathRun, results: list[Result], timing: MapTiming | None) -> None:
        self._run = run
        self.seeds: list[Result] = results  # type: ignore[assignment]
        self.timing = timing
        self.last, self.used = [], set()
        self._examples = sum([len(finished.examples) for finished in run.finished])
        # For each outside tensor: how to find its gradient inside. Rows of stacked arguments, then shared tensors.
        self._places: list[tuple[Stored | None, int, int]] = []
        self.outside = []
        for family in run.families:
            for number, stacked in family.stacked.items():
                if stacked.needs:
                    for i, arguments in enumerate(family.arguments):
                        self._places.append((stacked, i, family.start + i))
                        self.outside.append(arguments[number])
        for t in run.shared.values():
            self._places.append((None, id(t), -1))
            self.outside.append(t)

    def pull(self, given: list[Any], wanted: tuple[bool, ...]) -> list[Any]:
        """The gradients of the outside tensors from those of the results."""
        began = thread_time()
        reached = {result.example for result, g in zip(self.seeds, given, strict=True) if g is not None}
        found = None
        if len(reached) * _FEW > self._examples or self._is_stale():
            found = self._together(given, wanted)
        if found is None:
            found = self._by_example(given, wanted)
        if self.timing is not None:
            self.timing.backward += thread_time() - began
        return found

    def _together(self, given: list[Any], wanted: tuple[bool, ...]) -> list[Any] | None:
        """The same for all examples at once. None if a gradient is not finite: an example that does not use a value has
        a zero there, and zero times infinity would be NaN where the loop has a number."""
        rows: dict[int, tuple[Stored, list[int], list[Any]]] = {}
        for result, g in zip(self.seeds, given, strict=True):
            if g is not None:
                output = result.finished.results[result.number]
                _, positions, arrays = rows.setdefault(id(output), (output, [], []))
                positions.append(result.position)
                arrays.append(g.dense() if g.__class__ is Rows else g)
        stacked, shared = self._run.backward([(output, _spread(output.array, *own)) for output, *own in rows.values()])
        if not _finite([*stacked.values(), *shared.values()]):
            if self._is_stale():
                self._refuse()
            return None
        arrived = self._arrived(given)
        found: list[Any] = []
        for (of, number, example), t, want in zip(self._places, self.outside, wanted, strict=True):
            if not want or (id(t), example) not in arrived:
                found.append(None)
            elif of is None:
                found.append(shared.get(number))
            else:
                rows_of = stacked.get(id(of))
                found.append(None if rows_of is None else rows_of[number])
        return found

    def _arrived(self, given: list[Any]) -> set[tuple[int, int]]:
        """The outside tensors on which a result with a gradient depends: (id, number of the example), or (id, -1) for
        one that examples share. In a batch others have zeros; in the loop they have no gradient."""
        found: set[tuple[int, int]] = set()
        for result, g in zip(self.seeds, given, strict=True):
            if g is not None:
                family = result.finished.family
                arguments = family.arguments[result.example - family.start]
                for source in family.tree.sources_of(result.finished.block, result.number):
                    own = source.kind == "argument" and source.what in family.tree.rows_of
                    found.add((id(source.tensor(arguments)), result.example if own else -1))
        return found

    def _is_stale(self) -> bool:
        """Whether a tensor that the run started from was written in place since: then it cannot run again."""
        time = self._run.time
        if latest_write[0] <= time:
            return False
        arguments = [t for family in self._run.families for args in family.arguments for t in args]
        captured = [source.what for family in self._run.families for source in family.tree.entry.graph.sources
                    if source.kind == "captured"]  # fmt: skip
        return any([written_after(t._array, time) for t in (*arguments, *captured)])

    def _refuse(self) -> NoReturn:
        raise InPlaceError(
            "the examples of this map must be computed again for this gradient, but a tensor that they "
            "read was written in place since",
            fix="Write after the backward pass, or to a clone.",
        )

    # -- one by one

    def rematerialised(self) -> list[Tensor]:
        """The results, computed again by ordinary ops, each example by itself."""
        return self._one_by_one({})

    def _one_by_one(self, replaced: dict[int, Tensor], only: set[int] | None = None) -> list[Tensor]:
        if self._is_stale():
            self._refuse()
        made: dict[tuple[int, int], Tensor] = {}
        for finished in self._run.finished:
            graph = finished.family.tree.entry.graph
            recording = finished.block.recording
            assert recording is not None
            for number in finished.examples.tolist():
                if only is not None and number not in only:
                    continue
                known: dict[Any, Any] = {}
                for source in graph.sources:
                    t = source.tensor(finished.family.arguments[number - finished.family.start])
                    if t is not None:
                        known[source.value] = replaced.get(id(t), t)
                for i, t in enumerate(evaluate(recording.made, known, graph)):
                    made[number, i] = t
        others = [wrap(r.finished.results[r.number].array[r.position, ...]) for r in self.seeds]
        return [made.get((r.example, r.number), other) for r, other in zip(self.seeds, others, strict=True)]

    def _by_example(self, given: list[Any], wanted: tuple[bool, ...]) -> list[Any]:
        """The gradients as arrays, each example differentiated by itself."""
        seeds = [None if g is None else wrap(g.dense() if g.__class__ is Rows else as_array(g)) for g in given]
        found = self._differentiated(seeds, wanted, False)
        return [None if g is None else g._array for g in found]

    def pull_recorded(self, given: list[Any], wanted: tuple[bool, ...]) -> list[Any]:
        """The gradients for `create_graph=True`: the examples are computed again one by one, and differentiated."""
        return self._differentiated(given, wanted, True)

    def _differentiated(self, given: list[Any], wanted: tuple[bool, ...], create: bool) -> list[Any]:
        cut = {id(t): without_history(t) for t in self.outside if t._edge is not None}
        # A tensor that several examples were given has one gradient here.
        first = {id(t): i for i, t in reversed(list(enumerate(self.outside)))}
        wanted = tuple([want and first[id(self.outside[i])] == i for i, want in enumerate(wanted)])
        with eagerly(), without_hooks([t for t in self.outside if t._edge is None]):
            reached = {r.example for r, g in zip(self.seeds, given, strict=True) if g is not None}
            tensors = self._one_by_one(cut, reached)
            pairs = [(t, g) for t, g in zip(tensors, given, strict=True) if g is not None and t.requires_grad]
            asked = [cut.get(id(t), t) for t, want in zip(self.outside, wanted, strict=True) if want]
            found: Any = iter([None] * len(asked))
            if pairs and asked:
                roots, seeds = [t for t, _ in pairs], [g for _, g in pairs]
                found = iter(gradients_of(roots, asked, seeds, create_graph=create, allow_unused=True))
        for t in self.outside:
            if id(t) in cut:
                cut[id(t)]._edge.edges = (t._edge,)
        return [next(found) if want else None for want in wanted]


def _spread(like: Any, positions: list[int], arrays: list[Any]) -> Any:
    """Zeros as large as an array, but for these rows."""
    row = row_of(like.shape[1:], like.dtype, None, memory_of(like))
    with row.memory.active():
        return row.memory.spread(row.memory.stack(arrays, row), np.array(positions), len(like))


def _finite(grads: list[Any]) -> bool:
    """Are all numbers of gradients finite?"""
    found: dict[Memory, list[Any]] = {}
    for g in grads:
        for array in [part.values for part in g.parts] if g.__class__ is Rows else [g]:
            found.setdefault(memory_of(array), []).append(array)
    return all([memory.finite(arrays) for memory, arrays in found.items()])
