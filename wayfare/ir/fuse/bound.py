"""A program bound to sizes, run on arrays.

Shapes and attributes are computed once for each set of sizes; a call only runs a list of functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.core.numpy_math import Array
from wayfare.core.symbolic_sizes import evaluated, formula_of, value_of
from wayfare.ir.assemble import ASSEMBLE, cover, numpy_key
from wayfare.ir.fuse.emit import Given
from wayfare.ir.fuse.partition import Map
from wayfare.ir.fuse.program import FusedProgram, KernelStep, OpStep
from wayfare.ir.graph import Step, Value
from wayfare.ir.target import HOST, Target

Slots = list[Any]
Run = Callable[[Slots], None]


class Buffer:
    """An array that several steps fill part by part."""

    __slots__ = ("dtype", "target", "shape", "slot", "whole")

    def __init__(self, slot: int, shape: tuple[int, ...], dtype: np.dtype[Any], whole: bool, target: Target) -> None:
        self.slot, self.shape, self.dtype, self.whole, self.target = slot, shape, dtype, whole, target

    def there(self, values: Slots) -> Any:
        """The array; it is allocated at the first use."""
        found = values[self.slot]
        if found is None:
            make = self.target.maker() if self.whole else self.target.zeros
            found = values[self.slot] = make(self.shape, self.dtype)
        return found


class Bound:
    """A program for given sizes."""

    __slots__ = ("_constants", "_count", "_outputs", "_runs")

    def __init__(self, program: FusedProgram, symbols: Sequence[Any], target: Target = HOST) -> None:
        slots = program.slots
        self._count = len(slots)
        self._constants = [(slot, target.constant(_constant(v, symbols))) for slot, v in program.constants]
        self._outputs = [slots[v] for v in program.outputs]
        self._runs: list[Run] = []
        fresh: set[int] = set()
        buffers = _buffers(program, symbols, target)
        for step, frees in zip(program.steps, program.frees, strict=True):
            if isinstance(step, KernelStep):
                reused = [slots[v] for v in step.reads if slots[v] in fresh and slots[v] in frees]
                self._runs.append(_kernel(step, slots, symbols, frees, reused, buffers, target))
                continue
            op = step.step.op
            assert op is not None
            if op is ASSEMBLE:
                self._runs.append(_assembly(step, slots, symbols, frees, buffers, target))
            else:
                self._runs.append(_op(step.step, slots, symbols, frees, target))
            if op.fresh:
                # A kernel that is the only one to read it may write over it.
                fresh.update(slots[v] for v in step.writes if program.uses(v) == 1)

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Run on arrays of these sizes."""
        slots: Slots = [*arrays, *[None] * (self._count - len(arrays))]
        for slot, constant in self._constants:
            slots[slot] = constant
        for run in self._runs:
            run(slots)
        return [slots[slot] for slot in self._outputs]


def _constant(v: Value, symbols: Sequence[Any]) -> Any:
    what = v.step.data
    return np.asarray(value_of(formula_of(what), symbols), v.dtype) if v.step.kind == "number" else what


# -- single ops -----------------------------------------------------------------------------------------------------


def _op(step: Step, slots: dict[Value, int], symbols: Sequence[Any], frees: list[int], target: Target) -> Run:
    assert step.op is not None
    # Always the plain forward: a sparse result would be unknown to the next step.
    forward, attrs = target.forward(step.op, [v.dtype for v in step.inputs]), evaluated(step.attrs, symbols)
    if step.op.name == "slice":
        return _slice(slots[step.inputs[0]], slots[step.outputs[0]], attrs, frees)
    reads, writes = [slots[v] for v in step.inputs], [slots[v] for v in step.outputs]
    single = writes[0] if len(writes) == 1 and step.op.outputs == 1 else None

    def run(values: Slots) -> None:
        made = forward(*[values[s] for s in reads], **attrs)
        if single is not None:
            values[single] = target.as_array(made)
        else:
            for slot, out in zip(writes, made, strict=True):
                values[slot] = target.as_array(out)
        for s in frees:
            values[s] = None

    return run


def _slice(source: int, target: int, attrs: dict[str, Any], frees: list[int]) -> Run:
    """A slice, the most common op between loops, as one NumPy index."""
    key = (slice(None),) * attrs["dim"] + (slice(attrs["start"], attrs["stop"], attrs["step"]),)

    def run(values: Slots) -> None:
        values[target] = values[source][key]
        for s in frees:
            values[s] = None

    return run


# -- assembled arrays -------------------------------------------------------------------------------------------------

# For a value that is one part of an array: that array, and the index of the part.
Parts = dict[Value, tuple[Buffer, Any]]


def _buffers(program: FusedProgram, symbols: Sequence[Any], target: Target) -> Parts:
    """The values that kernels write directly into a larger array."""
    made = {v for step in program.kernels for v in step.writes
            if evaluated(v.shape, symbols) == _written(step, v, symbols)}  # fmt: skip
    found: Parts = {}
    for step in program.steps:
        if isinstance(step, OpStep) and step.step.op is ASSEMBLE:
            attrs = evaluated(step.step.attrs, symbols)
            apart, whole = cover(attrs["shape"], attrs["indexes"])
            if apart:
                out = step.step.outputs[0]
                buffer = Buffer(program.slots[out], attrs["shape"], out.dtype, whole, target)
                for v, index in zip(step.step.inputs, attrs["indexes"], strict=True):
                    if v in made and program.uses(v) == 1:
                        found[v] = (buffer, numpy_key(index))
    return found


def _written(step: KernelStep, v: Value, symbols: Sequence[Any]) -> tuple[int, ...]:
    """The shape in which a kernel stores a value."""
    group = step.group
    shape: tuple[int, ...] = evaluated(group.shape, symbols)
    if group.reduced and not any(a in group.reduced for a in group.maps[v]):
        return tuple(1 if a in group.reduced else n for a, n in enumerate(shape))
    return shape


