"""Functions of one element at a time: dtypes kept, odd values, rounding, limits, selection, comparison, bits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

import wayfare as wf
from wayfare.errors import ArgumentTypeError, DTypeError, OperationError, ShapeError

NAN, INF = float("nan"), float("inf")
FLOATING = [
    "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "sinc", "logit", "deg2rad", "rad2deg",
    "erf", "erfc", "erfinv", "lgamma", "digamma", "i0", "angle",
]  # fmt: skip
SAME = [
    "neg", "abs", "sign", "square", "floor", "ceil", "trunc", "round", "frac", "relu", "nan_to_num",
]  # fmt: skip
PAIRS = [
    "add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "maximum", "fmin", "atan2", "hypot",
    "logaddexp", "copysign", "xlogy",
]  # fmt: skip


# -- dtypes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [wf.float16, wf.float32, wf.float64], ids=str)
@pytest.mark.parametrize("name", FLOATING + SAME)
def test_a_float_keeps_its_dtype_and_so_does_its_gradient(name, dtype):
    x = wf.tensor([0.3, 0.6], dtype=dtype, requires_grad=True)
    out = getattr(x, name)()
    assert out.dtype is dtype
    out.sum().backward()
    assert x.grad.dtype is dtype


@pytest.mark.parametrize("name", PAIRS)
def test_two_halves_make_a_half(name):
    a, b = wf.tensor([0.3, 0.6], dtype=wf.float16), wf.tensor([2.0, 0.7], dtype=wf.float16)
    out = getattr(wf, name)(a, b)
    assert out.dtype is wf.float16
    wide = getattr(wf, name)(a.double(), b.double())
    np.testing.assert_allclose(out.double().numpy(), wide.numpy(), rtol=2e-3)


@pytest.mark.parametrize("name", FLOATING)
def test_integers_and_bools_become_the_default_float(name):
    for values in ([1, 0], [True, False]):
        assert getattr(wf.tensor(values), name)().dtype is wf.float32
    wf.set_default_dtype(wf.float64)
    assert getattr(wf.tensor([1, 0]), name)().dtype is wf.float64


@pytest.mark.parametrize("name", [n for n in FLOATING if hasattr(wf.Tensor, n + "_")])
def test_a_float_result_is_not_written_into_integers(name):
    with pytest.raises(OperationError, match=f"{name}_: a result of wayfare.float32 cannot be written into .*int64"):
        getattr(wf.tensor([1, 0]), name + "_")()


@pytest.mark.parametrize("name", FLOATING + SAME)
def test_in_place_is_the_same_as_not(name):
    if not hasattr(wf.Tensor, name + "_"):
        assert name == "angle"
        return
    for recording in (False, True):
        x = wf.tensor([0.3, 0.6], dtype=wf.float64)
        with wf.enable_grad() if recording else wf.no_grad():
            expected = getattr(x, name)()
            memory = x.data_ptr()
            assert getattr(x, name + "_")() is x
        assert x.data_ptr() == memory and x._version == 1
        np.testing.assert_array_equal(x.numpy(), expected.numpy())


def test_gradients_flow_through_chains_of_writes_in_place():
    a = wf.tensor([0.5, 1.5], dtype=wf.float64, requires_grad=True)
    x = a * 1
    x.sin_().square_().sigmoid_()
    x.sum().backward()
    sine, cosine = np.sin([0.5, 1.5]), np.cos([0.5, 1.5])
    s = 1 / (1 + np.exp(-(sine**2)))
    np.testing.assert_allclose(a.grad.numpy(), s * (1 - s) * 2 * sine * cosine)


def test_in_place_forms_made_of_several_steps_keep_what_they_need():
    a = wf.tensor([0.3, 0.9], dtype=wf.float64, requires_grad=True)
    b = wf.tensor([0.3, 0.9], dtype=wf.float64, requires_grad=True)
    wf.logit(a, 0.2).sum().backward()
    (b * 1).logit_(0.2).sum().backward()
    np.testing.assert_allclose(b.grad.numpy(), a.grad.numpy())


def test_a_number_is_no_input():
    with pytest.raises(ArgumentTypeError, match=r"clamp: the first operand must be a tensor, not \(float"):
        wf.clamp(2.0, 0, 1)


# -- odd values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sigmoid_of_large_numbers(dtype, size):
    """Small and large arrays are computed in two ways."""
    edge = np.resize(np.array([-1000, 1000, 0, -INF, INF], dtype), size)
    x = wf.tensor(edge, requires_grad=True)
    out = wf.sigmoid(x)
    expected = np.where(edge == 0, 0.5, edge > 0)
    np.testing.assert_array_equal(out.detach().numpy(), expected)
    out.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.where(edge == 0, 0.25, 0))
    assert wf.sigmoid(wf.full((size,), NAN)).isnan().all()


def test_sigmoid_is_one_function_on_both_sides_of_the_size_where_it_changes():
    x = np.linspace(-30, 30, 3000)
    whole = wf.sigmoid(wf.tensor(x)).numpy()
    parts = np.concatenate([wf.sigmoid(wf.tensor(p)).numpy() for p in np.split(x, 10)])
    np.testing.assert_allclose(whole, parts, rtol=1e-14)


def test_values_where_others_overflow():
    big = wf.tensor([1000.0, -1000.0])
    assert wf.logaddexp(big, big).tolist() == pytest.approx([1000 + math.log(2), -1000 + math.log(2)])
    assert wf.hypot(wf.tensor([3e30]), wf.tensor([4e30])).item() == pytest.approx(5e30)
    assert wf.expm1(wf.tensor([1e-7])).item() == pytest.approx(1e-7)
    assert wf.log1p(wf.tensor([1e-7])).item() == pytest.approx(1e-7)


def test_slopes_at_points_where_a_formula_breaks():
    def slope(function, *at):
        inputs = [wf.tensor([v], dtype=wf.float64, requires_grad=True) for v in at]
        function(*inputs).backward()
        return [x.grad.item() for x in inputs]

    assert slope(wf.atan2, 0.0, 0.0) == [0, 0]
    assert slope(wf.sinc, 0.0) == [0]
    assert slope(wf.logaddexp, INF, 1.0) == [1, 0]
    assert slope(wf.xlogy, 0.0, 0.0)[0] == 0
    assert slope(wf.logit, 0.0) == [INF] and math.isnan(slope(wf.logit, -0.5)[0])
    assert slope(wf.copysign, -2.0, 1.0) == [-1, 0]
    assert slope(wf.fmax, NAN, 1.0) == [0, 1]


def test_angle():
    assert wf.angle(wf.tensor([2.0, -2.0, INF, -INF, 0.0])).tolist() == pytest.approx([0, math.pi, 0, math.pi, 0])
    assert wf.angle(wf.tensor([NAN])).isnan().all()


def test_nan_to_num():
    x = wf.tensor([NAN, INF, -INF, 1.0], requires_grad=True)
    out = wf.nan_to_num(x)
    limit = float(np.finfo(np.float32).max)
    assert out.tolist() == [0, limit, -limit, 1]
    out.sum().backward()
    assert x.grad.tolist() == [0, 0, 0, 1]
    assert wf.nan_to_num(x, 1.0, 2.0, 3.0).tolist() == [1, 2, 3, 1]
    assert wf.nan_to_num(wf.tensor([1, 2])).tolist() == [1, 2]
    assert wf.nan_to_num(wf.tensor([INF], dtype=wf.float16)).item() == 65504


def test_questions_about_floats():
    x = wf.tensor([NAN, INF, -INF, -0.0, 1.0])
    assert x.isnan().tolist() == [True, False, False, False, False]
    assert x.isinf().tolist() == [False, True, True, False, False]
    assert x.isfinite().tolist() == [False, False, False, True, True]
    assert x.isposinf().tolist() == [False, True, False, False, False]
    assert x.isneginf().tolist() == [False, False, True, False, False]
    assert x.signbit().tolist()[1:] == [False, True, True, False]
    assert x.isreal().all()
    for values in ([1, -2], [True, False]):
        t = wf.tensor(values)
        assert not t.isnan().any() and not t.isinf().any() and t.isfinite().all() and not t.isposinf().any()
    assert wf.tensor([1, -2]).signbit().tolist() == [False, True]


# -- rounding -------------------------------------------------------------------------------------------------------


def test_halves_are_rounded_to_even():
    assert wf.round(wf.tensor([0.5, 1.5, 2.5, -0.5, -1.5])).tolist() == [0, 2, 2, 0, -2]


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=5), st.integers(-3, 4))
def test_rounding_to_decimals(values, decimals):
    x = np.array(values)
    np.testing.assert_allclose(wf.round(wf.tensor(x), decimals=decimals).numpy(), np.round(x, decimals), atol=1e-9)


def test_large_halves_are_rounded_without_overflow():
    x = wf.tensor([1000.126, 60000.0], dtype=wf.float16)
    assert wf.round(x, decimals=2).tolist() == x.tolist()


@pytest.mark.parametrize("function", [wf.floor, wf.ceil, wf.trunc, wf.round], ids=lambda f: f.__name__)
def test_integers_are_whole_already(function):
    x = wf.tensor([1, -2])
    out = function(x)
    assert out.tolist() == [1, -2] and out.dtype is wf.int64 and out is not x
    with pytest.raises(DTypeError, match=f"{function.__name__}: does not take"):
        function(wf.tensor([True]))


def test_integers_have_no_decimals():
    with pytest.raises(DTypeError, match=r"round: i64\[1\] is of integers, which have no decimals"):
        wf.round(wf.tensor([12]), decimals=-1)


def test_frexp_takes_apart_what_ldexp_puts_together():
    x = wf.tensor([0.0, -3.0, 0.1, 1e-40, 5e20], dtype=wf.float64)
    out = wf.frexp(x)
    assert out.exponent.dtype is wf.int32
    assert (out.mantissa.abs() < 1).all()
    np.testing.assert_array_equal(wf.ldexp(out.mantissa, out.exponent).numpy(), x.numpy())
    with pytest.raises(DTypeError, match="frexp: does not take"):
        wf.frexp(wf.tensor([1]))


# -- limits ---------------------------------------------------------------------------------------------------------


def test_clamp():
    x = wf.tensor([-2.0, 0.0, 3.0, NAN], requires_grad=True)
    out = x.clamp(-1, 1)
    assert out.tolist()[:3] == [-1, 0, 1] and out[3].isnan()
    out.sum().backward()
    assert x.grad.tolist() == [0, 1, 0, 0]
    assert x.clamp(min=1).tolist()[:3] == [1, 1, 3]
    assert x.clamp_max(0).tolist()[:3] == [-2, 0, 0]
    assert wf.clamp(wf.tensor([1, 5]), max=2.5).tolist() == [1, 2.5]
    assert wf.clip(wf.tensor([1.0, 5.0]), 3, 2).tolist() == [2, 2]
    with pytest.raises(OperationError, match="clamp: at least one of min and max"):
        wf.clamp(wf.ones(1))
    with pytest.raises(DTypeError, match="clamp: does not take bool"):
        wf.clamp(wf.tensor([True]), False, True)


@pytest.mark.parametrize("name", ["relu", "relu6", "hardtanh", "clamp", "clamp_min", "clamp_max"])
def test_bounds_on_few_and_on_many_elements(name):
    """Small and large arrays are brought between bounds in two ways."""
    functions = {
        "clamp": lambda t: t.clamp(-1, 0.5),
        "clamp_min": lambda t: t.clamp_min(-1),
        "clamp_max": lambda t: t.clamp_max(2),
    }
    function = functions.get(name) or getattr(wf.nn.functional, name)
    few = np.array([-INF, -7, -1, -0.5, 0, 0.5, 1, 6, 7, INF, NAN], np.float32)
    many = np.tile(few, 300)
    small, large = function(wf.tensor(few)), function(wf.tensor(many))
    assert small.dtype is large.dtype is wf.float32
    np.testing.assert_array_equal(large.numpy(), np.tile(small.numpy(), 300))
    assert small[-1].isnan() and not small[:-1].isnan().any()


def test_clamp_by_tensors_has_gradients_for_the_limits():
    x = wf.tensor([-2.0, 0.0, 3.0], requires_grad=True)
    low = wf.tensor([-1.0], requires_grad=True)
    high = wf.tensor(1.0, requires_grad=True)
    wf.clamp(x, low, high).sum().backward()
    assert x.grad.tolist() == [0, 1, 0] and low.grad.tolist() == [1] and high.grad.item() == 1


def test_a_limit_of_a_higher_kind_is_not_clamped_in_place():
    with pytest.raises(OperationError, match="clamp_: a result of wayfare.float32 cannot be written"):
        wf.tensor([1, 5]).clamp_(max=2.5)


# -- selection ------------------------------------------------------------------------------------------------------


@given(mutually_broadcastable_shapes(num_shapes=3, max_dims=3, max_side=3), st.integers(0, 99))
@settings(max_examples=25)
def test_where_broadcasts_all_three(shapes, seed):
    rng = np.random.default_rng(seed)
    mask, a, b = (rng.normal(size=shape) for shape in shapes.input_shapes)
    out = wf.where(wf.tensor(mask) > 0, wf.tensor(a), wf.tensor(b))
    np.testing.assert_array_equal(out.numpy(), np.where(mask > 0, a, b))


@pytest.mark.parametrize("size", [4, 5000])
def test_where_lets_no_infinity_through(size):
    """Small and large arrays are selected in two ways; neither may compute with what is not chosen."""
    mask = wf.arange(size) % 2 == 0
    a = wf.full((size,), 2.0, requires_grad=True)
    out = wf.where(mask, a, INF)
    assert (out[::2] == 2).all() and (out[1::2] == INF).all()
    wf.where(mask, a, NAN)[::2].sum().backward()
    assert (a.grad == mask.float()).all()


def test_where_in_other_forms():
    x = wf.tensor([1.0, -1.0])
    assert x.where(x > 0, 0.0).tolist() == [1, 0]
    assert [i.tolist() for i in wf.where(wf.tensor([[True, False], [False, True]]))] == [[0, 1], [0, 1]]
    assert wf.where(wf.tensor([True, False]), 1, 2.5).tolist() == [1, 2.5]
    with pytest.raises(DTypeError, match="where: the condition must be bool, not wayfare.int64 .*condition != 0"):
        wf.where(wf.tensor([1]), x, x)
    with pytest.raises(ShapeError, match=r"where: shapes .* do not broadcast"):
        wf.where(wf.tensor([True, False, True]), x, x)


# -- comparison and bits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
@given(mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3), st.integers(0, 99))
@settings(max_examples=15)
def test_comparisons(name, shapes, seed):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(0, 3, shape) for shape in shapes.input_shapes)
    out = getattr(wf, name)(wf.tensor(a), wf.tensor(b).double())
    assert out.dtype is wf.bool
    np.testing.assert_array_equal(out.numpy(), getattr(a, f"__{name}__")(b))


def test_comparisons_carry_no_gradient_and_nan_equals_nothing():
    x = wf.tensor([NAN], requires_grad=True)
    assert not (x == x).requires_grad and not (x == x).item() and (x != x).item()
    assert (wf.ones(1) == None) is False  # noqa: E711 - what is no operand is simply not equal


def test_equality_of_whole_tensors():
    x = wf.tensor([1.0, 2.0])
    assert wf.equal(x, x.clone()) and not wf.equal(x, wf.tensor([1.0])) and not wf.equal(x, x + 1)
    near = x * (1 + 1e-6)
    assert wf.allclose(x, near) and not wf.allclose(x, near, rtol=0, atol=1e-7)
    odd = wf.tensor([NAN, INF])
    assert wf.isclose(odd, odd).tolist() == [False, True]
    assert wf.isclose(odd, odd, equal_nan=True).all()
    with pytest.raises(OperationError, match="isclose: rtol and atol must not be negative"):
        wf.isclose(x, x, rtol=-1.0)
    with pytest.raises(DTypeError, match="isclose: both must have one dtype"):
        wf.isclose(x, x.double())


@given(st.lists(st.integers(-128, 127), min_size=1, max_size=6), st.integers(-128, 127))
def test_bits_of_small_integers(values, other):
    x = np.array(values, np.int8)
    t = wf.tensor(x)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        out = getattr(wf, name)(t, other)
        assert out.dtype is wf.int8
        np.testing.assert_array_equal(out.numpy(), getattr(np, name)(x, np.int8(other)))
    np.testing.assert_array_equal((~t).numpy(), ~x)


def test_shifts_past_the_width():
    counts = wf.tensor([1, 7, 8, 100, -1], dtype=wf.int8)
    assert (wf.tensor(1, dtype=wf.int8) << counts).tolist() == [2, -128, 0, 0, 0]
    assert (wf.tensor(-128, dtype=wf.int8) >> counts).tolist() == [-64, -1, -1, -1, -1]
    assert (wf.tensor([255], dtype=wf.uint8) >> 9).tolist() == [0]


def test_bits_and_truth_in_place():
    x = wf.tensor([6, 3])
    x &= 2
    x |= 8
    x ^= 1
    x <<= 1
    x >>= 2
    assert x.tolist() == [5, 5]
    mask = wf.tensor([True, False])
    assert mask.logical_not_().tolist() == [False, True]
    assert wf.logical_xor(wf.tensor([2.0, 0.0]), wf.tensor([0, 3])).tolist() == [True, True]


def test_floats_have_no_bits():
    for make in (lambda: wf.ones(1) & 1, lambda: wf.ones(1) << 1, lambda: ~wf.ones(1)):
        with pytest.raises(DTypeError, match=r"bitwise_\w+: works on integers, not on wayfare.float32"):
            make()
    with pytest.raises(DTypeError, match="gcd: does not take"):
        wf.gcd(wf.ones(1), wf.ones(1))


def test_divisors():
    a, b = wf.tensor([12, 0, -8]), wf.tensor([18, 5, 12])
    assert wf.gcd(a, b).tolist() == [6, 5, 4]
    assert wf.lcm(a, b).tolist() == [36, 0, 24]


@pytest.mark.parametrize(
    "name", ["floor", "ceil", "trunc", "round", "isnan", "isinf", "signbit", "frexp", "nan_to_num"]
)
@pytest.mark.parametrize("value", [None, 2.5, [1.0], np.ones(2)])
def test_a_function_of_tensors_names_what_it_was_given_instead(name, value):
    sentence = rf"{name}: expected a tensor, not {type(value).__name__} \(test_elementwise.py:\d+\)"
    with pytest.raises(ArgumentTypeError, match=sentence):
        getattr(wf, name)(value)


def test_equal_compares_tensors_only():
    with pytest.raises(ArgumentTypeError, match="equal: expected a tensor, not list"):
        wf.equal(wf.ones(2), [1.0, 1.0])
    with pytest.raises(ArgumentTypeError, match="equal: expected a tensor, not NoneType"):
        wf.equal(None, wf.ones(2))


def test_where_takes_a_condition_of_numpy():
    assert wf.where(np.array([True, False]), 1.0, 0.0).tolist() == [1, 0]
    with pytest.raises(RuntimeError, match="the condition must be bool, not wayfare.float64"):
        wf.where(np.ones(2), 1.0, 0.0)
