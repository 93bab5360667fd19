"""Symbolic gradients: the gradient rules of the ops, traced backwards over a graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wayfare.core.op import joint
from wayfare.core.spec import FLOAT_KINDS
from wayfare.ir.fuse.expressions import cost_of_op
from wayfare.ir.graph import Step, Value, in_order, leaf, run, trace_ops
from wayfare.ir.lower import Lowering


def gradients(outputs: Sequence[Value], grads: Sequence[Value | None], wanted: Sequence[Value]) -> list[Value | None]:
    """The gradient of each wanted leaf, given those of the outputs; None if the outputs do not depend on it."""
    steps = in_order(outputs)
    reached = {id(v.step) for v in wanted}
    for step in steps:
        if any(id(v.step) in reached for v in step.inputs) and step.op is not None and step.op.vjp is not None:
            reached.add(id(step))
    arrived: dict[Value, Value] = {}
    for v, g in zip(outputs, grads, strict=True):
        if g is not None and v.dtype.kind in FLOAT_KINDS:
            arrived[v] = arrived[v] + g if v in arrived else g
    for step in reversed(steps):
        if step.op is None or id(step) not in reached or not any(v in arrived for v in step.outputs):
            continue
        for x, g in zip(step.inputs, _of_inputs(step, arrived, reached), strict=True):
            if g is not None and id(x.step) in reached:
                if step.op.broadcasts and g.shape != x.shape:
                    g = run("sum_to", g, shape=x.shape)
                arrived[x] = arrived[x] + g if x in arrived else g
    return [arrived.get(v) for v in wanted]


def _of_inputs(step: Step, arrived: dict[Value, Value], reached: set[int]) -> Sequence[Value | None]:
    op = step.op
    assert op is not None
    needs = tuple(id(v.step) in reached and v.dtype.kind in FLOAT_KINDS for v in step.inputs)
    g: Any
    y: Any
    if op.outputs == 1:
        y, g = step.outputs[0], arrived[step.outputs[0]]
    else:
        read = op.kept_outputs
        y = tuple(v if read is None or i in read else None for i, v in enumerate(step.outputs))
        g = tuple(arrived.get(v) if v in arrived or op.takes_none else _zeros(v) for v in step.outputs)
    kept = op.packer(needs)(y, *step.inputs)
    if isinstance(op.vjp, joint):
        return list(op.vjp.rule(trace_ops, needs, g, *kept, **step.attrs))
    assert op.vjp is not None
    return [rule(trace_ops, g, *kept, **step.attrs) if wanted and rule is not None else None
            for wanted, rule in zip(needs, op.vjp, strict=True)]  # fmt: skip


def reached(outputs: Sequence[Value], wanted: Sequence[Value]) -> list[bool]:
    """For each wanted leaf, whether it gets a gradient if these outputs get one."""
    found = set(outputs)
    stack = [v for v in outputs if v.dtype.kind in FLOAT_KINDS]
    while stack:
        v = stack.pop()
        op = v.step.op
        if op is None or op.vjp is None:
            continue
        for i, x in enumerate(v.step.inputs):
            has_rule = isinstance(op.vjp, joint) or op.vjp[i] is not None
            if has_rule and x not in found and x.dtype.kind in FLOAT_KINDS:
                found.add(x)
                stack.append(x)
    return [v in found for v in wanted]


def _zeros(v: Value) -> Any:
    return run("expand", leaf("number", 0, (), v.dtype), shape=v.shape)


def is_opaque(step: Step) -> bool:
    """Can a step not be written as a loop, so that only its own record can run it?"""
    if step.op is None or step.op.view or step.op.loop_reduction:
        return False
    return math.isinf(cost_of_op(step.op, [v.dtype for v in step.inputs], step.attrs, step.outputs[0].dtype))


def needed_from(forward: Sequence[Value], backward: Sequence[Value]) -> list[Value]:
    """The values of a forward graph that a backward graph reads (both lowered): inputs, outputs, and results of
    reductions and opaque ops. All other forward values are rematerialised from these."""
    available = {id(step) for step in in_order(forward)}
    small = _small(forward)
    results = set(forward)
    found: dict[Value, None] = {}
    seen: set[Value] = set()
    stack = list(backward)
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        step = v.step
        if step.op is None:
            if step.name == "input":
                found[v] = None
        elif id(step) in available and (v in results or v in small or is_opaque(step)):
            found[v] = None
        else:
            stack.extend(step.inputs)
    return sorted(found, key=lambda v: (v.step.born, v.position))


def _small(forward: Sequence[Value]) -> set[Value]:
    """Results of reductions, and values of the same size computed from them."""
    found: set[Value] = set()
    for step in in_order(forward):
        if step.op is None or step.op.name == "expand":
            continue
        out = step.outputs[0]
        if step.op.loop_reduction or (
            not is_opaque(step) and any(v in found and v.size == out.size for v in step.inputs)
        ):
            found.add(out)
    return found


def standing_on(values: Sequence[Value], leaves: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """New inputs in place of the lowered values `leaves`, and `values` computed from these inputs."""
    lowering = Lowering()
    inputs = [leaf("input", i, v.shape, v.dtype) for i, v in enumerate(leaves)]
    lowering.replace(leaves, inputs)
    return inputs, lowering(values)
