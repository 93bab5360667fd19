"""The gradient of a run along recorded paths: one node of the graph outside, ordinary batched nodes inside."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NoReturn

import numpy as np

from wayfare.autograd.backward import grad as gradients_of
from wayfare.autograd.engine import run as run_backward
from wayfare.batch.function_profile import MapTiming
from wayfare.batch.paths.blocks import evaluate
from wayfare.batch.paths.run import Finished, PathRun
from wayfare.batch.record.call import row_of_array
from wayfare.batch.run.backward import Tape, eagerly, without_history, without_hooks
from wayfare.codegen.routines.rows import Rows
from wayfare.core.errors import InPlaceError
from wayfare.core.mode import changed_mode
from wayfare.core.numpy_math import Array
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import latest_write, tick, written_after


class Result:
    """One result of one example: row number `position` of output number `number` of a finished group."""

    __slots__ = ("example", "finished", "number", "position", "row")

    def __init__(self, finished: Finished, number: int, index: int) -> None:
        self.finished = finished
        self.number = number
        self.position = finished.start + index
        self.example = int(finished.examples[index])
        self.row = row_of_array(finished.results[number]._array[self.position, ...])


class PathTape(Tape):
    """What the autograd node of a run saves."""

    __slots__ = ("_places", "_run", "_time")

    def __init__(self, run: PathRun, results: list[Result], timing: MapTiming | None) -> None:
        self._run = run
        self.seeds: list[Result] = results  # type: ignore[assignment]
        self.timing = timing
        self._time = tick()
        self.last, self.used = [], set()
        # For each outside tensor: how to find its gradient inside. Rows of stacked arguments, then shared tensors.
        self._places: list[tuple[int, int] | int] = []
        self.outside = []
        for number, stacked in run.stacked.items():
            if stacked._requires_grad:
                for i, arguments in enumerate(run.arguments):
                    self._places.append((number, i))
                    self.outside.append(arguments[number])
        for key, inner in run.shared.items():
            if inner._requires_grad:
                self._places.append(key)
                self.outside.append(run.outer[key])

    def pull(self, given: list[Any], wanted: tuple[bool, ...]) -> list[Any]:
        """The gradients of the outside tensors from those of the results."""
        began = perf_counter()
        reached = sorted({result.example for result, g in zip(self.seeds, given, strict=True) if g is not None})
        run, renumbered = self._run, None
        partial = len(reached) < len({result.example for result in self.seeds})
        if partial and not self._is_stale():
            # Examples without a gradient are left out: zero times infinity would make gradients of weights NaN.
            with changed_mode(grad=True, executor=None):
                run = run.of(reached)
            renumbered = {number: i for i, number in enumerate(reached)}
        roots = self._roots(run, given, renumbered)
        leaves = [*run.stacked.values(), *run.shared.values()]
        for leaf in leaves:
            leaf._grad = None
        with changed_mode(executor=None):
            run_backward(roots, retain=True, create=False, capture=None)
        found: dict[int, Any] = {id(leaf): leaf._grad for leaf in leaves if leaf._grad is not None}
        if partial and renumbered is None and not all([np.isfinite(_array(g)).all() for g in found.values()]):
            self._refuse()
        for leaf in leaves:
            leaf._grad = None
        if self.timing is not None:
            self.timing.backward += perf_counter() - began
        return [self._gradient(run, found, place, renumbered) if want else None
                for place, want in zip(self._places, wanted, strict=True)]  # fmt: skip

    def _roots(self, run: PathRun, given: list[Any], renumbered: dict[int, int] | None) -> list[tuple[Any, Array]]:
        """The gradients of whole outputs."""
        rows: dict[int, tuple[Tensor, Array]] = {}
        places = {}
        for finished in run.finished:
            for i, example in enumerate(finished.examples.tolist()):
                places[example] = (finished, finished.start + i)
        for result, g in zip(self.seeds, given, strict=True):
            if g is None:
                continue
            finished, position = places[result.example if renumbered is None else renumbered[result.example]]
            output = finished.results[result.number]
            if id(output) not in rows:
                rows[id(output)] = (output, np.zeros(output._array.shape, output._array.dtype))
            rows[id(output)][1][position] += g.dense() if g.__class__ is Rows else g
        return [(output._edge or output, array) for output, array in rows.values()]

    def _gradient(
        self, run: PathRun, found: dict[int, Any], place: tuple[int, int] | int, renumbered: dict[int, int] | None
    ) -> Any:
        if isinstance(place, int):
            g = found.get(id(run.shared[place])) if place in run.shared else None
            return g if g is None or g.__class__ is Rows else g._array
        number, example = place
        rows = found.get(id(run.stacked[number]))
        if renumbered is not None:
            if example not in renumbered:
                return None
            example = renumbered[example]
        return None if rows is None else _array(rows)[example]

    def _is_stale(self) -> bool:
        """Whether a tensor that the run started from was written in place since: then it cannot run again."""
        if latest_write[0] <= self._time:
            return False
        outside = (*self._run.outer.values(), *[t for args in self._run.arguments for t in args])
        return any([written_after(t._array, self._time) for t in outside])

    def _refuse(self) -> NoReturn:
        raise InPlaceError("the examples of this map must be computed again for this gradient, but a tensor that they "
                           "read was written in place since", fix="Write after the backward pass, or to a clone.")

    # -- one by one

    def rematerialised(self) -> list[Tensor]:
        """The results, computed again by ordinary ops, each example by itself."""
        return self._one_by_one({})

    def _one_by_one(self, replaced: dict[int, Tensor], only: set[int] | None = None) -> list[Tensor]:
        if self._is_stale():
            self._refuse()
        entry = self._run.tree.entry
        made: dict[tuple[int, int], Tensor] = {}
        for finished in self._run.finished:
            for number in finished.examples.tolist():
                if only is not None and number not in only:
                    continue
                known: dict[Any, Any] = {}
                for source in entry.graph.sources:
                    t = source.tensor(self._run.arguments[number])
                    if t is not None:
                        known[source.value] = replaced.get(id(t), t)
                recording = finished.block.recording
                assert recording is not None
                for i, t in enumerate(evaluate(recording.made, known, entry.graph.cuts)):
                    made[number, i] = t
        return [made.get((r.example, r.number), r.finished.results[r.number]) for r in self.seeds]

    def pull_recorded(self, given: list[Any], wanted: tuple[bool, ...]) -> list[Any]:
        """The gradients for `create_graph=True`: the examples are computed again one by one, and differentiated."""
        cut = {id(t): without_history(t) for t in self.outside if t._edge is not None}
        with eagerly(), without_hooks([t for t in self.outside if t._edge is None]):
            reached = {r.example for r, g in zip(self.seeds, given, strict=True) if g is not None}
            tensors = self._one_by_one(cut, reached)
            pairs = [(t, g) for t, g in zip(tensors, given, strict=True) if g is not None and t.requires_grad]
            asked = [cut.get(id(t), t) for t, want in zip(self.outside, wanted, strict=True) if want]
            found = iter(
                gradients_of([t for t, _ in pairs], asked, [g for _, g in pairs], create_graph=True, allow_unused=True)
                if pairs and asked else [None] * len(asked)
            )  # fmt: skip
        for t in self.outside:
            if id(t) in cut:
                cut[id(t)]._edge.edges = (t._edge,)
        return [next(found) if want else None for want in wanted]


def _array(g: Any) -> Array:
    """The gradient of a leaf as an array."""
    return g.dense() if g.__class__ is Rows else g._array
