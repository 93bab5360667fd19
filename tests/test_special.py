"""Special functions: against SciPy and each other, at their edges, with their gradients."""

import math

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

import wayfare as wf
from wayfare.errors import ArgumentError, ArgumentTypeError, DTypeError, OperationError

NAN, INF = float("nan"), float("inf")
ONE_INPUT = {
    "entr": "entr", "erf": "erf", "erfc": "erfc", "erfcx": "erfcx", "erfinv": "erfinv", "ndtr": "ndtr",
    "ndtri": "ndtri", "log_ndtr": "log_ndtr", "expit": "expit", "logit": "logit", "psi": "psi", "digamma": "psi",
    "gammaln": "gammaln", "i0": "i0", "i0e": "i0e", "i1": "i1", "i1e": "i1e", "bessel_j0": "j0", "bessel_j1": "j1",
    "bessel_y0": "y0", "bessel_y1": "y1", "modified_bessel_i0": "i0", "modified_bessel_i1": "i1",
    "modified_bessel_k0": "k0", "modified_bessel_k1": "k1", "scaled_modified_bessel_k0": "k0e",
    "scaled_modified_bessel_k1": "k1e", "exp2": "exp2", "expm1": "expm1", "log1p": "log1p",
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_INPUT)
def test_named_after_pytorch_computed_as_scipy_does(name):
    function = getattr(wf.special, name)
    x = np.array([0.1, 0.5, 0.9])
    np.testing.assert_allclose(function(wf.tensor(x)).numpy(), getattr(scipy.special, ONE_INPUT[name])(x), rtol=1e-12)
    assert function.__doc__
    for dtype in (wf.float16, wf.float32):
        assert function(wf.tensor(x, dtype=dtype)).dtype is dtype
    assert function(wf.tensor([1])).dtype is wf.float32


def test_every_public_name_is_there():
    assert set(wf.special.__all__) <= set(dir(wf.special))
    for name in wf.special.__all__:
        assert getattr(wf.special, name).__doc__, name


def test_functions_answer_to_their_public_names():
    for name in ("bessel_j0", "modified_bessel_k1", "airy_ai", "zeta", "hermite_polynomial_he"):
        assert getattr(wf.special, name).__name__ == name


def test_tails_far_out():
    x = wf.tensor([-30.0, -1000.0], dtype=wf.float64, requires_grad=True)
    out = wf.special.log_ndtr(x)
    np.testing.assert_allclose(out.detach().numpy(), scipy.special.log_ndtr([-30.0, -1000.0]))
    out.sum().backward()
    # The slope of the logarithm of the tail tends to |x|.
    np.testing.assert_allclose(x.grad.numpy(), [30.0, 1000.0], rtol=2e-3)
    assert wf.special.erfcx(wf.tensor([1e4])).item() == pytest.approx(1 / (1e4 * math.sqrt(math.pi)))


def test_entropy_terms():
    x = wf.tensor([-1.0, 0.0, 1.0, 0.5])
    np.testing.assert_allclose(wf.special.entr(x).numpy(), [-INF, 0, 0, 0.5 * math.log(2)], rtol=1e-6)
    zero = wf.zeros(1)
    assert wf.xlogy(zero, zero).item() == 0 and wf.xlogy(zero, wf.tensor([NAN])).isnan().item()
    assert wf.special.xlog1py(zero, wf.tensor([-1.0])).item() == 0
    assert wf.xlogy(2, wf.tensor([math.e])).item() == pytest.approx(2)


def test_spherical_bessel():
    x = wf.tensor([0.0, 1.0, INF, -2.0], dtype=wf.float64, requires_grad=True)
    out = wf.special.spherical_bessel_j0(x)
    assert out.tolist() == pytest.approx([1, math.sin(1), 0, math.sin(2) / 2])
    out[:2].sum().backward()
    assert x.grad.tolist()[:2] == pytest.approx([0, math.cos(1) - math.sin(1)])


def test_inverses_undo():
    x = wf.tensor([-0.9, 0.1, 0.7], dtype=wf.float64)
    np.testing.assert_allclose(wf.erf(wf.erfinv(x)).numpy(), x.numpy())
    np.testing.assert_allclose(wf.special.ndtri(wf.special.ndtr(x)).numpy(), x.numpy())
    assert wf.erfinv(wf.tensor([1.0, -1.0])).tolist() == [INF, -INF]


# -- the gamma family -----------------------------------------------------------------------------------------------


