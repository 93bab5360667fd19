"""Normalisation over a layer, a batch, groups of channels or an instance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.api.functions._along import check_floating, check_tensor
from wayfare.api.functions._public import as_dtype_of
from wayfare.api.functions.creation import ones_like, zeros_like
from wayfare.api.functions.shape import expanded, reshaped
from wayfare.autograd.modes import no_grad
from wayfare.core.dispatch import apply, apply1
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DTypeError, OperationError, ShapeError
from wayfare.core.mode import executor
from wayfare.core.op import REGISTRY
from wayfare.core.spec import NARROW, float32, float64, limits_of, promote
from wayfare.core.tensor import Tensor, on_device_of
from wayfare.core.write_clock import check_memory, note_write

__all__ = ["layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm"]

_RESHAPE = REGISTRY["reshape"]


def _check_last(name: str, input: Tensor, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    check_tensor(name, input)
    check_floating(name, input)
    if not isinstance(normalized_shape, (tuple, list)):
        shown = f"{type(normalized_shape).__name__} ({normalized_shape!r})"
        raise ArgumentTypeError(f"{name}: normalized_shape must be a tuple of sizes, not {shown}",
                                fix="Write x.shape[-1:] for the last dimension.")  # fmt: skip
    shape = tuple(normalized_shape)
    if not shape:
        raise OperationError(f"{name}: normalized_shape must name at least one size")
    if tuple(input.shape[-len(shape) :]) != shape:
        raise ShapeError(f"{name}: the input must end in the sizes {list(shape)}, this is {input.spec}")
    return tuple(range(input.ndim - len(shape), input.ndim))


def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Mean 0 and variance 1 over the last dimensions, then `* weight + bias`."""
    dim = _check_last("layer_norm", input, normalized_shape)
    for name, given in (("weight", weight), ("bias", bias)):
        if given is None:
            continue
        if tuple(given.shape) != tuple(normalized_shape):
            raise ShapeError(f"layer_norm: a {name} of {given.spec} is not of shape {list(normalized_shape)}")
        if given.dtype is not input.dtype:
            _check_dtype("layer_norm", input, name, given)
            wide = layer_norm(as_dtype_of(input, given.dtype), normalized_shape, weight, bias, eps)
            return as_dtype_of(wide, input.dtype)
    if weight is not None and bias is not None:
        return apply(REGISTRY["layer_norm"], (input, weight, bias), {"eps": float(eps)})[0]  # type: ignore[no-any-return]
    out: Tensor = apply(REGISTRY["standardize"], (input,), {"dim": dim, "eps": float(eps)})[0]
    if weight is None and bias is None:
        return out.clone() if out.requires_grad else out  # It is kept for the gradient, and may be written in place.
    if weight is not None:
        out = out * weight
    return out if bias is None else out + bias


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Divided by the root of the mean square over the last dimensions, then `* weight`; in the dtype of the input."""
    dim = _check_last("rms_norm", input, normalized_shape)
    if eps is None:  # of the dtype that it is computed in
        eps = float(limits_of(float32 if input.dtype in NARROW else input.dtype).eps)
    if weight is None:
        weight = on_device_of(input, np.ones(tuple(input.shape)[dim[0] :], input.dtype.numpy))
    wide = promote(input.dtype, weight.dtype)
    x, weight = as_dtype_of(input, wide), as_dtype_of(weight, wide)
    if tuple(weight.shape) == tuple(normalized_shape):
        return as_dtype_of(apply(REGISTRY["rms_norm"], (x, weight), {"eps": float(eps)})[0], input.dtype)
    return as_dtype_of(x * ((x * x).mean(dim, keepdim=True) + eps).rsqrt() * weight, input.dtype)


def _per_channel(input: Tensor, value: Tensor) -> Tensor:
    """A vector with one entry for each channel, shaped to multiply `input`."""
    return apply1(_RESHAPE, value, {"shape": (1, math.prod(value.shape)) + (1,) * (input.ndim - 2)})


def _normalized(
    input: Tensor, dim: tuple[int, ...], eps: float, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean 0 and variance 1 over `dim`, scaled and shifted; and the mean and the variance."""
    if weight is None and bias is None:
        out, mean, variance = apply(REGISTRY["standardize"], (input,), {"dim": dim, "eps": float(eps)})
        # The standardized numbers are kept for the gradient: a result that may be written in place must be a copy.
        return out.clone() if out.requires_grad else out, mean, variance
    if weight is None:
        weight = ones_like(bias)  # type: ignore[arg-type]
    elif bias is None:
        bias = zeros_like(weight)
    scales: tuple[Any, ...] = (weight, bias)
    return apply(REGISTRY["scaled_norm"], (input, *scales), {"dim": dim, "eps": float(eps)})  # type: ignore[no-any-return]


