"""Values and slopes where the plain formula overflows, cancels or wraps; PyTorch and long arithmetic as referees."""

import math

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from wayfare.errors import OperationError


def _slope(function, value, dtype=wf.float32):
    x = wf.tensor(value, dtype=dtype, requires_grad=True)
    function(x).sum().backward()
    return x.grad


# -- logarithms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("y", [1e-12, -1e-9, 3e-8, 0.5])
@pytest.mark.parametrize("size", [1, 10_000])
def test_xlog1py_keeps_small_numbers_in_its_slope(y, size):
    slope = _slope(lambda x: wf.special.xlog1py(x, wf.full((size,), y)), [2.0] * size)
    np.testing.assert_allclose(slope.numpy(), np.log1p(np.float32(y).astype("f8")), rtol=1e-6)


def test_xlog1py_at_the_end_of_its_domain_as_in_pytorch():
    torch = pytest.importorskip("torch")
    given = [0.0, 2.0, 0.0, 0.0], [-1.0, -1.0, -2.0, 3.0]
    found = []
    for lib in (wf, torch):
        x, y = (lib.tensor(part, requires_grad=True) for part in given)
        lib.special.xlog1py(x, y).sum().backward()
        found.append((x.grad.numpy(), y.grad.numpy()))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs)


# phi(x) / Phi(x) times minus itself plus x, by mpmath with 50 digits.
LOG_NDTR_TWICE = {
    -1000.0: -0.99999900000599995, -20.0: -0.9975367383849478364, -3.0: -0.92944081321473188314,
    -0.5: -0.73151959284412105382, 0.0: -0.63661977236758134308, 2.0: -0.11354805168857644979,
    20.0: -1.1041896724319526379e-86,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [wf.float32, wf.float64])
@pytest.mark.parametrize("x", LOG_NDTR_TWICE)
def test_log_ndtr_twice(x, dtype):
    slope = wf.func.grad(wf.func.grad(wf.special.log_ndtr))(wf.tensor(x, dtype=dtype)).item()
    wanted = LOG_NDTR_TWICE[x]
    if dtype is wf.float32:
        assert slope == pytest.approx(wanted, rel=3e-6, abs=1e-37)
    else:
        assert slope == pytest.approx(wanted, rel=1e-13)


@pytest.mark.parametrize("size", [1, 3, 5000])
@pytest.mark.parametrize("dtype", [wf.float16, wf.float32, wf.float64])
def test_lgamma_of_minus_infinity(size, dtype):
    x = wf.full((size,), -math.inf, dtype=dtype)
    assert (wf.lgamma(x) == math.inf).all() and (wf.mvlgamma(x, 3) == math.inf).all()
    assert wf.lgamma(wf.tensor([math.inf, math.nan, -1.0])).isnan().tolist() == [False, True, False]


# -- losses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [17.0, 12.0, 3.0, -2.0, -90.0, 60.0])
def test_soft_margin_loss_has_a_slope_at_large_margins(margin):
    wanted = -1 / (1 + math.exp(margin))
    for sign in (1.0, -1.0):
        slope = _slope(lambda x, s=sign: F.soft_margin_loss(x, wf.tensor([s])), [sign * margin])
        assert slope.item() == pytest.approx(sign * wanted, rel=1e-6)


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize("loss", [F.multilabel_soft_margin_loss, F.binary_cross_entropy_with_logits])
def test_a_sure_and_right_answer_still_has_a_slope(loss, size):
    for sign, target in ((1.0, 1.0), (-1.0, 0.0)):
        slope = _slope(lambda x, t=target: loss(x, wf.full((1, size), t)), [[sign * 17.0] * size])
        np.testing.assert_allclose(slope.numpy() * size, -sign / (1 + math.exp(17)), rtol=1e-5)


# -- whole numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "low", "high"), [
    (wf.uint8, 0, 300), (wf.uint8, -1, 5), (wf.int8, 0, 129), (wf.int8, -129, 0), (wf.int16, 0, 2**15 + 1),
    (wf.bool, 0, 3), (wf.float16, 0, 70_000), (wf.int64, 0, 2**63 + 1), (wf.int32, -(2**31) - 1, 0),
])  # fmt: skip
def test_randint_refuses_what_the_dtype_cannot_hold(dtype, low, high):
    for call in (
        lambda: wf.randint(low, high, (6,), dtype=dtype),
        lambda: wf.randint_like(wf.zeros(6), low, high, dtype=dtype),
        lambda: wf.zeros(6, dtype=dtype).random_(low, high),
    ):
        with pytest.raises((OperationError, RuntimeError), match="does not hold"):
            call()


@pytest.mark.parametrize(("dtype", "low", "high"), [
    (wf.uint8, 0, 256), (wf.int8, -128, 128), (wf.bool, 0, 2), (wf.float16, 0, 65_505), (wf.int64, 0, 2**63 - 1),
])  # fmt: skip
def test_randint_draws_all_that_the_dtype_holds(dtype, low, high):
    drawn = wf.randint(low, high, (20_000,), dtype=dtype)
    assert drawn.dtype is dtype and drawn.min() >= low and float(drawn.max()) <= high - 1
    if high - low <= 256:
        assert len(drawn.unique()) == high - low


