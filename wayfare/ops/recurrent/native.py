"""Recurrences inside command lists: the steps of a sequence without Python between them.

Only for sequences of equal length, and only where no gradient is wanted: nothing is kept for the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from wayfare.codegen.loop.expr import OF_NUMPY, const, load
from wayfare.codegen.loop.language import elementwise
from wayfare.codegen.routines.recurrent import Sequences, recurrence_commands
from wayfare.codegen.routines.recurrent_code import Formula
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime.command import BufferView, Command, Scratch, Unsuited
from wayfare.codegen.runtime.command_gemm import matmul_commands
from wayfare.codegen.runtime.command_kernels import copy_commands, kernel_commands
from wayfare.ir.plan.native import FORMS, Form
from wayfare.ops.recurrent.cell import Cell, InLoops, states_loop

# Steps beyond which the commands of single steps would take more memory than they save time.
_MOST_STEPS = 512
# Rows in all that are not worth laying out the weights for, and weights (numbers) from which on one sequence is not: it
# reads each of them once in a step, wherever it lies.
_FEW, _MANY_WEIGHTS = 2, 1 << 14


def register(cell: Cell) -> None:
    """Give the op of a cell its form."""
    FORMS[cell.name] = Form(lambda *given: _commands(cell, *given))


def _commands(
    cell: Cell, attrs: dict[str, Any], reads: Sequence[BufferView], writes: Sequence[BufferView | None], threads: int,
    scratch: Scratch,
) -> list[Command]:  # fmt: skip
    count, sizes = cell.states, attrs["sizes"]
    x, states, (of_input, of_state, input_bias, state_bias) = reads[0], reads[1 : 1 + count], reads[1 + count :]
    out, finals, kept = writes[0], writes[1 : 1 + count], writes[1 + count :]
    rows, dtype = sizes[0] if sizes else 0, x.dtype
    if (
        any(view is not None for view in kept) or not sizes or len(set(sizes)) > 1 or states[0].shape[0] != rows
        or dtype.char not in "fd"
    ):  # fmt: skip
        raise Unsuited
    made: list[Command] = []
    bias = _row(input_bias)
    if not cell.inner_bias:
        bias = scratch.allocate(bias.shape, dtype)
        summands = [_row(input_bias), _row(state_bias)]
        made += kernel_commands(_sum(OF_NUMPY[dtype]), bias.shape, None, summands, [bias], threads, scratch)
    given = Sequences(x, states, of_input, of_state, bias, _row(state_bias), out, finals, len(sizes), attrs["reverse"])
    alone = rows == 1 and of_input.elements + of_state.elements >= _MANY_WEIGHTS
    if len(sizes) <= _MOST_STEPS and (alone or rows * len(sizes) <= _FEW):
        return made + _step_by_step(cell, given, threads, scratch)
    return made + recurrence_commands(_formula(cell, OF_NUMPY[dtype]), given, threads, scratch)


def _step_by_step(cell: Cell, given: Sequences, threads: int, scratch: Scratch) -> list[Command]:
    """Products by BLAS, those of the input for all steps at once, and a loop for each step."""
    (rows, hidden), out, finals, dtype = given.states[0].shape, given.out, given.finals, given.x.dtype
    width = cell.gates * hidden
    gates, product = (scratch.allocate((n, width), dtype) for n in (given.x.shape[0], rows))
    made = matmul_commands(given.x, _transposed(given.of_input), gates, False, threads, scratch)
    biases = [given.bias, given.state_bias] if cell.inner_bias else [given.bias]
    added = [part for bias in biases for part in _parts(bias, cell.gates)]
    kernel = native.build(states_loop(cell, OF_NUMPY[dtype]))
    # A state is written where the last one was, which is not read after the product.
    own = [scratch.allocate((rows, hidden), dtype) for _ in given.states]
    before = list(given.states)
    for turn in range(given.steps):
        step = given.steps - 1 - turn if given.reverse else turn
        ends = turn == given.steps - 1
        made += matmul_commands(before[0], _transposed(given.of_state), product, False, threads, scratch)
        after = [(final if ends else None) or room for final, room in zip(finals, own, strict=True)]
        if out is not None and not (ends and finals[0] is not None):
            after[0] = _rows(out, step * rows, rows)
        read = [before[cell.reads]] if cell.reads is not None else []
        sums = [*_parts(_rows(gates, step * rows, rows), cell.gates), *_parts(product, cell.gates)]
        made += kernel_commands(kernel, (rows, hidden), None, [*sums, *read, *added], after, threads, scratch)
        if out is not None and ends and finals[0] is not None:
            made += copy_commands(after[0], _rows(out, step * rows, rows), threads)
        before = after
    return made


@lru_cache(maxsize=64)
def _formula(cell: Cell, dtype: str) -> Formula:
    """What a step computes from its sums."""
    count = cell.gates * (2 if cell.inner_bias else 1)
    loads = [load(i, dtype) for i in range(count + cell.direct)]
    # Minus zero is the number that changes nothing when it is added.
    of_state = loads[cell.gates : count] or [const(-0.0, dtype)] * cell.gates
    _, _, after = cell.step(InLoops, loads[: cell.gates], of_state, loads[count:])
    return Formula(cell.name, dtype, cell.gates, cell.inner_bias, cell.reads, after)


@lru_cache(maxsize=2)
def _sum(dtype: str) -> native.Kernel:
    return native.build(elementwise("add_biases", [dtype] * 2, load(0, dtype) + load(1, dtype)))


def _transposed(view: BufferView) -> BufferView:
    return view.view(view.shape[::-1], view.strides[::-1])


def _row(view: BufferView) -> BufferView:
    """A vector that is the same for all rows."""
    return view.view((1, *view.shape), (0, *view.strides))


def _rows(view: BufferView, first: int, count: int) -> BufferView:
    return view.view((count, view.shape[1]), view.strides, first * view.strides[0])


def _parts(view: BufferView, count: int) -> list[BufferView]:
    """The columns in `count` equal parts."""
    width = view.shape[1] // count
    return [view.view((view.shape[0], width), view.strides, k * width * view.strides[1]) for k in range(count)]
