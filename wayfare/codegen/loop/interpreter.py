"""A NumPy interpreter of the loop language: slow and plain. The tests compare native kernels with it.

It also runs loops that cannot be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import FLOATS, NUMPY, Expr, walk
from wayfare.codegen.loop.language import Loop
from wayfare.core.errors import LoopError

Array = np.ndarray[Any, np.dtype[Any]]


def _quotient(a: Array, b: Array) -> Any:
    """Integer division that rounds towards zero; division by zero gives 0, as in NumPy."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    floor = np.floor_divide(a, safe)
    towards_zero = np.where((floor < 0) & (floor * safe != a), floor + 1, floor)
    return np.where(b == 0, b.dtype.type(0), towards_zero).astype(a.dtype)


def _reduce(kind: str, value: Array) -> Any:
    if kind in ("argmax", "argmin"):
        return getattr(np, kind)(value, axis=-1)[..., None].astype(np.int64)
    if kind in ("sum", "prod"):
        return getattr(np, kind)(value, axis=-1, keepdims=True, dtype=value.dtype)
    return getattr(np, kind)(value, axis=-1, keepdims=True)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "neg": np.negative,
    "abs": np.absolute, "maximum": np.maximum, "minimum": np.minimum, "where": np.where, "sqrt": np.sqrt,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "copysign": np.copysign,
    "quotient": _quotient, "fma": lambda a, b, c: a * b + c, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor, "bitwise_not": np.invert, "shift_left": np.left_shift,
    "shift_right": np.right_shift, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "signbit": np.signbit, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "logical_xor": np.logical_xor, "logical_not": np.logical_not,
}  # fmt: skip


class _Row:
    """The values of one stage: each expression is computed once."""

    def __init__(self, inputs: Sequence[Array], outputs: list[Any], reductions: list[Any], shape: tuple[int, ...],
                 function: Callable[[str], Callable[..., Any]]) -> None:  # fmt: skip
        self.inputs, self.outputs, self.reductions = inputs, outputs, reductions
        self.shape, self.function = shape, function
        self.known: dict[int, Any] = {}

    def value(self, root: Expr) -> Any:
        for e in walk(root):
            if id(e) not in self.known:
                self.known[id(e)] = self._compute(e)
        return self.known[id(root)]

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
            case "index":
                return np.broadcast_to(np.arange(self.shape[-1], dtype=np.int64), self.shape)
            case "cast":
                return args[0].astype(NUMPY[e.dtype])
            case "bits":
                return np.ascontiguousarray(args[0]).view(NUMPY[e.dtype]).reshape(args[0].shape)
            case "rescue":
                rare = np.asarray(self.function(e.value)(*args[2:])).astype(NUMPY[e.dtype], copy=False)
                return np.where(args[0], rare, args[1])
        if e.op in ("floor", "ceil", "trunc", "rint") and e.dtype not in FLOATS:
            return args[0]
        if e.op in _FUNCTIONS:
            return _FUNCTIONS[e.op](*args)
        return np.asarray(self.function(e.value if e.op == "call" else e.op)(*args)).astype(NUMPY[e.dtype], copy=False)


def interpret(loop: Loop, inputs: Sequence[Array], function: Callable[[str], Callable[..., Any]]) -> list[Array]:
    """Run a loop on arrays whose last axis is the row and whose other axes broadcast; a `per_row` operand has a last
    axis of size 1. `function` maps the name of a function that is not a primitive to its NumPy form."""
    if len(inputs) != len(loop.inputs):
        raise LoopError(f"loop {loop.name}: takes {len(loop.inputs)} arrays, not {len(inputs)}")
    shape = np.broadcast_shapes(*(a.shape for a in inputs))
    outputs: list[Any] = [None] * len(loop.outputs)
    reductions: list[Any] = []
    with np.errstate(all="ignore"):
        for stage in loop.stages:
            row = _Row(inputs, list(outputs), list(reductions), shape, function)
            stored = [(k, np.broadcast_to(row.value(v), shape)) for k, v in stage.stores]
            reductions += [_reduce(f.kind, np.broadcast_to(row.value(f.value), shape)) for f in stage.reductions]
            for k, array in stored:
                outputs[k] = array
        last = _Row(inputs, outputs, reductions, shape, function)
        for k, v in loop.results:
            outputs[k] = np.broadcast_to(last.value(v), (*shape[:-1], 1))
    return [np.array(o) for o in outputs]


def interpret_rows(
    loop: Loop, inputs: Sequence[Array], axes: tuple[int, ...], function: Callable[[str], Callable[..., Any]]
) -> list[Array]:
    """The same for rows along adjacent axes: those axes are moved to the end and joined."""
    count, rank = len(axes), max(a.ndim for a in inputs)
    last = range(-count, 0)
    moved = [np.moveaxis(a.reshape((1,) * (rank - a.ndim) + a.shape), axes, last) for a in inputs]
    row = np.broadcast_shapes(*(a.shape for a in moved))[-count:]
    given = []
    for array, operand in zip(moved, loop.inputs, strict=True):
        outer = array.shape[:-count]
        full = array if operand.per_row else np.broadcast_to(array, (*outer, *row))
        given.append(np.ascontiguousarray(full).reshape(*outer, -1))
    made = []
    for array, operand in zip(interpret(loop, given, function), loop.outputs, strict=True):
        shape = (*array.shape[:-1], *((1,) * count if operand.per_row else row))
        made.append(np.moveaxis(array.reshape(shape), last, axes))
    return made
