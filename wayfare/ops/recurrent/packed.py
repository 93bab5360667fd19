"""The steps of a recurrence over packed sequences by native routines, without Python between them.

A part of the sequences is one argument block; threads take different parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from wayfare.codegen.llvm.machine import machine
from wayfare.codegen.loop.expr import OF_NUMPY, const, load
from wayfare.codegen.routines.packed_recurrence import (
    GradientFormula,
    StepFormula,
    write_backward,
    write_forward,
)
from wayfare.codegen.routines.routine import Routine, address_of
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.kernel import available
from wayfare.core.numpy_math import Array
from wayfare.ops.recurrent.cell import Cell, InLoops

Sizes = tuple[int, ...]

# Multiplications from which on threads share the sequences, and the fewest sequences of a part.
_SPLIT, _LEAST = 1 << 22, 8


@lru_cache(maxsize=64)
def _forward(cell: Cell, dtype: str, _lanes: int) -> Routine:
    count = cell.gates * (2 if cell.inner_bias else 1)
    loads = [load(i, dtype) for i in range(count + cell.direct)]
    # Minus zero is the number that changes nothing when it is added.
    product = loads[cell.gates : count] or [const(-0.0, dtype)] * cell.gates
    kept, extra, after = cell.step(InLoops, loads[: cell.gates], product, loads[count:])
    formula = StepFormula(cell.name, dtype, cell.gates, cell.inner_bias, cell.reads, kept, extra, after)
    return Routine(f"{cell.name}_steps_{dtype}", write_forward, formula)


@lru_cache(maxsize=64)
def _backward(cell: Cell, dtype: str, _lanes: int) -> Routine:
    own = cell.gates + cell.extra
    loads = [load(i, dtype) for i in range(own + 2 * cell.direct + 2)]
    read, (g, back, *direct) = loads[own : own + cell.direct], loads[own + cell.direct :]
    dx, da, past = cell.gradient(InLoops, loads[: cell.gates], loads[cell.gates : own], read, g, back, direct)
    formula = GradientFormula(cell.name, dtype, cell.gates, cell.extra, cell.direct, dx, da or (), past)
    return Routine(f"{cell.name}_gradients_{dtype}", write_backward, formula)


def ready(cell: Cell, dtype: np.dtype[Any]) -> bool:
    """Is there native code for all steps of this cell?"""
    name = OF_NUMPY.get(dtype)
    if not available():
        return False
    lanes = machine().processor.lanes
    return name in ("f32", "f64") and _forward(cell, name, lanes).ready and _backward(cell, name, lanes).ready


@lru_cache(maxsize=64)
def _parts(sizes: Sizes, reverse: bool, count: int) -> tuple[tuple[int, Array, Array], ...]:
    """The sequences in `count` parts with about as many rows each: (first sequence, table of its steps in the order
    they are run, the same backwards). A row of the table is what `packed_recurrence` calls a step."""
    rows = np.array(sizes, np.int64)
    starts = np.cumsum(rows) - rows
    if reverse:
        rows, starts = rows[::-1], starts[::-1]
    lengths = (rows[:, None] > np.arange(int(rows.max()))).sum(axis=0)
    bounds = np.searchsorted(np.cumsum(lengths), np.arange(1, count) * (lengths.sum() / count)).tolist()
    edges = [0, *[min(bound + 1, len(lengths)) for bound in bounds], len(lengths)]
    found = []
    for first, end in pairwise(edges):
        own = np.clip(rows - first, 0, end - first)
        at, given = own.nonzero()[0], starts + first
        own, given = own[at], given[at]
        if len(own):
            came, goes, source = np.zeros_like(own), np.zeros_like(own), np.zeros_like(own)
            came[1:] = goes[:-1] = np.minimum(own[1:], own[:-1])
            source[1:] = given[:-1]
            table = np.stack([given, own, came, source, goes], axis=1)
            found.append((first, table, np.ascontiguousarray(table[::-1])))
    return tuple(found)


def _split(sizes: Sizes, work: int, reverse: bool) -> tuple[tuple[int, Array, Array], ...]:
    threads = thread_pool.threads() if work >= _SPLIT else 1
    return _parts(sizes, reverse, max(1, min(threads, max(sizes) // _LEAST)))


def packed_weight(of_state: Array, gates: int) -> Array:
    """The weight of the state in the order in which a forward step reads it; units that fill up a vector are zero."""
    hidden = of_state.shape[1]
    lanes = 4 * machine().processor.lanes // of_state.dtype.itemsize
    if hidden % lanes:
        whole = np.zeros((gates, -(-hidden // lanes) * lanes, hidden), of_state.dtype)
        whole[:, :hidden] = of_state.reshape(gates, hidden, hidden)
        of_state = whole
    return np.ascontiguousarray(of_state.reshape(gates, -1, lanes, hidden).transpose(1, 3, 0, 2))


def run_steps(
    cell: Cell, kept: Array, extra: Array, before: Sequence[Array], after: Sequence[Array], states: Sequence[Array],
    finals: Sequence[Array], of_state: Array, bias: Array, state_bias: Array, sizes: Sizes, reverse: bool,
) -> None:  # fmt: skip
    """All steps. `kept` has the projected inputs, without bias; the parts that are kept are written in their place."""
    hidden = of_state.shape[1]
    held = [packed_weight(of_state, cell.gates), np.ascontiguousarray(bias), np.ascontiguousarray(state_bias)]
    first_states = [np.ascontiguousarray(state) for state in states]
    weights, biases, state_biases = map(address_of, held)
    whole = [address_of(kept), address_of(extra)]
    rows = [(address_of(b), address_of(a)) for b, a in zip(before, after, strict=True)]
    by_sequence = [(address_of(s), address_of(f)) for s, f in zip(first_states, finals, strict=True)]
    step = hidden * kept.dtype.itemsize
    words: list[int] = []
    parts = _split(sizes, kept.size * hidden, reverse)
    for first, table, _ in parts:
        words += [address_of(table), len(table), *whole, weights, biases, state_biases, hidden]
        for (was, becomes), (state, final) in zip(rows, by_sequence, strict=True):
            words += [was, becomes, state + first * step, final + first * step]
        words += [0] * (4 * (2 - cell.states))
    _forward(cell, OF_NUMPY[kept.dtype], machine().processor.lanes).run(words, len(parts))


def pull_steps(
    cell: Cell, kept: Array, extra: Array, read: Array | None, g: Array | None, of_rows: Array | None, back: Array,
    direct: Array | None, dx: Array, da: Array, of_state: Array, sizes: Sizes, reverse: bool,
) -> None:  # fmt: skip
    """The gradients of all steps: `dx` and `da` are written, `back` and `direct` become those of the first states."""
    hidden, size = of_state.shape[1], kept.dtype.itemsize
    zeros = np.zeros(hidden, kept.dtype)
    rows = [zeros if a is None else np.ascontiguousarray(a) for a in (g, of_rows)]
    steps = [0 if a is None else hidden * size for a in (g, of_rows)]
    weight = np.ascontiguousarray(of_state)
    words: list[int] = []
    parts = _split(sizes, kept.size * hidden, reverse)
    for first, _, table in parts:
        skip = first * hidden * size
        words += [
            address_of(table), len(table), address_of(kept), address_of(extra), address_of(weight), hidden,
            0 if read is None else address_of(read), address_of(rows[0]), steps[0], address_of(rows[1]), steps[1],
            address_of(back) + skip, 0 if direct is None else address_of(direct) + skip, address_of(dx), address_of(da),
        ]  # fmt: skip
    _backward(cell, OF_NUMPY[kept.dtype], machine().processor.lanes).run(words, len(parts))
