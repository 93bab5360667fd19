"""Linear maps of features: `linear` and `bilinear`."""

from __future__ import annotations

from wayfare.api.functions._along import check_tensor
from wayfare.api.functions.einsum import einsum
from wayfare.api.functions.matmul import matmul
from wayfare.core.dispatch import apply, apply2, apply3
from wayfare.core.errors import ShapeError
from wayfare.core.op import REGISTRY
from wayfare.core.tensor import Tensor

__all__ = ["bilinear", "linear"]

_LINEAR, _PLAIN = REGISTRY["linear"], REGISTRY["linear_plain"]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`input @ weight.T + bias`, in one step. The weight is (out, in), as PyTorch lays it out."""
    if input.__class__ is weight.__class__ is bias.__class__ is Tensor and bias.ndim and weight.ndim > 1:
        return apply3(_LINEAR, input, weight, bias)
    for t in (input, weight) if bias is None else (input, weight, bias):
        check_tensor("linear", t)
    if weight.ndim == 1:
        out = matmul(input, weight)
        return out if bias is None else out + bias
    if bias is None:
        return apply2(_PLAIN, input, weight)
    if bias.ndim == 0:
        return apply2(_PLAIN, input, weight) + bias
    return apply(_LINEAR, (input, weight, bias))  # type: ignore[no-any-return]


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`input1 @ weight[o] @ input2 + bias[o]` for every output `o`. The weight is (out, in1, in2)."""
    for t in (input1, input2, weight):
        check_tensor("bilinear", t)
    fits = (
        weight.ndim == 3
        and input1.shape[:-1] == input2.shape[:-1]
        and (input1.shape[-1:], input2.shape[-1:]) == (weight.shape[1:2], weight.shape[2:])
    )
    if not fits:
        raise ShapeError(f"bilinear: inputs {input1.spec} and {input2.spec} do not fit a weight {weight.spec}",
                         fix="The inputs are (…, in1) and (…, in2), the weight is (out, in1, in2).")  # fmt: skip
    out = einsum("...i,oij,...j->...o", input1, weight, input2)
    return out if bias is None else out + bias
