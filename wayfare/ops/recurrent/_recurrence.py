"""Recurrences over packed sequences: a cell run step by step, and pulled back, on raw arrays or on ops.

Rows are packed in order of time: `sizes[t]` rows belong to step t, one for each sequence that is at least t + 1 long,
longest sequence first. Nothing is padded. The input's products with its weight are made for all steps at once, and so
are the gradients of all weights. The steps themselves are one native call (`packed.py`), or NumPy's where there is no
native code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from wayfare.codegen.loop.expr import OF_NUMPY
from wayfare.codegen.loop.interpreter import interpret
from wayfare.codegen.loop.language import Loop
from wayfare.codegen.math.library import numpy_function
from wayfare.codegen.runtime import gemm
from wayfare.core import buffer_pool
from wayfare.core.numpy_math import Array
from wayfare.core.op import raw_ops
from wayfare.ops.recurrent import packed
from wayfare.ops.recurrent.cell import Cell, gradient_loop, step_loop

Sizes = tuple[int, ...]


def _by_numpy(loop: Loop, arrays: Sequence[Array]) -> None:
    """Run a loop of a cell on inputs and outputs (which may be an input's own memory)."""
    count = len(loop.inputs)
    for out, made in zip(arrays[count:], interpret(loop, arrays[:count], numpy_function), strict=True):
        np.copyto(out, made)


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
    """(output of every row, final states…, kept parts, [extra parts], states before each row…, other states after each
    row…).

    `x` is [rows, features], each state [sequences, hidden], `weights` are those of input and state and their biases.
    """
    of_input, of_state, input_bias, state_bias = weights
    total, hidden, dtype = x.shape[0], of_state.shape[1], x.dtype
    kept = buffer_pool.empty((total, cell.gates * hidden), dtype)
    gemm.matmul(x, of_input.T, kept)
    bias = input_bias if cell.inner_bias else input_bias + state_bias
    extra = buffer_pool.empty((total, cell.extra * hidden), dtype)
    before = [buffer_pool.empty((total, hidden), dtype) for _ in states]
    after = [buffer_pool.empty((total, hidden), dtype) for _ in states]
    finals = [state.copy() for state in states]
    if kept.size and packed.ready(cell, dtype):
        packed.run_steps(cell, kept, extra, before, after, states, finals, of_state, bias, state_bias, sizes, reverse)
    else:
        kept += bias
        _run_by_numpy(cell, kept, extra, before, after, states, finals, of_state, state_bias, sizes, reverse)
    return (after[0], *finals, kept, *([extra] if cell.extra else []), *before, *after[1:])


def _run_by_numpy(
    cell: Cell, kept: Array, extra: Array, before: Sequence[Array], after: Sequence[Array], states: Sequence[Array],
    finals: Sequence[Array], of_state: Array, state_bias: Array, sizes: Sizes, reverse: bool,
) -> None:  # fmt: skip
    """The steps of `run`; `kept` has the projected inputs."""
    loop = step_loop(cell, OF_NUMPY[kept.dtype])
    in_place = _parts(kept, cell.gates)
    read = before[cell.reads : cell.reads + 1] if cell.reads is not None else []
    written = [*_parts(extra, cell.extra), *after]
    biases = [b.reshape(1, -1) for b in np.split(state_bias, cell.gates)] if cell.inner_bias else []
    moved = list(zip(states, before, after, finals, strict=True))
    for start, stop, size, came, source, goes in steps_of(sizes, reverse):
        for state, was, becomes, _ in moved:
            was[start : start + came] = becomes[source : source + came]
            was[start + came : stop] = state[came:size]
        rows = slice(start, stop)
        product = _parts(before[0][rows] @ of_state.T, cell.gates)
        parts = [p[rows] for p in in_place]
        _by_numpy(loop, [*parts, *product, *[b[rows] for b in read], *biases, *parts, *[w[rows] for w in written]])
        for _, _, becomes, final in moved:
            final[goes:size] = becomes[start + goes : stop]


def pull(
    cell: Cell, needs: Sequence[bool], grads: Sequence[Array | None], made: Sequence[Any], x: Array,
    states: Sequence[Array], weights: Sequence[Array], sizes: Sizes, reverse: bool,
) -> list[Array | None]:  # fmt: skip
    """The gradients of x, the states and the weights, from those of the outputs."""
    of_input, of_state = weights[:2]
    total, hidden, dtype = x.shape[0], of_state.shape[1], x.dtype
    kept, *rest = [np.ascontiguousarray(a) for a in made[1 + cell.states :]]
    extra, before = (rest[0], rest[1:]) if cell.extra else (kept, rest)
    # Gradients of a second state after every row.
    of_rows = grads[-1] if cell.states > 1 else None
    g = grads[0]
    carried = [np.zeros_like(s, order="C") if f is None else np.array(f, order="C")
               for s, f in zip(states, grads[1:], strict=False)]  # fmt: skip
    back = carried[0]
    direct = (carried[1:] or [np.zeros_like(back)])[: cell.direct]
    dx = buffer_pool.empty((total, cell.gates * hidden), dtype)
    da = buffer_pool.empty(dx.shape, dtype) if cell.inner_bias else dx
    read = before[cell.reads] if cell.reads is not None else None
    if kept.size and packed.ready(cell, dtype):
        past = direct[0] if cell.direct else None
        packed.pull_steps(cell, kept, extra, read, g, of_rows, back, past, dx, da, of_state, sizes, reverse)
    else:
        g = np.zeros((total, hidden), dtype) if g is None else g
        given = [*_parts(kept, cell.gates), *_parts(extra, cell.extra), *([] if read is None else [read]), g]
        written = [*_parts(dx, cell.gates), *(_parts(da, cell.gates) if cell.inner_bias else [])]
        loop = gradient_loop(cell, OF_NUMPY[dtype])
        for step in reversed(steps_of(sizes, reverse)):
            rows = slice(step.start, step.stop)
            top, tops = back[: step.size], [d[: step.size] for d in direct]
            if of_rows is not None:
                tops[0] += of_rows[rows]
            _by_numpy(loop, [*[p[rows] for p in given], top, *tops, *[w[rows] for w in written], *tops])
            np.matmul(da[rows], of_state, out=top)
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
    of_input, of_state = weights[:2]
    steps = steps_of(sizes, reverse)
    if not steps:
        return [m.zeros_like(x), *[s if f is None else f for s, f in zip(map(m.zeros_like, states), grads[1:],
                strict=False)], *map(m.zeros_like, weights)]  # fmt: skip
    projected, trail, _ = _forward_in_ops(m, cell, x, states, weights, steps)
    g = m.zeros_like(_rows(m, projected, 0, None, of_state.shape[1])) if grads[0] is None else grads[0]
    carried = [m.zeros_like(s) if f is None else f for s, f in zip(states, grads[1:], strict=False)]
    back, direct = carried[0], carried[1:] or [m.zeros_like(carried[0])] * cell.direct
    of_rows = grads[-1] if cell.states > 1 else None
    by_start: dict[int, tuple[Any, Any, Any]] = {}
    for step, ((h, *_), kept, extra, read, _) in zip(reversed(steps), reversed(trail), strict=True):
        passed = [_rows(m, d, 0, step.size) for d in direct]
        if of_rows is not None:
            passed[0] = passed[0] + _rows(m, of_rows, step.start, step.stop)
        dx, da, past = cell.gradient(m, kept, extra, read, _rows(m, g, step.start, step.stop),
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


def run_in_ops(m: Any, cell: Cell, arrays: Sequence[Any], sizes: Sizes, reverse: bool) -> list[Any]:
    """What `run` gives, in ops."""
    x, states, weights = arrays[0], list(arrays[1 : 1 + cell.states]), arrays[1 + cell.states :]
    steps = steps_of(sizes, reverse)
    projected, trail, finals = _forward_in_ops(m, cell, x, states, weights, steps)
    if not steps:
        none = _rows(m, states[0], 0, 0)
        return [none, *states, projected, *[none] * (bool(cell.extra) + 2 * cell.states - 1)]
    by_start = {}
    for step, (before, kept, extra, _, after) in zip(steps, trail, strict=True):
        joined = [m.cat(*parts, dim=1) for parts in (kept, extra) if parts]
        by_start[step.start] = [after[0], *joined, *before, *after[1:]]
    columns = [m.cat(*column, dim=0) for column in zip(*[by_start[s] for s in sorted(by_start)], strict=True)]
    return [columns[0], *finals, *columns[1:]]


def _forward_in_ops(
    m: Any, cell: Cell, x: Any, states: Sequence[Any], weights: Sequence[Any], steps: Sequence[Step]
) -> tuple[Any, list[Any], list[Any]]:
    """The projected input; for each step (states before, kept, extra, what it reads, states after); the end states."""
    of_input, of_state, input_bias, state_bias = weights
    projected = m.linear(x, of_input, input_bias)
    transposed = m.permute(of_state, dims=(1, 0))
    current, trail = list(states), []
    for step in steps:
        before = [_rows(m, s, 0, step.size) for s in current]
        a = m.matmul(before[0], transposed) + state_bias
        read = [] if cell.reads is None else [before[cell.reads]]
        kept, extra, after = cell.step(m, _columns(m, _rows(m, projected, step.start, step.stop), cell.gates),
                                        _columns(m, a, cell.gates), read)  # fmt: skip
        trail.append((before, kept, extra, read, after))
        current = [_over(m, s, new, step.size) for s, new in zip(current, after, strict=True)]
    return projected, trail, current


def _rows(m: Any, x: Any, start: int, stop: int | None, columns: int | None = None) -> Any:
    rows = m.slice(x, dim=0, start=start, stop=x.shape[0] if stop is None else stop, step=1)
    return rows if columns is None else m.slice(rows, dim=1, start=0, stop=columns, step=1)


def _columns(m: Any, x: Any, count: int) -> list[Any]:
    width = x.shape[1] // count
    return [m.slice(x, dim=1, start=k * width, stop=(k + 1) * width, step=1) for k in range(count)]


def _over(m: Any, whole: Any, new: Any, size: int) -> Any:
    """`whole` with its first rows replaced."""
    return new if size == whole.shape[0] else m.cat(new, _rows(m, whole, size, None), dim=0)
