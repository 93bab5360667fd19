"""Graphs for the tests of plans: a function traced with concrete sizes, and its backward pass, one vjp step a node."""

import numpy as np

import wayfare as wf
from wayfare.api.fused import TracedValue, TraceExecutor
from wayfare.core.mode import STATE, changed_mode
from wayfare.core.stand_in import stand_in
from wayfare.ir.graph import in_order, leaf, record, run
from wayfare.ir.plan.plan import Plan
from wayfare.ir.vjp import vjp_inputs, vjp_op


def traced(function, arrays, needs):
    """The inputs and outputs of a function as values."""
    inputs = [leaf("input", i, a.shape, a.dtype) for i, a in enumerate(arrays)]
    executor = TraceExecutor(len(inputs), STATE.mode)
    with changed_mode(executor=executor):
        made = function(*[stand_in(TracedValue(v), need) for v, need in zip(inputs, needs, strict=True)])
    outputs = [executor.value(t) for t in (made if isinstance(made, (tuple, list)) else [made])]
    for v, t in zip(executor.captured_values(), executor.captured, strict=True):
        v.step.kind, v.step.data = "array", t._array
    return inputs, outputs


def input_grads(outputs, wanted):
    """The gradients of the sum of the outputs by some inputs, as a recorded backward pass computes them."""
    arrived = {}
    for v in outputs:
        if v.dtype.kind == "f":
            seed = run("expand", leaf("number", 1.0, (), v.dtype), shape=v.shape)
            arrived[v] = seed if v not in arrived else arrived[v] + seed
    steps = in_order(outputs)
    reached = {id(v.step) for v in wanted}
    for step in steps:
        if step.op is not None and step.op.vjp is not None and any(id(v.step) in reached for v in step.inputs):
            reached.add(id(step))
    for step in reversed(steps):
        op = step.op
        if op is None or id(step) not in reached or not any(v in arrived for v in step.outputs):
            continue
        needs = tuple(id(v.step) in reached and v.dtype.kind == "f" for v in step.inputs)
        rules = op.vjp if isinstance(op.vjp, tuple) else needs
        given = tuple(i for i, need in enumerate(needs) if need and rules[i] is not None)
        grads = [arrived.get(v) for v in step.outputs]
        if not given:
            continue
        made = vjp_op(op, needs, tuple(g is not None for g in grads), given, tuple(v.spec for v in step.outputs),
                      tuple(v.spec for v in step.inputs))  # fmt: skip
        found = record(made, vjp_inputs(op, needs, grads, step.outputs, step.inputs), step.attrs)
        for i, g in zip(given, found if isinstance(found, tuple) else (found,), strict=True):
            x = step.inputs[i]
            arrived[x] = arrived[x] + g if x in arrived else g
    return [arrived.get(v) for v in wanted]


def planned(function, arrays, needs=None, name="test"):
    """A plan for the outputs of a function and the gradients of their sum by the inputs that need one."""
    needs = [a.dtype.kind == "f" for a in arrays] if needs is None else needs
    inputs, outputs = traced(function, arrays, needs)
    grads = input_grads(outputs, [v for v, need in zip(inputs, needs, strict=True) if need])
    return Plan(name, inputs, [*outputs, *(g for g in grads if g is not None)], [], arrays)


def eager(function, arrays, needs=None):
    """The same op by op."""
    needs = [a.dtype.kind == "f" for a in arrays] if needs is None else needs
    tensors = [wf.tensor(np.array(a), requires_grad=need) for a, need in zip(arrays, needs, strict=True)]
    made = function(*tensors)
    outputs = list(made) if isinstance(made, (tuple, list)) else [made]
    live = [o for o in outputs if o.requires_grad]
    if live:
        wf.autograd.backward(live, [wf.ones_like(o) for o in live])
    return [o.detach().numpy() for o in outputs] + [t.grad.numpy() for t in tensors if t.grad is not None]


def check(function, arrays, needs=None, tolerance=None, name="test"):
    """Plan and op by op agree, twice over, in memory of their own; gives the plan back."""
    plan = planned(function, arrays, needs, name)
    want = eager(function, arrays, needs)
    before = [a.copy() for a in arrays]
    first = plan.run(arrays)
    assert len(first) == len(want)
    held = [a.copy() for a in first]
    second = plan.run(arrays)
    for got, again, expected, own in zip(first, second, want, held, strict=True):
        assert got.shape == expected.shape and got.dtype == expected.dtype
        rtol = tolerance or {"e": 2e-2, "f": 1e-4}.get(got.dtype.char, 1e-8)
        np.testing.assert_allclose(got.astype(float), expected.astype(float), rtol=rtol, atol=rtol)
        np.testing.assert_array_equal(got, own)
        np.testing.assert_array_equal(got, again)
    everything = [*first, *second, *arrays]
    for i, a in enumerate(first):
        assert not any(np.may_share_memory(a, b) for k, b in enumerate(everything) if k != i)
    for a, b in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(a, b)
    return plan
