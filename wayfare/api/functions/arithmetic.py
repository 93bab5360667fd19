"""Arithmetic: Python's operators on tensors, and the functions behind them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from wayfare.api.functions._blocks import write_scaled
from wayfare.api.functions._new import fitting, read_number
from wayfare.api.functions._public import (
    add_method,
    alias,
    as_dtype_of,
    binary,
    common_dtype,
    giving_way,
    in_place_form,
    method,
    need_tensors,
    operand,
    operator,
    promoted,
    refuse_bools,
    unary,
    write_binary,
)
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, DTypeError, OperationError
from wayfare.core.mode import executor
from wayfare.core.op import REGISTRY, Op
from wayfare.core.spec import bool_, float64, int64
from wayfare.core.tensor import Tensor

__all__ = [
    "abs", "absolute", "add", "copysign", "div", "divide", "float_power", "floor_divide", "fmax",
    "fmin", "fmod", "gcd", "heaviside", "lcm", "ldexp", "maximum", "minimum", "mul", "multiply", "neg",
    "negative", "nextafter", "positive", "pow", "reciprocal", "remainder", "rsqrt", "rsub", "sgn", "sign", "sqrt",
    "square", "sub", "subtract", "true_divide",
]  # fmt: skip

_OPS = REGISTRY
_ADD, _SUB, _MUL, _DIV = _OPS["add"], _OPS["sub"], _OPS["mul"], _OPS["div"]

# Plain functions of two tensors, without an in-place form.
_pairs = partial(binary, inplace=False, tensors="all")

mul = binary(_MUL, "`input * other`, element by element.", tensors="")
neg = unary(_OPS["neg"], "`-input`, element by element.")
abs = unary(_OPS["abs"], "The absolute value of each element.")
sign = unary(_OPS["sign"], "-1, 0 or 1: the sign of each element.")
sqrt = unary(_OPS["sqrt"], "The square root of each element.")
rsqrt = unary(_OPS["rsqrt"], "One over the square root of each element.")
reciprocal = unary(_OPS["reciprocal"], "`1 / input`, element by element.")
maximum = _pairs(_OPS["maximum"], "The larger of each pair of elements; NaN if one is NaN.")
minimum = _pairs(_OPS["minimum"], "The smaller of each pair of elements; NaN if one is NaN.")
fmax = _pairs(_OPS["fmax"], "The larger of each pair of elements; a NaN gives way to the other.")
fmin = _pairs(_OPS["fmin"], "The smaller of each pair of elements; a NaN gives way to the other.")
copysign = binary(_OPS["copysign"], "The size of `input` with the sign of `other`.", tensors="first")
nextafter = binary(_OPS["nextafter"], "The floating-point number next to `input` towards `other`.", tensors="all")
gcd = binary(_OPS["gcd"], "The greatest common divisor of each pair of integers.", tensors="all")
lcm = binary(_OPS["lcm"], "The least common multiple of each pair of integers.", tensors="all")


@method(inplace=True)
def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below zero, 1 above, and `values` at zero."""
    need_tensors("heaviside", "all", input, values)
    if input.dtype is not values.dtype:
        raise DTypeError(f"heaviside: both must have one dtype, not {input.dtype} and {values.dtype}",
                         fix="Convert one with .to(...).")  # fmt: skip
    return apply(_OPS["heaviside"], (input, values))  # type: ignore[no-any-return]


def square(input: Tensor) -> Tensor:
    """`input ** 2`, element by element."""
    return _square(as_dtype_of(input, int64) if input.dtype is bool_ else input)


_square = unary(_OPS["square"], "`input ** 2`, element by element.")
add_method("square", square)


def _scaled(op: Op, input: Any, other: Any, alpha: Any) -> Tensor:
    """`input op alpha * other`; alpha must be of no higher kind than the operands."""
    values = [operand(input, op.name), operand(other, op.name)]
    if op is _SUB:
        refuse_bools(values)
    dtype = common_dtype(op.name, values)
    if not isinstance(alpha, Tensor):
        alpha = read_number(op.name, "alpha", alpha)
    if isinstance(alpha, bool) and dtype is not bool_:
        raise OperationError(f"{op.name}: alpha is a bool, but the operands are {dtype}", fix="Use a number.")
    if isinstance(alpha, float) and dtype.rank < 2:
        raise OperationError(f"{op.name}: alpha is the float {alpha}, but the operands are integers",
                             fix="Use an integer alpha, or convert the operands with .float().")  # fmt: skip
    return promoted(op, (values[0], apply(_MUL, (as_dtype_of(values[1], dtype), as_dtype_of(alpha, dtype)))))


