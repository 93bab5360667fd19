"""Dropout: rate, scale, whole channels, the same mask in backward, nothing kept for it."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.codegen.routines.dropout_mask import dropout_mask
from wayfare.errors import ArgumentError, DTypeError, ShapeError
from wayfare.nn import functional as F


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 1 / 256, 0.999])
def test_the_rate_is_p(p):
    n = 200_000
    dropped = n - int(dropout_mask((3, 4), (n,), p).sum())
    assert abs(dropped - n * p) < 5 * np.sqrt(n * p * (1 - p))


def test_what_stays_is_scaled_and_the_gradient_has_the_same_mask():
    x = wf.ones(1000, requires_grad=True)
    out = F.dropout(x, 0.25)
    assert set(out.tolist()) == {0.0, np.float32(1 / 0.75).item()}
    out.sum().backward()
    assert x.grad.tolist() == out.tolist()


def test_nothing_is_kept_for_backward():
    x = wf.ones(10, requires_grad=True)
    assert all(kept is None for kept in F.dropout(x).grad_fn.kept)


def test_off_in_evaluation_and_extreme_rates():
    x = wf.randn(5)
    assert F.dropout(x, 0.5, training=False) is x
    assert F.dropout(x, 0.0).tolist() == x.tolist()
    assert F.dropout(x, 1.0).tolist() == [0] * 5
    assert F.alpha_dropout(x, 0.5).tolist() == x.tolist()


@pytest.mark.parametrize(
    ("drop", "shape", "channels"),
    [
        (F.dropout1d, (40, 5, 3), 2),
        (F.dropout1d, (40, 5), 1),
        (F.dropout2d, (20, 10, 3, 2), 2),
        (F.dropout3d, (40, 2, 3, 2), 1),
        (F.dropout3d, (20, 10, 2, 3, 2), 2),
    ],
)
def test_whole_channels_go_together(drop, shape, channels):
    out = drop(wf.ones(shape)).numpy().reshape(int(np.prod(shape[:channels])), -1)
    assert (out == out[:, :1]).all()
    assert 0 < (out[:, 0] == 0).mean() < 1


def test_alpha_dropout_keeps_mean_and_deviation():
    x = wf.randn(200_000)
    out = F.alpha_dropout(x, 0.3, training=True)
    assert abs(out.mean().item()) < 0.02 and abs(out.std().item() - 1) < 0.02
    channels = F.feature_alpha_dropout(wf.zeros(30, 10, 4), 0.5, training=True).numpy()
    assert (channels == channels[..., :1]).all() and len(np.unique(channels)) == 2


def test_in_place():
    x = wf.ones(100)
    out = F.dropout(x, 0.5, inplace=True)
    assert out is x and set(x.tolist()) == {0.0, 2.0}


def test_errors_are_sentences():
    with pytest.raises(ArgumentError, match=r"dropout: p is a probability from 0 to 1, but is 1.5"):
        F.dropout(wf.ones(2), 1.5)
    with pytest.raises(DTypeError, match=r"dropout: takes floating-point tensors, not i64\[2\]"):
        F.dropout(wf.ones(2, dtype=wf.int64))
    with pytest.raises(ShapeError, match=r"dropout1d: expects 2 or 3 dimensions, not f32\[2\]"):
        F.dropout1d(wf.ones(2))


@pytest.mark.parametrize("p", ["half", None, [0.5], -0.1, float("nan")])
def test_p_is_a_probability(p):
    with pytest.raises(ArgumentError, match="dropout: p is a probability from 0 to 1, but is"):
        F.dropout(wf.ones(2), p)


@pytest.mark.parametrize("name", ["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout"])
def test_something_else_than_a_tensor_is_named(name):
    with pytest.raises(TypeError, match=f"{name}: expected a tensor, not ndarray"):
        getattr(F, name)(np.ones((2, 2, 2)))
