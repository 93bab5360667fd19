"""Recurrent layers on CUDA: two launches for each step, forward and backward.

The products of the input are one product for all steps, and so are the gradients of each weight. A step is one product
with the weight of the state, and one kernel for all that its gates compute; their launches are planned once for each
number of sequences. A step writes its states where the next one reads them, so nothing is copied between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.cuda.gemm import gemm_calls
from wayfare.codegen.cuda.nvrtc import CompileError
from wayfare.codegen.loop.expr import OF_NUMPY
from wayfare.codegen.loop.language import Loop
from wayfare.codegen.runtime.command import BufferView
from wayfare.codegen.runtime.kernel import refuse
from wayfare.core.op import REGISTRY
from wayfare.core.spec import spec_of
from wayfare.ops.cuda.table import gradients_on_cuda, on_cuda
from wayfare.ops.recurrent._recurrence import Sizes, run_in_ops, steps_of
from wayfare.ops.recurrent.cell import Cell, gradient_loop, step_loop
from wayfare.ops.recurrent.layers import CELLS

Array = np.ndarray[Any, np.dtype[Any]]
_LOOPS = lru_cache(maxsize=64)
_LARGEST_GROUP = 16  # bytes that a thread loads at once


def _register(cell: Cell) -> None:
    count = cell.states

    @on_cuda(cell.name)
    def forward(b: Any, *arrays: Any, sizes: Sizes, reverse: bool) -> Any:
        REGISTRY[cell.name].infer(*map(spec_of, arrays), sizes=sizes, reverse=reverse)
        dtype = arrays[0].dtype
        if dtype.itemsize < 4:
            made = forward(b, *[a.astype(np.float32) for a in arrays], sizes=sizes, reverse=reverse)
            return tuple([a.astype(dtype) for a in made])
        if not b.has_kernels or not sizes or not arrays[1].size:
            return tuple(run_in_ops(b.ops, cell, arrays, sizes, reverse))
        return _run(b, cell, arrays[0], arrays[1 : 1 + count], arrays[1 + count :], sizes, reverse)

    @gradients_on_cuda(cell.name)
    def gradients(b: Any, needs: Any, g: Any, y: Any, x: Any, *others: Any, sizes: Sizes, reverse: bool) -> Any:
        dtype = x.dtype
        if not b.has_kernels or not sizes or not others[0].size:
            return None
        if dtype.itemsize < 4:
            wide = [tuple([None if a is None else a.astype(np.float32) for a in part]) for part in (g, y, (x, *others))]
            found = gradients(b, needs, wide[0], wide[1], *wide[2], sizes=sizes, reverse=reverse)
            return [None if d is None else d.astype(dtype) for d in found]
        try:
            return _pull(b, cell, needs, g, y, x, others[:count], others[count:], sizes, reverse)
        except CompileError as error:
            refuse(f"{cell.name} (gradient)", error, "its parts run one by one, slower")
            return None


for _cell in CELLS:
    _register(_cell)


# -- one step ---------------------------------------------------------------------------------------------------------


@_LOOPS
def _step(cell: Cell, dtype: str) -> Loop:
    return step_loop(cell, dtype, twice=True)


@_LOOPS
def _gradient(cell: Cell, dtype: str, of_rows: bool) -> Loop:
    return gradient_loop(cell, dtype, of_rows)


class _Operand:
    """Numbers [rows, hidden] of each step: some columns of an array. `moves`: do they lie further on at each step, or
    are they those of the first sequences?"""

    __slots__ = ("address", "row_bytes", "shape", "step_bytes", "strides")

    def __init__(self, b: Any, array: Any, column: int, hidden: int, moves: bool = True) -> None:
        item = array.itemsize
        same = array.shape[0] == 1  # one row for all sequences
        self.row_bytes = 0 if same else array.shape[1] * item
        self.step_bytes = self.row_bytes if moves else 0
        self.address = b.address(array) + column * hidden * item
        self.strides = (self.row_bytes, item)
        self.shape = (1 if same else 0, hidden)


def _parts(b: Any, array: Any, count: int, moves: bool = True) -> list[_Operand]:
    """The columns of an array in equal parts."""
    return [_Operand(b, array, k, array.shape[1] // count, moves) for k in range(count)]


class _Kernel:
    """The kernel of a step on operands."""

    def __init__(self, b: Any, loop: Loop, operands: Sequence[_Operand]) -> None:
        self._addresses = [o.address for o in operands]
        self._steps = [o.step_bytes for o in operands]
        self._layout = b.kernel(loop), tuple([o.shape for o in operands]), tuple([o.strides for o in operands])
        self._plans = _plans(*self._layout)
        # Do the rows of all steps begin where the largest groups of elements may?
        starts = [o.address | o.step_bytes for o in operands]
        self._aligned = not any([start % _LARGEST_GROUP for start in starts])

    def run(self, start: int, size: int, moved: Sequence[int] = ()) -> None:
        """Run on the rows of a step. `moved`: where the last operands are, in place of where they would be."""
        pointers = [address + start * step for address, step in zip(self._addresses, self._steps, strict=True)]
        if moved:
            pointers[-len(moved) :] = moved
        plan = self._plans.get((size, self._aligned))
        if plan is None:
            plan = self._plans[size, self._aligned] = _plan(*self._layout, size, self._aligned)
        plan.run(pointers)


@lru_cache(maxsize=32)
def _plans(kernel: Any, shapes: Any, strides: Any) -> dict[tuple[int, bool], Any]:
    """The plans of a kernel on operands that lie in this way, by number of sequences and alignment."""
    return {}


def _plan(kernel: Any, shapes: Any, strides: Any, size: int, aligned: bool) -> Any:
    sizes = tuple([(rows or size, hidden) for rows, hidden in shapes])
    own = tuple([(0 if n == 1 else step, item) for (n, _), (step, item) in zip(sizes, strides, strict=True)])
    return kernel.plan(sizes, own, (size, shapes[0][1]), None, aligned)


@lru_cache(maxsize=4096)
def _product(dtype: np.dtype[Any], size: int, inner: int, columns: int, transposed: bool) -> Any:
    """The call for (size × inner) @ a weight (inner × columns), or the transpose of a weight (columns × inner)."""
    item = dtype.itemsize
    strides = (item, inner * item) if transposed else (columns * item, item)
    a = BufferView(0, 0, (size, inner), (inner * item, item), dtype)
    b = BufferView(1, 0, (inner, columns), strides, dtype)
    out = BufferView(2, 0, (size, columns), (columns * item, item), dtype)
    ((call, *_),) = gemm_calls(a, b, out, False)
    return call


# -- all steps --------------------------------------------------------------------------------------------------------


def _run(
    b: Any, cell: Cell, x: Any, states: Sequence[Any], weights: Sequence[Any], sizes: Sizes, reverse: bool
) -> tuple[Any, ...]:
    """What `_recurrence.run` gives."""
    of_input, of_state, input_bias, state_bias = weights
    (total, dtype), hidden, most = (x.shape[0], x.dtype), of_state.shape[1], max(sizes)
    states, of_state = [b.in_c_order(s) for s in states], b.in_c_order(of_state)
    kept = b.matmul(x, of_input.T)
    kept += input_bias if cell.inner_bias else input_bias + state_bias
    extra = b.empty((total, cell.extra * hidden), dtype)
    after = [b.empty((total, hidden), dtype) for _ in states]
    # A step writes all its states to where the next one's rows begin. Where sequences end, the states that nobody reads
    # are written over by later steps; so there is room behind the last rows.
    before = [b.empty((total + most, hidden), dtype) for _ in states]
    for state, was in zip(states, before, strict=True):
        if reverse:
            b.gather_at(b.address(state) + _sequences(sizes) * (hidden * dtype.itemsize), was[:total])
        else:
            was[:most] = state[:most]
    product = b.empty((most, cell.gates * hidden), dtype)
    read = [] if cell.reads is None else [_Operand(b, before[cell.reads], 0, hidden)]
    biases = _parts(b, b.in_c_order(state_bias).reshape(1, -1), cell.gates) if cell.inner_bias else []
    in_place = _parts(b, kept, cell.gates)
    written = [*(_parts(b, extra, cell.extra) if cell.extra else []), *[_Operand(b, a, 0, hidden) for a in after]]
    of_next = [_Operand(b, a, 0, hidden) for a in before]
    operands = [*in_place, *_parts(b, product, cell.gates, False), *read, *biases, *in_place, *written, *of_next]
    kernel = _Kernel(b, _step(cell, OF_NUMPY[dtype]), operands)
    gemm, row = b.launcher.gemm, hidden * dtype.itemsize
    places = [b.address(a) for a in before]
    weight, target = b.address(of_state), b.address(product)
    steps = steps_of(sizes, reverse)
    for number, (start, _, size, *_) in enumerate(steps):
        gemm(_product(dtype, size, hidden, cell.gates * hidden, True), places[0] + start * row, weight, target)
        following = steps[number + 1].start if number + 1 < len(steps) else total
        kernel.run(start, size, [place + following * row for place in places])
    last = _last_rows(sizes, reverse)
    finals = []
    for state, made in zip(states, after, strict=True):
        at = np.concatenate([b.address(made) + last * row, b.address(state) + np.arange(most, len(state)) * row])
        finals.append(b.empty(state.shape, dtype))
        b.gather_at(at, finals[-1])
    return (after[0], *finals, kept, *([extra] if cell.extra else []), *[a[:total] for a in before], *after[1:])


@lru_cache(maxsize=64)
def _sequences(sizes: Sizes) -> Array:
    """The number of the sequence of each row."""
    return np.concatenate([np.arange(size) for size in sizes])


@lru_cache(maxsize=64)
def _last_rows(sizes: Sizes, reverse: bool) -> Array:
    """The row that each sequence ends at."""
    counts = np.array(sizes, np.int64)
    sequences = np.arange(counts[0])
    if reverse:
        return sequences
    lengths = (counts[:, None] > sequences).sum(axis=0)
    found: Array = (np.cumsum(counts) - counts)[lengths - 1] + sequences
    return found


def _pull(
    b: Any, cell: Cell, needs: Sequence[bool], grads: Sequence[Any], made: Sequence[Any], x: Any, states: Sequence[Any],
    weights: Sequence[Any], sizes: Sizes, reverse: bool,
) -> list[Any]:  # fmt: skip
    """What `_recurrence.pull` gives."""
    of_input, of_state = weights[0], b.in_c_order(weights[1])
    total, hidden, dtype = x.shape[0], of_state.shape[1], x.dtype
    kept, *rest = [b.in_c_order(a) for a in made[1 + cell.states :] if a is not None]
    extra, before = (rest[0], rest[1:]) if cell.extra else (kept, rest)
    g = b.xp.zeros((1, hidden), dtype) if grads[0] is None else b.in_c_order(grads[0])
    # Gradients of a second state after every row.
    of_rows = b.in_c_order(grads[-1]) if cell.states > 1 and grads[-1] is not None else None
    carried = [b.xp.zeros(s.shape, dtype) if f is None else b.in_c_order(f).copy()
               for s, f in zip(states, grads[1:], strict=False)]  # fmt: skip
    back = carried[0]
    direct = (carried[1:] or [b.xp.zeros(back.shape, dtype)])[: cell.direct]
    dx = b.empty((total, cell.gates * hidden), dtype)
    da = b.empty(dx.shape, dtype) if cell.inner_bias else dx

    past = [_Operand(b, d, 0, hidden, False) for d in direct]
    operands = [
        *_parts(b, kept, cell.gates), *(_parts(b, extra, cell.extra) if cell.extra else []),
        *([] if cell.reads is None else [_Operand(b, before[cell.reads], 0, hidden)]), _Operand(b, g, 0, hidden),
        _Operand(b, back, 0, hidden, False), *past, *([] if of_rows is None else [_Operand(b, of_rows, 0, hidden)]),
        *_parts(b, dx, cell.gates), *(_parts(b, da, cell.gates) if cell.inner_bias else []), *past,
    ]  # fmt: skip
    kernel = _Kernel(b, _gradient(cell, OF_NUMPY[dtype], of_rows is not None), operands)
    gemm, row = b.launcher.gemm, cell.gates * hidden * dtype.itemsize
    width, of_gates, weight, target = cell.gates * hidden, b.address(da), b.address(of_state), b.address(back)
    for step in reversed(steps_of(sizes, reverse)):
        kernel.run(step.start, step.size)
        gemm(_product(dtype, step.size, width, hidden, False), of_gates + step.start * row, weight, target)
    if cell.direct and cell.reads == 0:
        back += direct[0]
    bias: Any = b.ops.sum(dx, dim=(0,), keepdim=False) if needs[-2] or needs[-1] else None
    return [
        b.matmul(dx, of_input) if needs[0] else None,
        *[d if need else None for d, need in zip([back, *direct], needs[1 : 1 + cell.states], strict=False)],
        b.matmul(dx.T, x) if needs[-4] else None,
        b.matmul(da.T, before[0]) if needs[-3] else None,
        bias if needs[-2] else None,
        # Memory of its own: gradients are added to in place.
        None if not needs[-1] else bias.copy() if da is dx else b.ops.sum(da, dim=(0,), keepdim=False),
    ]  # fmt: skip