def _assembly(
    step: OpStep, slots: dict[Value, int], symbols: Sequence[Any], frees: list[int], parts: Parts, target: Target
) -> Run:
    """Write the parts that kernels have not written."""
    attrs = evaluated(step.step.attrs, symbols)
    out = step.step.outputs[0]
    apart, whole = cover(attrs["shape"], attrs["indexes"])
    buffer = Buffer(slots[out], attrs["shape"], out.dtype, apart and whole, target)
    left = [(slots[v], numpy_key(index)) for v, index in zip(step.step.inputs, attrs["indexes"], strict=True)
            if v not in parts]  # fmt: skip

    def run(values: Slots) -> None:
        array = buffer.there(values)
        for slot, key in left:
            if apart:
                array[key] = values[slot]
            else:
                array[key] += values[slot]
        for s in frees:
            values[s] = None

    return run


# -- kernels ----------------------------------------------------------------------------------------------------------


def _kernel(
    step: KernelStep, slots: dict[Value, int], symbols: Sequence[Any], frees: list[int], reused: list[int],
    parts: Parts, target: Target,
) -> Run:  # fmt: skip
    group, kernel, reduced = step.group, step.kernel, step.group.reduced
    shape: tuple[int, ...] = evaluated(group.shape, symbols)
    sources = [_source(given, slots, symbols, len(shape), target) for given in step.emitted.inputs]
    broadcast = _broadcast_input(step, shape, symbols)
    writes = []
    for v in step.writes:
        own = evaluated(v.shape, symbols)
        writes.append((slots[v], None if own == _written(step, v, symbols) else own))
    axes = reduced or None
    launch, empty = target.repeated(kernel, shape, axes), target.maker()
    fresh = [(_written(step, v, symbols), v.dtype) for v in step.writes]
    places = _places(step, symbols, parts, None if reduced else _overwritten(step, reused, slots), empty)

    def run(values: Slots) -> None:
        arrays = []
        for slot, fitted in sources:
            if slot < 0:
                arrays.append(fitted)
            else:
                array = values[slot]
                arrays.append(array if fitted is None else array.reshape(fitted))
        if broadcast >= 0:
            arrays[broadcast] = target.broadcast(arrays[broadcast], shape)
        if places is not None:
            outs = launch(arrays, [there(arrays, values) for there in places])
        elif axes is None and target.keeps_order(arrays[0]):
            outs = kernel(arrays)  # which keeps the order of transposed arrays
        else:
            outs = launch(arrays, [empty(own, dtype) for own, dtype in fresh])
        for (slot, own), out in zip(writes, outs, strict=True):
            values[slot] = out if own is None else out.reshape(own)
        for s in frees:
            values[s] = None

    return run


def _source(
    given: Given, slots: dict[Value, int], symbols: Sequence[Any], rank: int, target: Target
) -> tuple[int, Any]:
    """The slot of an operand and its shape along the axes of the group (None: unchanged); or -1 and the number
    itself."""
    if given.value is None:
        number = value_of(formula_of(given.number), symbols)
        return -1, target.constant(np.full((1,) * rank, number, given.dtype))
    fitted = _along(given.value, given.own, symbols, rank)
    return slots[given.value], None if fitted == evaluated(given.value.shape, symbols) else fitted


def _along(v: Value, own: Map, symbols: Sequence[Any], rank: int) -> tuple[int, ...]:
    fitted = [1] * rank
    for n, a in zip(evaluated(v.shape, symbols), own, strict=True):
        if a >= 0:
            fitted[a] = n
    return tuple(fitted)


def _broadcast_input(step: KernelStep, shape: tuple[int, ...], symbols: Sequence[Any]) -> int:
    """The input that must be broadcast to the full shape of the loop because none has it; -1 if one has."""
    shapes = [g.dtype and (1,) * len(shape) if g.value is None else _along(g.value, g.own, symbols, len(shape))
              for g in step.emitted.inputs]  # fmt: skip
    if np.broadcast_shapes(*shapes) == shape:
        return -1
    return next(i for i, o in enumerate(step.emitted.loop.inputs) if not o.per_row)


def _overwritten(step: KernelStep, reused: list[int], slots: dict[Value, int]) -> tuple[int, int] | None:
    """(input, output): an input that is not used afterwards, and an output that may overwrite it."""
    rank = len(step.group.shape)
    for i, given in enumerate(step.emitted.inputs):
        if given.value is None or slots[given.value] not in reused or given.own != tuple(range(rank)):
            continue
        for k, v in enumerate(step.writes):
            if v.dtype == given.value.dtype:
                return i, k
    return None


def _places(
    step: KernelStep, symbols: Sequence[Any], parts: Parts, overwritten: tuple[int, int] | None, empty: Any
) -> Any:
    """For each output a function (inputs, slots) → the array to write to; None where all are new."""
    if overwritten is None and not any(v in parts for v in step.writes):
        return None
    return [_place(step, k, v, symbols, parts, overwritten, empty) for k, v in enumerate(step.writes)]


def _place(
    step: KernelStep, k: int, v: Value, symbols: Sequence[Any], parts: Parts, overwritten: tuple[int, int] | None,
    empty: Any,
) -> Callable[[list[Any], Slots], Any]:  # fmt: skip
    if v in parts:
        buffer, key = parts[v]
        return lambda arrays, values: buffer.there(values)[key]
    if overwritten is not None and overwritten[1] == k:
        number = overwritten[0]
        return lambda arrays, values: arrays[number]
    shape, dtype = _written(step, v, symbols), v.dtype
    return lambda arrays, values: empty(shape, dtype)
