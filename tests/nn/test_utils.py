"""Clipping gradients, and parameters as one vector, against plain NumPy."""

import math

import numpy as np
import pytest

import wayfare as wf
from wayfare.nn import utils


def parameters(*gradients, dtype=wf.float32):
    """Leaves with the given gradients; None leaves one without."""
    made = []
    for gradient in gradients:
        p = wf.zeros(() if gradient is None else np.shape(gradient), dtype=dtype).requires_grad_()
        if gradient is not None:
            p.grad = wf.tensor(gradient, dtype=dtype)
        made.append(p)
    return made


def table(rows=6, columns=4, used=(1, 3, 3)):
    """A table of which a few rows have a gradient, kept as rows."""
    weight = wf.randn(rows, columns).requires_grad_()
    (wf.nn.functional.embedding(wf.tensor(used), weight) * 2).sum().backward()
    assert weight.row_grad() is not None
    return weight


def flat(gradients):
    return np.concatenate([np.ravel(g) for g in gradients])


RNG = np.random.default_rng(5)
GRADIENTS = [RNG.normal(size=(4, 3)), None, RNG.normal(size=7), RNG.normal(size=()), RNG.normal(size=(2, 1, 5))]
GIVEN = [g for g in GRADIENTS if g is not None]


def norm(values, order):
    return np.linalg.norm(values, order)


@pytest.mark.parametrize("order", [2, 2.0, 1, 3, 0.5, math.inf, -math.inf])
@pytest.mark.parametrize("limit", [0.5, 1e6, 0.0])
def test_the_common_norm_is_limited(order, limit):
    made = parameters(*GRADIENTS, dtype=wf.float64)
    total = utils.clip_grad_norm_(made, limit, order)
    expected = norm(flat(GIVEN), order)
    assert isinstance(total, wf.Tensor) and total.shape == () and total.dtype is wf.float64
    assert total.item() == pytest.approx(expected, rel=1e-12)
    factor = min(1.0, limit / (expected + 1e-6))
    found = [p.grad.numpy() for p in made if p.grad is not None]
    assert made[1].grad is None
    assert flat(found) == pytest.approx(flat(GIVEN) * factor, rel=1e-12)


@pytest.mark.parametrize("size", [10, 8192, 8193, 300_000])
def test_large_and_small_gradients_are_summed_exactly_enough(size):
    values = np.linspace(0.5, 1.5, size, dtype=np.float32)
    (p,) = parameters(values)
    expected = np.linalg.norm(values.astype(np.float64))
    assert utils.clip_grad_norm_(p, 1.0).item() == pytest.approx(expected, rel=2e-6)
    assert np.linalg.norm(p.grad.numpy().astype(np.float64)) == pytest.approx(1.0, rel=1e-5)


def test_one_tensor_an_iterable_or_a_generator():
    for wrapped in (lambda ps: ps[0], tuple, iter, lambda ps: (p for p in ps), lambda ps: {"a": ps[0]}.values()):
        made = parameters([3.0, 4.0])
        assert utils.clip_grad_norm_(wrapped(made), 1.0).item() == pytest.approx(5.0)
        assert made[0].grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-5)


def test_nothing_to_clip():
    assert utils.clip_grad_norm_([], 1.0).item() == 0
    assert utils.clip_grad_norm_(parameters(None, None), 1.0).item() == 0
    assert utils.get_total_norm([]).item() == 0
    made = parameters(np.zeros((0, 3)), [3.0, 4.0])
    assert utils.clip_grad_norm_(made, 1.0, math.inf).item() == 4
    with pytest.warns(UserWarning, match="the generator of parameters is empty"):
        utils.clip_grad_norm_((p for p in []), 1.0)


