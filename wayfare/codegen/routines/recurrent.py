"""A recurrent layer over sequences of one length as commands: pack the weights, then run all steps in one command.

`recurrent_code.py` explains the algorithm. Threads split the sequences and synchronise only at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wayfare.codegen.llvm.machine import machine
from wayfare.codegen.routines.recurrent_code import WORDS, Formula, sums_bytes, tile_rows, write
from wayfare.codegen.routines.routine import Routine
from wayfare.codegen.runtime.command import BufferView, Command, Scratch, Unsuited
from wayfare.codegen.runtime.command_kernels import copy_commands
from wayfare.codegen.runtime.work_split import parts_for

# Nanoseconds of one multiplication, and of the gates of one unit in one step.
_COST, _GATES = {"f32": 0.02, "f64": 0.04}, {"f32": 3.0, "f64": 12.0}
_BYTES = np.dtype(np.uint8)
_ADDRESSES = [k for k, name in enumerate(WORDS) if name[0] == "*"]


class Sequences(NamedTuple):
    """The operands of a recurrence; all views are C-contiguous.

    `x` and `out` have the rows of all steps, one step after the other. An output that nobody reads is None.
    """

    x: BufferView
    states: Sequence[BufferView]
    of_input: BufferView
    of_state: BufferView
    bias: BufferView
    state_bias: BufferView
    out: BufferView | None
    finals: Sequence[BufferView | None]
    steps: int
    reverse: bool


@lru_cache(maxsize=64)
def _routine(formula: Formula) -> Routine:
    return Routine(f"{formula.name}_{formula.dtype}", write, formula)


def recurrence_commands(formula: Formula, given: Sequences, threads: int, scratch: Scratch) -> list[Command]:
    """The commands of all steps; raises Unsuited where there is no native code."""
    steps, (rows, hidden) = given.steps, given.states[0].shape
    routine = _routine(formula)
    if not routine.ready:
        raise Unsuited
    weights, made = _laid_out(formula.gates, given, threads, scratch)
    # Without `out`, the first state alternates between two buffers.
    states = given.out or scratch.allocate((2 * rows, hidden), given.x.dtype)
    other = None
    if len(given.states) > 1:
        other = given.finals[1] or scratch.allocate((rows, hidden), given.x.dtype)
        made += copy_commands(given.states[1], other, threads)
    made.append(_all_steps(formula, given, weights, states, other, threads, scratch))
    made[-1].function = routine.address
    if given.finals[0] is not None:
        last = (steps - 1) % 2 if given.out is None else 0 if given.reverse else steps - 1
        ended = states.view((rows, hidden), states.strides, last * rows * states.strides[0])
        made += copy_commands(ended, given.finals[0], threads)
    return made


def _laid_out(gates: int, given: Sequences, threads: int, scratch: Scratch) -> tuple[BufferView, list[Command]]:
    """Both weights in the order in which the routine reads them, and the commands that pack them."""
    lanes = 4 * machine().processor.lanes // given.x.dtype.itemsize
    features, hidden = given.of_input.shape[1], given.of_state.shape[1]
    target = scratch.allocate((-(-hidden // lanes), features + hidden, gates, lanes), given.x.dtype)
    by_vector, by_number, by_gate, size = target.strides
    vectors, rest = divmod(hidden, lanes)
    # (from unit, to unit, vectors, units of each, step from one to the next). The last vector is padded with its last
    # unit: arithmetic on uninitialised memory may meet slow subnormals.
    parts = [(0, 0, vectors, lanes, 1), (hidden - rest, hidden - rest, 1, rest, 1)]
    parts += [(hidden - 1, hidden, 1, lanes - rest, 0)] if rest else []
    made = []
    for weight, first in ((given.of_input, 0), (given.of_state, features)):
        count, row = weight.shape[1], weight.strides[0]
        for unit, to, number, width, step in parts:
            shape = (gates, number, count, width)
            source = weight.view(shape, (hidden * row, lanes * row, weight.strides[1], step * row), unit * row)
            skip = to // lanes * by_vector + first * by_number + to % lanes * size
            made += copy_commands(source, target.view(shape, (by_gate, by_vector, by_number, size), skip), threads)
    return target, made


def _all_steps(
    formula: Formula, given: Sequences, weights: BufferView, states: BufferView, other: BufferView | None, threads: int,
    scratch: Scratch,
) -> Command:  # fmt: skip
    x, steps, dtype, (rows, hidden) = given.x, given.steps, formula.dtype, given.states[0].shape
    features, by_row = x.shape[1], states.strides[0]
    work = steps * rows * hidden * (formula.gates * (features + hidden) * _COST[dtype] + _GATES[dtype])
    # At least two tiles for each part: every part reads all weights.
    tile, parts = tile_rows(formula, machine()), parts_for(work, threads)
    each = rows
    if parts > 1:
        parts = threads * max(1, min(parts // threads, rows // (2 * tile * threads)))
        each = max(-(-rows // parts), -(-tile // 2))
    begun = steps - 1 if given.reverse else 0
    way = -1 if given.reverse else 1
    to, to_step, flip = states.offset, rows * by_row, -1
    if given.out is not None:
        to, to_step, flip = states.offset + begun * rows * by_row, way * rows * by_row, 1
    blocks, sums = [], []
    for first in range(0, rows, each):
        sums.append(scratch.allocate((sums_bytes(formula, machine()),), _BYTES))
        blocks.append([
            x.offset + (begun * rows + first) * x.strides[0], given.states[0].offset + first * by_row,
            to + first * by_row, 0 if other is None else other.offset + first * by_row, weights.offset,
            given.bias.offset, given.state_bias.offset, sums[-1].offset,
            x.strides[0], way * rows * x.strides[0], to_step, flip, min(each, rows - first), features, hidden, steps,
        ])  # fmt: skip
    owners = [x, given.states[0], states, other, weights, given.bias, given.state_bias, sums[0]]
    addresses = [(block, at, owner.object) for block in range(len(blocks))
                 for at, owner in zip(_ADDRESSES, owners, strict=True) if owner is not None]  # fmt: skip
    title = f"{formula.name} {steps}×{rows}×{features}→{hidden} {x.dtype}"
    return Command("kernel", title, 0, blocks, addresses, work, shared=len(blocks) > 1)
