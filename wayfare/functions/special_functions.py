"""Special functions under the names `torch` and `torch.special` have them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from wayfare.eager import apply
from wayfare.errors import ArgumentError
from wayfare.functions import _public
from wayfare.functions._public import add_method, as_dtype_of, common_dtype, method, operand
from wayfare.op import REGISTRY, Sample
from wayfare.ops._define import elementwise
from wayfare.spec import default_dtype
from wayfare.tensor import Tensor

__all__ = ["digamma", "erf", "erfc", "erfinv", "i0", "igamma", "igammac", "lgamma", "mvlgamma", "polygamma", "xlogy"]

_OPS = REGISTRY

erf = _public.unary(_OPS["erf"], "The error function.")
erfc = _public.unary(_OPS["erfc"], "One minus the error function.")
erfinv = _public.unary(_OPS["erfinv"], "The inverse of the error function.")
lgamma = _public.unary(_OPS["lgamma"], "The logarithm of the absolute value of the gamma function.")
digamma = _public.unary(_OPS["digamma"], "The derivative of `lgamma`.")
i0 = _public.unary(_OPS["i0"], "The modified Bessel function of the first kind of order 0.")
xlogy = _public.binary(_OPS["xlogy"], "`input * log(other)`, and 0 where `input` is 0.")
igamma = _public.binary(_OPS["gammainc"], "The regularised lower incomplete gamma function.", name="igamma")
igammac = _public.binary(_OPS["gammaincc"], "The regularised upper incomplete gamma function.", name="igammac")


def plain_unary(name: str, doc: str) -> Callable[[Tensor], Tensor]:
    """A function of one tensor that is no method."""
    op = _OPS[name]

    def call(input: Tensor) -> Tensor:
        x = operand(input, name)
        return apply(op, (as_dtype_of(x, common_dtype(name, (x,), to_float=True)),))  # type: ignore[no-any-return]

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


def plain_binary(name: str, doc: str) -> Callable[[Any, Any], Tensor]:
    """A function of two tensors that is no method."""
    op = _OPS[name]

    def call(input: Tensor | float, other: Tensor | float) -> Tensor:
        return _public.promoted(op, (input, other))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of `digamma`."""
    if n < 0:
        raise ArgumentError(f"polygamma: n must not be negative, but is {n}")
    x = as_dtype_of(input, common_dtype("polygamma", (input,), to_float=True))
    return apply(_OPS["polygamma"], (x,), {"n": int(n)})  # type: ignore[no-any-return]


def _polygamma_method(self: Tensor, n: int) -> Tensor:
    """The n-th derivative of `digamma`."""
    return polygamma(n, self)


add_method("polygamma", _polygamma_method)


