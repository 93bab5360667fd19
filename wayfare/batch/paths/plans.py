"""A block as plans for one size of batch: one native call forward, and one for the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.batch.garbage_collection import COLLECTOR
from wayfare.core.numpy_math import Array
from wayfare.core.spec import FLOAT_KINDS
from wayfare.ir.fuse.record import STOP
from wayfare.ir.gradient import gradients, needed_from, standing_on
from wayfare.ir.graph import Value, in_order, leaf, record, run, trace_ops
from wayfare.ir.lower import Lowering
from wayfare.ir.plan.plan import Plan


def size_of_plan(count: int) -> int:
    """The size of the plan that runs `count` examples. Planning takes as long as several runs, so there are only a few
    sizes, and the last rows are filled up: by at most a half for few examples, by a quarter for many."""
    steps = 1 if count <= 32 else 2
    step = 1 << max((count - 1).bit_length() - 1 - steps, 0)
    return -(-count // step) * step


def traced(
    values: Sequence[Value], known: dict[Value, Value], batched: set[Value], cuts: dict[Value, tuple[bool, ...]],
    size: int,
) -> list[Value]:  # fmt: skip
    """The steps that compute values, for a batch. `known` has what stands for the values that exist, `batched` tells
    which of them have a row for each example."""
    given = {id(v.step) for v in known}
    for step in in_order(values, given):
        if step.op is None:
            known.setdefault(step.outputs[0], step.outputs[0])
        elif id(step) not in given:
            inputs = [known[v] for v in step.inputs]
            for i, stops in enumerate(cuts.get(step.outputs[0], ())):
                if stops:
                    inputs[i] = record(STOP, (inputs[i],), {})
            flags = tuple([v in batched for v in step.inputs])
            if any(flags):
                made = step.op.batch(trace_ops, size, tuple(inputs), flags, step.attrs)
                batched.update(step.outputs)
            else:
                made = record(step.op, inputs, step.attrs)
            known.update(zip(step.outputs, made if isinstance(made, (tuple, list)) else (made,), strict=True))
    return [known[v] if v in batched else run("expand", known[v], shape=(size, *v.shape)) for v in values]


class BlockPlan:
    """The plans of one block for a batch of one size."""

    def __init__(
        self, name: str, rows: Sequence[Value], shared: Sequence[Value], targets: Sequence[Value],
        cuts: dict[Value, tuple[bool, ...]], size: int, needs: Sequence[bool], samples: Sequence[Array],
    ) -> None:  # fmt: skip
        """`needs` says which of the inputs (rows, then shared) need a gradient; `samples` are arrays like theirs."""
        self.name = name
        self.size = size
        self._rows = len(rows)
        leaves = [leaf("input", i, a.shape, a.dtype) for i, a in enumerate(samples)]
        outputs = traced(targets, dict(zip([*rows, *shared], leaves, strict=True)), set(rows), cuts, size)
        lowering = Lowering()
        lowering(leaves)
        lowered = lowering(outputs)
        wanted = [v for v, need in zip(leaves, needs, strict=True) if need]
        self._wanted = [i for i, need in enumerate(needs) if need]
        reached = _depend_on(outputs, wanted)
        # For each output: does it carry a gradient?
        self.carries = [v in reached for v in outputs]
        hidden: list[Value] = []
        # The inputs of the gradient: ("given" | "output" | "input", number).
        self._sources: list[tuple[str, int]] = []
        self._zeros: dict[int, Array] = {}
        self._backward: Plan | None = None
        if any(self.carries):
            given = [leaf("input", len(leaves) + i, v.shape, v.dtype) for i, v in enumerate(outputs)]
            arriving = [g if carries else None for g, carries in zip(given, self.carries, strict=True)]
            found = gradients(outputs, arriving, wanted)
            input_grads = lowering([g for g in found if g is not None])
            lowering(given)
            needed = needed_from(lowered, input_grads)
            known = {*leaves, *lowered, *given}
            hidden = [v for v in needed if v not in known]
            places = {v: ("given", i) for i, v in enumerate(given)}
            places |= {v: ("output", i) for i, v in enumerate([*lowered, *hidden])}
            places |= {v: ("input", i) for i, v in enumerate(leaves)}
            self._sources = [places[v] for v in needed]
            self._backward_graph = standing_on(input_grads, needed)
            self._wanted = [i for i, g in zip(self._wanted, found, strict=True) if g is not None]
        self._outputs = outputs
        # The shared inputs, and the outputs, that the gradient reads.
        self.reads_shared = [i - len(rows) for kind, i in self._sources if kind == "input" and i >= len(rows)]
        self.reads_outputs = {i for kind, i in self._sources if kind == "output" and i < len(outputs)}
        self._inputs = len(leaves)
        self._forward = Plan(name, leaves, [*lowered, *hidden], [], samples)

    def forward(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs, and further values that the gradient reads."""
        return self._forward.run(arrays)

    @property
    def has_backward(self) -> bool:
        """Is its gradient planned already?"""
        return self._backward is not None

    def backward(self, grads: Sequence[Array | None], arrays: Sequence[Array], made: Sequence[Array]) -> list[Any]:
        """The gradients of the inputs, from those of the outputs, the inputs and what `forward` returned."""
        given = []
        for kind, i in self._sources:
            if kind == "input":
                given.append(arrays[i])
            elif kind == "output":
                given.append(made[i])
            else:
                g = grads[i]
                given.append(self._zero(i) if g is None else g)
        if self._backward is None:
            inputs, values = self._backward_graph
            COLLECTOR.enter()
            try:
                self._backward = Plan(f"{self.name}_backward", inputs, values, [], given)
            finally:
                COLLECTOR.leave()
        found: list[Any] = [None] * self._inputs
        for i, array in zip(self._wanted, self._backward.run(given), strict=True):
            found[i] = array
        return found

    def _zero(self, number: int) -> Array:
        found = self._zeros.get(number)
        if found is None:
            v = self._outputs[number]
            found = self._zeros[number] = self._forward.target.zeros(v.shape, v.dtype)
        return found


def _depend_on(values: Sequence[Value], wanted: Sequence[Value]) -> set[Value]:
    """The values that have a gradient with respect to the wanted leaves."""
    reached = set(wanted)
    for step in in_order(values):
        op = step.op
        if op is not None and op.vjp is not None and any([v in reached for v in step.inputs]):
            with_grad = op.differentiable_outputs
            reached.update([v for i, v in enumerate(step.outputs)
                            if v.dtype.kind in FLOAT_KINDS and (with_grad is None or i in with_grad)])  # fmt: skip
    return reached
