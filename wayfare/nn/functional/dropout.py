"""Dropout in its forms: elements, whole channels, and those that keep mean and deviation (alpha)."""

from __future__ import annotations

import math
import warnings

from wayfare.api.functions._along import check_tensor
from wayfare.api.functions._public import as_dtype_of, promoted
from wayfare.api.functions.random import draw
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, DTypeError, ShapeError
from wayfare.core.generator import key_for
from wayfare.core.inplace import check_writable, move_into
from wayfare.core.op import REGISTRY
from wayfare.core.spec import Shape
from wayfare.core.tensor import Tensor

__all__ = [
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_dropout",
    "feature_alpha_dropout",
]

# selu(-inf): what a dropped element becomes under alpha dropout, so that mean and deviation stay.
_SELU_FLOOR = -1.7580993408473766


def _check(op: str, input: Tensor, p: float) -> None:
    try:
        fits = 0 <= p <= 1
    except TypeError:
        fits = False
    if not fits:
        raise ArgumentError(f"{op}: p is a probability from 0 to 1, but is {p!r}")
    if not input.dtype.is_floating_point:
        raise DTypeError(f"{op}: takes floating-point tensors, not {input.spec}", fix="Convert it with .float().")


def _result(op: str, input: Tensor, out: Tensor, inplace: bool) -> Tensor:
    if not inplace:
        return out
    check_writable(input, op)
    return move_into(input, out, op)


def _drop(op: str, input: Tensor, p: float, training: bool, inplace: bool, mask_shape: Shape) -> Tensor:
    _check(op, input, p)
    if not training or p == 0:
        return input
    attrs = {"p": float(p), "key": key_for(None), "shape": mask_shape}
    return _result(op, input, apply(REGISTRY["dropout"], (input,), attrs), inplace)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each element becomes zero with probability `p`; the others grow by 1 / (1 - p), so the mean stays."""
    check_tensor("dropout", input)
    return _drop("dropout", input, p, training, inplace, tuple(input.shape))


def _channels(op: str, input: Tensor, ranks: tuple[int, int]) -> Shape:
    """The mask's shape: one decision for each channel, of a batch or of a single sample."""
    check_tensor(op, input)
    if input.ndim not in ranks:
        raise ShapeError(f"{op}: expects {ranks[0]} or {ranks[1]} dimensions, not {input.spec}")
    # A single sample has its channels in the first dimension, a batch in the second.
    own = 1 if input.ndim == ranks[0] else 2
    return tuple(input.shape)[:own] + (1,) * (input.ndim - own)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, L) or (C, L) become zero with probability `p`."""
    return _drop("dropout1d", input, p, training, inplace, _channels("dropout1d", input, (2, 3)))


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, H, W) become zero with probability `p`; 3 dimensions count as (N, C, L)."""
    check_tensor("dropout2d", input)
    if input.ndim in (3, 4):
        return feature_dropout(input, p, training, inplace)
    warnings.warn(f"dropout2d: expected 4 dimensions (N, C, H, W), got {input.ndim}", stacklevel=2)
    return feature_dropout(input, p, training, inplace)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, D, H, W) or (C, D, H, W) become zero with probability `p`."""
    check_tensor("dropout3d", input)
    if input.ndim not in (4, 5):
        warnings.warn(f"dropout3d: expected 5 dimensions (N, C, D, H, W), got {input.ndim}", stacklevel=2)
        return feature_dropout(input, p, training, inplace)
    return _drop("dropout3d", input, p, training, inplace, _channels("dropout3d", input, (4, 5)))


def feature_dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels, that is slices over the first two dimensions, become zero with probability `p`."""
    return _drop("feature_dropout", input, p, training, inplace, _features("feature_dropout", input))


def _features(op: str, input: Tensor) -> Shape:
    check_tensor(op, input)
    if input.ndim < 2:
        raise ShapeError(f"{op}: needs at least 2 dimensions (N, C, …), not {input.spec}")
    return tuple(input.shape)[:2] + (1,) * (input.ndim - 2)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout for selu: what is dropped takes selu's lowest value; mean and deviation stay as they were."""
    check_tensor("alpha_dropout", input)
    return _alpha("alpha_dropout", input, p, training, inplace, tuple(input.shape))


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Alpha dropout of whole channels."""
    check_tensor("feature_alpha_dropout", input)
    shape = _features("feature_alpha_dropout", input) if training else ()
    return _alpha("feature_alpha_dropout", input, p, training, inplace, shape)


def _alpha(op: str, input: Tensor, p: float, training: bool, inplace: bool, mask_shape: Shape) -> Tensor:
    _check(op, input, p)
    if not training or p == 0:
        return input
    if p == 1:
        return _result(op, input, _times(input, 0.0), inplace)
    kept = as_dtype_of(draw("random_mask", key=key_for(None), shape=mask_shape, p=float(p)), input.dtype)
    # Chosen so that what had mean 0 and deviation 1 has them again.
    scale = 1 / math.sqrt((1 - p) * (1 + p * _SELU_FLOOR**2))
    shift = -scale * p * _SELU_FLOOR
    # Kept: scale * x + shift. Dropped: scale * floor + shift.
    offset = _plus(_times(kept, -scale * _SELU_FLOOR), scale * _SELU_FLOOR + shift)
    return _result(op, input, _plus(_times(input, _times(kept, scale)), offset), inplace)


def _times(x: Tensor, factor: Tensor | float) -> Tensor:
    return promoted(REGISTRY["mul"], (x, factor))


def _plus(x: Tensor, offset: Tensor | float) -> Tensor:
    return promoted(REGISTRY["add"], (x, offset))