def test_zero_gradients_stay_zero():
    made = parameters([0.0, 0.0])
    assert utils.clip_grad_norm_(made, 1.0).item() == 0
    assert made[0].grad.tolist() == [0, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_that_is_not_finite(bad):
    made = parameters([1.0, bad], [2.0])
    with pytest.raises(RuntimeError, match="the total norm of order 2.0 is (nan|inf)"):
        utils.clip_grad_norm_(made, 1.0, error_if_nonfinite=True)
    assert made[1].grad.tolist() == [2.0]
    total = utils.clip_grad_norm_(made, 1.0)
    assert not math.isfinite(total.item())
    # As in PyTorch: NaN spreads, and an infinite norm scales the finite gradients to zero.
    found = made[1].grad.item()
    assert math.isnan(found) if math.isnan(bad) else found == 0


def test_mixed_and_half_precision():
    made = parameters([30000.0] * 4, dtype=wf.float16) + parameters([3.0])
    total = utils.clip_grad_norm_(made, 1.0)
    assert total.dtype is wf.float32 and total.item() == pytest.approx(60000, rel=1e-3)
    assert made[0].grad.dtype is wf.float16 and made[0].grad.tolist() == pytest.approx([0.5] * 4, rel=1e-3)


def test_memory_in_any_order():
    p = wf.zeros(3, 4).requires_grad_()
    p.grad = wf.arange(12.0).reshape(4, 3).t()
    q = wf.zeros(5).requires_grad_()
    q.grad = wf.arange(10.0)[::2]
    expected = math.sqrt(sum(t * t for t in range(12)) + sum(t * t for t in range(0, 10, 2)))
    assert utils.clip_grad_norm_([p, q], 1.0).item() == pytest.approx(expected)
    assert p.grad[1, 2].item() == pytest.approx(7 / expected, rel=1e-5)
    assert q.grad.tolist() == pytest.approx([t / expected for t in range(0, 10, 2)], rel=1e-5)


@pytest.mark.parametrize("order", [2, math.inf, 1])
def test_rows_are_clipped_as_rows(order):
    weight = table()
    (dense,) = parameters([3.0, 4.0])
    values = [2.0] * 4 + [4.0] * 4 + [3.0, 4.0]
    total = utils.clip_grad_norm_([weight, dense], 1.0, order)
    assert weight.row_grad() is not None, "the gradient was made dense"
    expected = norm(values, order)
    assert total.item() == pytest.approx(expected)
    rows, kept = weight.row_grad()
    assert rows.tolist() == [1, 3]
    assert kept.tolist() == pytest.approx(np.repeat([2.0, 4.0], 4).reshape(2, 4) / expected, rel=1e-5)
    whole = np.zeros((6, 4))
    whole[1], whole[3] = 2 / expected, 4 / expected
    assert weight.grad.numpy() == pytest.approx(whole, rel=1e-5)


def test_rows_are_clipped_by_value():
    weight = table()
    utils.clip_grad_value_([weight], 2.5)
    assert weight.row_grad() is not None, "the gradient was made dense"
    assert weight.grad.numpy()[[0, 1, 3], 0].tolist() == [0, 2.0, 2.5]


def test_values_are_limited():
    made = parameters([[-5.0, 0.25], [0.5, 3.0]], None, [-1.0])
    utils.clip_grad_value_(iter(made), 0.5)
    assert made[0].grad.tolist() == [[-0.5, 0.25], [0.5, 0.5]] and made[2].grad.tolist() == [-0.5]
    utils.clip_grad_value_(made[0], 0.125)
    assert made[0].grad.tolist() == [[-0.125, 0.125], [0.125, 0.125]]


def test_in_two_steps():
    made = parameters([3.0], [4.0])
    total = utils.get_total_norm(p.grad for p in made)
    assert total.item() == 5
    utils.clip_grads_with_norm_(made, 1.0, total)
    assert [p.grad.item() for p in made] == pytest.approx([0.6, 0.8], rel=1e-5)
    utils.clip_grads_with_norm_(made, 100.0, total)
    assert [p.grad.item() for p in made] == pytest.approx([0.6, 0.8], rel=1e-5)


def test_a_clipped_gradient_that_the_graph_still_needs_is_noticed():
    (p,) = parameters([3.0, 4.0])
    w = wf.ones(2, requires_grad=True)
    penalty = (p.grad * w).sum()
    utils.clip_grad_norm_(p, 1.0)
    with pytest.raises(RuntimeError, match="modified by an in-place operation"):
        penalty.backward()


def test_gradients_with_a_history():
    x = wf.tensor([3.0, 4.0], requires_grad=True)
    (x**2).sum().backward(create_graph=True)
    assert utils.clip_grad_norm_(x, 1.0).item() == pytest.approx(10)
    assert x.grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-5)


