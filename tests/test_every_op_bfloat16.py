"""Every record takes bfloat16 as it takes float32: computed in float32, and rounded once. Made from the registry."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.api.testing import every_op
from wayfare.autograd.backward import backward
from wayfare.core.dispatch import apply
from wayfare.core.errors import DTypeError
from wayfare.core.op import REGISTRY, VALUE, joint
from wayfare.core.spec import BFLOAT16
from wayfare.core.tensor import wrap

DETERMINISTIC = [name for name in sorted(REGISTRY) if not REGISTRY[name].random]
DIFFERENTIABLE = [name for name in DETERMINISTIC if REGISTRY[name].vjp is not None]
# Linear algebra has no narrow floats, as in PyTorch.
REFUSES = "linear algebra"


def _narrow(sample):
    return [x.astype(BFLOAT16) if x.dtype == np.float64 else x for x in sample.inputs]


def _wide(arrays):
    return [x.astype(np.float32) if x.dtype == BFLOAT16 else x for x in arrays]


def _listed(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _close(got, want, what, ulps=1):
    """Within so many units in the last place of bfloat16."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    np.testing.assert_allclose(got, want, rtol=ulps * 2.0**-8, atol=1e-30, err_msg=what)


def _samples(op):
    return [s for s in every_op.samples_of(op) if any(x.dtype == np.float64 for x in s.inputs)]


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_forward_is_that_of_float32_rounded_once(name):
    op = REGISTRY[name]
    for sample in _samples(op):
        arrays = _narrow(sample)
        what = f"{name} {sample.attrs} {[x.shape for x in arrays]}"
        try:
            said = [s.dtype for s in _listed(op.infer(*[wrap(x).spec for x in arrays], **sample.attrs))]
        except DTypeError:
            assert op.family == REFUSES or "f" not in op.kinds, what
            return
        made = [t._array for t in _listed(apply(op, tuple(map(wrap, arrays)), dict(sample.attrs)))]
        assert [wrap(a).dtype for a in made] == said, what
        if op.as_is:
            continue
        for got, want in zip(made, _listed(op.forward(*_wide(arrays), **sample.attrs)), strict=True):
            _close(got, np.asarray(want).astype(got.dtype), what)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_the_form_for_large_arrays_agrees(name):
    op = REGISTRY[name]
    if op.large is None:
        return
    for sample in _samples(op):
        arrays = _narrow(sample)
        if any(x.size == 0 for x in arrays) or op.family == REFUSES or "f" not in op.kinds:
            continue
        made = _listed(op.large(*arrays, **sample.attrs))
        for got, want in zip(made, _listed(op.forward_for([BFLOAT16])(*arrays, **sample.attrs)), strict=True):
            assert got.dtype == want.dtype, name
            _close(got, want, f"{name} {sample.attrs}")


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient_is_that_of_float32_rounded_once(name):
    op = REGISTRY[name]
    if op.family == REFUSES:
        return
    for sample in _samples(op):
        arrays = _narrow(sample)
        positions = [i for i, x in enumerate(arrays) if x.dtype == BFLOAT16]
        if not isinstance(op.vjp, joint):
            positions = [i for i in positions if op.vjp[i] and not getattr(op.vjp[i], "refuses", False)]
        if not positions or not sample.smooth:
            continue
        found = []
        for given in (arrays, _wide(arrays)):
            tensors = [wrap(np.array(x)) for x in given]
            for i in positions:
                tensors[i].requires_grad_()
            outs = [o for o in _listed(apply(op, tuple(tensors), dict(sample.attrs))) if o.requires_grad]
            seeds = [np.random.default_rng(1).normal(size=o.shape).astype(BFLOAT16) for o in outs]
            if outs:
                backward(outs, [wrap(s.astype(o._array.dtype)) for s, o in zip(seeds, outs, strict=True)])
            found.append([tensors[i].grad for i in positions])
        for narrow, wide in zip(*found, strict=True):
            assert (narrow is None) == (wide is None), name
            if narrow is not None:
                assert narrow.dtype is wf.bfloat16, name
                got, want = narrow._array.astype(np.float64), wide._array.astype(np.float64)
                # A rule that reads its output reads a rounded one: 1 - y * y has few digits left where y is near 1.
                reads_output = op.keeps((True,) * len(arrays))[0] == VALUE
                rtol = 2.0**-3 if reads_output else 2.0**-6
                # Where inputs were broadcast, rounded gradients are summed.
                atol = rtol * float(np.abs(want).max(initial=0)) * (2 if op.broadcasts else 0.5) + 1e-7
                np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=f"{name} {sample.attrs}")
