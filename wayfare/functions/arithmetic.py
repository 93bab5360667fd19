"""Python's operators on tensors, and the functions behind them."""

from __future__ import annotations

from typing import Any

from wayfare.eager import apply
from wayfare.functions._public import add_method, as_dtype_of, binary, common_dtype, method, operand, operator, promoted, unary
from wayfare.op import REGISTRY
from wayfare.tensor import Tensor

_OPS = REGISTRY

mul = binary(_OPS["mul"], "`input * other`, element by element.")
neg = unary(_OPS["neg"], "`-input`.")
pow = binary(_OPS["pow"], "`input ** exponent`, element by element.")

eq = binary(_OPS["eq"], "`input == other`, element by element.")
ne = binary(_OPS["ne"], "`input != other`, element by element.")
lt = binary(_OPS["lt"], "`input < other`, element by element.")
le = binary(_OPS["le"], "`input <= other`, element by element.")
gt = binary(_OPS["gt"], "`input > other`, element by element.")
ge = binary(_OPS["ge"], "`input >= other`, element by element.")


@method(inplace=True)
def add(input: Tensor | float, other: Tensor | float, *, alpha: float = 1) -> Tensor:
    """`input + alpha * other`, element by element."""
    return promoted(_OPS["add"], (input, other if alpha == 1 else promoted(_OPS["mul"], (other, alpha))))


@method(inplace=True)
def sub(input: Tensor | float, other: Tensor | float, *, alpha: float = 1) -> Tensor:
    """`input - alpha * other`, element by element."""
    return promoted(_OPS["sub"], (input, other if alpha == 1 else promoted(_OPS["mul"], (other, alpha))))


@method(inplace=True)
def div(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`input / other`, element by element; integers divide to floats."""
    return promoted(_OPS["div"], (input, other))


@method
def where(condition: Tensor, input: Any, other: Any) -> Tensor:
    """`input` where `condition` holds, `other` elsewhere."""
    input, other = operand(input, "where"), operand(other, "where")
    dtype = common_dtype("where", (input, other))
    return apply(_OPS["where"], (condition, as_dtype_of(input, dtype), as_dtype_of(other, dtype)))  # type: ignore[no-any-return]


for _name, _op in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow",
}.items():  # fmt: skip
    add_method(f"__{_name}__", operator(_OPS[_op]))
    add_method(f"__r{_name}__", operator(_OPS[_op], reverse=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    add_method(f"__{_name}__", operator(_OPS[_name]))
add_method("__neg__", neg)
