"""Records that are formulas over ops (softmax, normalisations, losses, …) do as kernels what their references say."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.api.testing import every_op
from wayfare.codegen.runtime import kernel
from wayfare.core.counters import counted
from wayfare.core.op import REGISTRY
from wayfare.errors import IndexRangeError
from wayfare.ir import Composite

pytestmark = pytest.mark.skipif(not kernel.available(), reason="llvmlite is not there")

F = wf.nn.functional
COMPOSED = sorted(name for name, op in REGISTRY.items() if isinstance(getattr(op.large, "__self__", None), Composite))


def listed(value):
    return list(value) if isinstance(value, tuple) else [value]


def test_which_records_are_formulas():
    assert set(COMPOSED) == {
        "mean", "var", "std", "logsumexp", "softmax", "softmax_backward", "log_softmax", "log_softmax_backward",
        "standardize", "standardize_backward", "layer_norm", "rms_norm", "cross_entropy", "nll_loss", "mse_loss",
        "scaled_norm", "vector_norm", "largest_distance",
    }  # fmt: skip


@pytest.mark.parametrize("name", COMPOSED)
def test_kernels_agree_with_the_reference(name):
    op = REGISTRY[name]
    for sample in every_op.samples_of(op):
        for dtype, tolerance in ((np.float64, 1e-9), (np.float32, 2e-4), (np.float16, 2e-2)):
            inputs = [x.astype(dtype) if x.dtype == np.float64 else x for x in sample.inputs]
            wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs]
            with np.errstate(all="ignore"):
                wanted = listed(op.reference(*wide, **sample.attrs))
                made = listed(op.large(*inputs, **sample.attrs))
            for got, want in zip(made, wanted, strict=True):
                assert got.dtype == dtype and got.shape == np.shape(want)
                np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=f"{name} {sample.attrs}")


def tensors(*shapes, dtype=wf.float32):
    rng = np.random.default_rng(0)
    return [wf.tensor(rng.normal(size=s), dtype=dtype, requires_grad=True) for s in shapes]


CLASSES = wf.tensor(np.random.default_rng(1).integers(0, 50, 40))
# Kernels forward, kernels backward, for large inputs.
CALLS = {
    "softmax": (lambda x: F.softmax(x, 1), [(40, 50)], 1, 1),
    "log_softmax": (lambda x: F.log_softmax(x, 1), [(40, 50)], 1, 1),
    "logsumexp": (lambda x: x.logsumexp(1), [(40, 50)], 1, 1),
    "var": (lambda x: x.var(1), [(40, 50)], 1, 1),
    "std": (lambda x: x.std(0), [(40, 50)], 1, 1),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (50,), w, b), [(40, 50), (50,), (50,)], 1, 2),
    "rms_norm": (lambda x, w: F.rms_norm(x, (50,), w), [(40, 50), (50,)], 1, 2),
    "cross_entropy": (lambda x: F.cross_entropy(x, CLASSES, reduction="sum"), [(40, 50)], 2, 1),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), [(8, 5, 6, 7)], 3, None),
}


@pytest.mark.parametrize("name", CALLS)
def test_few_kernels_do_it(name):
    function, shapes, forward, backward = CALLS[name]
    inputs = tensors(*shapes)
    function(*inputs).sum().backward()
    with counted() as during:
        y = function(*inputs)
    assert during.kernels_run == forward
    g = wf.tensor(np.random.default_rng(2).normal(size=tuple(y.shape)), dtype=wf.float32)
    with counted() as during:
        y.backward(g)
    assert backward is None or during.kernels_run == backward


@pytest.mark.parametrize("name", CALLS)
def test_large_and_small_take_the_same_gradient(name, monkeypatch):
    function, shapes, _, _ = CALLS[name]
    found = []
    for usable in (True, False):
        monkeypatch.setattr(kernel, "available", lambda usable=usable: usable)
        inputs = tensors(*shapes, dtype=wf.float64)
        y = function(*inputs)
        y.backward(wf.tensor(np.random.default_rng(2).normal(size=tuple(y.shape))))
        found.append([y.detach().numpy(), *(t.grad.numpy() for t in inputs)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


# -- numerics -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [(0,), (1,), (0, 1), (0, 2), (0, 1, 2)])
def test_variance_of_numbers_far_from_zero(dim):
    x = (np.random.default_rng(0).normal(size=(20, 30, 40)) + 1e4).astype(np.float32)
    got = wf.tensor(x).var(dim, correction=0).numpy()
    np.testing.assert_allclose(got, x.astype(np.float64).var(axis=dim), rtol=2e-4)


@pytest.mark.parametrize("dim", [(0, 1), (0, 2), (1,)])
def test_halves_are_summed_in_single_precision(dim):
    x = wf.full((60, 70, 80), 30.0, dtype=wf.float16)
    np.testing.assert_array_equal(x.mean(dim).numpy(), 30)
    np.testing.assert_array_equal(x.var(dim).numpy(), 0)


def test_cross_entropy_of_large_scores():
    scores = np.random.default_rng(0).normal(size=(40, 50)) + 1e4
    x = wf.tensor(scores, dtype=wf.float32, requires_grad=True)
    exact = wf.tensor(x.detach().numpy().astype(np.float64), requires_grad=True)
    for t in (x, exact):
        F.cross_entropy(t, CLASSES).backward()
    np.testing.assert_allclose(x.grad.numpy(), exact.grad.numpy(), rtol=1e-5, atol=1e-8)
    infinite = wf.tensor([[0.0, -np.inf, 1.0] * 100] * 2)
    assert bool(F.cross_entropy(infinite, wf.tensor([0, 2])).isfinite())


def test_classes_out_of_range_are_found_in_large_arrays_too():
    x = wf.zeros(100, 50)
    target = wf.zeros(100, dtype=wf.int64)
    for wrong in (50, -1):
        target[70] = wrong
        with pytest.raises(IndexRangeError, match=f"cross_entropy: class {wrong} is out of range for 50 classes"):
            F.cross_entropy(x, target)
    assert float(F.cross_entropy(x, target, ignore_index=-1)) == pytest.approx(np.log(50))
    assert np.isnan(float(F.cross_entropy(x, target * 0 - 1, ignore_index=-1)))


def test_infinite_rows():
    x = np.zeros((30, 40), np.float32)
    x[0] = -np.inf
    x[1, 3] = np.inf
    got = wf.tensor(x).logsumexp(1).numpy()
    assert got[0] == -np.inf and got[1] == np.inf
    np.testing.assert_allclose(got[2:], np.log(40), rtol=1e-6)
    x[2, 5] = np.nan
    assert np.isnan(wf.tensor(x).softmax(1).numpy()[2]).all()
    assert np.isfinite(wf.tensor(x).softmax(1).numpy()[3:]).all()
