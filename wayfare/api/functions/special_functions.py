"""Special functions under the names `torch` and `torch.special` have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from wayfare.api.functions._public import (
    add_method,
    as_dtype_of,
    binary,
    common_dtype,
    in_place_form,
    method,
    named,
    need_tensors,
    operand,
    promoted,
    unary,
)
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, DTypeError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import bool_, default_dtype
from wayfare.core.tensor import Tensor
from wayfare.ops.elementwise.polynomials import POLYNOMIAL_NAMES

__all__ = ["digamma", "erf", "erfc", "erfinv", "i0", "igamma", "igammac", "lgamma", "mvlgamma", "polygamma", "xlogy"]

_OPS = REGISTRY

erf = unary(_OPS["erf"], "The error function.")
erfc = unary(_OPS["erfc"], "One minus the error function.")
erfinv = unary(_OPS["erfinv"], "The inverse of the error function.")
lgamma = unary(_OPS["lgamma"], "The logarithm of the absolute value of the gamma function.")
digamma = unary(_OPS["digamma"], "The derivative of `lgamma`.")
i0 = unary(_OPS["i0"], "The modified Bessel function of the first kind of order 0.")
_of_tensors = partial(binary, tensors="all")
xlogy = binary(_OPS["xlogy"], "`input * log(other)`, and 0 where `input` is 0.")
igamma = _of_tensors(_OPS["gammainc"], "The regularised lower incomplete gamma function.", name="igamma")
igammac = _of_tensors(_OPS["gammaincc"], "The regularised upper incomplete gamma function.", name="igammac")


def plain_unary(name: str, doc: str, op_name: str = "") -> Callable[[Tensor], Tensor]:
    """A function of one tensor that is not a method."""
    op = _OPS[op_name or name]

    def call(input: Tensor) -> Tensor:
        x = operand(input, name)
        return apply(op, (as_dtype_of(x, common_dtype(name, (x,), to_float=True)),))  # type: ignore[no-any-return]

    return named(call, name, doc)


def plain_binary(name: str, doc: str) -> Callable[[Any, Any], Tensor]:
    """A function of two tensors that is not a method."""
    op = _OPS[name]

    def call(input: Tensor | float, other: Tensor | float) -> Tensor:
        need_tensors(name, "any", input, other)
        return promoted(op, (input, other))

    return named(call, name, doc)


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
add_method("polygamma_", in_place_form(_polygamma_method, "polygamma"))


@method(inplace=True)
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension `p`."""
    if input.dtype is bool_:
        raise DTypeError("mvlgamma: does not take bool", fix="Convert with .float() first.")
    if p < 1:
        raise ArgumentError(f"mvlgamma: p must be at least 1, but is {p}")
    x = as_dtype_of(input, default_dtype() if not input.dtype.is_floating_point else input.dtype)
    total = lgamma(x)
    for j in range(1, p):
        total = total + lgamma(x - j / 2)
    return total + p * (p - 1) / 4 * math.log(math.pi)


def _polynomial(name: str) -> Callable[[Any, Any], Tensor]:
    def of_degree(input: Tensor | float, n: Tensor | float) -> Tensor:
        need_tensors(name, "any", input, n)
        return promoted(_OPS[name], (input, n))

    return named(of_degree, name, f"The {name.replace('_', ' ')} of degree `n`, at `input`.")


POLYNOMIALS = {name: _polynomial(name) for name in POLYNOMIAL_NAMES}