def _check_channels(name: str, input: Tensor, **vectors: Tensor | None) -> None:
    check_tensor(name, input)
    check_floating(name, input)
    if input.ndim < 2:
        raise ShapeError(f"{name}: needs a batch of channels, [N, C, ...], this is {input.spec}")
    shape, dtype = input.shape[1:2], input.dtype
    for what, given in vectors.items():
        if given is None or (given.shape == shape and given.dtype is dtype):
            continue
        if given.shape.numel() != input.shape[1]:
            raise ShapeError(f"{name}: the input {input.spec} has {input.shape[1]} channels (dimension 1), but {what} "
                             f"is for {given.shape.numel()}")  # fmt: skip
        _check_dtype(name, input, what, given)


def _check_dtype(name: str, input: Tensor, what: str, given: Tensor) -> None:
    """One dtype for all; only narrow floats may be normalised in single precision."""
    if given.dtype is not input.dtype and not (input.dtype in NARROW and given.dtype is float32):
        raise DTypeError(f"{name}: the input {input.spec} and the {what} {given.spec} must have one dtype",
                         fix=f"Convert the input with .to(wf.{given.dtype.name}).")  # fmt: skip


def _wide(input: Tensor, *vectors: Tensor | None) -> Tensor:
    """The input in the dtype of its scale."""
    for given in vectors:
        if given is not None and given.dtype is not input.dtype:
            return as_dtype_of(input, given.dtype)
    return input


def _check_tracked(op: str, **running: Tensor | None) -> None:
    """Check that all running statistics can be written, before one of them is."""
    if executor().works_on_arrays:
        for name, t in running.items():
            if t is not None:
                check_memory(t._array, op, f"{name} {t.spec}")


def _track(running: Tensor, new: Tensor, momentum: float | Tensor, factor: float = 1.0) -> None:
    """A running statistic moves towards the new value, outside the graph."""
    if not executor().works_on_arrays:
        with no_grad():
            moved = as_dtype_of(new.detach().reshape(-1), running.dtype)
            running.copy_(running * (1 - momentum) + moved * (momentum * factor))
        return
    array = running._array
    array *= 1 - momentum
    array += new._array.reshape(-1) * (momentum * factor)
    note_write(array)


def count_batch(batches: Tensor) -> Tensor:
    """Count one more batch, and return the count (under vmap, for each example)."""
    if not executor().works_on_arrays:
        return as_dtype_of(batches.add_(1), float64)
    array = batches._array
    check_memory(array, "batch_norm", f"num_batches_tracked {batches.spec}")
    array += 1
    note_write(array)
    return batches


