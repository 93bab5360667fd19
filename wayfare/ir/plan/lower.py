"""Lowering for plans: ops that fuse are decomposed, ops that are fast as one stay one step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.codegen.runtime import kernel
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY, Op
from wayfare.core.spec import FLOAT_KINDS, OF_NUMPY
from wayfare.ir.assemble import ASSEMBLE, placed
from wayfare.ir.formulas import composition
from wayfare.ir.graph import Step, Value, has_slots, leaf, trace_ops
from wayfare.ir.lower import Lowering
from wayfare.ir.narrow_matmul import of_narrow
from wayfare.ir.passes.common_subexpressions import step_key
from wayfare.ir.passes.constant_folding import folded
from wayfare.ir.plan.attention import forward, input_grads, is_plain_attention
from wayfare.ir.vjp import input_grads_by, original


class PlanLowering(Lowering):
    """Lowers recorded graphs with known sizes."""

    def __init__(self, on_device: bool = False) -> None:
        super().__init__()
        self._on_device = on_device
        # Without native code every op is fastest if its own record runs it.
        self._decompose = kernel.available()

    def _lowered(self, step: Step) -> tuple[Value, ...]:
        op = step.op
        if op is None:
            return self._leaf(step)
        inputs = tuple(self._known[id(v)] for v in step.inputs)
        if op.moves == "identity" or op.moves == "copy":
            # Nothing is written over in a graph, so a copy is as good as what it was made from.
            return inputs[:1]
        arrays = folded(op, inputs, step.attrs)
        if arrays is not None:
            return tuple([self._lowered(_leaf_of(a).step)[0] for a in arrays])
        if -1 in step.attrs.get("shape", ()):
            step = _with_shape(step)
        empty = any(0 in v.shape for v in (*inputs, *step.outputs))
        if has_slots(step.attrs) or empty:
            return self._once(op, inputs, step.attrs)
        if op.family == "joining" and all(v.dtype == step.outputs[0].dtype for v in inputs):
            return self._once(ASSEMBLE, inputs, _joined(op, inputs, step))
        if op.family == "vjp":
            return self._input_grads(op, inputs, step.attrs)
        if self._decompose and is_plain_attention(op, (*inputs, *step.outputs), step.attrs, self._on_device):
            return tuple(self(forward(op, inputs, step.attrs)))
        if op.name == "pad" and step.attrs["value"] == 0 and all(min(pair) >= 0 for pair in step.attrs["amounts"]):
            index = tuple((a, a + n, 1) for n, (a, _) in zip(inputs[0].shape, step.attrs["amounts"], strict=True))
            return self._once(REGISTRY["place"], inputs, {"shape": tuple(step.outputs[0].shape), "index": index})
        found = self._for_device(op, inputs, step.attrs) if self._on_device else None
        if found is None:
            found = self._rearranged(op, inputs, step.attrs)
        if found is not None:
            return found
        return super()._lowered(step) if self._decompose else self._once(op, inputs, step.attrs)

    # -- for devices

    def _for_device(self, op: Op, inputs: tuple[Value, ...], attrs: dict[str, Any]) -> tuple[Value, ...] | None:
        """A form with fewer launches; None if there is none."""
        if op.name == "slice":
            return self._slice_of_sum(op, inputs, attrs)
        return of_narrow(self._once, op, inputs, attrs)

    def _slice_of_sum(self, op: Op, inputs: tuple[Value, ...], attrs: dict[str, Any]) -> tuple[Value, ...] | None:
        """A part of a product with a bias, such as the gates of a cell: the bias is added where the part is used."""
        total = inputs[0].step
        if total.name != "add" or not (is_matmul(total.inputs[0].step) and total.inputs[1].ndim == 1):
            return None
        made, bias = total.inputs
        if made.shape != inputs[0].shape:
            return None
        (part,) = self._once(op, (made,), attrs)
        if attrs["dim"] == made.ndim - 1 and bias.shape[0] != 1:
            (bias,) = self._once(op, (bias,), {**attrs, "dim": 0})
        assert total.op is not None
        return self._once(total.op, (part, bias), total.attrs)

    def _rearranged(self, op: Op, inputs: tuple[Value, ...], attrs: dict[str, Any]) -> tuple[Value, ...] | None:
        """A sum or difference in a form that needs less memory or fewer kernels; None if there is none."""
        if op.name == "sub":
            return self._subtracted(op, inputs, attrs)
        if op.name != "add":
            return None
        if _transposed_alike(*inputs):
            # Add before transposing: BLAS accumulates matmuls only in their own layout.
            total = self._once(op, (inputs[0].step.inputs[0], inputs[1].step.inputs[0]), {})
            permute = inputs[0].step
            assert permute.op is not None
            return self._once(permute.op, total, permute.attrs)
        return self._put_together(op, inputs) if inputs[0].shape == inputs[1].shape else None

    def _subtracted(self, op: Op, inputs: tuple[Value, ...], attrs: dict[str, Any]) -> tuple[Value, ...] | None:
        """`x - (a + b)`, if `(x - a) - b` is there already: the same, with one rounding less.

        The gradient of a normalisation centers its input again by the two parts of the mean. As one value with that of
        the forward pass, its result can be made from it again, and need not be kept.
        """
        x, total = inputs
        if total.step.name != "add":
            return None
        first = self._same.get(step_key(op, (x, total.step.inputs[0]), attrs))
        return None if first is None else self._same.get(step_key(op, (first[0], total.step.inputs[1]), attrs))

    def _put_together(self, op: Op, inputs: tuple[Value, ...]) -> tuple[Value, ...] | None:
        """The sum of two arrays that are zeros with parts written into them, as one `assemble`; parts at equal
        indexes are added."""
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
        """A constant array of equal numbers becomes one number, broadcast."""
        (v,) = step.outputs
        number = _only_number(step.data) if step.name == "array" else None
        if number is None:
            return super()._leaf(step)
        one = super()._leaf(leaf("number", number, (), v.dtype).step)
        return self._once(REGISTRY["expand"], one, {"shape": tuple(v.shape)})

    def _input_grads(self, op: Op, inputs: tuple[Value, ...], attrs: dict[str, Any]) -> tuple[Value, ...]:
        if self._decompose and is_plain_attention(original(op), inputs, attrs, self._on_device):
            made = input_grads_by(op, input_grads, trace_ops, inputs, attrs)
            return tuple(self(made if isinstance(made, tuple) else (made,)))
        if not self._decompose or not _is_simple(original(op)):
            return self._once(op, inputs, attrs)
        assert op.formula is not None
        try:
            made = op.formula(trace_ops, *inputs, **attrs)
        except (AttributeError, NotImplementedError, TypeError):
            # The rule reads numbers, which are not known yet.
            return self._once(op, inputs, attrs)
        return tuple(self(made if isinstance(made, tuple) else (made,)))


def _leaf_of(array: Array) -> Value:
    if array.ndim == 0:
        return leaf("number", array.item(), (), array.dtype)
    return leaf("array", array, array.shape, array.dtype)


def _is_simple(op: Op) -> bool:
    """Should the gradient of this op be decomposed into ops, which fuse with others?"""
    if op.family in ("elementwise", "fused") or op.view or op.fusible_gradient:
        return True
    return composition(op) is not None


def _only_number(array: Any) -> Any:
    """The number that all elements of an array equal (0.0 and -0.0 are different), else None."""
    if array.size < 2 or array.dtype not in OF_NUMPY:
        return None
    first = array.flat[0]
    if not (array == first).all() or (array.dtype.kind in FLOAT_KINDS and np.signbit(array).any() != np.signbit(first)):
        return None
    return first.item()


def _transposed_alike(a: Value, b: Value) -> bool:
    """Are both the same permutation of a matmul or a sum of matmuls?"""
    op = a.step.op
    if op is None or op is not b.step.op or op.moves != "permute":
        return False
    if a.step.attrs != b.step.attrs or a.shape != b.shape:
        return False
    inner = [v.step.inputs[0].step.op for v in (a, b)]
    return all(o is not None and (o.gemm != "" or o.name == "add") for o in inner)


def _with_shape(step: Step) -> Step:
    """A reshape with -1 replaced by the actual size."""
    made = Step(step.op, step.inputs, step.attrs | {"shape": tuple(step.outputs[0].shape)})
    made.outputs = step.outputs
    return made


def _joined(op: Op, inputs: Sequence[Value], step: Step) -> dict[str, Any]:
    """The attributes of the `assemble` that a `cat` or `stack` becomes."""
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
    """How often each value is read; an output counts as one more read."""
    found: dict[Value, int] = {}
    for step in steps:
        for v in step.inputs:
            found[v] = found.get(v, 0) + 1
    for v in outputs:
        found[v] = found.get(v, 0) + 1
    return found


def is_matmul(step: Step) -> bool:
    """Is this a matmul that BLAS computes?"""
    if step.op is None or not step.op.gemm:
        return False
    out = step.outputs[0]
    return out.dtype.char in "fd" and math.prod(out.shape) > 0 and step.inputs[0].shape[-1] > 0


def accumulations(steps: Sequence[Step], uses: dict[Value, int]) -> dict[Value, tuple[Value, Value]]:
    """Sums of a matmul and another value, both read only here: {sum: (other value, matmul)}.

    BLAS accumulates such a matmul in place, as in the gradient of a weight that is used many times.
    """
    found: dict[Value, tuple[Value, Value]] = {}
    for step in steps:
        if step.op is None or step.op.name != "add":
            continue
        (out,) = step.outputs
        for x, matmul in (step.inputs, step.inputs[::-1]):
            if (
                x is not matmul
                and is_matmul(matmul.step) and uses[matmul] == 1 and uses[x] == 1
                and x.shape == matmul.shape == out.shape and x.dtype == matmul.dtype
                and (x in found or is_matmul(x.step)) and matmul not in found
            ):  # fmt: skip
                found[out] = (x, matmul)
                break
    return found

