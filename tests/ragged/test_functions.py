"""Operators, functions, reductions and softmax of ragged tensors: values and gradients of the loop over rows."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare.errors import IndexRangeError, OperationError, ShapeError

from .strategies import made, raggeds, rows_of, same

quick = settings(max_examples=30, deadline=None)
UNARY = ["abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "neg", "reciprocal", "relu", "round", "sigmoid", "sign",
         "sin", "square", "tan", "tanh"]  # fmt: skip
BINARY = [operator.add, operator.sub, operator.mul, operator.truediv]


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_value(name):
    r = made([3, 0, 2], (2,))
    same(getattr(r, name)(), [getattr(row, name)() for row in rows_of(r)], [r.values])


@pytest.mark.parametrize("name", ["log", "log1p", "log2", "sqrt", "rsqrt"])
def test_functions_of_one_positive_value(name):
    r = made([3, 0, 2], (2,))
    same(getattr(r * r, name)(), [getattr(row * row, name)() for row in rows_of(r)], [r.values])


def test_functions_with_arguments_and_of_bools():
    r = made([3, 0, 2])
    same(r.clamp(-0.5, max=0.5), [row.clamp(-0.5, 0.5) for row in rows_of(r)], [r.values])
    same(r.clip(0), [row.clip(0) for row in rows_of(r)], [r.values])
    same(r.pow(2), [row**2 for row in rows_of(r)], [r.values])
    same(~(r > 0), [row <= 0 for row in rows_of(r)], [])
    same((r > 0) & (r < 1) | (r == 5), [(row > 0) & (row < 1) for row in rows_of(r)], [])
    odd = wf.Ragged([[1.0, float("nan")], [float("inf")]])
    assert odd.isnan().tolist() == [[False, True], [False]] and odd.isinf().tolist() == [[False, False], [True]]
    assert odd.isfinite().tolist() == [[True, False], [False]] and odd.nan_to_num(0.0)[0].tolist() == [1.0, 0.0]
    assert (-r).equal(r.neg()) and abs(r).equal(r.abs()) and (r != r).any().item() is False


@given(raggeds(), st.sampled_from(BINARY))
@quick
def test_operators_with_numbers_and_ragged_tensors(r, function):
    same(function(r, 2.5), [function(row, 2.5) for row in rows_of(r)], [r.values])
    same(function(2.5, r), [function(2.5, row) for row in rows_of(r)], [r.values])
    other = r.exp()
    same(function(r, other), [function(row, row.exp()) for row in rows_of(r)], [r.values])


@given(raggeds(features=(3,)), st.sampled_from(BINARY), st.integers(0, 99))
@quick
def test_operators_with_tensors(r, function, seed):
    rng = np.random.default_rng(seed)
    rows = len(r)

    def leaf(*shape):
        return wf.tensor(rng.uniform(1, 2, shape), requires_grad=True)

    for shape in ((), (3,), (1,), (1, 3), (1, 1, 3)):
        t = leaf(*shape)
        whole = t.reshape(-1) if shape else t
        same(function(r, t), [function(row, whole) for row in rows_of(r)], [r.values, t])
        same(function(t, r), [function(whole, row) for row in rows_of(r)], [r.values, t])
    for shape in ((rows, 1, 3), (rows, 1, 1)):
        t = leaf(*shape)
        same(function(r, t), [function(row, t[k]) for k, row in enumerate(rows_of(r))], [r.values, t])
        same(function(t, r), [function(t[k], row) for k, row in enumerate(rows_of(r))], [r.values, t])


def test_arrays_and_promotion():
    r = wf.Ragged([[1, 2], [3]])
    assert (np.array(2.0) * r).dtype is wf.float64 and (np.ones(1, np.float32) + r).tolist() == [[2, 3], [4]]
    assert (r / 2).dtype is wf.float32 and (r // 2).tolist() == [[0, 1], [1]] and (r % 2).tolist() == [[1, 0], [1]]
    assert (7 // r).tolist() == [[7, 3], [2]] and (7 % r).tolist() == [[0, 1], [1]] and (2**r).tolist() == [[2, 4], [8]]
    assert (r ^ r).tolist() == [[0, 0], [0]]
    assert r.float().dtype is wf.float32 and r.double().dtype is wf.float64 and r.half().dtype is wf.float16
    assert r.double().long().equal(r) and r.bool().tolist() == [[True, True], [True]] and r.to(wf.int8).dtype is wf.int8


@given(raggeds(features=(3,)))
@quick
def test_matrix_products(r):
    weight = wf.tensor(np.random.default_rng(1).normal(size=(3, 2)), requires_grad=True)
    bias = wf.tensor([0.5, -1.0], dtype=wf.float64, requires_grad=True)
    leaves = [r.values, weight, bias]
    same(r @ weight, [row @ weight for row in rows_of(r)], leaves)
    same(r @ weight[:, 0], [row @ weight[:, 0] for row in rows_of(r)], leaves)
    same(r.linear(weight.T, bias), [row @ weight + bias for row in rows_of(r)], leaves)
    same(r.linear(weight.T), [row @ weight for row in rows_of(r)], leaves)


def test_any_function_of_the_values():
    r = made([3, 0, 2], (4,))
    norm = wf.nn.functional.layer_norm
    same(r.map_values(lambda v: norm(v, (4,))), [norm(row, (4,)) for row in rows_of(r)], [r.values])
    same(wf.Ragged.apply(wf.maximum, r, r.cos()), [wf.maximum(row, row.cos()) for row in rows_of(r)], [r.values])


# -- reductions --------------------------------------------------------------------------------------------------------

WITH_EMPTY = [
    ("sum", lambda row: row.sum(0)),
    ("mean", lambda row: row.mean(0)),
    ("logsumexp", lambda row: row.logsumexp(0)),
]
WITHOUT_EMPTY = [
    ("max", lambda row: row.amax(0)),
    ("min", lambda row: row.amin(0)),
    ("argmax", lambda row: row.argmax(0)),
    ("argmin", lambda row: row.argmin(0)),
    ("std", lambda row: row.std(0)),
    ("var", lambda row: row.var(0)),
]


@pytest.mark.parametrize("name, of_row", WITH_EMPTY, ids=[name for name, _ in WITH_EMPTY])
@given(r=raggeds())
@quick
def test_reductions_within_rows(name, of_row, r):
    loop = [of_row(row).unsqueeze(0) for row in rows_of(r)]
    ours = getattr(r, name)(dim=1)
    assert tuple(ours.shape) == (len(r), *r.shape[2:])
    same(ours, loop, [r.values])
    same(getattr(r, name)(dim=1, keepdim=True), [row.unsqueeze(1) for row in loop], [r.values])


@pytest.mark.parametrize("name, of_row", WITHOUT_EMPTY, ids=[name for name, _ in WITHOUT_EMPTY])
@given(r=raggeds(shortest=2))
@quick
def test_reductions_of_rows_that_have_values(name, of_row, r):
    same(getattr(r, name)(1), [of_row(row).unsqueeze(0) for row in rows_of(r)], [r.values])


@given(raggeds(shortest=1))
@quick
def test_the_variance_may_be_uncorrected(r):
    same(r.var(1, correction=0), [row.var(0, correction=0).unsqueeze(0) for row in rows_of(r)], [r.values])


@given(raggeds())
@quick
def test_softmax_within_rows(r):
    for name in ("softmax", "log_softmax"):
        same(getattr(r, name)(1), [getattr(row, name)(0) for row in rows_of(r)], [r.values])
    if r.ndim > 2:
        same(r.softmax(-1), [row.softmax(-1) for row in rows_of(r)], [r.values])


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "logsumexp", "var"])
def test_reductions_over_features(name):
    r = made([3, 0, 2], (4,))
    method = {"max": "amax", "min": "amin"}.get(name, name)
    same(getattr(r, name)(dim=2), [getattr(row, method)(1) for row in rows_of(r)], [r.values])
    same(getattr(r, name)(-1, keepdim=True), [getattr(row, method)(1, keepdim=True) for row in rows_of(r)], [r.values])


def test_reductions_over_all():
    r = made([3, 0, 2], (4,))
    for name in ("sum", "mean", "max", "min", "std", "var"):
        method = {"max": "amax", "min": "amin"}.get(name, name)
        same(getattr(r, name)(), getattr(wf.Tensor, method)(r.values), [r.values])
    assert bool((r == r).all()) and not bool((r > 100).any())


def test_any_and_all_of_rows():
    r = wf.Ragged([[True, False], [], [True], [False]])
    assert r.any(1).tolist() == [True, False, True, False]
    assert r.all(1).tolist() == [False, True, True, False]


def test_empty_rows():
    r = wf.Ragged([[1.0, 2.0], [], [3.0]])
    assert r.sum(1).tolist() == [3.0, 0.0, 3.0]
    assert np.isnan(r.mean(1).tolist()[1]) and np.isnan(r.var(1).tolist()[1])
    assert r.logsumexp(1).tolist()[1] == -np.inf
    assert wf.Ragged([[1, 2], []]).sum(1).dtype is wf.int64


def test_equal_values_share_the_gradient_of_the_maximum():
    r = wf.Ragged.from_lengths(wf.tensor([2.0, 2.0, 1.0, 5.0], requires_grad=True), [3, 1])
    r.max(1).sum().backward()
    assert r.grad.tolist() == [[0.5, 0.5, 0.0], [1.0]]
    assert r.argmax(1).tolist() == [0, 0]


def test_not_a_number_and_infinities():
    inf, nan = float("inf"), float("nan")
    r = wf.Ragged([[1.0, nan, 3.0], [2.0, 1.0], [-inf, -inf], [inf, 1.0]])
    assert np.isnan(r.max(1)[0].item()) and r.argmax(1).tolist() == [1, 0, 0, 0]
    assert r.logsumexp(1)[1:].tolist() == pytest.approx([2.3132617, -inf, inf])
    huge = wf.Ragged([[1000.0, 1000.0], [-1000.0]])
    assert huge.softmax(1).tolist() == [[0.5, 0.5], [1.0]] and huge.log_softmax(1)[1].tolist() == [0.0]
    masked = wf.Ragged.from_lengths(wf.tensor([-inf, -inf, 1.0], requires_grad=True), [2, 1])
    masked.logsumexp(1)[1].backward()
    assert masked.grad.tolist() == [[0.0, 0.0], [1.0]]


@pytest.mark.parametrize("dtype", [wf.float16, wf.float32, wf.float64])
def test_long_rows_are_added_up_precisely(dtype):
    size = 2000 if dtype is wf.float16 else 200_000
    r = wf.Ragged.from_lengths(wf.full((size + 3,), 0.1, dtype=dtype), [size, 3])
    exact = size * r.values[0].double().item()
    assert r.sum(1)[0].item() == pytest.approx(exact, rel=1e-3 if dtype is wf.float16 else 2e-6)
    assert r.mean(1)[0].item() == pytest.approx(0.1, rel=1e-3 if dtype is wf.float16 else 2e-6)


def test_many_rows_wide_and_narrow_equal_numpy():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 40, 3000)
    offsets = np.r_[0, np.cumsum(lengths)]
    for width in (1, 3, 17, 70):
        numbers = rng.normal(size=(offsets[-1], width)).astype(np.float32)
        r = wf.Ragged.from_lengths(wf.from_numpy(numbers), lengths)
        full = np.flatnonzero(lengths)
        want = np.zeros((3000, width))
        want[full] = np.add.reduceat(numbers.astype(np.float64), offsets[:-1][full], axis=0)
        np.testing.assert_allclose(r.sum(1).numpy(), want, rtol=1e-5, atol=1e-5)
        top = np.maximum.reduceat(numbers, offsets[:-1][full], axis=0)
        np.testing.assert_array_equal(r[full].max(1).numpy(), top)
        np.testing.assert_array_equal((-r[full]).min(1).numpy(), -top)
        weights = r.softmax(1)
        np.testing.assert_allclose(weights.sum(1).numpy()[full], 1, rtol=1e-5)
        np.testing.assert_allclose(weights.log().values.numpy(),
                                   r.log_softmax(1).values.numpy(), rtol=1e-4, atol=1e-4)  # fmt: skip


# -- history and sentences ---------------------------------------------------------------------------------------------


def test_history():
    r = wf.Ragged([[1.0, 2.0], [3.0]])
    assert not r.requires_grad and r.grad is None
    assert r.requires_grad_() is r and r.requires_grad
    copied = r.clone()
    (copied * 3).sum().backward()
    assert r.grad.tolist() == [[3.0, 3.0], [3.0]]
    assert not r.detach().requires_grad and copied.requires_grad
    assert not wf.equal(copied.detach().values.add_(1), r.values)
    with wf.no_grad():
        assert not (r * 2).requires_grad


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda r: r.max(1), OperationError, "Ragged.max: row 1 is empty, so it has no max"),
        (lambda r: r.argmin(1), OperationError, "Ragged.argmin: row 1 is empty, so it has no min"),
        (lambda r: r.sum(0), OperationError, "dim 0 goes across rows"),
        (lambda r: r.softmax(-3), OperationError, "dim 0 goes across rows"),
        (lambda r: r.mean(3), IndexRangeError, "dim 3 is out of range for 3 dimensions"),
        (lambda r: r + wf.ones(3, 2), ShapeError, r"does not broadcast .*\[3, length, 2\].*t.unsqueeze\(1\)"),
        (lambda r: r + wf.ones(2, 1, 2), ShapeError, "does not broadcast"),
        (lambda r: r + wf.ones(3, 2, 2), ShapeError, r"\[rows, 1, features\]"),
        (lambda r: r + wf.ones(1, 3, 1, 2), ShapeError, "does not broadcast"),
        (lambda r: r + wf.ones(3), ShapeError, "sizes 2 and 3 differ"),
        (lambda r: r * r[:2], ShapeError, "one ragged tensor has 3 rows and another 2"),
        (lambda r: r * r[[0, 1, 0]], ShapeError, "row 2 has 2 values in one ragged tensor and 3 in another"),
        (lambda r: r * r[..., 0], ShapeError, "differ in dimensions"),
        (lambda r: r + "a", TypeError, "unsupported operand"),
        (lambda r: r @ wf.ones(3, 3), ShapeError, r"features \[2\] do not go with the weight f32\[3,3\]"),
        (lambda r: r[..., 0] @ wf.ones(3, 3), ShapeError, "values without features"),
        (lambda r: r @ 3, TypeError, "unsupported operand"),
        (lambda r: r.linear(wf.ones(2, 3)), ShapeError, "do not go with"),
        (lambda r: r.map_values(wf.sum), OperationError, "one result for each of the 5 packed values"),
        (lambda r: r.map_values(lambda v: 3), OperationError, "out came int"),
        (lambda r: wf.Ragged.apply(wf.exp, wf.ones(3)), TypeError, "at least one ragged tensor"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(make, error, words):
    with pytest.raises(error, match=words):
        make(made([3, 0, 2], (2,)).detach().float())


@pytest.mark.parametrize(
    "call",
    [
        lambda r: wf.nn.Linear(2, 4)(r), lambda r: wf.nn.Embedding(5, 3)(r), lambda r: wf.nn.functional.relu(r),
        lambda r: wf.tanh(r), lambda r: wf.sum(r), lambda r: wf.matmul(r, r), lambda r: wf.stack([r, r]),
        lambda r: wf.nn.functional.cross_entropy(r, wf.tensor([0, 1])), lambda r: wf.floor_divide(r, 2),
        lambda r: wf.zeros(3).__setitem__(0, r),
    ],
)  # fmt: skip
def test_functions_of_tensors_say_what_to_do_with_a_ragged_one(call):
    with pytest.raises(TypeError, match=r"use r.map_values\(f\), or give r.values") as raised:
        call(made([3, 2], (2,)))
    assert "wf.tensor(" not in str(raised.value)


def test_cat_and_tensor_name_what_makes_a_ragged_one():
    r = made([3, 2], (2,))
    with pytest.raises(TypeError, match=r"cat: item 0 is Ragged.*Use wf.Ragged.cat"):
        wf.cat([r, r])
    with pytest.raises(TypeError, match=r"cat: item 0 is int, not a tensor \(.*\)\. Make a tensor of it"):
        wf.cat([1, 2])
    with pytest.raises(TypeError, match=r"not str.*Make a tensor of it with wf.tensor"):
        wf.tanh("a")
    with pytest.raises(ShapeError, match=r"by padding, or keep their lengths with wf.Ragged\(rows\)"):
        wf.tensor([[1, 2], [3]])


@pytest.mark.parametrize("correction", [0, 1])
def test_the_deviation_of_rows_of_equal_values_has_the_gradient_zero(correction):
    """As `std` of a tensor has; no row is spoilt by another."""
    values = np.array([2.0, 2.0, 2.0, 1.0, 2.0, 4.0])
    x = wf.tensor(values, requires_grad=True)
    wf.Ragged.from_lengths(x, [3, 3]).std(dim=1, correction=correction).sum().backward()
    rows = wf.tensor(values, requires_grad=True)
    (rows[:3].std(correction=correction) + rows[3:].std(correction=correction)).backward()
    assert rows.grad[:3].tolist() == [0, 0, 0]
    np.testing.assert_allclose(x.grad.numpy(), rows.grad.numpy(), rtol=1e-6)