@method(inplace=True)
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension `p`."""
    x = as_dtype_of(input, default_dtype() if not input.dtype.is_floating_point else input.dtype)
    total = lgamma(x)
    for j in range(1, p):
        total = total + lgamma(x - j / 2)
    return total + p * (p - 1) / 4 * math.log(math.pi)


# -- orthogonal polynomials: values only, as in PyTorch ---------------------------------------------------------------


def _by_recurrence(first: Callable[[Any], Any], step: Callable[[Any, Any, Any, int], Any]) -> Callable[..., Any]:
    """P0 = 1, P1 = first(x), P(k+1) = step(x, Pk, P(k-1), k); degrees below 0 give 0."""

    def values(x: Any, n: Any) -> Any:
        x, n = np.broadcast_arrays(np.asarray(x), np.asarray(n))
        degree = np.floor(n)
        out = np.where(degree == 0, np.ones_like(x), np.zeros_like(x))
        before, now = np.ones_like(x), np.asarray(first(x), x.dtype)
        top = int(degree.max()) if degree.size and np.isfinite(degree).all() else 0
        for k in range(1, top + 1):
            out = np.where(degree == k, now, out)
            before, now = now, np.asarray(step(x, now, before, k), x.dtype)
        return out

    return values


_POLYNOMIALS: dict[str, tuple[str, Callable[..., Any]]] = {
    "chebyshev_polynomial_t": ("eval_chebyt", _by_recurrence(lambda x: x, lambda x, p, q, k: 2 * x * p - q)),
    "chebyshev_polynomial_u": ("eval_chebyu", _by_recurrence(lambda x: 2 * x, lambda x, p, q, k: 2 * x * p - q)),
    "chebyshev_polynomial_v": ("", _by_recurrence(lambda x: 2 * x - 1, lambda x, p, q, k: 2 * x * p - q)),
    "chebyshev_polynomial_w": ("", _by_recurrence(lambda x: 2 * x + 1, lambda x, p, q, k: 2 * x * p - q)),
    "shifted_chebyshev_polynomial_t": (
        "eval_sh_chebyt", _by_recurrence(lambda x: 2 * x - 1, lambda x, p, q, k: 2 * (2 * x - 1) * p - q)),
    "shifted_chebyshev_polynomial_u": (
        "eval_sh_chebyu", _by_recurrence(lambda x: 2 * (2 * x - 1), lambda x, p, q, k: 2 * (2 * x - 1) * p - q)),
    "shifted_chebyshev_polynomial_v": (
        "", _by_recurrence(lambda x: 2 * (2 * x - 1) - 1, lambda x, p, q, k: 2 * (2 * x - 1) * p - q)),
    "shifted_chebyshev_polynomial_w": (
        "", _by_recurrence(lambda x: 2 * (2 * x - 1) + 1, lambda x, p, q, k: 2 * (2 * x - 1) * p - q)),
    "hermite_polynomial_h": ("eval_hermite", _by_recurrence(lambda x: 2 * x, lambda x, p, q, k: 2 * x * p - 2 * k * q)),
    "hermite_polynomial_he": ("eval_hermitenorm", _by_recurrence(lambda x: x, lambda x, p, q, k: x * p - k * q)),
    "laguerre_polynomial_l": (
        "eval_laguerre", _by_recurrence(lambda x: 1 - x, lambda x, p, q, k: ((2 * k + 1 - x) * p - k * q) / (k + 1))),
    "legendre_polynomial_p": (
        "eval_legendre", _by_recurrence(lambda x: x, lambda x, p, q, k: ((2 * k + 1) * x * p - k * q) / (k + 1))),
}  # fmt: skip


def _angle_form(name: str, x: float, n: float) -> float:
    """The third and fourth Chebyshev kinds by their trigonometric definition."""
    theta = math.acos(2 * x - 1 if name.startswith("shifted") else x)
    if name.endswith("_v"):
        return math.cos((n + 0.5) * theta) / math.cos(theta / 2)
    return math.sin((n + 0.5) * theta) / math.sin(theta / 2)


def _reference(name: str, scipy_name: str, x: float, n: float) -> float:
    if not scipy_name:
        return _angle_form(name, x, n)
    return float(getattr(importlib.import_module("scipy.special"), scipy_name)(int(n), x))


def _samples(rng: Any) -> list[Sample]:
    x = rng.uniform(0.1, 0.9, (3, 4))
    return [Sample((x, np.floor(rng.uniform(0, 6, (3, 4))))), Sample((x, np.asarray(3.0))), Sample((x[:0], np.asarray(2.0)))]


def _polynomial(name: str, scipy_name: str, values: Callable[..., Any]) -> Callable[[Any, Any], Tensor]:
    elementwise(
        name, arity=2, formula=lambda m, x, n: values(x, n), reference=partial(_reference, name, scipy_name),
        samples=_samples, promotion="float", kinds="f",
    )  # fmt: skip
    return plain_binary(name, f"The {name.replace('_', ' ')}_n of degree `other`, at `input`.".replace("_n of", " of"))


POLYNOMIALS = {name: _polynomial(name, *parts) for name, parts in _POLYNOMIALS.items()}
