"""Single ops on large arrays: the native form is taken, and nobody can tell but by the time it takes."""

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from wayfare.codegen.runtime import kernel
from wayfare.core.counters import counted
from wayfare.core.op import REGISTRY
from wayfare.ir.fuse.elementwise import _Numbers

pytestmark = pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")

LARGE = (200, 300)


def randn(*shape, seed=0):
    return wf.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@pytest.fixture(autouse=True)
def natively(monkeypatch):
    """From a hundred elements on, so that the arrays here are large for every op."""
    for op in REGISTRY.values():
        if op.large is not None:
            monkeypatch.setattr(op, "large_from", 100)


def step_by_step(monkeypatch):
    """From here on NumPy does everything."""
    for op in REGISTRY.values():
        if op.large is not None:
            monkeypatch.setattr(op, "large_from", 2**62)
            monkeypatch.setattr(op, "large_vjp", None)


def test_large_arrays_run_natively_and_small_ones_do_not():
    for size, runs in ((99, 0), (100, 1)):
        with counted() as counts:
            wf.tanh(randn(size))
        assert counts.kernels_run == runs
    monkeypatch = pytest.MonkeyPatch()
    step_by_step(monkeypatch)
    with counted() as counts:
        wf.tanh(randn(*LARGE))
    monkeypatch.undo()
    assert counts.kernels_run == 0


FUNCTIONS = {
    "binary": lambda x, y: x * y + x / (y * y + 1),
    "broadcast": lambda x, y: (x * y[:1] - y[:, :1]).tanh(),
    "transposed": lambda x, y: (x.T * y.T).exp().T,
    "strided": lambda x, y: (x[::2] * y[1::2]).sigmoid(),
    "where": lambda x, y: wf.where(x > y, x.sqrt().nan_to_num(), y.abs()),
    "attributes": lambda x, y: F.leaky_relu(x, 0.2) * F.elu(y, 1.5) + F.softplus(x, 2.0),
    "power": lambda x, y: x**3 + y.abs() ** 0.5 + (x * x + 1) ** -1.5,
    "numbers": lambda x, y: 2 - x * 3 + 1 / (y * y + 2),
    "expanded": lambda x, y: x.sum(1, keepdim=True).expand(*LARGE) * y,
    "twice the same": lambda x, y: x * x + y / y,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_numpy(name, monkeypatch):
    made = []
    for _ in range(2):
        x, y = (randn(*LARGE, seed=s).requires_grad_() for s in (1, 2))
        with counted() as counts:
            out = FUNCTIONS[name](x, y)
            out.backward(randn(*out.shape, seed=3))
        made.append((counts.kernels_run, [t.detach().numpy() for t in (out, x.grad, y.grad)]))
        step_by_step(monkeypatch)
    assert made[0][0] > made[1][0]
    for got, want in zip(made[0][1], made[1][1], strict=True):
        np.testing.assert_allclose(got, want, 2e-4, 2e-5)


def test_gradients_have_memory_of_their_own():
    x, y = (randn(*LARGE).requires_grad_() for _ in range(2))
    (x + y).backward(wf.ones(*LARGE))
    x.grad.mul_(0)
    assert (y.grad == 1).all()


# -- in place -----------------------------------------------------------------------------------------------------


def test_writes_in_place_keep_the_memory():
    x = randn(*LARGE)
    array, want = x.numpy(), x.numpy() * 3
    x.mul_(3)
    assert x.numpy() is array or np.shares_memory(x.numpy(), array)
    np.testing.assert_array_equal(array, want)


@pytest.mark.parametrize("shift", [1, 7, 64])
def test_writes_over_a_shifted_view_of_the_same_memory(shift):
    x = wf.arange(40_000, dtype=wf.float32)
    want = x.numpy()[shift:] + x.numpy()[:-shift]
    x[shift:].add_(x[:-shift])
    np.testing.assert_array_equal(x.numpy()[shift:], want)


def test_writes_over_a_turned_view_of_the_same_memory():
    x = randn(150, 150)
    want = x.numpy() * x.numpy().T
    x.mul_(x.T)
    np.testing.assert_array_equal(x.numpy(), want)
    x = randn(150, 150)
    want = x.numpy() - x.numpy()[3]
    x.sub_(x[3])
    np.testing.assert_array_equal(x.numpy(), want)


def test_writes_to_parts_leave_the_rest_alone():
    x = randn(*LARGE)
    before = x.numpy().copy()
    x[10:150, ::2].tanh_()
    want = before.copy()
    want[10:150, ::2] = np.tanh(before[10:150, ::2])
    np.testing.assert_allclose(x.numpy(), want, 1e-5)
    np.testing.assert_array_equal(x.numpy()[:, 1::2], before[:, 1::2])


def test_a_result_that_does_not_fit_in_place_is_refused_as_ever():
    with pytest.raises(RuntimeError, match="100, 300|100,300"):
        wf.ones(1, 300).add_(wf.ones(100, 300))
    whole = wf.ones(20_000, dtype=wf.int32)
    with pytest.raises(RuntimeError):
        whole.mul_(1.5)
    assert (whole == 1).all()


# -- attributes ---------------------------------------------------------------------------------------------------


def test_a_number_is_known_by_every_bit():
    numbers = _Numbers(2)
    loads = [numbers(v, "f32") for v in (0.0, -0.0, 1.0, 0.0, float("nan"), float("nan"))]
    assert [e.value for e in loads] == [2, 3, 4, 2, 5, 5]
    assert numbers(1.0, "f64").value == 6
    assert [np.signbit(a).item() for a in numbers.arrays()[:2]] == [False, True]


@pytest.mark.parametrize("order", [(0.0, -0.0), (-0.0, 0.0)])
def test_minus_zero_as_an_attribute(order):
    x = wf.full((20_000,), float("nan"))
    for number in order:
        assert bool(wf.signbit(wf.nan_to_num(x, nan=number)).all()) == (str(number) == "-0.0")


def test_a_changing_attribute_needs_no_new_kernel():
    x = randn(*LARGE)
    F.leaky_relu(x, 0.1)
    with counted() as counts:
        for slope in np.linspace(0.01, 0.5, 20):
            got = F.leaky_relu(x, float(slope)).numpy()
            np.testing.assert_allclose(got, np.where(x.numpy() > 0, x.numpy(), np.float32(slope) * x.numpy()), 1e-6)
    assert counts.kernels_built == counts.kernels_loaded == 0 and counts.kernels_run == 20


def test_many_attributes_do_not_pile_up():
    x = randn(*LARGE)
    for slope in range(600):
        F.leaky_relu(x, 1 / (slope + 2))
    assert len(REGISTRY["leaky_relu"].large._known) <= 256


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, 1e-300])
def test_attributes_of_every_size(value):
    x = randn(*LARGE)
    small, large = F.threshold(x[:2], 0.1, value), F.threshold(x, 0.1, value)
    np.testing.assert_array_equal(large.numpy()[:2], small.numpy())


