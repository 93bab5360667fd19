"""`wf.special`: special functions, as in `torch.special`."""

from __future__ import annotations

from wayfare.api.functions._public import as_dtype_of, common_dtype
from wayfare.api.functions.elementwise import exp2, expm1, isinf, log1p, logit, round, sin, sinc, where
from wayfare.api.functions.elementwise import sigmoid as expit
from wayfare.api.functions.reduce import logsumexp
from wayfare.api.functions.softmax import log_softmax, softmax
from wayfare.api.functions.special_functions import (
    POLYNOMIALS,
    erf,
    erfc,
    erfinv,
    i0,
    plain_binary,
    plain_unary,
    polygamma,
    xlogy,
)
from wayfare.api.functions.special_functions import digamma as psi
from wayfare.api.functions.special_functions import igamma as gammainc
from wayfare.api.functions.special_functions import igammac as gammaincc
from wayfare.api.functions.special_functions import lgamma as gammaln
from wayfare.api.functions.special_functions import mvlgamma as multigammaln
from wayfare.core.tensor import Tensor

__all__ = [
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "chebyshev_polynomial_t", "chebyshev_polynomial_u",
    "chebyshev_polynomial_v", "chebyshev_polynomial_w", "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2",
    "expit", "expm1", "gammainc", "gammaincc", "gammaln", "hermite_polynomial_h", "hermite_polynomial_he", "i0", "i0e",
    "i1", "i1e", "laguerre_polynomial_l", "legendre_polynomial_p", "log1p", "log_ndtr", "log_softmax", "logit",
    "logsumexp", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1",
    "multigammaln", "ndtr", "ndtri", "polygamma", "psi", "round", "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1", "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w", "sinc", "softmax", "spherical_bessel_j0",
    "xlog1py", "xlogy", "zeta",
]  # fmt: skip

digamma = psi
airy_ai = plain_unary("airy_ai", "The Airy function Ai.")
entr = plain_unary("entr", "`-x log x`; 0 at 0, minus infinity below.")
erfcx = plain_unary("erfcx", "The scaled complementary error function `exp(x ** 2) * erfc(x)`.")
ndtr = plain_unary("ndtr", "The area under the standard normal density up to x.")
ndtri = plain_unary("ndtri", "The inverse of `ndtr`.")
log_ndtr = plain_unary("log_ndtr", "The logarithm of `ndtr`, exact far out in the tail.")
i0e = plain_unary("i0e", "The exponentially scaled modified Bessel function of the first kind of order 0.")
i1 = plain_unary("i1", "The modified Bessel function of the first kind of order 1.")
i1e = plain_unary("i1e", "The exponentially scaled modified Bessel function of the first kind of order 1.")
bessel_j0 = plain_unary("bessel_j0", "The Bessel function of the first kind of order 0.", "j0")
bessel_j1 = plain_unary("bessel_j1", "The Bessel function of the first kind of order 1.", "j1")
bessel_y0 = plain_unary("bessel_y0", "The Bessel function of the second kind of order 0.", "y0")
bessel_y1 = plain_unary("bessel_y1", "The Bessel function of the second kind of order 1.", "y1")
modified_bessel_i0 = plain_unary(
    "modified_bessel_i0", "The modified Bessel function of the first kind of order 0.", "i0"
)
modified_bessel_i1 = plain_unary(
    "modified_bessel_i1", "The modified Bessel function of the first kind of order 1.", "i1"
)
modified_bessel_k0 = plain_unary(
    "modified_bessel_k0", "The modified Bessel function of the second kind of order 0.", "k0"
)
modified_bessel_k1 = plain_unary(
    "modified_bessel_k1", "The modified Bessel function of the second kind of order 1.", "k1"
)
scaled_modified_bessel_k0 = plain_unary(
    "scaled_modified_bessel_k0", "The scaled modified Bessel function of the second kind of order 0.", "k0e"
)
scaled_modified_bessel_k1 = plain_unary(
    "scaled_modified_bessel_k1", "The scaled modified Bessel function of the second kind of order 1.", "k1e"
)
xlog1py = plain_binary("xlog1py", "`input * log1p(other)`, and 0 where `input` is 0.")
zeta = plain_binary("zeta", "The Hurwitz zeta function.")

chebyshev_polynomial_t = POLYNOMIALS["chebyshev_polynomial_t"]
chebyshev_polynomial_u = POLYNOMIALS["chebyshev_polynomial_u"]
chebyshev_polynomial_v = POLYNOMIALS["chebyshev_polynomial_v"]
chebyshev_polynomial_w = POLYNOMIALS["chebyshev_polynomial_w"]
shifted_chebyshev_polynomial_t = POLYNOMIALS["shifted_chebyshev_polynomial_t"]
shifted_chebyshev_polynomial_u = POLYNOMIALS["shifted_chebyshev_polynomial_u"]
shifted_chebyshev_polynomial_v = POLYNOMIALS["shifted_chebyshev_polynomial_v"]
shifted_chebyshev_polynomial_w = POLYNOMIALS["shifted_chebyshev_polynomial_w"]
hermite_polynomial_h = POLYNOMIALS["hermite_polynomial_h"]
hermite_polynomial_he = POLYNOMIALS["hermite_polynomial_he"]
laguerre_polynomial_l = POLYNOMIALS["laguerre_polynomial_l"]
legendre_polynomial_p = POLYNOMIALS["legendre_polynomial_p"]


def spherical_bessel_j0(input: Tensor) -> Tensor:
    """The spherical Bessel function of the first kind of order 0: `sin(x) / x`, and 1 at 0."""
    x = as_dtype_of(input, common_dtype("spherical_bessel_j0", (input,), to_float=True))
    wave = sin(where(isinf(x), 0.0, x)) / where(x == 0, 1.0, x)
    return where(x == 0, 1.0, wave)  # type: ignore[no-any-return]
