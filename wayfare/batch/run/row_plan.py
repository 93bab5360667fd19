"""How the calls of an opaque signature run natively: its function, and the gradient of it, as programs over rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.batch.record.call import Array, Row, row_of_array
from wayfare.batch.record.signature import Signature
from wayfare.codegen.routines.transposed_weights import transposed_copy
from wayfare.codegen.runtime.command import Unsuited
from wayfare.core.native import NATIVE
from wayfare.core.symbolic_sizes import size_classes, symbols_in
from wayfare.core.tensor import Tensor, wrap
from wayfare.ir.fuse.program import FusedProgram
from wayfare.ir.fuse.record import Factors
from wayfare.ir.graph import in_order
from wayfare.ir.plan.row_program import RowProgram

# Making a plan takes as long as running several groups, so a function gets one after so many groups.
AFTER_GROUPS = 8
# The most plans of one function: calls may pass ever new tensors that all rows share.
_MOST_PLANS = 32
# Numbers of rows for a trace: one is chosen that divides no other size, so sizes that depend on it can be told.
_SAMPLES = (167, 173, 179, 181, 191, 193, 197, 199, 211, 223, 227, 229)


class RowPlan:
    """The forward and the backward program of one signature, for inputs that need a gradient as `needs` says."""

    __slots__ = (
        "_layouts", "all_inputs", "backward", "backward_inputs", "factors", "forward", "grads", "kept_shared",
        "lasting", "outs", "reached_by", "row_places", "row_sources", "shared", "shared_needs",
    )  # fmt: skip

    def __init__(self, signature: Signature, rows: Sequence[Row], needs: tuple[bool, ...]) -> None:
        sizes = [n for row in rows for n in row.shape]
        sample = next((n for n in _SAMPLES if all(size % n or not size for size in sizes)), 0)
        if not sample:
            raise Unsuited
        tensors = []
        given = iter(zip(rows, needs, strict=True))
        for shared in signature.pattern:
            if shared is None:
                row, need = next(given)
                shared = wrap(np.empty((sample, *row.shape), row.dtype))
                shared._requires_grad = need
            tensors.append(shared)
        flags = tuple([shared is None for shared in signature.pattern])
        traced = signature.target.traced_over_rows(flags, tensors, signature.grad)
        if traced is None or traced.record.shares_memory:
            raise Unsuited
        record = traced.record
        self.outs = len(signature.outs)
        # For each input, whether it gets a gradient from those of the outputs.
        self.reached_by = record.reached_by
        # The numbers of the row inputs among all.
        row_inputs = [i for i, t in enumerate(signature.pattern) if t is None]
        # Tensors that all rows share, by number of the input.
        everything = [*signature.pattern, *traced.captured]
        self.shared: dict[int, Tensor] = {i: t for i, t in enumerate(everything) if t is not None}
        self.shared_needs = tuple([t._requires_grad for t in self.shared.values()])
        self._layouts = {i: (t._array.shape, t._array.dtype) for i, t in self.shared.items()}
        if any([n % sample == 0 for shape, _ in self._layouts.values() for n in shape]):
            raise Unsuited
        # The symbol that stands for the number of rows.
        rows_symbol = size_classes([t._array.shape for t in tensors])[1].index(sample)
        differentiable = signature.grad and bool(record.wanted)
        self.forward = _program(record.forward, sample, rows_symbol, gathers=True, keeps=differentiable)
        self.all_inputs = range(len(everything))
        self.row_places: list[Any] = [self.forward.inputs[i] for i in row_inputs]
        self.backward: RowProgram | None = None
        # What the backward program takes: the numbers of its inputs, and what those are that have rows. What it gives:
        # gradients of these row inputs, then factors of the gradients of shared tensors. `lasting` are its arrays with
        # factors, which the last product reads.
        self.backward_inputs: list[int] = []
        self.row_sources: list[tuple[str, int]] = []
        self.grads: list[int] = []
        self.factors: list[Factors] = []
        self.lasting: list[bool] = []
        if differentiable:
            if not all([row.is_float for row in signature.outs]):
                raise Unsuited
            self.grads = [row_inputs.index(i) for i in record.whole if i in row_inputs]
            self.factors = record.factors
            factored = [i for f in self.factors for i in (f.matrix, f.vector) if i is not None]
            if len(self.grads) < len(record.whole) or not self.shared.keys() >= set(factored):
                raise Unsuited
            self.backward = _program(record.factored, sample, rows_symbol)
            used = {self.backward.outputs[k].buffer for k in range(len(self.grads), len(self.backward.outputs))}
            first = self.backward.first_array
            self.lasting = [first + k in used for k in range(len(self.backward.arrays))]
            self.backward_inputs = [i for _, i in record.sources]
            for (kind, i), place in zip(record.sources, self.backward.inputs, strict=True):
                if place is not None:
                    self.row_sources.append((kind, row_inputs.index(i) if kind == "input" else i))
        # The shared tensors that the gradient needs.
        self.kept_shared = [] if self.backward is None else [
            self.shared[i] for (kind, i) in record.sources if kind == "input" and i in self.shared
        ]  # fmt: skip

    def arrays_of_shared(
        self, program: RowProgram, numbers: Sequence[int], held: dict[int, Array]
    ) -> list[Array] | None:
        """The arrays of shared tensors that a program takes; `numbers` are the inputs' numbers among those of the
        function, `held` are the arrays by id of the tensor. None if their layout is not that of the plan."""
        found = []
        for i, turned in program.shared:
            tensor = self.shared[numbers[i]]
            # What the function makes itself, as `zeros(3)`, is a constant of the plan.
            array = held.get(id(tensor), tensor._array)
            if not array.flags.c_contiguous or (array.shape, array.dtype) != self._layouts[numbers[i]]:
                return None
            found.append(transposed_copy(array) if turned else array)
        return found


def _program(fused: FusedProgram, sample: int, rows_symbol: int, **options: bool) -> RowProgram:
    for step in in_order(fused.outputs):
        # No number may depend on the number of rows, only shapes.
        moves = step.op is not None and (step.op.view or step.op.family in ("joining", "movement"))
        if not moves and rows_symbol in symbols_in(step.data if step.op is None else step.attrs):
            raise Unsuited
    return RowProgram(fused.inputs, fused.outputs, sample, **options)


def row_plan(signature: Signature, inputs: Sequence[Any], needs: tuple[bool, ...]) -> RowPlan | None:
    """The plan for calls of a signature; None if they do not run natively, or not yet."""
    if NATIVE is None:
        return None
    plans: dict[Any, Any] = signature.target.row_plans
    flags = tuple([shared is None for shared in signature.pattern])
    key = (signature.grad, flags, needs, *[id(t) for t in signature.pattern if t is not None])
    found = plans.get(key, 0)
    if found.__class__ is int:
        if len(plans) >= _MOST_PLANS and not found:
            plans.clear()
        plans[key] = found + 1
        if found < AFTER_GROUPS:
            return None
        try:
            found = RowPlan(signature, [_row_of(v) for v in inputs], needs)
        except Unsuited:
            found = None
        plans[key] = found
    if found is not None and found.shared_needs != tuple([t._requires_grad for t in found.shared.values()]):
        return None
    return found  # type: ignore[no-any-return]


def _row_of(value: Any) -> Row:
    """The row of an input of a call."""
    return row_of_array(value._array) if isinstance(value, Tensor) else value.row
