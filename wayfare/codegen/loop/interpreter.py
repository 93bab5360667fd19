"""A NumPy interpreter of the loop language: slow and plain. The tests compare native kernels with it.

It also runs loops that cannot be compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import FLOATS, NUMPY, Expr, walk
from wayfare.codegen.loop.instruction import INSTRUCTIONS
from wayfare.codegen.loop.language import Loop, Operand, Stage, StoreAt
from wayfare.codegen.loop.window import carried_by
from wayfare.core.errors import LoopError

Array = np.ndarray[Any, np.dtype[Any]]


def _reduce(kind: str, value: Array) -> Any:
    if kind in ("argmax", "argmin"):
        return getattr(np, kind)(value, axis=-1)[..., None].astype(np.int64)
    if kind in ("sum", "prod"):
        return getattr(np, kind)(value, axis=-1, keepdims=True, dtype=value.dtype)
    return getattr(np, kind)(value, axis=-1, keepdims=True)


class _Row:
    """The values of one stage: each expression is computed once. The body of a fold has a scope of its own."""

    def __init__(self, inputs: Sequence[Array], outputs: list[Any], reductions: list[Any], shape: tuple[int, ...],
                 function: Callable[[str], Callable[..., Any]], outside: _Row | None = None) -> None:  # fmt: skip
        self.inputs, self.outputs, self.reductions = inputs, outputs, reductions
        self.shape, self.function = shape, function
        self.known: dict[int, Any] = {} if outside is None else dict(outside.known)
        # The step of each fold around this scope and its values, by level; and the rows that are still inside.
        self.steps: dict[int, tuple[int, list[Any]]] = {}
        self.active: Any = True
        # In a stage with carries: the index of the element, and the carries.
        self.first, self.carried = 0, list[Any]()

    def value(self, root: Expr) -> Any:
        for e in walk(root, bodies=False):
            if id(e) not in self.known:
                self.known[id(e)] = self._fold(e) if e.op == "fold" else self._compute(e)
        return self.known[id(root)]

    def _fold(self, e: Expr) -> Any:
        """Run a fold for all rows together: those with a smaller count keep their values."""
        count, starts, bodies = carried_by(e)
        times, values = self.value(count), [self.value(s) for s in starts]
        for step in range(int(np.max(times, initial=0))):
            inner = _Row(self.inputs, self.outputs, self.reductions, self.shape, self.function, self)
            inner.steps = {**self.steps, e.value[0]: (step, values)}
            inner.active = self.active & (step < times)
            values = [np.where(inner.active, inner.value(b), v) for b, v in zip(bodies, values, strict=True)]
        return values[e.value[1]]

    def _load_at(self, e: Expr, args: list[Any]) -> Any:
        number, axes = e.value
        array = self.inputs[number]
        mask = np.broadcast_to(np.logical_and(self.active, args[axes] if len(args) > axes else True), self.shape)
        found = np.zeros(self.shape, array.dtype)
        found[mask] = array[positions(array, args[:axes], mask)]
        return found

    def _compute(self, e: Expr) -> Any:
        args = [self.known[id(a)] for a in e.args]
        match e.op:
            case "load":
                return self.inputs[e.value]
            case "reload":
                return self.outputs[e.value]
            case "reduction":
                return self.reductions[e.value]
            case "const":
                return np.asarray(e.value, NUMPY[e.dtype])
            case "load_at":
                return self._load_at(e, args)
            case "size":
                array = self.inputs[e.value[0]]
                return np.asarray(array.shape[len(self.shape) + e.value[1]], np.int64)
            case "step":
                return np.asarray(self.steps[e.value][0], np.int64)
            case "carry":
                return self.carried[e.value]
            case "carried":
                return self.steps[e.value[0]][1][e.value[1]]
            case "index":
                return np.broadcast_to(self.first + np.arange(self.shape[-1], dtype=np.int64), self.shape)
            case "cast":
                return args[0].astype(NUMPY[e.dtype])
            case "bits":
                return np.ascontiguousarray(args[0]).view(NUMPY[e.dtype]).reshape(args[0].shape)
            case "rescue":
                rare = np.asarray(self.function(e.value)(*args[2:])).astype(NUMPY[e.dtype], copy=False)
                return np.where(args[0], rare, args[1])
        if e.op in ("floor", "ceil", "trunc", "rint") and e.dtype not in FLOATS:
            return args[0]
        instruction = INSTRUCTIONS.get(e.op)
        if instruction is not None and instruction.numpy is not None:
            return instruction.numpy(*args)
        return np.asarray(self.function(e.value if e.op == "call" else e.op)(*args)).astype(NUMPY[e.dtype], copy=False)


def positions(array: Array, indices: Sequence[Any], mask: Array) -> tuple[Array, ...]:
    """The NumPy index of the elements of the mask: their place in the nest, then the indices along the own axes."""
    rank = mask.ndim
    places = np.nonzero(mask)
    nest = [p if array.shape[a] != 1 else np.zeros_like(p) for a, p in enumerate(places)]
    own = [np.broadcast_to(i, mask.shape)[places] for i in indices]
    for axis, index in enumerate(own):
        if index.size and not 0 <= index.min() <= index.max() < array.shape[rank + axis]:
            raise IndexError(f"a loop reads or writes outside an array of {list(array.shape)}")
    return (*nest, *own)


def _store_at(store: StoreAt, row: _Row, target: Array) -> None:
    mask = np.broadcast_to(True if store.mask is None else row.value(store.mask), row.shape)
    at = positions(target, [row.value(i) for i in store.indices], mask)
    value = np.broadcast_to(row.value(store.value), row.shape)[mask]
    if store.how == "set":
        for number in range(value.size):
            # One after the other: NumPy does not say which of several values stays.
            target[tuple(i[number] for i in at)] = value[number]
    else:
        ufunc: Any = INSTRUCTIONS[store.how].numpy
        ufunc.at(target, at, value)


def _in_order(stage: Stage, row: _Row) -> tuple[dict[int, Array], list[Array]]:
    """A stage with carries, one element after the other: (what is stored, the values of the reductions)."""
    one = (*row.shape[:-1], 1)
    carried = [row.value(start) for start, _ in stage.carries]
    columns: list[list[Any]] = [[] for _ in (*stage.stores, *stage.reductions)]

    def at(array: Any, k: int) -> Any:
        return array if array is None or array.shape[-1:] in ((), (1,)) else array[..., k : k + 1]

    for k in range(row.shape[-1]):
        inputs, outputs = [at(a, k) for a in row.inputs], [at(a, k) for a in row.outputs]
        element = _Row(inputs, outputs, row.reductions, one, row.function)
        element.first, element.carried = k, carried
        for column, value in zip(columns, stage.values, strict=False):
            column.append(np.broadcast_to(element.value(value), one))
        carried = [element.value(value) for _, value in stage.carries]
    whole = [np.concatenate(column, -1) if column else np.empty(row.shape, NUMPY[value.dtype])
             for column, value in zip(columns, stage.values, strict=False)]  # fmt: skip
    return {k: array for (k, _), array in zip(stage.stores, whole, strict=False)}, whole[len(stage.stores) :]


def interpret(
    loop: Loop, inputs: Sequence[Array], function: Callable[[str], Callable[..., Any]],
    shape: tuple[int, ...] | None = None, targets: Sequence[Array] = (),
) -> list[Array]:  # fmt: skip
    """Run a loop on arrays whose last axis is the row and whose other axes broadcast; a `per_row` operand has a last
    axis of size 1. `function` maps the name of a function that is not a primitive to its NumPy form.

    Operands with axes of their own have all axes of the nest first. `shape` is that of the nest, if no input has it;
    `targets` are the outputs before the loop, for those that are stored by index.
    """
    if len(inputs) != len(loop.inputs):
        raise LoopError(f"loop {loop.name}: takes {len(loop.inputs)} arrays, not {len(inputs)}")
    if shape is None:
        shape = np.broadcast_shapes(*(a.shape[: a.ndim - o.axes] for a, o in zip(inputs, loop.inputs, strict=True)))
    outputs: list[Any] = [np.array(targets[k]) if o.axes else None for k, o in enumerate(loop.outputs)]
    reductions: list[Any] = []
    with np.errstate(all="ignore"):
        for stage in loop.stages:
            if stage.carries:
                made, reduced = _in_order(stage, _Row(inputs, list(outputs), list(reductions), shape, function))
                reductions += [_reduce(f.kind, v) for f, v in zip(stage.reductions, reduced, strict=True)]
                outputs = [made.get(number, array) for number, array in enumerate(outputs)]
                continue
            row = _Row(inputs, list(outputs), list(reductions), shape, function)
            stored = [(k, np.broadcast_to(row.value(v), shape)) for k, v in stage.stores]
            reductions += [_reduce(f.kind, np.broadcast_to(row.value(f.value), shape)) for f in stage.reductions]
            for k, array in stored:
                outputs[k] = array
            for store in stage.stores_at:
                _store_at(store, row, outputs[store.output])
        last = _Row(inputs, outputs, reductions, shape, function)
        for k, v in loop.results:
            outputs[k] = np.broadcast_to(last.value(v), (*shape[:-1], 1))
    return [np.array(o) for o in outputs]


def interpret_rows(
    loop: Loop, inputs: Sequence[Array], axes: tuple[int, ...], function: Callable[[str], Callable[..., Any]],
    shape: tuple[int, ...] | None = None, targets: Sequence[Array] = (),
) -> list[Array]:  # fmt: skip
    """The same for rows along adjacent axes: those axes are moved to the end and joined."""
    count = len(axes)
    nests = [a.shape[: a.ndim - o.axes] for a, o in zip(inputs, loop.inputs, strict=True)]
    shape = np.broadcast_shapes(*nests) if shape is None else shape
    rank, row = len(shape), tuple(shape[a] for a in axes)
    last = tuple(range(rank - count, rank))

    def joined(array: Array, operand: Operand) -> Array:
        own = array.shape[array.ndim - operand.axes :]
        full = array.reshape((1,) * (rank - array.ndim + len(own)) + array.shape)
        moved = np.moveaxis(full, axes, last)
        outer, here = moved.shape[: rank - count], moved.shape[rank - count : rank]
        if operand.per_row or (own and math.prod(here) == 1):
            return np.ascontiguousarray(moved).reshape(*outer, 1, *own)
        return np.ascontiguousarray(np.broadcast_to(moved, (*outer, *row, *own))).reshape(*outer, math.prod(row), *own)

    given = [joined(a, o) for a, o in zip(inputs, loop.inputs, strict=True)]
    filled = [joined(a, o) for a, o in zip(targets, loop.outputs, strict=True)] if targets else []
    nest = (*(n for a, n in enumerate(shape) if a not in axes), math.prod(row))
    made = []
    results = interpret(loop, given, function, nest, filled)
    for number, (array, operand) in enumerate(zip(results, loop.outputs, strict=True)):
        if operand.axes:
            own_rank = array.ndim - operand.axes
            here = row if array.shape[own_rank - 1] == math.prod(row) else (1,) * count
            split = array.reshape(*array.shape[: own_rank - 1], *here, *array.shape[own_rank:])
            made.append(np.moveaxis(split, last, axes).reshape(targets[number].shape))
            continue
        wanted = (*array.shape[:-1], *((1,) * count if operand.per_row else row))
        made.append(np.moveaxis(array.reshape(wanted), last, axes))
    return made
