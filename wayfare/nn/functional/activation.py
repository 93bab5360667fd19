"""Activations, with `inplace=` and in-place forms as in PyTorch."""

from __future__ import annotations

from typing import Any

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions._along import check_tensor, check_tensors
from wayfare.api.functions._public import add_method, in_place_form, unary
from wayfare.api.functions.elementwise import sigmoid, tanh
from wayfare.api.functions.random import rand
from wayfare.api.functions.split import chunk
from wayfare.api.fused import fused
from wayfare.core.autocast import LOWER
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, DTypeError, OperationError, ShapeError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import normal_dim, uint8
from wayfare.core.tensor import Tensor

__all__ = [
    "celu", "celu_", "elu", "elu_", "gelu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hardtanh_",
    "leaky_relu", "leaky_relu_", "logsigmoid", "mish", "prelu", "relu", "relu6", "relu_", "rrelu", "rrelu_", "selu",
    "selu_", "sigmoid", "silu", "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "threshold", "threshold_",
]  # fmt: skip

_OPS = REGISTRY


def _run(name: str, input: Tensor, inplace: bool, **attrs: Any) -> Tensor:
    """Apply an activation record, into the input itself if asked."""
    op = _OPS[name]
    check_tensor(name, input)
    if input.dtype.kind not in op.kinds:
        raise DTypeError(f"{name}: does not take {input.dtype}", fix="Convert it with .float() first.")

    def compute(x: Tensor) -> Tensor:
        return apply(op, (x,), attrs)  # type: ignore[no-any-return]

    return in_place_form(compute, name)(input) if inplace else compute(input)


def _like(input: Tensor, number: float) -> float:
    """A limit among integers is an integer."""
    return int(number) if isinstance(input, Tensor) and not input.dtype.is_floating_point else number


_relu = unary(_OPS["relu"], "`max(input, 0)`, element by element.")


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """`max(input, 0)`, element by element."""
    return relu_(input) if inplace else _relu(input)

relu.checks_operands = True  # type: ignore[attr-defined]


def relu_(input: Tensor) -> Tensor:
    """In-place form of `relu`."""
    check_tensor("relu_", input)
    return input.relu_()


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """`min(max(input, 0), 6)`."""
    return _run("relu6", input, inplace)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """Each element brought into [min_val, max_val]."""
    check_tensor("hardtanh", input)
    if min_val > max_val:
        raise ArgumentError(f"hardtanh: min_val {min_val} is greater than max_val {max_val}")
    if input.dtype is uint8 and min_val < 0:
        raise OperationError(f"hardtanh: {input.spec} is unsigned, but min_val {min_val} is negative",
                             fix="Convert it with .int() first.")  # fmt: skip
    return _run("hardtanh", input, inplace, low=_like(input, min_val), high=_like(input, max_val))


def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """In-place form of `hardtanh`."""
    return hardtanh(input, min_val, max_val, True)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """The element where positive, `negative_slope` times it elsewhere."""
    return _run("leaky_relu", input, inplace, slope=negative_slope)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """In-place form of `leaky_relu`."""
    return leaky_relu(input, negative_slope, True)


