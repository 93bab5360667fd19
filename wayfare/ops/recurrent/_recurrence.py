"""Recurrences over packed sequences: a cell run step by step, and pulled back, on raw arrays or on ops.

Rows are packed in order of time: `sizes[t]` rows belong to step t, one for each sequence that is at least t + 1 long,
longest sequence first. Nothing is padded. The input's products with its weight are made for all steps at once, and so
are the gradients of all weights; a step does one product with the state and runs one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from wayfare.codegen.loop.expr import OF_NUMPY, Expr, load
from wayfare.codegen.loop.interpreter import interpret
from wayfare.codegen.loop.language import Loop, elementwise
from wayfare.codegen.math.library import loop_math, numpy_function
from wayfare.codegen.runtime import gemm
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime.blas import one_thread
from wayfare.codegen.runtime.gemm_split import SMALL
from wayfare.core import buffer_pool
from wayfare.core.config import settings
from wayfare.core.numpy_math import Array
from wayfare.core.op import raw_ops

Sizes = tuple[int, ...]
Parts = tuple[Any, ...]

# BLAS is up to a quarter faster (on three to ten rows several times) if the weight of the state lies as it is read. So
# few rows, in so few steps, are not worth turning it.
FEW_ROWS, FEW_STEPS = 2, 40


@dataclass(frozen=True, eq=False)
class Cell:
    """What one step computes, as formulas over `m` (expressions of a loop, or ops) that stand for each element.

    `step(m, x, a, before)`: from the parts of the projected input and of the projected state, and the state it reads,
    to (parts kept in the input's place, parts kept beside them, the states after the step).
    `gradient(m, kept, beside, before, g, back, direct)`: from what was kept, the gradient of the output, and what comes
    back from the next step through the product (`back`) and past it (`direct`, a tuple of one or none), to (gradients
    of the parts of x, those of the parts of a or None where they are the same, the new `direct`).
    """

    name: str
    gates: int
    states: int
    step: Callable[..., tuple[Parts, Parts, Parts]]
    gradient: Callable[..., tuple[Parts, Parts | None, Parts]]
    # Parts kept beside those in the input's place.
    beside: int = 0
    # The state that a step reads apart from its product: its number, or None.
    reads: int | None = None
    # The bias of the state belongs to the product itself; else it is added to the input's bias beforehand.
    inner_bias: bool = False

    @property
    def direct(self) -> int:
        """How many gradients go back past the product."""
        return 0 if self.reads is None else 1


class InLoops:
    """The functions that formulas of cells use, as expressions of a loop."""

    sigmoid = loop_math.sigmoid
    tanh = loop_math.tanh

    @staticmethod
    def relu(x: Expr) -> Expr:
        """The larger of x and 0."""
        return loop_math.maximum(x, 0)  # type: ignore[no-any-return]

    @staticmethod
    def gate(g: Expr, mask: Expr) -> Expr:
        """g where the mask is true, else 0."""
        return loop_math.where(mask, g, 0)  # type: ignore[no-any-return]


def _step_loop(cell: Cell, dtype: str) -> Loop:
    loads = [load(i, dtype) for i in range(cell.gates * (3 if cell.inner_bias else 2) + cell.direct)]
    x, a, rest = loads[: cell.gates], loads[cell.gates : 2 * cell.gates], loads[2 * cell.gates :]
    if cell.inner_bias:
        a = [part + bias for part, bias in zip(a, rest[cell.direct :], strict=True)]
    kept, beside, after = cell.step(InLoops, x, a, rest[: cell.direct])
    return elementwise(f"{cell.name}_step", [dtype] * len(loads), *kept, *beside, *after)


def states_loop(cell: Cell, dtype: str) -> Loop:
    """A step of which nothing is kept but the states, and whose biases are not added yet: those of the input (and of
    the state in it, where there is no inner bias) come last but for the inner ones."""
    count = 2 * cell.gates + cell.direct
    loads = [load(i, dtype) for i in range(count + cell.gates * (2 if cell.inner_bias else 1))]
    x = [part + bias for part, bias in zip(loads[: cell.gates], loads[count:], strict=False)]
    a = loads[cell.gates : 2 * cell.gates]
    if cell.inner_bias:
        a = [part + bias for part, bias in zip(a, loads[count + cell.gates :], strict=True)]
    _, _, after = cell.step(InLoops, x, a, loads[2 * cell.gates : count])
    return elementwise(f"{cell.name}_states", [dtype] * len(loads), *after)


def _gradient_loop(cell: Cell, dtype: str) -> Loop:
    kept, beside = cell.gates, cell.gates + cell.beside
    loads = [load(i, dtype) for i in range(beside + 2 * cell.direct + 2)]
    before, (g, back), direct = (loads[beside : beside + cell.direct], loads[beside + cell.direct :][:2],
                                 loads[beside + cell.direct + 2 :])  # fmt: skip
    dx, da, past = cell.gradient(InLoops, loads[:kept], loads[kept:beside], before, g, back, direct)
    return elementwise(f"{cell.name}_gradient", [dtype] * len(loads), *dx, *(da or ()), *past)


class _Kernel:
    """A loop of a cell, called for any number of rows."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._native = native.build(loop) if native.available() else None

    def __call__(self, *arrays: Array) -> Callable[..., Any]:
        """Run on inputs and outputs (which may be an input's own memory), and return the quickest call for arrays that
        lie in memory as these do."""
        if self._native is None:
            return self._by_numpy(*arrays)
        plan = self._native.plan_of(arrays, None)
        if plan is None or plan.threads != settings.num_threads:
            count = len(self._loop.inputs)
            self._native.into(arrays[:count], list(arrays[count:]), arrays[0].shape)
            plan = self._native.plan_of(arrays, None)
            return self if plan is None else plan.run
        plan.run(*arrays)
        return plan.run  # type: ignore[no-any-return]

    def _by_numpy(self, *arrays: Array) -> Callable[..., Any]:
        count = len(self._loop.inputs)
        for out, made in zip(arrays[count:], interpret(self._loop, arrays[:count], numpy_function), strict=True):
            np.copyto(out, made)
        return self._by_numpy


@lru_cache(maxsize=64)
def _kernel(cell: Cell, dtype: str, which: Callable[[Cell, str], Loop]) -> _Kernel:
    return _Kernel(which(cell, dtype))


class Step(NamedTuple):
    """The rows of one step: where they lie, how many of them came from the last step (and where they lay in it), and
    how many go on to the next."""

    start: int
    stop: int
    size: int
    came: int
    source: int
    goes: int


@lru_cache(maxsize=64)
def steps_of(sizes: Sizes, reverse: bool) -> tuple[Step, ...]:
    """The steps in the order they are run: from the first on, or from the last back."""
    starts = np.cumsum([0, *sizes]).tolist()
    order = range(len(sizes) - 1, -1, -1) if reverse else range(len(sizes))
    found = []
    for place, t in enumerate(order):
        size, last = sizes[t], order[place - 1] if place else None
        came = 0 if last is None else min(size, sizes[last])
        goes = min(size, sizes[order[place + 1]]) if place + 1 < len(sizes) else 0
        found.append(Step(starts[t], starts[t] + size, size, came, 0 if last is None else starts[last], goes))
    return tuple(found)


def _parts(array: Array, count: int) -> list[Array]:
    """The array's columns in `count` equal parts."""
    width = array.shape[1] // count if count else 0
    return [array[:, k * width : (k + 1) * width] for k in range(count)]


# -- on raw arrays --------------------------------------------------------------------------------------------------


def run(
    cell: Cell, x: Array, states: Sequence[Array], weights: Sequence[Array], sizes: Sizes, reverse: bool
) -> tuple[Array, ...]:
    """(output of every row, final states…, kept parts, [parts beside], states before each row…, other states after each
    row…).

    `x` is [rows, features], each state [sequences, hidden], `weights` are those of input and state and their biases.
    """
    of_input, of_state, input_bias, state_bias = weights
    total, hidden, dtype = x.shape[0], of_state.shape[1], x.dtype
    kept = buffer_pool.empty((total, cell.gates * hidden), dtype)
    gemm.matmul(x, of_input.T, kept)
    kept += input_bias if cell.inner_bias else input_bias + state_bias
    beside = buffer_pool.empty((total, cell.beside * hidden), dtype)
    before = [buffer_pool.empty((total, hidden), dtype) for _ in states]
    after = [buffer_pool.empty((total, hidden), dtype) for _ in states]
    finals = [state.copy() for state in states]
    product = buffer_pool.empty((sizes[0] if sizes else 0, cell.gates * hidden), dtype)
    transposed = of_state.T
    if sizes and (sizes[0] > FEW_ROWS or len(sizes) > FEW_STEPS):
        transposed = np.ascontiguousarray(transposed)
    in_place = _parts(kept, cell.gates)
    read = before[cell.reads : cell.reads + 1] if cell.reads is not None else []
    written = [*_parts(beside, cell.beside), *after]
    of_product = _parts(product, cell.gates)
    biases = [b.reshape(1, -1) for b in np.split(state_bias, cell.gates)] if cell.inner_bias else []
    kernel = _kernel(cell, OF_NUMPY[dtype], _step_loop)
    rows_before, last = before[0], -1
    moved = list(zip(states, before, after, finals, strict=True))
    call: Callable[..., Any] = kernel
    multiply = _multiplier(product.size * hidden)
    with one_thread():
        for start, stop, size, came, source, goes in steps_of(sizes, reverse):
            for state, was, becomes, _ in moved:
                if came:
                    was[start : start + came] = becomes[source : source + came]
                if came < size:
                    was[start + came : stop] = state[came:size]
            rows = slice(start, stop)
            if size != last:
                top = product[:size]
                tops = [p[:size] for p in of_product]
            multiply(rows_before[rows], transposed, top)
            parts = [p[rows] for p in in_place]
            arrays = (*parts, *tops, *[b[rows] for b in read], *biases, *parts, *[w[rows] for w in written])
            if size == last:
                call(*arrays)
            else:
                last, call = size, kernel(*arrays)
            if goes < size:
                for _, _, becomes, final in moved:
                    final[goes:size] = becomes[start + goes : stop]
    return (after[0], *finals, kept, *([beside] if cell.beside else []), *before, *after[1:])


def _multiplier(multiplications: int) -> Callable[[Array, Array, Array], Any]:
    """The product of a step into given memory: NumPy's own where it is small, for its call costs less."""
    return gemm.matmul if multiplications >= SMALL else np.dot


def pull(
    cell: Cell, needs: Sequence[bool], grads: Sequence[Array | None], made: Sequence[Any], x: Array,
    states: Sequence[Array], weights: Sequence[Array], sizes: Sizes, reverse: bool,
) -> list[Array | None]:  # fmt: skip
    """The gradients of x, the states and the weights, from those of the outputs."""
    of_input, of_state = weights[:2]
    total, hidden, dtype = x.shape[0], of_state.shape[1], x.dtype
    kept, *rest = made[1 + cell.states :]
    beside, before = (rest[0], rest[1:]) if cell.beside else (kept, rest)
    # Gradients of a second state after every row.
    of_rows = grads[-1] if cell.states > 1 else None
    g = np.zeros((total, hidden), dtype) if grads[0] is None else grads[0]
    carried = [np.zeros_like(s, order="C") if f is None else np.array(f, order="C")
               for s, f in zip(states, grads[1:], strict=False)]  # fmt: skip
    back = carried[0]
    direct = (carried[1:] or [np.zeros_like(back)])[: cell.direct]
    dx = buffer_pool.empty((total, cell.gates * hidden), dtype)
    da = buffer_pool.empty(dx.shape, dtype) if cell.inner_bias else dx
    read = before[cell.reads : cell.reads + 1] if cell.reads is not None else []
    given = [*_parts(kept, cell.gates), *_parts(beside, cell.beside), *read, g]
    written = [*_parts(dx, cell.gates), *(_parts(da, cell.gates) if cell.inner_bias else [])]
    kernel = _kernel(cell, OF_NUMPY[dtype], _gradient_loop)
    straight = np.ascontiguousarray(of_state)
    last = -1
    call: Callable[..., Any] = kernel
    multiply = _multiplier((sizes[0] if sizes else 0) * cell.gates * hidden * hidden)
    with one_thread():
        for step in reversed(steps_of(sizes, reverse)):
            size, rows = step.size, slice(step.start, step.stop)
            if size != last:
                top, tops = back[:size], [d[:size] for d in direct]
            if of_rows is not None:
                tops[0] += of_rows[rows]
            arrays = (*[p[rows] for p in given], top, *tops, *[w[rows] for w in written], *tops)
            if size == last:
                call(*arrays)
            else:
                last, call = size, kernel(*arrays)
            multiply(da[rows], straight, top)
    if cell.direct and cell.reads == 0:
        back += direct[0]
    bias = raw_ops.sum(dx, dim=(0,), keepdim=False) if needs[-2] or needs[-1] else None
    return [
        raw_ops.matmul(dx, of_input) if needs[0] else None,
        *[d if need else None for d, need in zip([back, *direct], needs[1 : 1 + cell.states], strict=False)],
        raw_ops.matmul(dx.T, x) if needs[-4] else None,
        raw_ops.matmul(da.T, before[0]) if needs[-3] else None,
        bias if needs[-2] else None,
        # Memory of its own: gradients are added to in place.
        (np.array(bias) if da is dx else raw_ops.sum(da, dim=(0,), keepdim=False)) if needs[-1] else None,
    ]


# -- on ops, for gradients of gradients -----------------------------------------------------------------------------


def pull_recorded(
    m: Any, cell: Cell, grads: Sequence[Any], x: Any, states: Sequence[Any], weights: Sequence[Any], sizes: Sizes,
    reverse: bool,
) -> list[Any]:  # fmt: skip
    """What `pull` gives, in ops: the forward runs again, so that the gradients are functions of the inputs."""
    of_input, of_state, input_bias, state_bias = weights
    steps = steps_of(sizes, reverse)
    if not steps:
        return [m.zeros_like(x), *[s if f is None else f for s, f in zip(map(m.zeros_like, states), grads[1:],
                strict=False)], *map(m.zeros_like, weights)]  # fmt: skip
    projected = m.linear(x, of_input, input_bias)
    transposed = m.permute(of_state, dims=(1, 0))
    current = list(states)
    trail = []
    for step in steps:
        before = [_rows(m, s, 0, step.size) for s in current]
        a = m.matmul(before[0], transposed) + state_bias
        read = [] if cell.reads is None else [before[cell.reads]]
        kept, beside, after = cell.step(m, _columns(m, _rows(m, projected, step.start, step.stop), cell.gates),
                                        _columns(m, a, cell.gates), read)  # fmt: skip
        trail.append((before[0], kept, beside, read))
        current = [_over(m, s, new, step.size) for s, new in zip(current, after, strict=True)]
    g = m.zeros_like(_rows(m, projected, 0, None, of_state.shape[1])) if grads[0] is None else grads[0]
    carried = [m.zeros_like(s) if f is None else f for s, f in zip(states, grads[1:], strict=False)]
    back, direct = carried[0], carried[1:] or [m.zeros_like(carried[0])] * cell.direct
    of_rows = grads[-1] if cell.states > 1 else None
    by_start: dict[int, tuple[Any, Any, Any]] = {}
    for step, (h, kept, beside, read) in zip(reversed(steps), reversed(trail), strict=True):
        passed = [_rows(m, d, 0, step.size) for d in direct]
        if of_rows is not None:
            passed[0] = passed[0] + _rows(m, of_rows, step.start, step.stop)
        dx, da, past = cell.gradient(m, kept, beside, read, _rows(m, g, step.start, step.stop),
                                  _rows(m, back, 0, step.size), passed)  # fmt: skip
        joined = m.cat(*dx, dim=1)
        of_product = joined if da is None else m.cat(*da, dim=1)
        by_start[step.start] = (joined, of_product, h)
        back = _over(m, back, m.matmul(of_product, of_state), step.size)
        direct = [_over(m, d, new, step.size) for d, new in zip(direct, past, strict=True)]
    if cell.direct and cell.reads == 0:
        back = back + direct[0]
    dx, da, h = (m.cat(*column, dim=0) for column in zip(*[by_start[s] for s in sorted(by_start)], strict=True))
    return [
        m.matmul(dx, of_input), *[back, *direct][: cell.states],
        m.matmul(m.permute(dx, dims=(1, 0)), x), m.matmul(m.permute(da, dims=(1, 0)), h),
        m.sum(dx, dim=(0,), keepdim=False), m.sum(da, dim=(0,), keepdim=False),
    ]  # fmt: skip


def _rows(m: Any, x: Any, start: int, stop: int | None, columns: int | None = None) -> Any:
    rows = m.slice(x, dim=0, start=start, stop=x.shape[0] if stop is None else stop, step=1)
    return rows if columns is None else m.slice(rows, dim=1, start=0, stop=columns, step=1)


def _columns(m: Any, x: Any, count: int) -> list[Any]:
    width = x.shape[1] // count
    return [m.slice(x, dim=1, start=k * width, stop=(k + 1) * width, step=1) for k in range(count)]


def _over(m: Any, whole: Any, new: Any, size: int) -> Any:
    """`whole` with its first rows replaced."""
    return new if size == whole.shape[0] else m.cat(new, _rows(m, whole, size, None), dim=0)
