"""Resizing: known results by hand, constants stay constant, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare.core.tensor import wrap
from wayfare.nn import functional as F

X = wrap(np.array([[[0.0, 1, 2, 3]]]))


def test_nearest_and_nearest_exact_differ_at_ties():
    assert F.interpolate(X, size=2).tolist() == [[[0, 2]]]
    assert F.interpolate(X, size=2, mode="nearest-exact").tolist() == [[[1, 3]]]


def test_linear_by_hand():
    np.testing.assert_allclose(F.interpolate(X, size=2, mode="linear")._array, [[[0.5, 2.5]]])
    np.testing.assert_allclose(F.interpolate(X, size=7, mode="linear", align_corners=True)._array, [[np.arange(7) / 2]])


def test_a_given_factor_is_used_as_it_is_unless_it_is_to_be_recomputed():
    assert F.interpolate(X, scale_factor=1.6).tolist() == [[[0, 0, 1, 1, 2, 3]]]
    assert F.interpolate(X, scale_factor=1.6, recompute_scale_factor=True).tolist() == [[[0, 0, 1, 2, 2, 3]]]


def test_area_is_the_mean_of_even_cells():
    assert F.interpolate(X, size=2, mode="area").tolist() == [[[0.5, 2.5]]]


@given(
    st.integers(1, 6),
    st.integers(1, 9),
    st.sampled_from(["bilinear", "bicubic"]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60)
def test_a_constant_image_stays_constant(size, count, mode, aligned, antialias):
    x = wrap(np.full((1, 2, size, 3), 2.5))
    out = F.interpolate(x, size=(count, 5), mode=mode, align_corners=aligned, antialias=antialias)
    np.testing.assert_allclose(out._array, np.full((1, 2, count, 5), 2.5), rtol=1e-12)


@given(st.integers(2, 6), st.integers(1, 9), st.booleans())
@settings(max_examples=60)
def test_the_gradient_is_the_adjoint(size, count, antialias):
    x = wrap(np.random.default_rng(0).normal(size=(1, 2, size, size))).requires_grad_()
    out = F.interpolate(x, size=(count, 4), mode="bicubic", antialias=antialias)
    g = np.random.default_rng(1).normal(size=tuple(out.shape))
    (back,) = wf.autograd.grad([out], [x], [wrap(g)])
    np.testing.assert_allclose((back._array * x._array).sum(), (g * out._array).sum(), rtol=1e-9, atol=1e-9)


def test_one_bad_pixel_spoils_only_its_neighbours():
    x = np.zeros((1, 1, 1, 8))
    x[..., 0] = np.inf
    out = F.interpolate(wrap(x), size=(1, 16), mode="bilinear")._array
    assert not np.isnan(out[..., 4:]).any() and np.isfinite(out[..., 4:]).all()


REFUSALS = {
    "both": (lambda: F.interpolate(X, size=2, scale_factor=2), "either size or scale_factor"),
    "neither": (lambda: F.interpolate(X), "either size or scale_factor"),
    "mode": (lambda: F.interpolate(X, size=2, mode="cubic"), "mode must be one of nearest"),
    "rank": (lambda: F.interpolate(X, size=2, mode="bilinear"), r"4 dimensions, this is f64\[1,1,4\]"),
    "corners": (lambda: F.interpolate(X, size=2, align_corners=True), "align_corners does not go"),
    "zero": (lambda: F.interpolate(X, size=0), "sizes must be positive"),
}


@pytest.mark.parametrize(("call", "text"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(call, text):
    with pytest.raises(wf.errors.WayfareError, match=text):
        call()


def test_an_identity_matrix_makes_the_grid_of_pixel_centres():
    theta = wrap(np.array([[[1.0, 0, 0], [0, 1, 0]]]))
    grid = F.affine_grid(theta, [1, 1, 2, 4], align_corners=False)._array
    np.testing.assert_allclose(grid[0, 0, :, 0], [-0.75, -0.25, 0.25, 0.75])
    np.testing.assert_allclose(grid[0, :, 0, 1], [-0.5, 0.5])


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_sampling_at_the_pixels_gives_the_image(mode, aligned):
    x = wrap(np.random.default_rng(0).normal(size=(1, 2, 3, 4)))
    theta = wrap(np.array([[[1.0, 0, 0], [0, 1, 0]]]))
    grid = F.affine_grid(theta, [1, 2, 3, 4], align_corners=aligned)
    for padding in ("zeros", "border", "reflection"):
        out = F.grid_sample(x, grid, mode, padding, aligned)
        np.testing.assert_allclose(out._array, x._array, rtol=1e-9, atol=1e-9)


def test_outside_the_image():
    x = wrap(np.array([[[[1.0, 2, 3, 4]]]]))
    grid = wrap(np.array([[[[-3.0, 0.0], [2.0, 0.0]]]]))
    assert F.grid_sample(x, grid, align_corners=True)._array.tolist() == [[[[0, 0]]]]
    assert F.grid_sample(x, grid, padding_mode="border", align_corners=True).tolist() == [[[[1, 4]]]]
    np.testing.assert_allclose(
        F.grid_sample(x, grid, padding_mode="reflection", align_corners=True)._array, [[[[4, 2.5]]]]
    )
