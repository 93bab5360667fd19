"""Arithmetic: broadcasting, promotion, integers and bools at their limits, and errors."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

import wayfare as wf
from wayfare.errors import ArgumentError, ArgumentTypeError, DTypeError, OperationError, ShapeError

NAN, INF = float("nan"), float("inf")
OPERATORS = {
    operator.add: np.add,
    operator.sub: np.subtract,
    operator.mul: np.multiply,
    operator.truediv: np.true_divide,
    operator.floordiv: np.floor_divide,
    operator.mod: np.remainder,
    operator.pow: np.power,
}


# -- broadcasting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
@given(mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3), st.integers(0, 99))
@settings(max_examples=25)
def test_operators_broadcast_as_numpy_does(function, shapes, seed):
    rng = np.random.default_rng(seed)
    a, b = (rng.uniform(0.5, 2.0, shape) for shape in shapes.input_shapes)
    out = function(wf.tensor(a), wf.tensor(b))
    assert tuple(out.shape) == shapes.result_shape
    np.testing.assert_allclose(out.numpy(), OPERATORS[function](a, b), rtol=1e-12)


@given(mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3), st.integers(0, 99))
@settings(max_examples=25)
def test_gradients_are_summed_back_to_the_shape_of_the_operand(shapes, seed):
    rng = np.random.default_rng(seed)
    a, b = (rng.uniform(0.5, 2.0, shape) for shape in shapes.input_shapes)
    x, y = wf.tensor(a, requires_grad=True), wf.tensor(b, requires_grad=True)
    (x * y).sum().backward()
    assert tuple(x.grad.shape) == a.shape and tuple(y.grad.shape) == b.shape
    np.testing.assert_allclose(x.grad.numpy(), _folded(np.broadcast_to(b, shapes.result_shape), a.shape))
    np.testing.assert_allclose(y.grad.numpy(), _folded(np.broadcast_to(a, shapes.result_shape), b.shape))


def _folded(full, shape):
    extra = full.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(extra + i for i, n in enumerate(shape) if n == 1)
    return full.sum(axis=axes, keepdims=True).reshape(shape)


def test_shapes_that_do_not_fit_are_named_with_a_way_out():
    with pytest.raises(
        ShapeError, match=r"add: shapes \[4, 3\] and \[4\] do not broadcast.*test_arith.*unsqueeze\(-1\)"
    ):
        wf.ones(4, 3) + wf.ones(4)
    with pytest.raises(ShapeError, match=r"mul: .*\[2, 3\] and \[3, 2\].*\.T"):
        wf.ones(2, 3) * wf.ones(3, 2)
    with pytest.raises(ShapeError, match=r"add_: a result of f32\[2,3\] cannot be written into f32\[3\]"):
        wf.ones(3).add_(wf.ones(2, 3))


# -- promotion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda: wf.tensor([1]) + 1.5, wf.float32),
        (lambda: wf.tensor([1.0], dtype=wf.float16) + 1e-3, wf.float16),
        (lambda: wf.tensor([1.0]) + wf.tensor(1.0, dtype=wf.float64), wf.float32),
        (lambda: wf.tensor([1]) + wf.tensor(1.0, dtype=wf.float64), wf.float64),
        (lambda: wf.tensor([1], dtype=wf.uint8) + wf.tensor([1], dtype=wf.int8), wf.int16),
        (lambda: wf.tensor([1], dtype=wf.uint8) + 1000, wf.uint8),
        (lambda: wf.tensor([True]) + wf.tensor([True]), wf.bool),
        (lambda: wf.tensor([True]) * 2, wf.int64),
        (lambda: wf.tensor([3]) / wf.tensor([2]), wf.float32),
        (lambda: wf.tensor([3], dtype=wf.int8) // 2, wf.int8),
        (lambda: wf.tensor([1.0]) + np.float64(2.0), wf.float32),
        (lambda: np.float32(2.0) * wf.tensor([1.0], dtype=wf.float64), wf.float64),
        (lambda: wf.tensor([1.0]) + np.ones(1), wf.float64),
        (lambda: wf.square(wf.tensor([True])), wf.int64),
        (lambda: wf.float_power(wf.tensor([2]), 2), wf.float64),
    ],
)
def test_the_dtype_of_a_result(make, dtype):
    assert make().dtype is dtype


def test_a_recorded_cast_gives_each_operand_a_gradient_of_its_own_dtype():
    x = wf.tensor([2.0], dtype=wf.float16, requires_grad=True)
    y = wf.tensor([3.0], dtype=wf.float64, requires_grad=True)
    out = x * y
    out.backward()
    assert out.dtype is wf.float64
    assert (x.grad.dtype, x.grad.item()) == (wf.float16, 3.0)
    assert (y.grad.dtype, y.grad.item()) == (wf.float64, 2.0)


def test_numbers_alone_are_refused_where_pytorch_refuses_them():
    assert wf.add(2, 3).item() == 5
    for function in (wf.pow, wf.remainder, wf.maximum, wf.xlogy, wf.atan2, wf.eq, wf.bitwise_and):
        with pytest.raises(ArgumentTypeError, match=rf"{function.__name__}: .*must be a tensor.*wf\.tensor"):
            function(2, 3)


def test_what_is_no_operand():
    with pytest.raises(TypeError, match="unsupported operand"):
        wf.ones(2) + "1"
    with pytest.raises(ArgumentTypeError, match="mul: expected a tensor or a number, not list"):
        wf.mul(wf.ones(2), [1, 2])
    with pytest.raises(DTypeError, match="complex numbers are not supported"):
        wf.mul(wf.ones(2), 1j)

    class Other:
        def __radd__(self, tensor):
            return "mine"

    assert wf.ones(2) + Other() == "mine"


# -- bools and integers ---------------------------------------------------------------------------------------------

MASK = [True, False]


@pytest.mark.parametrize(
    "make",
    [
        lambda: wf.tensor(MASK) - wf.tensor(MASK),
        lambda: wf.tensor(MASK) - 1,
        lambda: 1 - wf.tensor(MASK),
        lambda: wf.ones(2) - True,
        lambda: wf.ones(2) - wf.tensor(MASK),
        lambda: wf.rsub(wf.tensor(MASK), 1),
        lambda: wf.rsub(wf.tensor(MASK), 1, alpha=2),
        lambda: wf.sub(wf.tensor([1, 2]), wf.tensor(MASK), alpha=2),
        lambda: wf.ones(2).sub_(wf.tensor(MASK)),
        lambda: wf.ones(2).sub_(True),
    ],
)
def test_bools_are_not_subtracted(make):
    with pytest.raises(DTypeError, match="sub: does not take bool .*use ~ or logical_not"):
        make()


def test_other_arithmetic_of_bools():
    mask = wf.tensor(MASK)
    assert (mask**True).tolist() == MASK and (mask**False).tolist() == [True, True]
    assert mask.sign().tolist() == MASK and mask.sign().dtype is wf.bool
    for refused in (wf.neg, wf.abs, wf.positive):
        with pytest.raises(DTypeError, match=rf"{refused.__name__}: does not take (wayfare\.)?bool"):
            refused(mask)
    with pytest.raises(DTypeError, match="pow: does not take bool"):
        mask ** wf.tensor(MASK)


@pytest.mark.parametrize("function", [wf.floor_divide, wf.remainder, wf.fmod], ids=lambda f: f.__name__)
def test_integers_are_not_divided_by_zero(function):
    with pytest.raises(OperationError, match=f"{function.__name__}: division of integers by zero .*mask the zeros"):
        function(wf.tensor([1, 2]), wf.tensor([1, 0]))
    with pytest.raises(OperationError, match="by zero"):
        function(wf.tensor([1, 2]), 0)


def test_trunc_division_of_integers_by_zero():
    with pytest.raises(OperationError, match="div: division of integers by zero"):
        wf.div(wf.tensor([1]), 0, rounding_mode="trunc")


def test_floats_divided_by_zero_give_infinity_and_nan():
    assert (wf.tensor([1.0, -1.0]) / 0).tolist() == [INF, -INF]
    assert (wf.tensor([0.0]) / 0).isnan().all() and (wf.tensor([1.0]) % 0).isnan().all()


def test_the_signs_of_whole_quotients_and_remainders():
    a, b = wf.tensor([-7, 7, -7, 7]), wf.tensor([3, -3, -3, 3])
    assert (a // b).tolist() == [-3, -3, 2, 2]
    assert wf.div(a, b, rounding_mode="trunc").tolist() == [-2, -2, 2, 2]
    assert (a % b).tolist() == [2, -2, -1, 1]
    assert wf.fmod(a, b).tolist() == [-1, 1, -1, 1]
    with pytest.raises(ArgumentError, match="rounding_mode is None, 'trunc' or 'floor', not 'up'"):
        wf.div(a, b, rounding_mode="up")


def test_negative_powers_of_integers():
    base = wf.tensor([2, 1, -1, -1, 5])
    assert (base ** wf.tensor([-1, -1, -1, -2, 2])).tolist() == [0, 1, -1, 1, 25]
    with pytest.raises(OperationError, match=r"pow: integers cannot be raised to the negative power -1 .*\.float\(\)"):
        base**-1
    assert (base.float() ** -1).tolist() == pytest.approx([0.5, 1, -1, -1, 0.2])


def test_integers_wrap_around():
    assert (wf.tensor([200], dtype=wf.uint8) + 100).tolist() == [44]
    assert (-wf.tensor([-128], dtype=wf.int8)).tolist() == [-128]


@pytest.mark.parametrize("exponent", [0.5, -0.5, -1, -2, 1, 2, 3, 0, 1.7])
def test_quick_powers_agree_with_the_slow_one(exponent):
    x = np.array([0.3, 1.0, 2.5, INF, NAN])
    np.testing.assert_allclose((wf.tensor(x) ** exponent).numpy(), np.power(x, float(exponent)))
    t = wf.tensor([0.3, 2.5], dtype=wf.float64, requires_grad=True)
    (t**exponent).sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), exponent * np.power([0.3, 2.5], exponent - 1.0), atol=1e-15)


def test_the_slope_of_a_power_at_zero():
    x = wf.zeros(1, requires_grad=True)
    e = wf.tensor([2.0], requires_grad=True)
    (x**e).backward()
    assert x.grad.item() == 0 and e.grad.item() == 0
    y = wf.zeros(1, requires_grad=True)
    (y**0).backward()
    assert y.grad.item() == 0


# -- extremes, signs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["fmax", "fmin"])
def test_of_two_zeros_the_first_is_taken_here_and_in_native_code(name, dtype):
    function = getattr(wf, name)

    def scaled(a, b):
        return function(a, b) * 1

    for count in (1, 2, 5, 17, 64, 3000, 50_000):
        signs = np.random.default_rng(count).choice([0.0, -0.0, 1.0, np.nan], (2, count)).astype(dtype)
        a, b = map(wf.from_numpy, signs)
        wins = signs[0] >= signs[1] if name == "fmax" else signs[0] <= signs[1]
        want = np.where(wins | np.isnan(signs[1]), *signs)
        compiled = wf.compile(scaled, check=False)
        ways = [function(a, b), function(a.flip(0), b.flip(0)).flip(0), getattr(np, name)(a, b),
                wf.fused(scaled)(a, b), *(compiled(a, b) for _ in range(3))]  # fmt: skip
        for got in ways:
            np.testing.assert_array_equal(got.numpy(), want)
            numbers = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(got.numpy())[numbers], np.signbit(want)[numbers])
    zeros = wf.tensor(0.0), wf.tensor(-0.0)
    assert not function(*zeros).signbit() and function(*zeros[::-1]).signbit()


def test_nan_wins_in_maximum_and_gives_way_in_fmax():
    a, b = wf.tensor([NAN, 1.0, NAN]), wf.tensor([1.0, NAN, NAN])
    assert wf.maximum(a, b).isnan().all() and wf.minimum(a, b).isnan().all()
    assert wf.fmax(a, b).tolist()[:2] == [1, 1] and wf.fmin(a, b).tolist()[:2] == [1, 1]
    assert wf.fmax(a, b)[2].isnan()


def test_equal_elements_share_the_gradient_of_maximum():
    a = wf.tensor([1.0, 2.0, 3.0], requires_grad=True)
    b = wf.tensor([1.0, 3.0, 2.0], requires_grad=True)
    wf.maximum(a, b).sum().backward()
    assert a.grad.tolist() == [0.5, 0, 1] and b.grad.tolist() == [0.5, 1, 0]


def test_nan_has_no_sign():
    x = wf.tensor([NAN, -0.0, -2.0, INF], requires_grad=True)
    assert wf.sign(x).tolist() == [0, 0, -1, 1]
    x.abs().sum().backward()
    assert x.grad.tolist() == [0, 0, -1, 1]


# -- alpha ----------------------------------------------------------------------------------------------------------


def test_alpha():
    a, b = wf.tensor([1.0, 2.0]), wf.tensor([10.0, 20.0])
    assert wf.add(a, b, alpha=0.5).tolist() == [6, 12]
    assert wf.sub(a, b, alpha=2).tolist() == [-19, -38]
    assert wf.rsub(a, b, alpha=2).tolist() == [8, 16]
    assert wf.add(wf.tensor(MASK), wf.tensor([False, True]), alpha=True).tolist() == [True, True]
    with pytest.raises(OperationError, match="add: alpha is the float 0.5, but the operands are integers"):
        wf.add(wf.tensor([1]), wf.tensor([2]), alpha=0.5)
    with pytest.raises(OperationError, match="add: alpha is a bool"):
        wf.add(a, b, alpha=True)


def test_alpha_has_its_part_in_the_gradient():
    a = wf.tensor([1.0], requires_grad=True)
    b = wf.tensor([2.0], requires_grad=True)
    wf.sub(a, b, alpha=3).backward()
    assert a.grad.item() == 1 and b.grad.item() == -3


@pytest.mark.parametrize("size", [3, 40_000])
def test_combinations_in_place_and_not(size):
    rng = np.random.default_rng(1)
    a, b, c = rng.uniform(0.5, 2.0, (3, size))
    for name, expected in {"addcmul": a + 0.5 * b * c, "addcdiv": a + 0.5 * b / c}.items():
        out = getattr(wf, name)(*map(wf.tensor, (a, b, c)), value=0.5)
        np.testing.assert_allclose(out.numpy(), expected)
        t = wf.tensor(a)
        assert getattr(t, name + "_")(wf.tensor(b), wf.tensor(c), value=0.5) is t
        np.testing.assert_allclose(t.numpy(), expected)
    for weight in (0.0, 0.3, 0.7, 1.0):
        np.testing.assert_allclose(wf.lerp(wf.tensor(a), wf.tensor(b), weight).numpy(), a + weight * (b - a))
        np.testing.assert_allclose(wf.tensor(a).lerp_(wf.tensor(b), weight).numpy(), a + weight * (b - a))
    np.testing.assert_array_equal(wf.lerp(wf.tensor(a), wf.tensor(b), 1.0).numpy(), b)


def test_addcdiv_takes_no_integers():
    with pytest.raises(OperationError, match="addcdiv: integer division"):
        wf.addcdiv(wf.ones(1), wf.tensor([1]), wf.tensor([2]))


def test_lerp_wants_one_dtype():
    with pytest.raises(DTypeError, match="lerp: end must be wayfare.float32 like the input, not wayfare.float64"):
        wf.lerp(wf.ones(1), wf.ones(1, dtype=wf.float64), 0.5)


def test_nextafter_and_heaviside():
    assert wf.nextafter(wf.tensor([1.0]), wf.tensor([2.0])).item() == 1 + 2**-23
    values = wf.tensor([7.0], requires_grad=True)
    out = wf.heaviside(wf.tensor([-1.0, 0.0, 2.0]), values)
    assert out.tolist() == [0, 7, 1]
    out.sum().backward()
    assert values.grad.item() == 1
    with pytest.raises(DTypeError, match="heaviside: both must have one dtype"):
        wf.heaviside(wf.ones(1), wf.tensor([1]))


def test_alpha_is_a_number():
    assert wf.add(wf.ones(2), wf.ones(2), alpha=np.float32(2)).tolist() == [3, 3]
    with pytest.raises(ArgumentTypeError, match="add: alpha must be a number, not str"):
        wf.add(wf.ones(2), wf.ones(2), alpha="2")
