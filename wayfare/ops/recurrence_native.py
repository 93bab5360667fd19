"""Recurrences inside command lists: the steps of a sequence as products and loops, without Python between them.

Only for sequences of one length whose gradient nobody asks for: what the gradient reads is not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from wayfare.backend import native
from wayfare.backend.command import Command, Place, Scratch, Unsuited
from wayfare.backend.command_kernels import copy_commands, kernel_commands
from wayfare.backend.command_products import product_commands
from wayfare.backend.expr import OF_NUMPY, load
from wayfare.backend.loop import elementwise
from wayfare.fusion.plan_native import FORMS, Form
from wayfare.ops._recurrence import FEW_ROWS, FEW_STEPS, Cell, states_loop

# Steps beyond which the commands would take more memory than they save time.
_MOST_STEPS = 512
# Sequences from which on all is computed with hidden units down and sequences across: BLAS is a tenth faster with the
# weights on the left. The outputs of all steps, if they are wanted, would have to be turned.
_ACROSS = 16


def register(cell: Cell) -> None:
    """Give the op of a cell its form."""
    FORMS[cell.name] = Form(lambda *given: _commands(cell, *given))


def _commands(
    cell: Cell, attrs: dict[str, Any], reads: Sequence[Place], writes: Sequence[Place | None], threads: int,
    scratch: Scratch,
) -> list[Command]:  # fmt: skip
    count, sizes = cell.states, attrs["sizes"]
    x, states, (of_input, of_state, input_bias, state_bias) = reads[0], reads[1 : 1 + count], reads[1 + count :]
    out, finals, kept = writes[0], writes[1 : 1 + count], writes[1 + count :]
    rows, hidden, dtype = sizes[0] if sizes else 0, of_state.shape[1], x.dtype
    if (
        any(place is not None for place in kept) or not 0 < len(sizes) <= _MOST_STEPS or len(set(sizes)) > 1
        or states[0].shape[0] != rows or dtype.char not in "fd"
    ):  # fmt: skip
        raise Unsuited
    width = cell.gates * hidden
    made: list[Command] = []

    def loop(kernel: native.Kernel, shape: tuple[int, int], inputs: list[Place], outputs: list[Place]) -> None:
        made.extend(kernel_commands(kernel, shape, None, inputs, outputs, threads, scratch))

    # The input's products for all steps at once; biases are added step by step, while the numbers are in the cache.
    across = rows >= _ACROSS and out is None

    def room(count: int, columns: int) -> Place:
        if not across:
            return scratch.place((count, columns), dtype)
        return _turned(scratch.place((columns, count), dtype))

    gates = room(x.shape[0], width)
    made += product_commands(x, _turned(of_input), gates, False, threads, scratch)
    biases = [_row(input_bias), _row(state_bias)]
    if not cell.inner_bias:
        biases, summands = [scratch.place((1, width), dtype)], biases
        loop(_sum(OF_NUMPY[dtype]), (1, width), summands, biases)
    added = [part for bias in biases for part in _parts(bias, cell.gates)]
    turned = _turned(of_state)
    if not across and (rows > FEW_ROWS or len(sizes) > FEW_STEPS):
        turned = scratch.place(turned.shape, dtype)
        made += copy_commands(_turned(of_state), turned, threads)
    product = room(rows, width)
    kernel = native.build(states_loop(cell, OF_NUMPY[dtype]))
    # A state is written where the last one was, which nobody reads after the product.
    own = [room(rows, hidden) for _ in range(count)]
    before = list(states)
    order = range(len(sizes) - 1, -1, -1) if attrs["reverse"] else range(len(sizes))
    for turn, step in enumerate(order):
        ends = turn == len(sizes) - 1
        made += product_commands(before[0], turned, product, False, threads, scratch)
        after = [(finals[k] if ends else None) or own[k] for k in range(count)]
        if out is not None and not (ends and finals[0] is not None):
            after[0] = _rows(out, step * rows, rows)
        read = [before[cell.reads]] if cell.reads is not None else []
        given = [*_parts(_rows(gates, step * rows, rows), cell.gates), *_parts(product, cell.gates), *read, *added]
        loop(kernel, (rows, hidden), given, after)
        if out is not None and ends and finals[0] is not None:
            made += copy_commands(after[0], _rows(out, step * rows, rows), threads)
        before = after
    return made


@lru_cache(maxsize=2)
def _sum(dtype: str) -> native.Kernel:
    return native.build(elementwise("add_biases", [dtype] * 2, load(0, dtype) + load(1, dtype)))


def _turned(place: Place) -> Place:
    return place.seen(place.shape[::-1], place.strides[::-1])


def _row(place: Place) -> Place:
    """A vector that is the same for all rows."""
    return place.seen((1, *place.shape), (0, *place.strides))


def _rows(place: Place, first: int, count: int) -> Place:
    return place.seen((count, place.shape[1]), place.strides, first * place.strides[0])


def _parts(place: Place, count: int) -> list[Place]:
    """The columns in `count` equal parts."""
    width = place.shape[1] // count
    return [place.seen((place.shape[0], width), place.strides, k * width * place.strides[1]) for k in range(count)]
