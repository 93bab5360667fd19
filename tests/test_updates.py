"""`fused_update`: formulas written by a user change tensors in place, as under no_grad, and say what is wrong."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wayfare as wf
from wayfare.api.fused_update import fused_update
from wayfare.codegen.runtime import kernel
from wayfare.core.counters import counted

ROOT = Path(wf.__file__).parents[1]


@fused_update(writes=("p", "v"))
def momentum(m, p, g, v, *, rate, keep):
    """Move by a velocity."""
    v = v * keep + g
    return p - v * rate, v


@fused_update(writes=("p",))
def descend(m, p, g, *, rate):
    return p - g * rate


def plain(p, g, v, rate, keep):
    v = keep * v + g
    return p - rate * v, v


def test_lists_of_tensors_in_one_native_call():
    rng = np.random.default_rng(0)
    shapes = [(3, 4), (5,), (), (2, 0), (1, 2, 3)]
    arrays = [[rng.normal(size=s) for s in shapes] for _ in range(3)]
    params, grads, velocities = ([wf.tensor(a) for a in column] for column in arrays)
    momentum(params, grads, velocities, rate=0.5, keep=0.25)
    with counted() as counts:
        momentum(params, grads, velocities, rate=0.1, keep=0.5)
    if kernel.available():
        assert counts.kernels_run == 1
    for p, v, a, g, b in zip(params, velocities, *arrays, strict=True):
        wanted = plain(*plain(a, g, b, 0.5, 0.25)[:1], g, plain(a, g, b, 0.5, 0.25)[1], 0.1, 0.5)
        np.testing.assert_allclose(p.numpy(), wanted[0], rtol=1e-12)
        np.testing.assert_allclose(v.numpy(), wanted[1], rtol=1e-12)


def test_it_keeps_the_name_and_the_text_of_the_formula():
    assert momentum.__doc__ == "Move by a velocity." and momentum.name == "momentum"
    assert momentum.tensors == ("p", "g", "v") and momentum.numbers == ("rate", "keep")
    assert momentum.writes == ("p", "v") and repr(momentum) == "<fused update momentum>"


def test_a_leaf_is_written_and_nothing_is_recorded():
    p = wf.ones(3, requires_grad=True)
    descend([p], [wf.ones(3)], rate=0.5)
    assert p.is_leaf and p.requires_grad and p.grad_fn is None
    np.testing.assert_array_equal(p.detach().numpy(), 0.5)
    (p * p).sum().backward()
    np.testing.assert_array_equal(p.grad.numpy(), 1.0)


def test_a_graph_that_kept_the_old_value_notices():
    p = wf.ones(3, requires_grad=True)
    loss = (p * p).sum()
    descend([p], [wf.ones(3)], rate=0.5)
    with pytest.raises(wf.errors.InPlaceError):
        loss.backward()


def test_a_state_that_a_graph_kept_notices_too():
    p, v, x = wf.ones(3), wf.ones(3), wf.ones(3, requires_grad=True)
    loss = (x * v).sum()
    momentum([p], [wf.ones(3)], [v], rate=0.5, keep=0.5)
    with pytest.raises(wf.errors.InPlaceError):
        loss.backward()


def test_views_write_into_their_base():
    base = wf.zeros(4, 6)
    descend([base[:, ::2], base.t()[1::2]], [wf.ones(4, 3), wf.full((3, 4), 2.0)], rate=1.0)
    np.testing.assert_array_equal(base.numpy(), np.tile([-1.0, -2.0], (4, 3)))


def test_half_precision_and_mixed_dtypes():
    params = [wf.ones(3, dtype=d) for d in (wf.float16, wf.float32, wf.float64)]
    descend(params, [wf.full((3,), 0.5, dtype=p.dtype) for p in params], rate=0.5)
    assert [p.dtype for p in params] == [wf.float16, wf.float32, wf.float64]
    assert [p.tolist() for p in params] == [[0.75] * 3] * 3


def test_nothing_to_update():
    descend([], [], rate=1.0)


@pytest.mark.parametrize("shape", [(7, 3), (7,), (7, 2, 2)])
def test_some_rows(shape):
    rng = np.random.default_rng(1)
    p, v = rng.normal(size=shape), rng.normal(size=shape)
    rows = np.array([1, 2, 6])
    g = rng.normal(size=(3, *shape[1:]))
    p_tensor, v_tensor = wf.tensor(p), wf.tensor(v)
    momentum.at_rows(wf.tensor(rows), p_tensor, wf.tensor(g), v_tensor, rate=0.5, keep=0.25)
    p[rows], v[rows] = plain(p[rows], g, v[rows], 0.5, 0.25)
    np.testing.assert_allclose(p_tensor.numpy(), p, rtol=1e-12)
    np.testing.assert_allclose(v_tensor.numpy(), v, rtol=1e-12)


def test_rows_are_noticed_and_checked():
    p = wf.ones(3, 2, requires_grad=True)
    loss = (p * p).sum()
    descend.at_rows(wf.tensor([1]), p, wf.ones(1, 2), rate=0.5)
    with pytest.raises(wf.errors.InPlaceError):
        loss.backward()
    with pytest.raises(IndexError, match="outside the 3 rows"):
        descend.at_rows(wf.tensor([3]), p, wf.ones(1, 2), rate=0.5)
    with pytest.raises(wf.errors.ShapeError, match="shapes"):
        descend.at_rows(wf.tensor([1]), p, wf.ones(2, 2), rate=0.5)
    descend.at_rows(wf.zeros(0, dtype=wf.int64), p, wf.ones(0, 2), rate=0.5)
    np.testing.assert_array_equal(p.detach().numpy(), [[1, 1], [0.5, 0.5], [1, 1]])


ONE = [wf.ones(2)]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: descend(wf.ones(2), wf.ones(2), rate=1.0), TypeError, "takes lists of tensors, not Tensor"),
        (lambda: descend([np.ones(2)], ONE, rate=1.0), TypeError, "holds a ndarray"),
        (lambda: descend(ONE, rate=1.0), TypeError, "got 1 lists"),
        (lambda: descend(rate=1.0), TypeError, "got 0 lists"),
        (lambda: descend(ONE, [], rate=1.0), ValueError, "lists of 1 and 0 tensors"),
        (lambda: descend(ONE, ONE), TypeError, "got 2 lists"),
        (lambda: descend(ONE, ONE, rate=1.0, extra=1.0), TypeError, "rate, extra"),
        (lambda: descend(ONE, ONE, rate="fast"), TypeError, "rate must be a number, not str"),
        (lambda: descend(ONE, ONE, rate=None), TypeError, "rate must be a number, not NoneType"),
        (lambda: descend.at_rows([0], ONE[0], wf.ones(1), rate=1.0), TypeError, "rows must be a Tensor .*, not list"),
        (lambda: descend.at_rows(wf.tensor([0.0]), ONE[0], wf.ones(1), rate=1.0), TypeError, r"it is f32\[1\]"),
        (lambda: descend.at_rows(wf.tensor([[0]]), ONE[0], wf.ones(1), rate=1.0), TypeError, r"it is i64\[1,1\]"),
        (lambda: descend.at_rows(wf.tensor([0]), wf.ones(()), wf.ones(1), rate=1.0), RuntimeError, "has no rows"),
        (lambda: descend.at_rows(wf.tensor([0]), ONE[0], wf.ones(1), rate=None), TypeError, "not NoneType"),
        (lambda: descend(ONE, [wf.ones(3)], rate=1.0), RuntimeError, r"shapes \[2\] and \[3\]"),
        (lambda: descend([wf.ones(2, dtype=wf.int64)], ONE, rate=1.0), RuntimeError, "int64"),
        (lambda: descend([wf.ones(1).expand(2)], ONE, rate=1.0), RuntimeError, "share memory"),
        (lambda: wf.vmap(lambda x: descend([x], [x], rate=1.0))(wf.ones(2, 2)), RuntimeError, "inside vmap"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert isinstance(caught.value, wf.errors.WayfareError)
    np.testing.assert_array_equal(ONE[0].numpy(), 1.0)


def test_a_tensor_of_inference_mode_is_written_there_only():
    with wf.inference_mode():
        p = wf.ones(2)
        descend([p], [wf.ones(2)], rate=0.5)
    with pytest.raises(wf.errors.InPlaceError, match="inference_mode"):
        descend([p], [wf.ones(2)], rate=0.5)
    np.testing.assert_array_equal(p.numpy(), 0.5)


@pytest.mark.parametrize(
    ("writes", "formula", "words"),
    [
        (("q",), lambda m, p, *, rate: p, "cannot write"),
        ((), lambda m, p: p, "cannot write"),
        (("p", "p"), lambda m, p: (p, p), "cannot write"),
        (("p",), lambda m, *p: p, "no fixed meaning"),
        (("p",), lambda m, p, *, rate=1.0: p, "no fixed meaning"),
        (("p",), lambda m: 0, "takes no tensor"),
    ],
)
def test_formulas_that_make_no_sense(writes, formula, words):
    with pytest.raises(ValueError, match=words):
        fused_update(writes=writes)(formula)


def test_a_formula_that_returns_too_much():
    with pytest.raises(ValueError, match="returned 2 values"):
        fused_update(writes="p")(lambda m, p: (p, p))([wf.ones(2)])


WITHOUT = """
import sys, warnings
sys.modules["llvmlite"] = None
warnings.simplefilter("ignore")
import wayfare as wf
from wayfare.api.fused_update import fused_update
seen = []
warnings.showwarning = lambda message, *rest, **more: seen.append(str(message))
warnings.simplefilter("always")

@fused_update(writes=("p",))
def descend(m, p, g, *, rate):
    return p - m.sqrt(g) * rate

params = [wf.ones(2, dtype=d) for d in (wf.float16, wf.float32, wf.float64)]
descend(params, [wf.full((2,), 4.0, dtype=p.dtype) for p in params], rate=0.25)
table = wf.ones(3, 2)
descend.at_rows(wf.tensor([0, 2]), table, wf.full((2, 2), 4.0), rate=0.25)
print([p.tolist() for p in params], table.tolist(), len(seen))
"""


def test_without_llvmlite_numpy_does_it():
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]] [[0.5, 0.5], [1.0, 1.0], [0.5, 0.5]] 1"
