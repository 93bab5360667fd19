"""Normalisation over a layer, a batch, groups of channels or an instance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wayfare.autograd.modes import no_grad
from wayfare.eager import apply
from wayfare.errors import ArgumentError, ArgumentTypeError, OperationError, ShapeError
from wayfare.functions._along import check_floating, check_tensor
from wayfare.functions._public import as_dtype_of
from wayfare.op import REGISTRY
from wayfare.tensor import Tensor, wrap

__all__ = ["layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm"]


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
        raise ShapeError(f"{name}: the last sizes of {input.spec} are not {list(shape)}")
    return tuple(range(input.ndim - len(shape), input.ndim))


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean 0 and variance 1 over the last dimensions, then `* weight + bias`."""
    dim = _check_last("layer_norm", input, normalized_shape)
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None and tuple(given.shape) != tuple(normalized_shape):
            raise ShapeError(f"layer_norm: a {name} of {given.spec} is not of shape {list(normalized_shape)}")
    if weight is not None and bias is not None and weight.dtype is input.dtype is bias.dtype:
        return apply(REGISTRY["layer_norm"], (input, weight, bias), {"eps": float(eps)})[0]  # type: ignore[no-any-return]
    out: Tensor = apply(REGISTRY["standardize"], (input,), {"dim": dim, "eps": float(eps)})[0]
    if weight is None and bias is None:
        return _own(out)
    if weight is not None:
        out = out * weight
    return out if bias is None else out + bias


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Divided by the root of the mean square over the last dimensions, then `* weight`."""
    dim = _check_last("rms_norm", input, normalized_shape)
    if eps is None:
        eps = float(np.finfo(input.dtype.numpy).eps)
    if weight is None:
        weight = wrap(np.ones(tuple(input.shape)[dim[0] :], input.dtype.numpy))
    if weight.dtype is input.dtype and tuple(weight.shape) == tuple(normalized_shape):
        return apply(REGISTRY["rms_norm"], (input, weight), {"eps": float(eps)})[0]  # type: ignore[no-any-return]
    return input * ((input * input).mean(dim, keepdim=True) + eps).rsqrt() * weight


def _per_channel(input: Tensor, value: Tensor) -> Tensor:
    """A vector with one entry for each channel, shaped to multiply `input`."""
    return value.reshape((1, value.shape.numel()) + (1,) * (input.ndim - 2))


def _scaled(out: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        out = out * _per_channel(out, weight)
    if bias is not None:
        out = out + _per_channel(out, bias)
    return _own(out) if weight is None and bias is None else out


def _own(out: Tensor) -> Tensor:
    """The standardized numbers are kept for the gradient: a result that may be written in place must be a copy."""
    return out.clone() if out.requires_grad else out


def _check_channels(name: str, input: Tensor, **vectors: Tensor | None) -> None:
    check_tensor(name, input)
    if input.ndim < 2:
        raise ShapeError(f"{name}: needs a batch of channels, [N, C, ...], this is {input.spec}")
    for what, given in vectors.items():
        if given is not None and given.shape.numel() != input.shape[1]:
            channels = input.shape[1]
            raise ShapeError(f"{name}: {what} of {given.spec} does not fit the {channels} channels of {input.spec}")


def _track(running: Tensor, new: Tensor, momentum: float) -> None:
    """A running statistic moves towards the new value, outside the graph."""
    with no_grad():
        running.mul_(1 - momentum).add_(as_dtype_of(new.detach().reshape(-1), running.dtype), alpha=momentum)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Mean 0 and variance 1 for each channel over the batch, then `* weight + bias`.

    In training the running statistics are updated in place; otherwise they are used.
    """
    if 0 in input.shape:
        return _of_nothing(input, weight, bias)
    _check_channels("batch_norm", input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    if not training:
        if running_mean is None or running_var is None:
            raise OperationError("batch_norm: without training it needs running_mean and running_var",
                                 fix="Pass them, or training=True.")  # fmt: skip
        return _by_statistics(input, running_mean, running_var, weight, bias, eps)
    count = input.shape.numel() // max(input.shape[1], 1)
    if count == 1:
        raise ArgumentError(f"batch_norm: more than one value per channel is needed in training, this is {input.spec}")
    dim = (0, *range(2, input.ndim))
    out, mean, variance = apply(REGISTRY["standardize"], (input,), {"dim": dim, "eps": float(eps)})
    if running_mean is not None:
        _track(running_mean, mean, momentum)
    if running_var is not None:
        _track(running_var, variance * (count / max(count - 1, 1)), momentum)
    return _scaled(out, weight, bias)


def _of_nothing(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """No elements: nothing is normalised or tracked, but the result still hangs on the parameters."""
    out = input.clone()
    if weight is not None:
        out = out * weight.select(0, 0)
    return out if bias is None else out + bias.select(0, 0)


def _by_statistics(
    input: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Scale and shift are worked out per channel first, so that the large array is passed over twice only."""
    scale = (variance + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    return input * _per_channel(input, scale) + _per_channel(input, shift)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Mean 0 and variance 1 for each channel of each example, then `* weight + bias`."""
    _check_channels("instance_norm", input, weight=weight, bias=bias)
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise OperationError("instance_norm: without use_input_stats it needs running_mean and running_var")
        return _by_statistics(input, running_mean, running_var, weight, bias, eps)
    count = input.shape.numel() // max(input.shape[0] * input.shape[1], 1)
    if count == 1:
        raise ArgumentError(f"instance_norm: more than one value per channel is needed, this is {input.spec}")
    dim = tuple(range(2, input.ndim))
    out, mean, variance = apply(REGISTRY["standardize"], (input,), {"dim": dim, "eps": float(eps)})
    if running_mean is not None:
        _track(running_mean, mean.mean(0), momentum)
    if running_var is not None:
        _track(running_var, variance.mean(0) * (count / max(count - 1, 1)), momentum)
    return _scaled(out, weight, bias)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Mean 0 and variance 1 over each group of channels of each example, then `* weight + bias`."""
    _check_channels("group_norm", input, weight=weight, bias=bias)
    if num_groups <= 0 or input.shape[1] % num_groups:
        raise OperationError(f"group_norm: {input.shape[1]} channels cannot be split into {num_groups} groups")
    shape = tuple(input.shape)
    grouped = input.reshape(shape[0], num_groups, math.prod(shape[1:]) // num_groups)
    out = apply(REGISTRY["standardize"], (grouped,), {"dim": (2,), "eps": float(eps)})[0]
    return _scaled(out.reshape(shape), weight, bias)


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