def test_polygamma_is_the_chain_of_derivatives():
    x = wf.tensor([0.7, 2.5], dtype=wf.float64, requires_grad=True)
    slope = wf.lgamma(x)
    for n in range(4):
        (slope,) = wf.autograd.grad(slope.sum(), x, create_graph=True)
        np.testing.assert_allclose(slope.detach().numpy(), wf.polygamma(n, x).detach().numpy(), rtol=1e-10)
    with pytest.raises(ArgumentError, match="polygamma: n must not be negative, but is -1"):
        wf.polygamma(-1, x)


def test_polygamma_as_method_and_in_place():
    x = wf.tensor([0.7], dtype=wf.float64)
    expected = x.polygamma(1).item()
    assert x.polygamma_(1) is x and x.item() == expected


def test_multivariate_gamma():
    x = np.array([3.0, 4.5])
    for p in (1, 2, 4):
        np.testing.assert_allclose(wf.mvlgamma(wf.tensor(x), p).numpy(), [scipy.special.multigammaln(v, p) for v in x])
    with pytest.raises(ArgumentError, match="mvlgamma: p must be at least 1, but is 0"):
        wf.mvlgamma(wf.tensor(x), 0)
    with pytest.raises(DTypeError, match="mvlgamma: does not take bool"):
        wf.mvlgamma(wf.tensor([True]), 1)


def test_incomplete_gamma_functions_share_one():
    a, x = wf.tensor([0.5, 2.0, 7.0]), wf.tensor([0.3, 2.0, 9.0])
    np.testing.assert_allclose((wf.igamma(a, x) + wf.igammac(a, x)).numpy(), 1, rtol=1e-6)
    assert wf.igamma(wf.ones(1), wf.tensor([0.0])).item() == 0


def test_a_derivative_nobody_knows_is_an_error_not_a_zero():
    a = wf.tensor([2.0], requires_grad=True)
    out = wf.igamma(a, wf.tensor([1.0]))
    with pytest.raises(OperationError, match="igamma: the derivative by input is not implemented"):
        out.backward()


def test_zeta():
    assert wf.special.zeta(wf.tensor([2.0], dtype=wf.float64), 1.0).item() == pytest.approx(math.pi**2 / 6)
    with pytest.raises(ArgumentTypeError, match="zeta: at least one operand must be a tensor"):
        wf.special.zeta(2.0, 1.0)


# -- orthogonal polynomials -----------------------------------------------------------------------------------------

BY_SCIPY = {
    "chebyshev_polynomial_t": "eval_chebyt", "chebyshev_polynomial_u": "eval_chebyu",
    "shifted_chebyshev_polynomial_t": "eval_sh_chebyt", "shifted_chebyshev_polynomial_u": "eval_sh_chebyu",
    "hermite_polynomial_h": "eval_hermite", "hermite_polynomial_he": "eval_hermitenorm",
    "laguerre_polynomial_l": "eval_laguerre", "legendre_polynomial_p": "eval_legendre",
}  # fmt: skip


@pytest.mark.parametrize("name", BY_SCIPY)
@given(st.floats(-1, 1), st.integers(0, 12))
def test_polynomials(name, x, n):
    got = getattr(wf.special, name)(wf.tensor([x], dtype=wf.float64), n).item()
    assert got == pytest.approx(getattr(scipy.special, BY_SCIPY[name])(n, x), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", [n for n in wf.special.__all__ if "polynomial" in n])
def test_degrees_that_are_no_degrees(name):
    function = getattr(wf.special, name)
    x = wf.tensor([0.3, 2.0])
    assert function(x, -1).tolist() == [0, 0]
    assert function(x, 0).tolist() == [1, 1]
    assert function(x, 2.9).tolist() == function(x, 2).tolist()
    assert function(x, wf.tensor([1, 2], dtype=wf.int32)).dtype is wf.float32


def test_polynomials_of_the_third_and_fourth_kind():
    theta = np.array([0.4, 1.3, 2.2])
    x = wf.tensor(np.cos(theta))
    for n in (1, 2, 5):
        v = wf.special.chebyshev_polynomial_v(x, n).numpy()
        w = wf.special.chebyshev_polynomial_w(x, n).numpy()
        np.testing.assert_allclose(v, np.cos((n + 0.5) * theta) / np.cos(theta / 2))
        np.testing.assert_allclose(w, np.sin((n + 0.5) * theta) / np.sin(theta / 2))
        shifted = wf.special.shifted_chebyshev_polynomial_v((x + 1) / 2, n).numpy()
        np.testing.assert_allclose(shifted, v)
