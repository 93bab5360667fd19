"""Matching the values of several runs: which variable each value is, and which numbers depend on sizes.

Runs and the program are graphs of the same kind. Here a *value* is one of a run, and a *variable* is one of the
program: it stands for one value of each run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from wayfare.core.callsite import Site
from wayfare.core.errors import ExportError
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY
from wayfare.core.spec import FLOAT_KINDS
from wayfare.core.symbolic_sizes import Dim, Repeated, symbols_in
from wayfare.exporters.recover.constants import Differs, FromElsewhere, Hidden, grid_of, number_of
from wayfare.exporters.recover.sizes import Fitting, in_run
from wayfare.exporters.trace import Modules, Run
from wayfare.ir.graph import Step, Value, constant, unbound

# Runs by number; an iteration of a loop counts as a run too: (run, iteration, id of the loop).
RunIds = list[Any]


def refusal(sentence: str, site: Site | None, fix: str = "") -> ExportError:
    """An export error that names the traced line, not the line that called export."""
    error = ExportError(f"export: {sentence}", fix=fix)
    error.happened_in("", site)
    return error


def makes(steps: Sequence[Step], var: Value) -> bool:
    """Is a variable an output of one of these steps? (`in` would compare values, which records a step.)"""
    return any(v is var for step in steps for v in step.outputs)


def is_inside(steps: Sequence[Step], var: Value) -> bool:
    """Is a variable made in a block inside these steps, so that it is not visible outside?"""
    return any(makes(list(block.walk()), var) for step in steps for block in step.blocks)


def _diagonal(var: Value) -> list[Step]:
    """Steps for an identity matrix of any size."""
    apart, same = unbound(var.shape, np.dtype(np.int64)), unbound(var.shape, np.dtype(bool))
    zero = constant(np.zeros((), np.int64))
    return [
        Step(None, (), {"start": 0, "steps": (1, -1), "over": 1}, "grid").makes(apart),
        Step(REGISTRY["eq"], (apart, zero), {}).makes(same),
        Step(REGISTRY["cast"], (same,), {"dtype": var.spec.dtype}).makes(var),
    ]


class Merging:
    """The state while runs are merged."""

    def __init__(self, runs: Sequence[Run], modules: Modules) -> None:
        self.runs = runs
        self.modules = modules
        self.fitting = Fitting()
        self.symbols: list[tuple[Value, int]] = []
        # For each run: the variable of each value, by id. An iteration also sees what its run knows.
        self.known: dict[Any, dict[int, Value]] = {r: {} for r in range(len(runs))}
        # For runs in which a loop changed nothing: its outputs, by the id of what goes in (a variable or a value).
        self.untouched: dict[Any, dict[int, list[Value]]] = {}
        # Variables with the same value in every call, because they depend on no input; constants are so anyway.
        self.fixed: set[Value] = set()
        # `if` steps whose branches have rejoined, inner ones first, and which branch each run took.
        self.decisions: list[tuple[Step, dict[Any, bool]]] = []
        # For variables made in a branch of one of them: the number of the `if`, and which branch.
        self._on_way: dict[int, tuple[int, bool]] = {}
        self._outside: dict[int, Value] = {}
        self._constants: dict[Any, Value] = {}
        # What was assumed without being seen, for the user.
        self.notes: list[str] = []
        # The steps of the current block, and of the blocks around it.
        self.steps: list[Step] = []
        self._around: list[list[Step]] = []

    @contextmanager
    def inside(self) -> Iterator[list[Step]]:
        """Steps added inside go to a new block."""
        self._around.append(self.steps)
        self.steps = []
        symbols = len(self.symbols)
        try:
            yield self.steps
        finally:
            self.steps = self._around.pop()
            self.fitting.shut(symbols)

    # -- numbers

    def symbol(self, var: Value, axis: int, values: dict[int, int]) -> Dim:
        """A new symbol: a size that is only known when the model runs, read from an axis of a variable."""
        self.symbols.append((var, axis))
        return self.fitting.add(values)

    def shape_of(self, var: Value, run_ids: RunIds, shapes: Sequence[tuple[int, ...]]) -> None:
        """Set the shape of a variable from its shapes in all runs; sizes that no formula explains become symbols."""
        ranks = {len(s) for s in shapes}
        if len(ranks) != 1:
            raise Differs(f"a tensor of {ranks} dimensions")
        var.shape = tuple(
            self._dim(var, axis, dict(zip(run_ids, sizes, strict=True)))
            for axis, sizes in enumerate(zip(*shapes, strict=True))
        )

    def _dim(self, var: Value, axis: int, sizes: dict[int, int]) -> int:
        found = self.fitting.explain(sizes)
        return self.symbol(var, axis, sizes) if found is None else found

    def attribute(self, run_ids: RunIds, values: Sequence[Any]) -> Any:
        """One attribute for all runs: equal in all of them, or a formula of sizes."""
        first = values[0]
        kinds = {v.__class__ for v in values}
        if len(kinds) != 1:
            raise Differs(f"{first!r} and {next(v for v in values if v.__class__ is not first.__class__)!r}")
        if isinstance(first, (tuple, list)):
            if len({len(v) for v in values}) == 1:
                parts = [self.attribute(run_ids, [v[i] for v in values]) for i in range(len(first))]
                return type(first)(parts)
            return self._repeated(run_ids, values)
        if isinstance(first, slice):
            ends = [self.attribute(run_ids, [getattr(v, e) for v in values]) for e in ("start", "stop", "step")]
            return slice(*ends)
        if isinstance(first, np.ndarray):
            if all(np.array_equal(v, first) for v in values):
                return first
        elif all(v == first or (v != v and first != first) for v in values):
            return first
        elif isinstance(first, int) and not isinstance(first, bool):
            found = self.fitting.explain(dict(zip(run_ids, values, strict=True)))
            if found is not None:
                return found
        elif isinstance(first, float):
            found = number_of(self.fitting, dict(zip(run_ids, values, strict=True)))
            if found is not None:
                return found
        raise Differs(f"{first!r} and {next(v for v in values if v is not first)!r}")

    def _repeated(self, run_ids: RunIds, values: Sequence[Any]) -> Repeated:
        """One attribute for tuples of different lengths whose elements are all equal."""
        if all(len(set(v)) == 1 for v in values):
            value = self.attribute(run_ids, [v[0] for v in values])
            times = self.attribute(run_ids, [len(v) for v in values])
            return Repeated(value, times)
        raise Differs(f"{values[0]!r} and {values[1]!r}")

    # -- values

    def var_of(self, run_ids: RunIds, values: Sequence[Value]) -> Value:
        """The variable for these values, one of each run."""
        return self._var_of(run_ids, values, len(self.decisions))

    def _var_of(self, run_ids: RunIds, values: Sequence[Value], decided: int) -> Value:
        """The same; only the first `decided` branches may explain a difference."""
        found = [self.find(r, v) for r, v in zip(run_ids, values, strict=True)]
        if found[0] is not None and all(f is found[0] for f in found):
            return self._outside_of_ways(found[0], decided)
        # Two constants may be equal in one run (2, and a size that is 2 there), so the key has the values of all runs.
        key = (tuple(run_ids), tuple(map(id, values)))
        if key not in self._constants:
            try:
                if all(f is None for f in found):
                    self._constants[key] = self._constant(run_ids, values)
                else:
                    return self._after_loops(run_ids, found, values)
            except Differs as difference:
                chosen = self._chosen(run_ids, values, decided)
                if chosen is None:
                    raise difference from None
                self._constants[key] = chosen
        return self._constants[key]

    def decided(self, branch: Step, truths: dict[Any, bool]) -> None:
        """The branches of an `if` have rejoined: variables made in them are not visible any more."""
        for truth, block in zip((True, False), branch.blocks, strict=True):
            for step in block.steps:
                self._on_way.update({id(v): (len(self.decisions), truth) for v in step.outputs})
        self.decisions.append((branch, truths))

    def _outside_of_ways(self, var: Value, decided: int) -> Value:
        """The output of an `if` that stands for a variable made in one of its branches."""
        while id(var) in self._on_way and self._on_way[id(var)][0] < decided:
            number, truth = self._on_way[id(var)]
            step, _ = self.decisions[number]
            given = [out for out, side in zip(step.outputs, step.blocks[not truth].outputs, strict=True) if side is var]
            if len(given) != 1:
                raise Hidden(f"a value that is made only where the decision at {step.site} is {truth}, and no example "
                             f"came here after it was {not truth}", fix="Add an example that does.")  # fmt: skip
            (var,) = given
        return var

    def _chosen(self, run_ids: RunIds, values: Sequence[Value], decided: int) -> Value | None:
        """A new output of the `if` that explains why these values differ. None if there is none."""
        for number in range(decided - 1, -1, -1):
            step, truths = self.decisions[number]
            ways = [in_run(truths, r) for r in run_ids]
            if None in ways or len(set(ways)) < 2:
                continue
            sides = []
            for truth in (True, False):
                mine = [n for n, way in enumerate(ways) if way is truth]
                try:
                    sides.append(self._var_of([run_ids[n] for n in mine], [values[n] for n in mine], number))
                except Differs:
                    break
            if len(sides) < 2 or sides[0].dtype != sides[1].dtype:
                continue
            if any(is_inside(block.steps, side) for block, side in zip(step.blocks, sides, strict=True)):
                continue
            if any(self._is_made_after(step, side) for side in sides):
                continue
            var = unbound((), sides[0].dtype)
            self.shape_of(var, run_ids, [v.shape for v in values])
            step.makes(*step.outputs, var)
            for block, side in zip(step.blocks, sides, strict=True):
                block.outputs.append(side)
            return var
        return None

    def _is_made_after(self, step: Step, var: Value) -> bool:
        """Is a variable made after a step of the current block, or of a block around it?"""
        after: list[Step] = []
        for steps in (self.steps, *reversed(self._around)):
            if step in steps:
                after += steps[steps.index(step) + 1 :]
                break
            after += steps
        return makes(after, var) or is_inside(after, var)

    def seen_from(self, run_ids: RunIds, values: Sequence[Value]) -> Value:
        """`var_of` for some of the runs only: what these have may be made in a branch that the others did not take."""
        var = self.var_of(run_ids, values)
        if any(is_inside(steps, var) for steps in (self.steps, *self._around)):
            raise Hidden("a value that only some ways of a decision make", fix="Add examples that take the others.")
        return var

    def find(self, run: Any, value: Value) -> Value | None:
        """The variable of a value of one run, if it is known."""
        while True:
            var = self.known[run].get(id(value))
            if var is not None or not isinstance(run, tuple):
                return var
            run = run[0]

    def _after_loops(self, run_ids: RunIds, found: list[Value | None], values: Sequence[Value]) -> Value:
        """The final value of a loop, also for runs in which the loop left the initial value as it was."""
        for var in dict.fromkeys(f for f in found if f is not None):
            each = zip(run_ids, found, values, strict=True)
            if all(f is var or self._is_untouched(r, f, v, var) for r, f, v in each):
                return var
        raise FromElsewhere()

    def _is_untouched(self, run: Any, found: Value | None, value: Value, var: Value) -> bool:
        begun = self.untouched.get(run, {})
        return any(out is var for out in (*begun.get(id(found), ()), *begun.get(id(value), ())))

    def _constant(self, run_ids: RunIds, values: Sequence[Value]) -> Value:
        outside = [self._run(r).sources.get(id(v)) for r, v in zip(run_ids, values, strict=True)]
        if outside[0] is not None:
            if any(t is not outside[0] for t in outside):
                raise Differs("different tensors from outside")
            return self._from_outside(outside[0])
        if any(t is not None for t in outside) or any(v.step.op is not None for v in values):
            raise FromElsewhere()
        dtype = values[0].dtype
        if any(v.dtype != dtype for v in values):
            raise Differs("tensors of different dtypes")
        arrays: list[Array] = [np.asarray(v.step.data, v.dtype) for v in values]
        first = arrays[0]
        floats = dtype.kind in FLOAT_KINDS
        if all(a.shape == first.shape and np.array_equal(a, first, equal_nan=floats) for a in arrays):
            return constant(first)
        if len({a.ndim for a in arrays}) > 1:
            raise Differs("arrays of different numbers of dimensions")
        columns = zip(*[a.shape for a in arrays], strict=True)
        sizes = [self.fitting.explain(dict(zip(run_ids, column, strict=True))) for column in columns]
        if None in sizes:
            raise Differs(f"arrays of shapes {list(first.shape)} and {list(arrays[-1].shape)}")
        var = unbound(tuple(n for n in sizes if n is not None), dtype)
        if first.ndim == 0:
            steps = [Step(None, (), {}, "number", self._scalar(run_ids, arrays)).makes(var)]
        elif first.ndim == 2 and all(np.array_equal(a, np.eye(*a.shape, dtype=a.dtype)) for a in arrays):
            steps = _diagonal(var)
        else:
            grid = grid_of(self.fitting, dict(zip(run_ids, arrays, strict=True)))
            steps = [Step(None, (), grid, "grid").makes(var)]
        # It may be used outside the current block too, so it goes to the outermost, unless it depends on a counter.
        numbers = [*[(step.attrs, step.data) for step in steps], var.shape]
        here = not self._around or any(self.symbols[n][1] < 0 for n in symbols_in(numbers))
        (self.steps if here else self._around[0]).extend(steps)
        return var

    def _run(self, run: Any) -> Run:
        while isinstance(run, tuple):
            run = run[0]
        found: Run = self.runs[run]
        return found

    def _scalar(self, run_ids: RunIds, arrays: Sequence[Array]) -> Any:
        numbers = {r: a.item() for r, a in zip(run_ids, arrays, strict=True)}
        found = number_of(self.fitting, numbers)
        if found is None:
            raise Differs(f"the numbers {', '.join(map(repr, list(numbers.values())[:3]))}")
        return found

    def _from_outside(self, tensor: Any) -> Value:
        var = self._outside.get(id(tensor))
        if var is None:
            name = self.modules.tensors.get(id(tensor), "")
            var = self._outside[id(tensor)] = constant(tensor._array, name)
        return var

    def output(self, run_ids: RunIds, values: Sequence[Value]) -> Value:
        """A new variable for computed values, one of each run."""
        var = unbound((), values[0].dtype)
        self.shape_of(var, run_ids, [v.shape for v in values])
        for r, v in zip(run_ids, values, strict=True):
            self.known[r][id(v)] = var
        return var