BAD = [
    (lambda: utils.clip_grad_norm_(5, 1.0), TypeError, "a tensor or an iterable of tensors, not int"),
    (lambda: utils.clip_grad_norm_(["w"], 1.0), TypeError, "takes tensors, but one item is a str"),
    (lambda: utils.clip_grad_norm_(parameters([1.0]), -1.0), ValueError, "max_norm must be at least 0, it is -1.0"),
    (lambda: utils.clip_grad_norm_(parameters([1.0]), math.nan), ValueError, "it is nan"),
    (lambda: utils.clip_grad_value_(parameters([1.0]), -1.0), ValueError, "clip_value must be at least 0"),
    (lambda: utils.clip_grad_norm_(parameters([1.0]), "1"), TypeError, "max_norm must be a number, not str"),
    (lambda: utils.clip_grad_norm_(parameters([1.0]), 1.0, None), TypeError, "norm_type must be a number, not None"),
    (lambda: utils.clip_grad_value_(parameters([1.0]), None), TypeError, "clip_value must be a number, not None"),
    (lambda: utils.parameters_to_vector([]), ValueError, "there are no parameters"),
    (lambda: utils.vector_to_parameters([1.0], []), TypeError, "vec must be a Tensor, not list"),
    (lambda: utils.vector_to_parameters(wf.zeros(3), parameters([1.0] * 4)), RuntimeError, "a vector of 4 elements"),
    (lambda: utils.vector_to_parameters(wf.zeros(2, 2), parameters([1.0] * 4)), RuntimeError, r"this is f32\[2,2\]"),
]


@pytest.mark.parametrize(("call", "kind", "sentence"), BAD)
def test_bad_arguments_are_named(call, kind, sentence):
    with pytest.raises(kind, match=sentence) as raised:
        call()
    assert "test_utils.py" in str(raised.value)


# -- one vector ----------------------------------------------------------------------------------------------


def test_parameters_as_one_vector_and_back():
    made = [wf.randn(2, 3).requires_grad_(), wf.randn(4).requires_grad_(), wf.randn(()).requires_grad_()]
    vector = utils.parameters_to_vector(p for p in made)
    assert vector.tolist() == flat([p.detach().numpy() for p in made]).tolist()
    (vector * wf.arange(11.0)).sum().backward()
    assert made[0].grad.tolist() == [[0, 1, 2], [3, 4, 5]] and made[2].grad.item() == 10

    others = [wf.nn.Parameter(wf.zeros_like(p.detach())) for p in made]
    utils.vector_to_parameters(vector, others)
    for p, q in zip(made, others, strict=True):
        assert q.tolist() == p.tolist() and q.requires_grad and q.is_leaf and isinstance(q, wf.nn.Parameter)


def test_a_transposed_parameter_goes_through_a_vector():
    p = wf.arange(6.0).reshape(2, 3).t().requires_grad_()
    vector = utils.parameters_to_vector([p])
    assert vector.tolist() == [0, 3, 1, 4, 2, 5]
    utils.vector_to_parameters(vector + 1, [p])
    assert p.tolist() == [[1, 4], [2, 5], [3, 6]]


def test_parameters_share_the_vectors_memory():
    vector = wf.zeros(3)
    (p,) = parameters([1.0, 2.0])
    utils.vector_to_parameters(vector, [p])
    vector[1] = 5.0
    assert p.tolist() == [0, 5]
