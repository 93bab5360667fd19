"""Activations: large and odd inputs, the points where they bend, in-place forms, dtypes, errors."""

import math

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from wayfare.errors import ArgumentError, ArgumentTypeError, DTypeError, InPlaceError, OperationError, ShapeError

NAN, INF = float("nan"), float("inf")
ALL = {
    "relu": F.relu, "relu6": F.relu6, "hardtanh": F.hardtanh, "leaky_relu": F.leaky_relu, "elu": F.elu, "selu": F.selu,
    "celu": F.celu, "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "mish": F.mish, "softplus": F.softplus, "logsigmoid": F.logsigmoid, "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish, "hardshrink": F.hardshrink, "softshrink": F.softshrink, "softsign": F.softsign,
    "tanhshrink": F.tanhshrink, "sigmoid": F.sigmoid, "tanh": F.tanh, "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "rrelu": F.rrelu, "prelu": lambda x: F.prelu(x, wf.tensor([0.2], dtype=x.dtype)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [wf.float16, wf.float32, wf.float64], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_the_dtype_is_kept_forwards_and_backwards(name, dtype):
    x = wf.tensor([[-1.5, 0.3, 4.0]], dtype=dtype, requires_grad=True)
    out = ALL[name](x)
    assert out.dtype is dtype and out.shape == x.shape
    out.sum().backward()
    assert x.grad.dtype is dtype


@pytest.mark.parametrize("name", ALL)
def test_nan_stays_nan(name):
    assert ALL[name](wf.tensor([[NAN, NAN]])).isnan().all()


@pytest.mark.parametrize("name", ALL)
def test_large_inputs_give_finite_values_and_slopes(name):
    x = wf.tensor([[1000.0, -1000.0, 80.0, -80.0]], requires_grad=True)
    out = ALL[name](x)
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()


# tanhshrink subtracts two halves that are nearly equal, as PyTorch's does.
@pytest.mark.parametrize("name", [n for n in ALL if n != "tanhshrink"])
def test_float16_is_as_exact_as_float16_can_be(name):
    x = wf.tensor([[-3.0, -2.5, -0.1, 0.01, 0.7, 5.0]], dtype=wf.float16)
    wide = ALL[name](x.double()).numpy()
    np.testing.assert_allclose(ALL[name](x).double().numpy(), wide, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_empty_and_zero_dim_tensors(name):
    assert tuple(ALL[name](wf.zeros(2, 0)).shape) == ((2, 0))
    if name != "prelu":
        assert ALL[name](wf.tensor(0.5)).ndim == 0


def test_where_the_logarithms_saturate():
    assert F.softplus(wf.tensor([1000.0, -1000.0, 0.0])).tolist() == pytest.approx([1000, 0, math.log(2)])
    assert F.logsigmoid(wf.tensor([1000.0, -1000.0])).tolist() == [0, -1000]
    assert F.gelu(wf.tensor([1000.0, -1000.0])).tolist() == [1000, 0]
    x = wf.tensor([-1000.0, 1000.0], requires_grad=True)
    F.logsigmoid(x).sum().backward()
    assert x.grad.tolist() == [1, 0]
    # Far out in the tail the gradient of gelu is tiny, not rubbish.
    y = wf.tensor([-5.0], requires_grad=True)
    F.gelu(y).backward()
    assert y.grad.item() == pytest.approx(-7.1e-6, rel=0.01)


def test_slopes_at_the_bends_are_pytorchs():
    def slope(function, at):
        x = wf.tensor([float(at)], requires_grad=True)
        function(x).sum().backward()
        return x.grad.item()

    assert slope(F.relu, 0) == 0
    assert slope(F.relu6, 0) == 0 and slope(F.relu6, 6) == 0
    assert slope(F.hardtanh, 1) == 0 and slope(F.hardtanh, -1) == 0
    assert slope(F.leaky_relu, 0) == pytest.approx(0.01)
    assert slope(F.hardswish, 3) == 1 and slope(F.hardswish, -3) == 0
    assert slope(F.hardsigmoid, 3) == 0
    assert slope(F.softshrink, 0.5) == 0 and slope(F.hardshrink, 0.5) == 0
    assert slope(lambda x: F.threshold(x, 1, 5), 1) == 0
    assert slope(lambda x: F.elu(x, 2.0), 0) == 2


def test_infinity_does_not_spoil_a_masked_gradient():
    x = wf.tensor([-1.0, 1.0], requires_grad=True)
    F.relu(x).backward(wf.tensor([INF, 1.0]))
    assert x.grad.tolist() == [0, 1]


@pytest.mark.parametrize(
    "write",
    [
        F.relu_, F.hardtanh_, F.leaky_relu_, F.elu_, F.selu_, F.celu_, F.rrelu_, lambda x: F.threshold_(x, 0.1, 2.0),
        lambda x: F.relu6(x, inplace=True), lambda x: F.silu(x, inplace=True), lambda x: F.mish(x, inplace=True),
        lambda x: F.hardswish(x, inplace=True), lambda x: F.hardsigmoid(x, inplace=True),
        lambda x: F.rrelu(x, training=True, inplace=True),
    ],
)  # fmt: skip
def test_in_place_forms_write_and_keep_the_gradient(write):
    a = wf.tensor([-0.7, 0.3, 2.0], dtype=wf.float64, requires_grad=True)
    x = a * 1
    wf.manual_seed(3)
    out = write(x)
    assert out is x and x._version == 1
    x.sum().backward()
    eps = 1e-6
    for i in range(3):
        ends = []
        for step in (eps, -eps):
            wf.manual_seed(3)
            ends.append(write(wf.tensor(a.detach().numpy() + step * (np.arange(3) == i))).sum().item())
        assert a.grad[i].item() == pytest.approx((ends[0] - ends[1]) / (2 * eps), abs=1e-5)


def test_a_leaf_is_not_activated_in_place():
    with pytest.raises(InPlaceError, match="relu_: a leaf variable that requires grad"):
        F.relu(wf.ones(1, requires_grad=True), inplace=True)


def test_integers():
    x = wf.tensor([-3, 0, 7])
    assert F.relu(x).tolist() == [0, 0, 7]
    assert F.relu6(x).tolist() == [0, 0, 6] and F.relu6(x).dtype is wf.int64
    assert F.hardtanh(x).tolist() == [-1, 0, 1] and F.hardtanh(x).dtype is wf.int64
    assert F.threshold(x, 0.5, 2.9).tolist() == [2, 2, 7]
    with pytest.raises(OperationError, match=r"hardtanh: u8\[1\] is unsigned, but min_val -1.0 is negative"):
        F.hardtanh(wf.tensor([1], dtype=wf.uint8))
    for function in (F.gelu, F.silu, F.softplus, F.elu, F.leaky_relu):
        with pytest.raises(DTypeError, match=r"\w+: does not take wayfare.int64 .*\.float\(\)"):
            function(x)
    with pytest.raises(DTypeError, match="relu: does not take"):
        F.relu(wf.tensor([True]))


def test_prelu_has_one_slope_per_channel():
    x = wf.tensor([[-1.0, -2.0], [3.0, -4.0]], requires_grad=True)
    weight = wf.tensor([0.1, 0.5], requires_grad=True)
    out = F.prelu(x, weight)
    np.testing.assert_allclose(out.detach().numpy(), [[-0.1, -1.0], [3.0, -2.0]], rtol=1e-6)
    out.sum().backward()
    assert weight.grad.tolist() == [-1, -6]
    with pytest.raises(ShapeError, match=r"prelu: f32\[3\] does not fit the 2 channels of f32\[2,2\]"):
        F.prelu(x, wf.ones(3))
    with pytest.raises(DTypeError, match="prelu: .* must be of one floating-point dtype"):
        F.prelu(x, wf.ones(1, dtype=wf.float64))


def test_rrelu_draws_slopes_only_in_training():
    x = -wf.ones(1000)
    assert (F.rrelu(x, 0.2, 0.4) + 0.3).abs().max() < 1e-6
    drawn = -F.rrelu(x, 0.2, 0.4, training=True)
    assert 0.2 <= drawn.min() < 0.22 and 0.38 < drawn.max() <= 0.4
    with pytest.raises(OperationError, match=r"rrelu: lower \(0.4\) must not be greater than upper \(0.2\)"):
        F.rrelu(x, 0.4, 0.2)


def test_glu_halves_a_dimension():
    x = wf.randn(2, 6)
    np.testing.assert_allclose(F.glu(x).numpy(), (x[:, :3] * wf.sigmoid(x[:, 3:])).numpy())
    assert tuple(F.glu(x, 0).shape) == (1, 6)
    with pytest.raises(ShapeError, match=r"glu: dimension 1 of f32\[2,5\] must be even"):
        F.glu(wf.ones(2, 5))
    with pytest.raises(ShapeError, match="glu: a 0-dim tensor"):
        F.glu(wf.tensor(1.0))


def test_arguments_that_make_no_sense():
    x = wf.ones(1)
    with pytest.raises(ArgumentError, match="gelu: approximate is 'none' or 'tanh', not 'fast'"):
        F.gelu(x, approximate="fast")
    with pytest.raises(ArgumentError, match="hardtanh: min_val 2 is greater than max_val 1"):
        F.hardtanh(x, 2, 1)
    with pytest.raises(ArgumentError, match="celu: alpha must not be 0"):
        F.celu(x, 0)
    with pytest.raises(ArgumentError, match="softshrink: lambd must not be negative"):
        F.softshrink(x, -1.0)


@pytest.mark.parametrize("name", sorted({*ALL, "threshold", "glu", "prelu"} & set(F.__dict__)))
def test_something_else_than_a_tensor_is_named(name):
    extra = {"threshold": (0.0, 1.0), "prelu": (wf.ones(1),)}.get(name, ())
    with pytest.raises(ArgumentTypeError, match=r"expected a tensor( or a number)?, not list .*wf\.tensor"):
        getattr(F, name)([1.0], *extra)
