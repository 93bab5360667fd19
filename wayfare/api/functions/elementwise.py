"""Functions of one element at a time: exponentials, logarithms, trigonometry, rounding, limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from wayfare.api.functions._along import check_tensor
from wayfare.api.functions._new import fitting
from wayfare.api.functions._public import (
    add_method,
    alias,
    as_dtype_of,
    binary,
    common_dtype,
    method,
    named,
    need_tensors,
    operand,
    promoted,
    unary,
)
from wayfare.api.functions.index import nonzero
from wayfare.core.dispatch import apply
from wayfare.core.errors import DTypeError, OperationError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import bool_, limits_of, uint8
from wayfare.core.tensor import Tensor

__all__ = [
    "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan",
    "atan2", "atanh", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "cos", "cosh", "deg2rad", "exp", "exp2",
    "expm1", "fix", "floor", "frac", "frexp", "hypot", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal",
    "log", "log10", "log1p", "log2", "logaddexp", "logaddexp2", "logit", "nan_to_num", "rad2deg", "round", "sigmoid",
    "signbit", "sin", "sinc", "sinh", "tan", "tanh", "trunc", "where",
]  # fmt: skip

_OPS = REGISTRY

exp = unary(_OPS["exp"], "e to the power of each element.")
exp2 = unary(_OPS["exp2"], "2 to the power of each element.")
expm1 = unary(_OPS["expm1"], "`exp(input) - 1`, exact for small elements too.")
log = unary(_OPS["log"], "The natural logarithm of each element.")
log2 = unary(_OPS["log2"], "The logarithm to base 2 of each element.")
log10 = unary(_OPS["log10"], "The logarithm to base 10 of each element.")
log1p = unary(_OPS["log1p"], "`log(1 + input)`, exact for small elements too.")
sin = unary(_OPS["sin"], "The sine of each element.")
cos = unary(_OPS["cos"], "The cosine of each element.")
tan = unary(_OPS["tan"], "The tangent of each element.")
asin = unary(_OPS["asin"], "The angle whose sine each element is.")
acos = unary(_OPS["acos"], "The angle whose cosine each element is.")
atan = unary(_OPS["atan"], "The angle whose tangent each element is.")
sinh = unary(_OPS["sinh"], "The hyperbolic sine of each element.")
cosh = unary(_OPS["cosh"], "The hyperbolic cosine of each element.")
tanh = unary(_OPS["tanh"], "The hyperbolic tangent of each element.")
asinh = unary(_OPS["asinh"], "The inverse of `sinh`.")
acosh = unary(_OPS["acosh"], "The inverse of `cosh`.")
atanh = unary(_OPS["atanh"], "The inverse of `tanh`.")
sigmoid = unary(_OPS["sigmoid"], "`1 / (1 + exp(-input))`, element by element.")
sinc = unary(_OPS["sinc"], "`sin(pi x) / (pi x)`, and 1 at 0.")
atan2 = binary(_OPS["atan2"], "The angle of the point (other, input), in (-pi, pi].", tensors="all")
hypot = binary(_OPS["hypot"], "`sqrt(input ** 2 + other ** 2)` without overflow.", tensors="all")
_pairs = partial(binary, inplace=False, tensors="all")
logaddexp = _pairs(_OPS["logaddexp"], "`log(exp(input) + exp(other))` without overflow.")
logaddexp2 = _pairs(_OPS["logaddexp2"], "`log2(2 ** input + 2 ** other)` without overflow.")
isfinite = unary(_OPS["isfinite"], "True where an element is neither infinite nor NaN.", inplace=False)


def _rounding(name: str, doc: str) -> Callable[[Tensor], Tensor]:
    op = _OPS[name]

    def call(input: Tensor) -> Tensor:
        check_tensor(name, input)
        if not input.dtype.is_floating_point:
            return _already_whole(name, input)
        return apply(op, (input,))  # type: ignore[no-any-return]

    return method(name=name, inplace=True)(named(call, name, doc))


def _already_whole(name: str, input: Tensor) -> Tensor:
    if input.dtype is bool_:
        raise DTypeError(f"{name}: does not take {input.dtype}", fix="Convert with .float() first.")
    return promoted(_OPS["add"], (input, 0))


floor = _rounding("floor", "Each element rounded downwards.")
ceil = _rounding("ceil", "Each element rounded upwards.")
trunc = _rounding("trunc", "Each element rounded towards zero.")
frac = unary(_OPS["frac"], "The part of each element behind the point, with its sign.")


class MantissaAndExponent(NamedTuple):
    """What `frexp` gives: `mantissa * 2 ** exponent` is the input."""

    mantissa: Tensor
    exponent: Tensor


@method
def frexp(input: Tensor) -> MantissaAndExponent:
    """Each element as a mantissa in (-1, 1) times 2 to a whole exponent (int32)."""
    check_tensor("frexp", input)
    if not input.dtype.is_floating_point:
        raise DTypeError(f"frexp: does not take {input.dtype}", fix="Convert it with .float() first.")
    return MantissaAndExponent(*apply(_OPS["frexp"], (input,)))


@method(inplace=True)
def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Each element rounded to the nearest whole number (halves to the even one), or to `decimals` places."""
    check_tensor("round", input)
    if not input.dtype.is_floating_point:
        if decimals:
            raise DTypeError(f"round: {input.spec} is of integers, which have no decimals", fix="Use .float().")
        return _already_whole("round", input)
    return apply(_OPS["round"], (input,), {"decimals": decimals})  # type: ignore[no-any-return]


