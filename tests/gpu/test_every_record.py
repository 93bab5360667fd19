"""Every record on the device: its samples forward and backward, in float32 and float64, against the CPU."""

import numpy as np
import pytest

import wayfare as wf
from tests.gpu.conftest import REAL
from wayfare.api.testing.every_op import samples_of
from wayfare.core.device import CPU, to_host
from wayfare.core.dispatch import apply
from wayfare.core.op import REGISTRY, joint
from wayfare.core.tensor import wrap
from wayfare.errors import DTypeError
from wayfare.ops.cuda import backend  # noqa: F401 - it loads what says how records run there
from wayfare.ops.cuda.table import ON_HOST, OVERRIDES, PLAIN, way

ALL = sorted(REGISTRY)
DECOMPOSED = {op.name for op in REGISTRY.values() if op.family == "linear algebra"} - {"cross", "pivot_matrix"}
TOLERANCE = {"float32": {"rtol": 2e-4, "atol": 2e-5}, "float64": {"rtol": 1e-8, "atol": 1e-10}}
# Relative to the largest number: both sides round once, but not always the same sum.
ROUNDING = {"float16": 3e-3, "bfloat16": 2e-2}


def test_every_record_has_a_way_and_only_one():
    assert [name for name in ALL if not way(REGISTRY[name])] == []
    assert not (set(OVERRIDES) & set(ON_HOST)) and not (set(OVERRIDES) & PLAIN) and not (set(ON_HOST) & PLAIN)


def listed(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


def wants_gradient(op, sample, position):
    """Does the rule of this input give a gradient at this sample?"""
    if op.vjp is None or sample.inputs[position].dtype.kind != "f":
        return False
    rule = None if isinstance(op.vjp, joint) else op.vjp[position]
    return isinstance(op.vjp, joint) or (rule is not None and not getattr(rule, "refuses", False))


def run(op, sample, arrays, place, create=False):
    """(outputs, gradients) of a sample on a device, as NumPy arrays."""
    tensors = [wrap(np.array(x)).to(place).detach() for x in arrays]
    for i, t in enumerate(tensors):
        if wants_gradient(op, sample, i):
            t.requires_grad_()
    attrs = sample.attrs if not op.any_device else {"device": "cuda:0", "source": str(tensors[0].device)}
    outs = listed(apply(op, tuple(tensors), attrs))
    for out in outs:
        assert op.any_device or not tensors or out.device.type == place.type, f"{op.name} gave {out.device}"
    live = [o for o in outs if o.requires_grad]
    values = [to_host(o.detach()._array) for o in outs]
    wanted = [t for t in tensors if t.requires_grad]
    if not live or not wanted:
        return values, []
    rng = np.random.default_rng(1)
    seeds = [wrap(np.asarray(rng.normal(size=o.shape), o.dtype.numpy)).to(o.device) for o in live]
    grads = wf.autograd.grad(live, wanted, seeds, allow_unused=True, create_graph=create)
    for g, t in zip(grads, wanted, strict=True):
        assert g is None or g.device == t.device, f"{op.name}: a gradient on {g.device} for a tensor on {t.device}"
    return values, [None if g is None else to_host(g.detach()._array) for g in grads]


@pytest.mark.parametrize("create", [False, True], ids=["raw", "recorded"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ALL)
def test_it_agrees_with_the_cpu(cuda, name, dtype, create):
    op = REGISTRY[name]
    for sample in samples_of(op):
        arrays = [x.astype(dtype) if x.dtype == np.float64 else x for x in sample.inputs]
        there, by_there = run(op, sample, arrays, wf.device("cuda"), create)
        here, by_here = run(op, sample, arrays, CPU, create)
        if REAL and name == "cofactors" and not sample.smooth:  # rounding decides between infinite and NaN
            by_there = by_here = []
        if REAL and name in ("eigh", "svd"):  # vectors have any sign, so their gradients differ, too
            there, here, by_there, by_here = [abs(x) for x in there], [abs(x) for x in here], [], []
        for got, want in zip([*there, *by_there], [*here, *by_here], strict=True):
            assert (got is None) == (want is None)
            if got is not None:
                assert got.dtype == want.dtype and got.shape == want.shape, f"{name} {sample.attrs}"
                np.testing.assert_allclose(got, want, err_msg=f"{name} {sample.attrs}", **TOLERANCE[dtype])
    cuda.check_now()


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", ALL)
def test_halves_agree_with_the_cpu(cuda, name, dtype):
    op, wanted = REGISTRY[name], getattr(wf, dtype).numpy
    for sample in samples_of(op):
        arrays = [x.astype(wanted) if x.dtype == np.float64 else x for x in sample.inputs]
        if name in DECOMPOSED:
            with pytest.raises(DTypeError, match="has no linear algebra"):
                run(op, sample, arrays, wf.device("cuda"))
            continue
        here, by_here = run(op, sample, arrays, CPU)
        there, by_there = run(op, sample, arrays, wf.device("cuda"))
        for got, want in zip([*there, *by_there], [*here, *by_here], strict=True):
            assert (got is None) == (want is None)
            if got is not None:
                assert got.dtype == want.dtype and got.shape == want.shape, f"{name} {sample.attrs}"
                got, want = got.astype(np.float64), want.astype(np.float64)
                largest = np.abs(want[np.isfinite(want)]).max(initial=1.0)
                np.testing.assert_allclose(got, want, ROUNDING[dtype], ROUNDING[dtype] * largest, err_msg=name)
    cuda.check_now()


@pytest.mark.parametrize("name", [name for name in ALL if way(REGISTRY[name]) != "host"])
def test_nothing_is_copied_to_the_host(cuda, counts, name):
    op = REGISTRY[name]
    if op.any_device:
        return
    for sample in samples_of(op):
        tensors = [wrap(np.array(x)).to("cuda").detach() for x in sample.inputs]
        for i, t in enumerate(tensors):
            if wants_gradient(op, sample, i):
                t.requires_grad_()
        counts.reset()
        if name in DECOMPOSED and not all(t.numel() for t in tensors):
            continue  # matrices without elements are the CPU's
        live = [o for o in listed(apply(op, tuple(tensors), sample.attrs)) if o.requires_grad]
        if live:
            seeds = [wf.ones_like(o) for o in live]
            wf.autograd.backward(live, seeds)
        if name in DECOMPOSED:  # whether it has succeeded is one number; no matrix is copied, but one that is singular
            assert counts.largest <= 1 or name in ("cholesky_info", "cofactors", "lu_factor"), sample.attrs
        else:
            assert (counts.to_host, counts.synchronised) == (0, 0), sample.attrs
        cuda._waiting.clear()
