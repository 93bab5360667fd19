"""Clipping gradients by their common norm or by value. Gradients kept as rows are clipped as rows, never made whole."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from functools import reduce
from types import GeneratorType
from typing import Any

from wayfare.api.functions.creation import scalar_tensor, tensor
from wayfare.api.functions.info import promote_types
from wayfare.api.functions.join import stack
from wayfare.api.functions.matrix_norms import vector_norm
from wayfare.autograd.modes import no_grad
from wayfare.core.device import BACKENDS
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError
from wayfare.core.mode import executor
from wayfare.core.spec import DType, float32
from wayfare.core.tensor import Tensor

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]

# Up to this many elements NumPy is quickest; beyond it, BLAS's sums in single precision lose digits.
_FEW = 8192


def _listed(name: str, tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """One tensor, or all that an iterable gives, as a list."""
    if isinstance(tensors, Tensor):
        return [tensors]
    try:
        listed = list(tensors)
    except TypeError:
        raise ArgumentTypeError(f"{name}: takes a tensor or an iterable of tensors, not {type(tensors).__name__}"
                                ) from None  # fmt: skip
    for item in listed:
        if not isinstance(item, Tensor):
            raise ArgumentTypeError(f"{name}: takes tensors, but one item is a {type(item).__name__}",
                                    fix="Give model.parameters().")  # fmt: skip
    return listed


def _number(name: str, what: str, value: Any) -> float:
    if isinstance(value, str) or not hasattr(value, "__float__"):
        shown = "None" if value is None else type(value).__name__
        raise ArgumentTypeError(f"{name}: {what} must be a number, not {shown}")
    return float(value)


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    """The memory of each gradient there is; of one kept as rows, the rows."""
    found = []
    for parameter in parameters:
        rows = parameter.row_grad()
        grad = parameter.grad if rows is None else rows[1]
        if grad is not None:
            found.append(grad)
    return found


def _sum_of_squares(gradient: Tensor) -> float:
    array = gradient.numpy(force=True)
    if array.size <= _FEW and array.itemsize > 2:
        flat = array.ravel("K")
        return float(flat.dot(flat))
    return _norm(gradient, 2.0) ** 2


def _norm(gradient: Tensor, order: float) -> float:
    if order == math.inf and gradient.numel() <= _FEW:
        array = gradient.numpy(force=True)
        return float(max(array.max(), -array.min()))
    # A half-precision norm would overflow where the gradients themselves do not.
    dtype = float32 if gradient.dtype.itemsize < 4 else None
    return float(vector_norm(gradient, order, dtype=dtype))


def _total(gradients: list[Tensor], order: float, dtype: DType) -> float:
    """The norm of all gradients together: the norm of their norms."""
    gradients = [gradient for gradient in gradients if gradient.numel()]
    if not gradients:
        return 0.0
    if order == 2:
        return math.sqrt(sum([_sum_of_squares(gradient) for gradient in gradients]))
    norms = [_norm(gradient, order) for gradient in gradients]
    return float(vector_norm(tensor(norms, dtype=dtype), order))


def _total_by_ops(gradients: list[Tensor], order: float, dtype: DType) -> Tensor:
    """The same norm without reading a number, for other executors and for devices; it is where the first one is."""
    wide, device = float32 if dtype.itemsize < 4 else dtype, gradients[0].device
    gradients = [gradient.detach().to(wide) for gradient in gradients if gradient.numel()]
    if not gradients:
        return scalar_tensor(0.0, dtype=dtype, device=device)
    if order == 2:
        squares = [(gradient * gradient).sum().to(device) for gradient in gradients]
        return stack(squares).sum().sqrt().to(dtype)
    return vector_norm(stack([vector_norm(gradient, order).to(device) for gradient in gradients]), order).to(dtype)


def _reads(tensors: Iterable[Any]) -> bool:
    """May numbers be read here? Reading them from a device would wait for it, once for each gradient."""
    return executor().works_on_arrays and not (BACKENDS and any([not t.is_cpu for t in tensors]))


def get_total_norm(
    tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """The norm of all elements of all tensors, as if they were one vector: a 0-dim tensor. `foreach` has no effect."""
    return _total_norm("get_total_norm", _listed("get_total_norm", tensors), norm_type, error_if_nonfinite)


def _total_norm(name: str, gradients: list[Tensor], norm_type: float, error_if_nonfinite: bool) -> Tensor:
    if not gradients:
        return scalar_tensor(0.0)
    order = _number(name, "norm_type", norm_type)
    dtype = reduce(promote_types, {gradient.dtype for gradient in gradients})
    with no_grad():
        if _reads(gradients):
            total = scalar_tensor(_total(gradients, order, dtype), dtype=dtype)
        else:
            total = _total_by_ops(gradients, order, dtype)
    if error_if_nonfinite and not total.isfinite():
        raise OperationError(f"{name}: the total norm of order {order} is {total.item()}, so clipping would destroy "
                             "the gradients", fix="Look for the first NaN or infinity, or give "
                             "error_if_nonfinite=False to scale by it anyway.")  # fmt: skip
    return total


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale the gradients in place by `max_norm / total_norm` if that is less than 1. `foreach` has no effect."""
    name = "clip_grads_with_norm_"
    _scale(name, _gradients(_listed(name, parameters)), max_norm, total_norm)


def _scale(name: str, gradients: list[Tensor], max_norm: float, total_norm: Tensor) -> None:
    limit = _number(name, "max_norm", max_norm)
    if not limit >= 0:
        raise ArgumentError(f"{name}: max_norm must be at least 0, it is {max_norm}")
    factor: float | Tensor
    # The small number keeps gradients that are all zero from becoming NaN.
    if not isinstance(total_norm, Tensor) or _reads([total_norm]):
        factor = limit / (float(total_norm) + 1e-6)
        if factor >= 1:
            return
    else:
        with no_grad():
            wide = total_norm.detach().float() if total_norm.dtype.itemsize < 4 else total_norm.detach()
            factor = (limit / (wide + 1e-6)).clamp(max=1.0)
    with no_grad():
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.device) if isinstance(factor, Tensor) else factor)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scale all gradients in place so that their common norm is at most `max_norm`, and return the norm before that.

    `norm_type` is the order, `math.inf` for the largest absolute value. A norm that is NaN or infinite raises with
    `error_if_nonfinite`, otherwise it scales the gradients all the same. `foreach` has no effect.
    """
    listed = _listed("clip_grad_norm_", parameters)
    if not listed and isinstance(parameters, GeneratorType):
        warnings.warn("clip_grad_norm_: the generator of parameters is empty, so nothing is clipped; a generator can "
                      "be used only once", stacklevel=2)  # fmt: skip
    gradients = _gradients(listed)
    total = _total_norm("clip_grad_norm_", gradients, norm_type, error_if_nonfinite)
    _scale("clip_grad_norm_", gradients, max_norm, total)
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Bring each element of each gradient, in place, into the range from `-clip_value` to `clip_value`."""
    limit = _number("clip_grad_value_", "clip_value", clip_value)
    if not limit >= 0:
        raise ArgumentError(f"clip_grad_value_: clip_value must be at least 0, it is {clip_value}")
    with no_grad():
        for gradient in _gradients(_listed("clip_grad_value_", parameters)):
            gradient.clamp_(min=-limit, max=limit)
