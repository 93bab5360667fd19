"""A recorded graph in the steps a plan is made of: what fuses is taken apart, what is fast whole stays whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.runtime import kernel
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY, Op
from wayfare.ir.assemble import ASSEMBLE, placed
from wayfare.ir.formulas import composition
from wayfare.ir.graph import Step, Value, leaf, trace_ops
from wayfare.ir.lower import Lowering
from wayfare.ir.passes.constant_folding import computed
from wayfare.ir.plan.attention import forward, is_plain_attention, slopes
from wayfare.ir.vjp import original, slopes_by


@dataclass(frozen=True, slots=True)
class Slot:
    """In the attributes of a step: the value at this place of what each run is given."""

    number: int


def has_slots(attrs: dict[str, Any]) -> bool:
    """Does a step wait for something that is given at each run?"""
    return any(value.__class__ is Slot for value in attrs.values())


class PlanLowering(Lowering):
    """Takes recorded graphs of given sizes apart."""

    def __init__(self) -> None:
        super().__init__()
        # Without native code every op is fastest by its own record.
        self._apart = kernel.available()

    def _lowered(self, step: Step) -> tuple[Value, ...]:
        op = step.op
        if op is None:
            return self._leaf(step)
        inputs = tuple(self._known[id(v)] for v in step.inputs)
        if op.moves in ("copy", "identity"):
            # Nothing is written over in a graph, so a copy is as good as what it was made from.
            return inputs[:1]
        settled = self._settled(op, inputs, step)
        if settled is not None:
            return settled
        if -1 in step.attrs.get("shape", ()):
            step = _with_shape(step)
        empty = any(0 in v.shape for v in (*inputs, *step.outputs))
        if has_slots(step.attrs) or empty:
            return self._once(op, inputs, step.attrs)
        if op.family == "joining" and all(v.dtype == step.outputs[0].dtype for v in inputs):
            return self._once(ASSEMBLE, inputs, _joined(op, inputs, step))
        if op.family == "vjp":
            return self._slopes(op, inputs, step.attrs)
        if self._apart and is_plain_attention(op, inputs, step.attrs):
            return tuple(self(forward(op, inputs, step.attrs)))
        if op.name == "pad" and step.attrs["value"] == 0 and all(min(pair) >= 0 for pair in step.attrs["amounts"]):
            index = tuple((a, a + n, 1) for n, (a, _) in zip(inputs[0].shape, step.attrs["amounts"], strict=True))
            return self._once(REGISTRY["place"], inputs, {"shape": tuple(step.outputs[0].shape), "index": index})
        if op.name == "add" and _turned_alike(*inputs):
            # Added before they are turned: BLAS adds products as they lie.
            total = self._once(op, (inputs[0].step.inputs[0], inputs[1].step.inputs[0]), {})
            turn = inputs[0].step
            assert turn.op is not None
            return self._once(turn.op, total, turn.attrs)
        if op.name == "add" and inputs[0].shape == inputs[1].shape:
            together = self._put_together(op, inputs)
            if together is not None:
                return together
        return super()._lowered(step) if self._apart else self._once(op, inputs, step.attrs)

    def _settled(self, op: Op, inputs: tuple[Value, ...], step: Step) -> tuple[Value, ...] | None:
        """What a step on constants gives, as constants; None where each run must do it."""
        arrays = [_constant(v) for v in inputs]
        known = [a for a in arrays if a is not None]
        if len(known) < len(arrays) or op.family == "update" or has_slots(step.attrs):
            return None
        results = computed(op, known, step.attrs)
        if results is None:
            return None
        return tuple([self._lowered(_leaf_of(a).step)[0] for a in results])

    def _put_together(self, op: Op, inputs: tuple[Value, ...]) -> tuple[Value, ...] | None:
        """A sum of parts put into zeros is one array put together from all of them; those of one place are added."""
        first, second = (placed(v.step.op, v.step.attrs) for v in inputs)
        if first is None or second is None:
            return None
        parts = dict(zip(first, inputs[0].step.inputs, strict=True))
        if len(parts) < len(first):
            return None
        for index, part in zip(second, inputs[1].step.inputs, strict=True):
            parts[index] = self._once(op, (parts[index], part), {})[0] if index in parts else part
        attrs = {"shape": inputs[0].step.attrs["shape"], "indexes": tuple(parts)}
        return self._once(ASSEMBLE, tuple(parts.values()), attrs)

    def _leaf(self, step: Step) -> tuple[Value, ...]:
        """Leaves as they are; a constant array of one number is that number, stretched."""
        (v,) = step.outputs
        number = _only_number(step.leaf[1]) if step.name == "array" else None
        if number is None:
            return super()._leaf(step)
        one = super()._leaf(leaf("number", number, (), v.dtype).step)
        return self._once(REGISTRY["expand"], one, {"shape": tuple(v.shape)})

    def _slopes(self, op: Op, inputs: tuple[Value, ...], attrs: dict[str, Any]) -> tuple[Value, ...]:
        if self._apart and is_plain_attention(original(op), inputs, attrs):
            made = slopes_by(op, slopes, trace_ops, inputs, attrs)
            return tuple(self(made if isinstance(made, tuple) else (made,)))
        if not self._apart or not _is_simple(original(op)):
            return self._once(op, inputs, attrs)
        assert op.formula is not None
        try:
            made = op.formula(trace_ops, *inputs, **attrs)
        except (AttributeError, NotImplementedError, TypeError):
            # The rule looks at numbers that are not there yet.
            return self._once(op, inputs, attrs)
        return tuple(self(made if isinstance(made, tuple) else (made,)))


def _constant(v: Value) -> Array | None:
    """The array that a value is at every run; None for one that is not always the same."""
    if v.step.name == "expand":
        (inner,) = v.step.inputs
        number = _constant(inner) if inner.step.name == "number" else None
        return None if number is None else np.broadcast_to(number, v.shape)
    if v.step.name not in ("number", "array"):
        return None
    return np.asarray(v.step.leaf[1], v.dtype)


def _leaf_of(array: Array) -> Value:
    if array.ndim == 0:
        return leaf("number", array.item(), (), array.dtype)
    return leaf("array", array, array.shape, array.dtype)


def _is_simple(op: Op) -> bool:
    """Is the gradient of this op better as several ops that fuse with others?"""
    if op.family in ("elementwise", "fused") or op.view or op.fusible_gradient:
        return True
    return composition(op) is not None


def _only_number(array: Any) -> Any:
    """The number of which an array consists, if it is but one (with its sign, should it be zero)."""
    if array.size < 2 or array.dtype.kind not in "biuf":
        return None
    first = array.flat[0]
    if not (array == first).all() or (array.dtype.kind == "f" and np.signbit(array).any() != np.signbit(first)):
        return None
    return first.item()


def _turned_alike(a: Value, b: Value) -> bool:
    """Are both the same permutation of axes of products or sums of them?"""
    op = a.step.op
    if op is None or op is not b.step.op or op.moves != "permute" or a.step.attrs != b.step.attrs or a.shape != b.shape:
        return False
    inner = [v.step.inputs[0].step.op for v in (a, b)]
    return all(o is not None and (o.gemm != "" or o.name == "add") for o in inner)


def _with_shape(step: Step) -> Step:
    """A reshape that leaves a size to be found out, with the size that was found."""
    made = Step(step.op, step.inputs, step.attrs | {"shape": tuple(step.outputs[0].shape)})
    made.outputs = step.outputs
    return made


def _joined(op: Op, inputs: Sequence[Value], step: Step) -> dict[str, Any]:
    """Where the parts of a joined array lie."""
    out, dim = step.outputs[0], step.attrs["dim"]
    before = tuple((0, n, 1) for n in out.shape[:dim])
    indexes: list[Any] = []
    start = 0
    for number, part in enumerate(inputs):
        if op.name == "stack":
            indexes.append((*before, number))
        else:
            indexes.append((*before, (start, start + part.shape[dim], 1)))
            start += part.shape[dim]
    return {"shape": tuple(out.shape), "indexes": tuple(indexes)}


def uses_of(steps: Sequence[Step], outputs: Sequence[Value]) -> dict[Value, int]:
    """How often each value is read; one that is handed out counts as read once more."""
    found: dict[Value, int] = {}
    for step in steps:
        for v in step.inputs:
            found[v] = found.get(v, 0) + 1
    for v in outputs:
        found[v] = found.get(v, 0) + 1
    return found


def is_product(step: Step) -> bool:
    """Is this a product that BLAS computes?"""
    if step.op is None or not step.op.gemm:
        return False
    out = step.outputs[0]
    return out.dtype.char in "fd" and math.prod(out.shape) > 0 and step.inputs[0].shape[-1] > 0


def accumulations(steps: Sequence[Step], uses: dict[Value, int]) -> dict[Value, tuple[Value, Value]]:
    """Sums of a product and something that nobody else reads: the sum, and (what is added to, the product).

    Such a product is added to what is there by BLAS itself: the gradient of a weight that is used many times.
    """
    found: dict[Value, tuple[Value, Value]] = {}
    for step in steps:
        if step.op is None or step.op.name != "add":
            continue
        (out,) = step.outputs
        for x, product in (step.inputs, step.inputs[::-1]):
            if (
                x is not product
                and is_product(product.step) and uses[product] == 1 and uses[x] == 1
                and x.shape == product.shape == out.shape and x.dtype == product.dtype
                and (x in found or is_product(x.step)) and product not in found
            ):  # fmt: skip
                found[out] = (x, product)
                break
    return found

