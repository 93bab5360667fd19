"""Lowering: composite ops are decomposed, reductions brought to one form, common subexpressions merged.

The result consists of elementwise steps, reductions over adjacent dimensions with keepdim, views, and opaque steps that
only their own record can run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from wayfare.codegen.routines.reductions import runs
from wayfare.core.op import REGISTRY, Op
from wayfare.core.spec import OF_NUMPY
from wayfare.ir.assemble import ASSEMBLE, placed
from wayfare.ir.formulas import composition
from wayfare.ir.graph import Step, Value, in_order, leaf, record, trace_ops
from wayfare.ir.passes.common_subexpressions import number_key, step_key


def is_reduction(step: Step) -> bool:
    """Is this a reduction that a loop can do?"""
    return step.op is not None and step.op.loop_reduction != ""


def is_along_rows(step: Step) -> bool:
    """Does a step say along which dimension the rows of its loop run? A reduction does, or an elementwise `dim`."""
    op = step.op
    return op is not None and (op.loop_reduction != "" or (op.family == "elementwise" and "dim" in step.attrs))


class Lowering:
    """Lowers graphs; equal steps of all graphs that it lowers become one."""

    def __init__(self) -> None:
        self._known: dict[int, Value] = {}
        self._same: dict[Any, tuple[Value, ...]] = {}
        self._done: dict[int, Step] = {}
        # Keeps values alive whose ids are keys.
        self._alive: list[Any] = []

    def __call__(self, values: Iterable[Value]) -> list[Value]:
        """The lowered values."""
        values = list(values)
        self._alive.append(values)
        for step in in_order(values, self._done):
            if id(step) in self._done or all(id(v) in self._known for v in step.outputs):
                continue
            made = self._lowered(step)
            for old, new in zip(step.outputs, made, strict=True):
                self._known.setdefault(id(old), new)
        return [self._known[id(v)] for v in values]

    def replace(self, values: Sequence[Value], others: Sequence[Value]) -> None:
        """Use other values (leaves) in place of these."""
        self._alive.append((values, others))
        for old, new in zip(values, others, strict=True):
            self._known[id(old)] = self._enter((new,))[0]

    def _enter(self, outputs: Iterable[Value]) -> tuple[Value, ...]:
        """Note values that are already lowered."""
        outputs = tuple(outputs)
        for v in outputs:
            self._done[id(v.step)] = v.step
            self._known[id(v)] = v
        return outputs

    def _lowered(self, step: Step) -> tuple[Value, ...]:
        if step.op is None:
            return self._leaf(step)
        op, inputs = step.op, tuple(self._known[id(v)] for v in step.inputs)
        if op.loop_reduction:
            return (self._reduction(op, inputs[0], step.attrs),)
        if _changes_nothing(op, inputs, step):
            return inputs[:1]
        assembled = _assembled(op, inputs)
        if assembled is not None:
            return self._once(ASSEMBLE, *assembled)
        formula = composition(op)
        if formula is not None:
            made = formula(trace_ops, *inputs, **step.attrs)
            return tuple(self(made if isinstance(made, (tuple, list)) else (made,)))
        return self._once(op, inputs, step.attrs)

    def _leaf(self, step: Step) -> tuple[Value, ...]:
        if step.kind != "number":
            return self._enter(step.outputs)
        key = number_key(step.data, step.outputs[0].dtype)
        if key not in self._same:
            self._same[key] = self._enter(step.outputs)
        return self._same[key]

    def _once(self, op: Op, inputs: tuple[Value, ...], attrs: dict[str, Any]) -> tuple[Value, ...]:
        """The outputs of this op on these inputs; the same step each time."""
        key = step_key(op, inputs, attrs)
        found = self._same.get(key) if key is not None else None
        if found is None:
            made = record(op, inputs, attrs)
            self._alive.append(made)
            found = self._enter(made if isinstance(made, tuple) else (made,))
            if key is not None:
                self._same[key] = found
        return found

    def _one(self, name: str, x: Value, **attrs: Any) -> Value:
        return self._once(REGISTRY[name], (x,), attrs)[0]

    def _reduction(self, op: Op, x: Value, attrs: dict[str, Any]) -> Value:
        """A reduction over adjacent dimensions with keepdim; others become several reductions and a view."""
        dim = attrs["dim"]
        real = tuple(d for d in dim if x.shape[d] != 1)
        wanted = op.infer(x.spec, **attrs)
        if op.loop_reduction in ("argmax", "argmin") and not real:
            return self._once(op, (x,), attrs)[0]
        if not real:
            if op.loop_reduction in ("any", "all"):
                zero = self._leaf(leaf("number", 0, (), x.dtype).step)[0]
                x = self._once(REGISTRY["ne"], (x, zero), {})[0]
        else:
            for run in reversed(runs(real, x.shape)):
                x = self._one(op.name, x, dim=run, keepdim=True)
        if OF_NUMPY[x.dtype] is not wanted.dtype:
            x = self._one("cast", x, dtype=wanted.dtype)
        return x if x.shape == wanted.shape else self._one("reshape", x, shape=wanted.shape)


def _assembled(op: Op, inputs: tuple[Value, ...]) -> tuple[tuple[Value, ...], dict[str, Any]] | None:
    """The sum of two arrays that are zeros with parts written into them is one `assemble` of all parts."""
    if op.name != "add" or inputs[0].shape != inputs[1].shape:
        return None
    first, second = (placed(v.step.op, v.step.attrs) for v in inputs)
    if first is None or second is None:
        return None
    shape = inputs[0].step.attrs["shape"]
    return (*inputs[0].step.inputs, *inputs[1].step.inputs), {"shape": shape, "indexes": (*first, *second)}


def _changes_nothing(op: Op, inputs: tuple[Value, ...], step: Step) -> bool:
    if op.moves == "identity":
        return True
    if op.name == "cast":
        return OF_NUMPY[inputs[0].dtype] is step.attrs["dtype"]
    if op.moves == "reshape" or op.name == "expand":
        return inputs[0].shape == step.outputs[0].shape
    return False