@follows_autocast(LOWER)
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Like `leaky_relu` with a learnt slope: one for all, or one per channel (dimension 1)."""
    check_tensors("prelu", input, weight)
    if weight.numel() != 1:
        channels = input.shape[1] if input.ndim > 1 else 1
        if weight.ndim != 1 or weight.numel() != channels:
            raise ShapeError(f"prelu: {weight.spec} does not fit the {channels} channels of {input.spec}")
        weight = weight.reshape((1, -1, *(1,) * (input.ndim - 2)))
    elif weight.ndim:
        weight = weight.reshape(())
    if input.dtype is not weight.dtype or not input.dtype.is_floating_point:
        raise DTypeError(f"prelu: {input.spec} and its weight {weight.spec} must be of one floating-point dtype",
                         fix="Convert one with .to(...) of the other's dtype.")  # fmt: skip
    return apply(_OPS["prelu"], (input, weight))  # type: ignore[no-any-return]


def rrelu(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """Like `leaky_relu` with a slope drawn from [lower, upper] for each element; its mean when not training."""
    if lower > upper:
        raise OperationError(f"rrelu: lower ({lower}) must not be greater than upper ({upper})")
    check_tensor("rrelu", input)
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    slope = rand(tuple(input.shape), dtype=input.dtype) * (upper - lower) + lower

    def compute(x: Tensor) -> Tensor:
        return apply(_OPS["prelu"], (x, slope))  # type: ignore[no-any-return]

    return in_place_form(compute, "rrelu")(input) if inplace else compute(input)


def rrelu_(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False) -> Tensor:
    """In-place form of `rrelu`."""
    return rrelu(input, lower, upper, training, True)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """The element where it is above `threshold`, `value` elsewhere."""
    return _run("threshold", input, inplace, limit=_like(input, threshold), value=_like(input, value))


def threshold_(input: Tensor, threshold: float, value: float) -> Tensor:
    """In-place form of `threshold`."""
    return _run("threshold", input, True, limit=_like(input, threshold), value=_like(input, value))


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """The element where positive, `alpha * (exp(x) - 1)` elsewhere."""
    return _run("elu", input, inplace, alpha=alpha, scale=1.0, inner=1.0)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """In-place form of `elu`."""
    return elu(input, alpha, True)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """The self-normalising `elu`."""
    return _run("elu", input, inplace, alpha=1.6732632423543772, scale=1.0507009873554805, inner=1.0)


def selu_(input: Tensor) -> Tensor:
    """In-place form of `selu`."""
    return selu(input, True)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """The `elu` that is smooth for every alpha: `alpha * (exp(x / alpha) - 1)` where negative."""
    if alpha == 0:
        raise ArgumentError("celu: alpha must not be 0")
    return _run("elu", input, inplace, alpha=alpha, scale=1.0, inner=1.0 / alpha)


def celu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """In-place form of `celu`."""
    return celu(input, alpha, True)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """`x` times the chance that a standard normal number is below it; `approximate="tanh"` for the usual shortcut."""
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    return _run("gelu" if approximate == "none" else "gelu_tanh", input, False)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """`x * sigmoid(x)`."""
    return _run("silu", input, inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """`x * tanh(softplus(x))`."""
    return _run("mish", input, inplace)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """`log(1 + exp(beta x)) / beta`; the element itself where `beta x` is above `threshold`."""
    return _run("softplus", input, False, beta=float(beta), threshold=float(threshold))


def logsigmoid(input: Tensor) -> Tensor:
    """`log(sigmoid(x))` without overflow."""
    return _run("logsigmoid", input, False)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """`min(max(x + 3, 0), 6) / 6`."""
    return _run("hardsigmoid", input, inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """`x * hardsigmoid(x)`."""
    return _run("hardswish", input, inplace)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """The element where it is further than `lambd` from 0, else 0."""
    return _run("hardshrink", input, False, lambd=lambd)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """The element moved by `lambd` towards 0, and 0 where that would cross it."""
    if lambd < 0:
        raise ArgumentError(f"softshrink: lambd must not be negative, but is {lambd}")
    return _run("softshrink", input, False, lambd=lambd)


def softsign(input: Tensor) -> Tensor:
    """`x / (1 + |x|)`."""
    check_tensor("softsign", input)
    return _softsign(input)  # type: ignore[no-any-return]


@fused
def _softsign(input: Tensor) -> Tensor:
    return input / (input.abs() + 1)


def tanhshrink(input: Tensor) -> Tensor:
    """`x - tanh(x)`."""
    check_tensor("tanhshrink", input)
    return _tanhshrink(input)  # type: ignore[no-any-return]


@fused
def _tanhshrink(input: Tensor) -> Tensor:
    return input - tanh(input)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half along `dim` times the sigmoid of the second half."""
    check_tensor("glu", input)
    if input.ndim == 0:
        raise ShapeError("glu: a 0-dim tensor cannot be halved")
    axis = normal_dim("glu", dim, input.ndim)
    if input.shape[axis] % 2:
        raise ShapeError(f"glu: dimension {axis} of {input.spec} must be even to be halved")
    return _glu(input, axis)  # type: ignore[no-any-return]


@fused
def _glu(input: Tensor, axis: int) -> Tensor:
    first, second = chunk(input, 2, axis)
    return first * sigmoid(second)


add_method("hardshrink", hardshrink)
add_method("prelu", prelu)