def _test(name: str, doc: str) -> Callable[[Tensor], Tensor]:
    """isnan and isinf are False for integers."""

    def call(input: Tensor) -> Tensor:
        check_tensor(name, input)
        if not input.dtype.is_floating_point:
            return promoted(_OPS["ne"], (input, input))
        return apply(_OPS[name], (input,))  # type: ignore[no-any-return]

    return method(named(call, name, doc))


isnan = _test("isnan", "True where an element is NaN.")
isinf = _test("isinf", "True where an element is infinite.")


@method
def signbit(input: Tensor) -> Tensor:
    """True where an element is negative, minus zero included."""
    check_tensor("signbit", input)
    if not input.dtype.is_floating_point:
        return promoted(_OPS["lt"], (input, False if input.dtype is bool_ else 0))
    return apply(_OPS["signbit"], (input,))  # type: ignore[no-any-return]


@method
def isposinf(input: Tensor) -> Tensor:
    """True where an element is plus infinity."""
    return promoted(_OPS["eq"], (input, float("inf")))


@method
def isneginf(input: Tensor) -> Tensor:
    """True where an element is minus infinity."""
    return promoted(_OPS["eq"], (input, float("-inf")))


@method
def isreal(input: Tensor) -> Tensor:
    """True everywhere: there are no complex numbers."""
    return promoted(_OPS["logical_or"], (promoted(_OPS["eq"], (input, input)), promoted(_OPS["ne"], (input, input))))


@method(inplace=True)
def nan_to_num(
    input: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN replaced by `nan` (0), infinities by `posinf` and `neginf` (the largest and smallest finite number)."""
    check_tensor("nan_to_num", input)
    if not input.dtype.is_floating_point:
        return promoted(_OPS["add"], (input, False)) if input.dtype is bool_ else promoted(_OPS["add"], (input, 0))
    limits = limits_of(input.dtype)
    attrs = {
        "nan": 0.0 if nan is None else nan,
        "posinf": float(limits.max) if posinf is None else posinf,
        "neginf": float(limits.min) if neginf is None else neginf,
    }
    return apply(_OPS["nan_to_num"], (input,), attrs)  # type: ignore[no-any-return]


def _is_plain(bound: Any) -> bool:
    return bound is None or bound.__class__ is float or bound.__class__ is int


@method(inplace=True)
def clamp(input: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
    """Each element brought into [min, max]; either may be left out, and either may be a tensor."""
    if min is None and max is None:
        raise OperationError("clamp: at least one of min and max must be given")
    if input.__class__ is Tensor and input.dtype.is_floating_point and _is_plain(min) and _is_plain(max):
        return apply(_OPS["clamp"], (input,), {"low": min, "high": max})  # type: ignore[no-any-return]
    need_tensors("clamp", "first", input)
    bounds = [operand(b, "clamp") for b in (min, max) if b is not None]
    dtype = common_dtype("clamp", [input, *bounds])
    x = as_dtype_of(input, dtype)
    if dtype is bool_:
        raise DTypeError("clamp: does not take bool", fix="Convert with .int() first.")
    if not dtype.is_floating_point:
        min, max = fitting("clamp", min, dtype), fitting("clamp", max, dtype)
    if not any(isinstance(b, Tensor) for b in bounds):
        return apply(_OPS["clamp"], (x,), {"low": min, "high": max})  # type: ignore[no-any-return]
    if min is not None:
        low = as_dtype_of(operand(min, "clamp"), dtype)
        x = apply(_OPS["clamp_low"], (x, low))
    if max is not None:
        high = as_dtype_of(operand(max, "clamp"), dtype)
        x = apply(_OPS["clamp_high"], (x, high))
    return x


@method(inplace=True)
def clamp_min(input: Tensor, min: Tensor | float) -> Tensor:
    """Each element, but at least `min`."""
    return clamp(input, min=min)


@method(inplace=True)
def clamp_max(input: Tensor, max: Tensor | float) -> Tensor:
    """Each element, but at most `max`."""
    return clamp(input, max=max)


@method(inplace=True)
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """`log(x / (1 - x))`, the inverse of sigmoid; with `eps` the elements are first brought into [eps, 1 - eps]."""
    x = as_dtype_of(input, common_dtype("logit", (input,), to_float=True))
    if eps is not None:
        x = clamp(x, eps, 1 - eps)
    return apply(_OPS["logit"], (x,))  # type: ignore[no-any-return]


@method(inplace=True)
def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians."""
    return promoted(_OPS["mul"], (input, 0.017453292519943295))


@method(inplace=True)
def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees."""
    return promoted(_OPS["mul"], (input, 57.29577951308232))


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """`input` where `condition` holds, `other` elsewhere; with the condition alone, the indices where it holds."""
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    condition = operand(condition, "where")
    if condition.dtype is not bool_ and condition.dtype is not uint8:
        raise DTypeError(f"where: the condition must be bool, not {condition.dtype}", fix="Compare it: condition != 0.")
    a, b = operand(input, "where"), operand(other, "where")
    dtype = common_dtype("where", (a, b))
    mask = as_dtype_of(condition, bool_)
    if not dtype.is_floating_point:
        a, b = fitting("where", a, dtype), fitting("where", b, dtype)
    return apply(_OPS["where"], (mask, as_dtype_of(a, dtype), as_dtype_of(b, dtype)))


def _where_method(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """This tensor where `condition` holds, `other` elsewhere."""
    return where(condition, self, other)  # type: ignore[no-any-return]


add_method("where", _where_method)


arcsin, arccos, arctan = alias("arcsin", asin), alias("arccos", acos), alias("arctan", atan)
arcsinh, arccosh, arctanh = alias("arcsinh", asinh), alias("arccosh", acosh), alias("arctanh", atanh)
arctan2, fix, clip = alias("arctan2", atan2), alias("fix", trunc), alias("clip", clamp)