def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float | Tensor = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Mean 0 and variance 1 for each channel over the batch, then `* weight + bias`.

    In training the running statistics are updated in place; otherwise they are used.
    """
    check_tensor("batch_norm", input)
    shape = input.shape
    if 0 in shape:
        return _of_nothing(input, weight, bias)
    _check_channels("batch_norm", input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    if not training:
        if running_mean is None or running_var is None:
            raise OperationError("batch_norm: without training it needs running_mean and running_var",
                                 fix="Pass them, or training=True.")  # fmt: skip
        return _by_statistics(input, running_mean, running_var, weight, bias, eps)
    count = math.prod(shape) // shape[1]
    if count == 1:
        raise ArgumentError(f"batch_norm: more than one value per channel is needed in training, this is {input.spec}",
                            fix="Give a larger batch, or use .eval().")  # fmt: skip
    _check_tracked("batch_norm", running_mean=running_mean, running_var=running_var)
    x = _wide(input, weight, bias, running_mean, running_var)
    dim = (0, *range(2, input.ndim))
    scales = (None if t is None else _per_channel(x, t) for t in (weight, bias))
    out, mean, variance = _normalized(x, dim, eps, *scales)
    if running_mean is not None:
        _track(running_mean, mean, momentum)
    if running_var is not None:
        _track(running_var, variance, momentum, count / max(count - 1, 1))
    return as_dtype_of(out, input.dtype)


def _of_nothing(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """The result for an empty input: nothing is normalised or tracked, but it depends on the parameters."""
    out = input.clone()
    if weight is not None:
        out = out * weight.select(0, 0)
    return out if bias is None else out + bias.select(0, 0)


def _by_statistics(
    input: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Scale and shift are computed per channel first, so that the large array is read only twice."""
    scale = (variance + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    return as_dtype_of(input * _per_channel(input, scale) + _per_channel(input, shift), input.dtype)


def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Mean 0 and variance 1 for each channel of each example, then `* weight + bias`."""
    _check_channels(
        "instance_norm", input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias
    )
    x = _wide(input, weight, bias)
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise OperationError("instance_norm: without use_input_stats it needs running_mean and running_var")
        return _by_statistics(input, running_mean, running_var, weight, bias, eps)
    count = input.shape.numel() // max(input.shape[0] * input.shape[1], 1)
    if count == 1:
        raise ArgumentError(f"instance_norm: more than one value per channel is needed, this is {input.spec}")
    _check_tracked("instance_norm", running_mean=running_mean, running_var=running_var)
    dim = tuple(range(2, input.ndim))
    scales = (None if t is None else _per_channel(x, t) for t in (weight, bias))
    out, mean, variance = _normalized(x, dim, eps, *scales)
    if running_mean is not None:
        _track(running_mean, mean.mean(0), momentum)
    if running_var is not None:
        _track(running_var, variance.mean(0), momentum, count / max(count - 1, 1))
    return as_dtype_of(out, input.dtype)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Mean 0 and variance 1 over each group of channels of each example, then `* weight + bias`."""
    _check_channels("group_norm", input, weight=weight, bias=bias)
    if num_groups <= 0 or input.shape[1] % num_groups:
        raise OperationError(f"group_norm: {input.shape[1]} channels cannot be split into {num_groups} groups")
    shape = tuple(input.shape)
    if input.shape.numel() == 0:
        return _of_nothing(input, weight, bias)
    x = _wide(input, weight, bias)
    inside = shape[1] // num_groups
    rows = shape[0] * num_groups
    grouped = reshaped(x, (rows, inside, math.prod(shape[2:])))
    # Each example has its own copy of the few scales: then all groups lie in one dimension, which is much quicker.
    flat = (t if t is None or t.ndim == 1 else reshaped(t, shape[1:2]) for t in (weight, bias))
    scales = (None if t is None else reshaped(expanded(t, shape[:2]), (rows, inside, 1)) for t in flat)
    out = _normalized(grouped, (1, 2), eps, *scales)[0]
    return as_dtype_of(reshaped(out, shape), input.dtype)


def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Each element divided by `(k + alpha * mean of squares over size neighbouring channels) ** beta`."""
    check_tensor("local_response_norm", input)
    if input.ndim < 3:
        raise ArgumentError(f"local_response_norm: needs [N, C, ...] with at least 3 dimensions, this is {input.spec}")
    channels = input.shape[1]
    if input.shape.numel() == 0:
        return input
    before = size // 2
    square = input * input
    windows = [
        square.narrow(1, max(c - before, 0), min(c + size - before, channels) - max(c - before, 0)).sum(1, keepdim=True)
        for c in range(channels)
    ]
    mean: Tensor = apply(REGISTRY["cat"], tuple(windows), {"dim": 1}) / size
    return input / (mean * alpha + k) ** beta
