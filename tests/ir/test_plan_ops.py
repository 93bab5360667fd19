"""Every op record as a plan of one step, and its gradient: values as its own forward and as the backward pass gives."""

import numpy as np
import pytest

import wayfare  # noqa: F401 - fills the registry
from wayfare.api.testing.every_op import samples_of
from wayfare.autograd.backward import backward
from wayfare.core.dispatch import apply
from wayfare.core.op import REGISTRY, joint
from wayfare.core.spec import spec_of
from wayfare.core.tensor import wrap
from wayfare.ir.graph import leaf, record
from wayfare.ir.plan.plan import Plan
from wayfare.ir.vjp import vjp_inputs, vjp_op

NAMES = sorted(name for name, op in REGISTRY.items() if not op.random)


def listed(made):
    return list(made) if isinstance(made, (tuple, list)) else [made]


def run_as_plan(op, arrays, attrs):
    """One step as a plan, results in arrays of their own."""
    values = [leaf("input", i, a.shape, a.dtype) for i, a in enumerate(arrays)]
    made = Plan(op.name, values, listed(record(op, values, attrs)), [], arrays).run(arrays)
    assert not any(np.may_share_memory(m, a) for m in made for a in arrays)
    return made


def close(got, want):
    want = np.asarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)


def gradient_positions(op, sample):
    floats = [i for i, x in enumerate(sample.inputs) if x.dtype == np.float64 and x.size]
    if op.vjp is None or not sample.smooth:
        return []
    if isinstance(op.vjp, joint):
        return floats
    return [i for i in floats if op.vjp[i] is not None and not getattr(op.vjp[i], "refuses", False)]


# Elementwise records are kernels anyway: tests of their loops are elsewhere, here it is their gradients that count.
@pytest.mark.parametrize("name", [name for name in NAMES if REGISTRY[name].family != "elementwise"])
def test_a_record_as_a_plan(name):
    op = REGISTRY[name]
    for sample in samples_of(op):
        for got, want in zip(run_as_plan(op, sample.inputs, sample.attrs),
                             listed(op.forward(*sample.inputs, **sample.attrs)), strict=True):  # fmt: skip
            close(got, want)


@pytest.mark.parametrize("name", [name for name in NAMES if REGISTRY[name].vjp is not None])
def test_the_gradient_of_a_record_as_a_plan(name):
    op = REGISTRY[name]
    rng = np.random.default_rng(1)
    for sample in samples_of(op):
        wanted = gradient_positions(op, sample)
        tensors = [wrap(np.array(x)) for x in sample.inputs]
        for i in wanted:
            tensors[i].requires_grad_()
        outputs = listed(apply(op, tuple(tensors), sample.attrs)) if wanted else []
        live = [o for o in outputs if o.requires_grad]
        if not live:
            continue
        seeds = {id(o): rng.normal(size=o.shape) for o in live}
        backward(live, [wrap(np.array(seeds[id(o)])) for o in live])
        given = tuple(i for i in wanted if tensors[i].grad is not None)
        needs = tuple(i in wanted for i in range(len(tensors)))
        grads = [None if id(o) not in seeds else np.asarray(seeds[id(o)]) for o in outputs]
        taken, made = [t._array for t in tensors], [o._array for o in outputs]
        slope = vjp_op(op, needs, tuple(g is not None for g in grads), given, tuple(map(spec_of, made)),
                       tuple(map(spec_of, taken)))  # fmt: skip
        arrays = vjp_inputs(op, needs, grads, made, taken)
        raw = listed(slope.forward(*arrays, **sample.attrs))
        for i, got, by_rule in zip(given, run_as_plan(slope, arrays, sample.attrs), raw, strict=True):
            close(got, tensors[i].grad.numpy())
            close(np.asarray(by_rule), tensors[i].grad.numpy())