# -- what stays as it was -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [wf.bool, wf.uint8, wf.int8, wf.int16, wf.int32, wf.int64, wf.float16, wf.float64])
def test_other_dtypes(dtype, monkeypatch):
    base = wf.tensor(np.random.default_rng(0).integers(0, 2 if dtype is wf.bool else 50, LARGE)).to(dtype)
    other = base.flip(0)
    made = []
    for _ in range(2):
        made.append([
            base + other, base * other, base == other, base < other, base.float(), wf.where(base > 0, base, other),
            wf.maximum(base, other), base.abs() if dtype is not wf.bool else base, base.exp(),
        ])  # fmt: skip
        step_by_step(monkeypatch)
    for got, want in zip(*made, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.numpy(), want.numpy(), 2e-3 if dtype is wf.float16 else 1e-6)


def test_read_only_arrays_and_empty_ones():
    array = np.ones(LARGE, np.float32)
    array.flags.writeable = False
    assert (wf.tensor(array).tanh().numpy() == np.tanh(np.float32(1))).mean() > 0.9
    assert wf.zeros(0, 70_000).exp().shape == (0, 70_000)


def test_errors_name_the_op_and_the_shapes():
    with pytest.raises(RuntimeError, match=r"mul: .*\[200, 300\].*\[7\]"):
        randn(*LARGE) * wf.ones(7)


@pytest.mark.parametrize("name", ["eq_", "ne_", "lt_", "le_", "gt_", "ge_"])
def test_a_comparison_in_place_keeps_the_dtype_of_large_arrays(name):
    x, y = wf.randn(100_000), wf.randn(100_000)
    wanted = getattr(np, {"eq_": "equal", "ne_": "not_equal", "lt_": "less", "le_": "less_equal", "gt_": "greater",
                          "ge_": "greater_equal"}[name])(x.numpy(), y.numpy())  # fmt: skip
    made = getattr(x, name)(y)
    assert made is x and x.dtype is wf.float32
    np.testing.assert_array_equal(x.numpy(), wanted.astype(np.float32))