def _plus_or_minus(op: Op, doc: str) -> Callable[..., Tensor]:
    plain = operator(op)

    def call(input: Tensor | float, other: Tensor | float, *, alpha: float = 1) -> Tensor:
        if alpha == 1 and alpha is not True:
            if input.__class__ is Tensor and other.__class__ is Tensor:
                return plain(input, other)
            return promoted(op, (input, other))
        return _scaled(op, input, other, alpha)

    call.__name__ = call.__qualname__ = op.name
    call.checks_operands = True  # type: ignore[attr-defined]
    call.__doc__ = doc
    add_method(op.name, call)
    add_method(op.name + "_", write_scaled(op, call))
    return call


add = _plus_or_minus(_ADD, "`input + alpha * other`, element by element.")
sub = _plus_or_minus(_SUB, "`input - alpha * other`, element by element.")


def rsub(input: Tensor, other: Tensor | float, *, alpha: float = 1) -> Tensor:
    """`other - alpha * input`, element by element."""
    need_tensors("rsub", "first", input, other)
    return sub(other, input, alpha=alpha)


def div(input: Tensor | float, other: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
    """`input / other`, element by element; integers divide to floats.

    `rounding_mode` "trunc" rounds the quotient towards zero, "floor" downwards; integers then stay integers.
    """
    if rounding_mode is None:
        if input.__class__ is Tensor and other.__class__ is Tensor:
            return _divide(input, other)
        return promoted(_DIV, (input, other))
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode != "trunc":
        raise ArgumentError(f"div: rounding_mode is None, 'trunc' or 'floor', not {rounding_mode!r}")
    values = [operand(input, "div"), operand(other, "div")]
    dtype = common_dtype("div", values)
    if dtype.rank == 2:
        return apply(_OPS["trunc"], (promoted(_DIV, values),))  # type: ignore[no-any-return]
    a, b = (as_dtype_of(v, dtype) for v in values)
    _refuse_zero("div", b, values[1])
    return promoted(_OPS["floor_divide"], (sub(a, promoted(_OPS["fmod"], (a, b))), b))

div.checks_operands = True  # type: ignore[attr-defined]


_divide = operator(_DIV)


def _true_divide(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`input / other`, element by element; integers divide to floats."""
    return promoted(_DIV, (input, other))


add_method("div", div)
add_method("div_", write_binary(_DIV, div, "div_"))


def _refuse_zero(name: str, divisor: Tensor, given: Any) -> None:
    """Refuse to divide integers by zero; `given` is the divisor before it became a tensor."""
    if divisor.dtype.rank == 2:
        return
    if not isinstance(given, Tensor):
        zero = given == 0
    elif executor().may_read(divisor):
        zero = not divisor._read(name).all()
    else:  # only one bool is read, not all the numbers
        zero = executor().may_decide(divisor) and not divisor.all()
    if zero:
        raise OperationError(f"{name}: division of integers by zero",
                             fix="Divide floats, which give inf or nan, or mask the zeros first.")  # fmt: skip


def _whole(name: str, input: Any, other: Any) -> Tensor:
    values = [operand(input, name), operand(other, name)]
    dtype = common_dtype(name, values)
    tensors = tuple(as_dtype_of(v, dtype) for v in values)
    if dtype is bool_:
        raise DTypeError(f"{name}: does not take {dtype}", fix="Convert with .int() first.")
    _refuse_zero(name, tensors[1], values[1])
    return apply(_OPS[name], tensors)  # type: ignore[no-any-return]


@method(inplace=True)
def floor_divide(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`input // other`: the quotient rounded downwards."""
    return _whole("floor_divide", input, other)


@method(inplace=True)
def remainder(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`input % other`: the remainder of division, with the sign of the divisor."""
    need_tensors("remainder", "any", input, other)
    return _whole("remainder", input, other)


@method(inplace=True)
def fmod(input: Tensor, other: Tensor | float) -> Tensor:
    """The remainder of division, with the sign of the dividend."""
    need_tensors("fmod", "first", input, other)
    return _whole("fmod", input, other)


def pow(input: Tensor | float, exponent: Tensor | float) -> Tensor:
    """`input ** exponent`, element by element."""
    if isinstance(input, Tensor) and not isinstance(exponent, (Tensor, np.ndarray)):
        if input.dtype.is_floating_point:
            power = operand(exponent, "pow")
            return _square(input) if power == 2 else apply(_OPS["pow_to_number"], (input,), {"exponent": power})
        if isinstance(exponent, int) and exponent < 0:
            raise OperationError(f"pow: integers cannot be raised to the negative power {exponent}",
                                 fix="Convert the tensor with .float() first.")  # fmt: skip
    need_tensors("pow", "any", input, exponent)
    values = [operand(input, "pow"), operand(exponent, "pow")]
    dtype = common_dtype("pow", values)
    if not dtype.is_floating_point:
        values[1] = fitting("pow", values[1], dtype)
    tensors = tuple(as_dtype_of(v, dtype) for v in values)
    if dtype is bool_:
        if not isinstance(exponent, bool):
            raise DTypeError("pow: does not take bool", fix="Convert with .int() first.")
        # The first and the zeroth power, which bools have.
        return promoted(_OPS["logical_or"], (input, not exponent))
    if dtype.rank == 1 and isinstance(values[1], Tensor):
        # NumPy refuses negative exponents of integers; in PyTorch 1 and -1 survive them and the rest become 0.
        return _integer_power(*tensors)
    return apply(_OPS["pow"], tensors)  # type: ignore[no-any-return]


def _integer_power(base: Tensor, exponent: Tensor) -> Tensor:
    negative = exponent < 0
    # Where values cannot be read now, both cases are computed.
    if executor().works_on_arrays and not bool(negative._read("pow").any()):
        return apply(_OPS["pow"], (base, exponent))  # type: ignore[no-any-return]
    size = apply(_OPS["pow"], (base, abs(exponent)))
    unit = promoted(_OPS["eq"], (abs(base), 1))
    kept = apply(_OPS["where"], (unit, size, size * 0))
    return apply(_OPS["where"], (negative, kept, apply(_OPS["pow"], (base, promoted(_OPS["maximum"], (exponent, 0))))))  # type: ignore[no-any-return]


add_method("pow", pow)
add_method("pow_", in_place_form(pow, "pow"))


@method(inplace=True)
def float_power(input: Tensor | float, exponent: Tensor | float) -> Tensor:
    """`input ** exponent` computed in float64."""
    need_tensors("float_power", "any", input, exponent)
    values = [operand(input, "float_power"), operand(exponent, "float_power")]
    return pow(*(as_dtype_of(v, float64) for v in values))


@method(inplace=True)
def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """`input * 2 ** other`."""
    need_tensors("ldexp", "all", input, other)
    values = [operand(input, "ldexp"), operand(other, "ldexp")]
    dtype = common_dtype("ldexp", values, to_float=True)
    power = apply(_OPS["exp2"], (as_dtype_of(values[1], dtype),))
    return mul(as_dtype_of(values[0], dtype), power)


@method
def positive(input: Tensor) -> Tensor:
    """`+input`: the tensor itself."""
    if input.dtype is bool_:
        raise DTypeError("positive: does not take bool", fix="Convert with .int() first.")
    return input


@method(inplace=True)
def sgn(input: Tensor) -> Tensor:
    """The sign of each element (the same as `sign`: there are no complex numbers)."""
    return sign(input)


absolute = alias("absolute", abs, "abs")
subtract = alias("subtract", sub, "sub")
multiply = alias("multiply", mul, "mul")
divide = alias("divide", div, "div")
true_divide = alias("true_divide", _true_divide, "div")
negative = alias("negative", neg, "neg")


def _install_operators() -> None:
    for name, op in {"add": _ADD, "sub": _SUB, "mul": _MUL, "truediv": _DIV}.items():
        add_method(f"__{name}__", operator(op))
        add_method(f"__r{name}__", operator(op, reverse=True, commutes=op in (_ADD, _MUL)))
    for name, function in {"floordiv": floor_divide, "mod": remainder, "pow": pow}.items():
        add_method(f"__{name}__", giving_way(function))
        add_method(f"__r{name}__", giving_way(function, reverse=True))
    for name, form in {
        "iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_", "ifloordiv": "floor_divide_",
        "imod": "remainder_", "ipow": "pow_",
    }.items():  # fmt: skip
        add_method(f"__{name}__", getattr(Tensor, form))
    add_method("__neg__", neg)
    add_method("__pos__", positive)
    add_method("__abs__", abs)


_install_operators()
