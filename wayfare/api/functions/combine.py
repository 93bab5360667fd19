"""Three tensors into one: interpolation, and a product or quotient added to a tensor."""

from __future__ import annotations

import numpy as np

from wayfare.api.functions._blocks import write_combination, write_lerp
from wayfare.api.functions._public import add_method, common_dtype, method, need_tensors, promoted
from wayfare.api.functions.arithmetic import div, mul
from wayfare.core.errors import DTypeError, OperationError
from wayfare.core.op import REGISTRY
from wayfare.core.tensor import Tensor

__all__ = ["addcdiv", "addcmul", "lerp"]


@method
def lerp(input: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """`input + weight * (end - input)`: the point at `weight` of the way from `input` to `end`."""
    need_tensors("lerp", "all", input, end)
    for name, value in (("end", end), ("weight", weight)):
        if isinstance(value, Tensor) and value.dtype is not input.dtype:
            raise DTypeError(f"lerp: {name} must be {input.dtype} like the input, not {value.dtype}",
                             fix="Convert it with .to(input.dtype).")  # fmt: skip
    return promoted(REGISTRY["lerp"], (input, end, weight))


@method
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """`input + value * tensor1 * tensor2`."""
    product = mul(tensor1, tensor2)
    return input + (product if value == 1 else mul(product, value))


@method
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """`input + value * tensor1 / tensor2`."""
    if common_dtype("addcdiv", (tensor1, tensor2)).rank < 2:
        raise OperationError("addcdiv: integer division is not supported", fix="Convert with .float() first.")
    quotient = div(tensor1, tensor2)
    return input + (quotient if value == 1 else mul(quotient, value))


add_method("addcmul_", write_combination(addcmul, np.multiply))
add_method("addcdiv_", write_combination(addcdiv, np.true_divide))
add_method("lerp_", write_lerp(lerp))