# -- what is kept -------------------------------------------------------------------------------------------------


def test_copysign_does_not_keep_its_second_operand():
    x, y = wf.tensor([1.0, -2.0, 0.0, 3.0], requires_grad=True), wf.tensor([-1.0, -1.0, 2.0, 0.5])
    out = x.copysign(y)
    y.mul_(-1)
    out.sum().backward()
    assert x.grad.tolist() == [-1, 1, 0, 1]


def test_logit_does_not_keep_its_result():
    x = wf.tensor([0.5, 0.25, 1.5, -1.0, math.nan], requires_grad=True)
    out = wf.logit(x)
    with wf.no_grad():
        out.mul_(0)
    out.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [4, 16 / 3, math.nan, math.nan, math.nan])


# -- deviations and norms that fit, of squares that do not -----------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7000])
@pytest.mark.parametrize("scale", [1e20, 3e37, 1e-25, 1e-38, 1.0])
def test_the_deviation_fits_where_its_square_does_not(scale, count):
    values = np.tile(np.array([scale, 0, -scale], "f4"), count)
    wanted = np.std(values.astype("f8"), ddof=1)
    for x in (values, np.stack([values, values]).T.copy().T[0], values.reshape(-1, 3).copy().reshape(-1)):
        t = wf.tensor(x, requires_grad=True)
        out = t.std()
        assert out.item() == pytest.approx(wanted, rel=1e-5)
        out.backward()
        slope = values.astype("f8") / (wanted * (values.size - 1))
        np.testing.assert_allclose(t.grad.numpy(), slope, rtol=2e-5, atol=1e-9)
    rows = wf.tensor(np.stack([values, values]))
    np.testing.assert_allclose(rows.std(1).numpy(), wanted, rtol=1e-5)
    np.testing.assert_allclose(wf.std_mean(rows.T, 0)[0].numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("value", [1e20, -3e38, 1e-30, -1e-12, 1e-40, 0.0, math.inf, math.nan])
@pytest.mark.parametrize("p", [2.0, 3.0, 4.0, 1.5, 1.0, -1.0, 0.5, math.inf])
def test_a_norm_of_one_number_is_its_size(value, p):
    torch = pytest.importorskip("torch")
    for shape, dim in (((1,), None), ((3, 1), 1), ((2, 1, 1), (1, 2))):
        found = []
        for lib in (wf, torch):
            t = lib.full(shape, value, requires_grad=True)
            out = lib.linalg.vector_norm(t, p, dim)
            out.sum().backward()
            found.append((out.detach().numpy(), t.grad.numpy()))
        np.testing.assert_array_equal(found[0][0], found[1][0])
        if value == value and (value or p > 1):
            np.testing.assert_allclose(found[0][1], np.sign(np.full(shape, value)))


@pytest.mark.parametrize("size", [2, 9, 5000])
@pytest.mark.parametrize("p", [3.0, 4.0, 1.5, -1.0, 0.5])
@pytest.mark.parametrize("scale", [1e7, 1e-7])
def test_the_slope_of_a_norm_is_a_power_of_a_ratio(size, p, scale):
    values = (np.arange(1, size + 1) / size * scale).astype("f4").astype("f8")
    t = wf.tensor(values.astype("f4"), requires_grad=True)
    g = wf.ones(())
    out = wf.linalg.vector_norm(t, p)
    wanted = np.sum(values**p) ** (1 / p)
    if not 1e-37 < np.sum(values**p) < 1e37:
        pytest.skip("the sum of the powers does not fit")
    assert out.item() == pytest.approx(wanted, rel=1e-5)
    out.backward(g)
    np.testing.assert_allclose(t.grad.numpy(), (values / wanted) ** (p - 1), rtol=1e-4)


@pytest.mark.parametrize("scale", [1e20, 1e-30, 1.0])
def test_normalize_where_squares_do_not_fit(scale):
    for row in ([1.0], [-2.0]):
        x = wf.tensor([row]) * scale
        wanted = np.array([row]) / np.linalg.norm(row)
        if scale * np.linalg.norm(row) < 1e-12:  # what is divided by has a floor
            wanted = wanted * (scale * np.linalg.norm(row) / 1e-12)
        np.testing.assert_allclose(F.normalize(x).numpy(), wanted, rtol=1e-5)


def test_a_product_of_one_number_has_the_slope_1_at_infinity():
    x = wf.tensor([[math.inf], [-math.inf], [0.0]], requires_grad=True)
    assert wf.autograd.grad(x.cumprod(1).sum(), x)[0].flatten().tolist() == [1, 1, 1]
    single = wf.tensor(math.inf, requires_grad=True)
    assert wf.autograd.grad(single.prod(), single)[0].item() == 1
