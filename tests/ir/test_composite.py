"""Composite forwards: formulas over ops, on small arrays op by op and on large ones as kernels."""

import numpy as np
import pytest

import wayfare  # noqa: F401 - fills the registry
from wayfare.core.counters import counted
from wayfare.core.op import REGISTRY
from wayfare.ir import composite
from wayfare.ir.formulas import composition
from wayfare.ir.fuse.composite import NATIVE_FROM

SMALL, LARGE = (8, 16), (64, 128)


def arrays(shape, dtype, count=1):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(dtype) for _ in range(count)]


def made_of(name):
    return composite(composition(REGISTRY[name]), name=name)


CASES = [
    ("softmax", 1, {"dim": 1}, 1),
    ("softmax", 1, {"dim": 0}, 1),
    ("log_softmax", 1, {"dim": 1}, 1),
    ("softmax_backward", 2, {"dim": 1}, 1),
    ("log_softmax_backward", 2, {"dim": 1}, 1),
    ("mean", 1, {"dim": (1,), "keepdim": False}, 1),
    ("mean", 1, {"dim": (0, 1), "keepdim": True}, 1),
    ("var", 1, {"dim": (0,), "keepdim": False, "correction": 1}, 1),
    ("std", 1, {"dim": (0, 1), "keepdim": False, "correction": 0.5}, 1),
    ("logsumexp", 1, {"dim": (1,), "keepdim": True}, 1),
    ("mse_loss", 2, {"reduction": "mean"}, 1),
    ("sum_to", 1, {"shape": (128,)}, 1),
    ("standardize", 1, {"dim": (1,), "eps": 1e-5}, 1),
]


@pytest.mark.parametrize(("name", "count", "attrs", "kernels"), CASES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_large_arrays_run_as_kernels(name, count, attrs, kernels, dtype):
    given = arrays(LARGE, dtype, count)
    function = made_of(name)
    with counted() as ran:
        made = function(*given, **attrs)
    assert ran.kernels_run == kernels
    plain = function.step_by_step(*given, **attrs)
    pairs = zip(made, plain, strict=True) if isinstance(made, tuple) else [(made, plain)]
    for a, b in pairs:
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-11 if dtype == np.float64 else 1e-4)


def test_small_arrays_run_op_by_op():
    (x,) = arrays(SMALL, np.float32)
    function = made_of("softmax")
    with counted() as ran:
        made = function(x, dim=1)
    assert ran.kernels_run == 0 and function.traces == 0
    np.testing.assert_allclose(made.sum(1), 1, atol=1e-6)


def test_the_largest_array_decides():
    x, w = np.ones((2, NATIVE_FROM // 2), np.float32), np.ones((2, 1), np.float32)
    function = composite(lambda m, x, w: m.tanh(x * w), name="scaled")
    with counted() as ran:
        function(x, w)
        function(x[:, 1:], w)
    assert ran.kernels_run == 1


def test_several_outputs_come_as_a_tuple():
    (x,) = arrays(LARGE, np.float32)
    function = composite(lambda m, x: (m.exp(x), m.sum(x, dim=(1,), keepdim=False)), name="pair")
    for given in (x, x[:2, :2].copy()):
        a, b = function(given)
        np.testing.assert_allclose(a, np.exp(given), rtol=1e-6)
        np.testing.assert_allclose(b, given.sum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_halves_are_computed_in_single_precision(shape):
    (x,) = arrays(shape, np.float16)
    made = made_of("standardize")(x, dim=(1,), eps=1e-5)
    exact = made_of("standardize").step_by_step(x.astype(np.float64), dim=(1,), eps=1e-5)
    for a, b in zip(made, exact, strict=True):
        assert a.dtype == np.float16
        np.testing.assert_allclose(a.astype(float), b, atol=3e-3)


def test_an_attribute_that_is_a_float_is_no_part_of_the_program():
    (x,) = arrays(LARGE, np.float32)
    function = made_of("standardize")
    for eps in (1e-5, 1e-3, 0.1, 1.0):
        out = function(x, dim=(1,), eps=eps)[0]
        deviation = np.sqrt(x.var(1, keepdims=True) + eps)
        np.testing.assert_allclose(out, (x - x.mean(1, keepdims=True)) / deviation, atol=1e-5)
    assert function.traces == 2


def test_sizes_need_two_traces():
    function = made_of("var")
    for n in range(70, 80):
        (x,) = arrays((n, 2 * n), np.float64)
        made = function(x, dim=(1,), keepdim=False, correction=1)
        np.testing.assert_allclose(made, x.var(1, ddof=1), rtol=1e-10)
    assert function.traces == 2


def test_zero_sizes_run_op_by_op():
    x = np.zeros((0, NATIVE_FROM), np.float32)
    w = np.ones(NATIVE_FROM, np.float32)
    assert composite(lambda m, x, w: x * w, name="scaled")(x, w).shape == (0, NATIVE_FROM)


def test_ops_without_a_loop_stand_between_kernels():
    a, b = arrays(LARGE, np.float64, 2)
    function = composite(lambda m, a, b: m.tanh(m.matmul(m.exp(a), m.permute(b, dims=(1, 0)))) * 2, name="around")
    np.testing.assert_allclose(function(a, b), np.tanh(np.exp(a) @ b.T) * 2, atol=1e-9)
    assert [type(s).__name__ for s in function.program(a, b).steps].count("KernelStep") == 2


def test_a_dear_value_of_two_stages_is_stored_and_read_back():
    (x,) = arrays(LARGE, np.float32)

    def softmax(m, x):
        e = m.exp(x - m.amax(x, dim=(1,), keepdim=True))
        return e / m.sum(e, dim=(1,), keepdim=True)

    text = composite(softmax, name="softmax").program(x).describe()
    assert "y0 = t0" in text and "y0 = y0 / r1" in text


def test_steps_of_equal_sizes_do_not_mix_up_their_axes():
    (x,) = arrays((64, 64), np.float64)
    function = composite(
        lambda m, x: m.sum(x, dim=(1,), keepdim=False) * x + m.sum(x, dim=(0,), keepdim=True), name="square"
    )
    np.testing.assert_allclose(function(x), x.sum(1) * x + x.sum(0, keepdims=True), atol=1e-10)
