"""Normalisation as layers, over a batch, an instance, a layer, groups of channels or neighbouring channels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import wayfare.nn.functional as F
from wayfare.api.functions._along import check_tensor
from wayfare.api.functions.creation import empty, ones, tensor, zeros
from wayfare.core.errors import ArgumentError
from wayfare.core.spec import float64, int64
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.norm import count_batch
from wayfare.nn.init import ones_, zeros_
from wayfare.nn.module import Module
from wayfare.nn.parameter import Parameter

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LayerNorm",
    "GroupNorm", "RMSNorm", "LocalResponseNorm",
]  # fmt: skip


class _Scaling(Module):
    """A norm whose result is scaled and shifted, by one number for each channel or element, or not at all."""

    weight: Parameter | None
    bias: Parameter | None

    def _add_scaling(self, shape: Sequence[int], weight: bool, bias: bool, device: Any, dtype: Any) -> None:
        for name, wanted in (("weight", weight), ("bias", weight and bias)):
            value = Parameter(empty(*shape, device=device, dtype=dtype)) if wanted else None
            self.register_parameter(name, value)

    def reset_parameters(self) -> None:
        """Scale by one and shift by zero."""
        if self.weight is not None:
            ones_(self.weight)
        if self.bias is not None:
            zeros_(self.bias)


class _RunningNorm(_Scaling):
    """Normalisation for each channel that can keep running statistics."""

    # The numbers of dimensions that the input may have, and the names of its dimensions.
    _ranks: tuple[int, ...]
    _letters: str
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self._add_scaling((num_features,), affine, bias, device, dtype)
        track = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, device=device, dtype=dtype) if track else None)
        self.register_buffer("running_var", ones(num_features, device=device, dtype=dtype) if track else None)
        self.register_buffer("num_batches_tracked", tensor(0, dtype=int64, device=device) if track else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Reset the running statistics."""
        if self.running_mean is not None:
            self.running_mean.zero_()
        if self.running_var is not None:
            self.running_var.fill_(1)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Scale by one, shift by zero, and reset the running statistics."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check_input_dim(self, input: Tensor) -> None:
        check_tensor(type(self).__name__, input)
        if input.ndim not in self._ranks:
            wanted = " or ".join(map(str, self._ranks))
            raise ArgumentError(f"{type(self).__name__}: the input must be {self._letters}, with {wanted} dimensions; "
                                f"this is {input.spec} with {input.ndim}")  # fmt: skip

    def extra_repr(self) -> str:
        """Channels and settings."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_RunningNorm):
    def forward(self, input: Tensor) -> Tensor:
        """(N, C, …) to the same shape. In training the batch's own statistics are used, and tracked."""
        self._check_input_dim(input)
        mean, var = self.running_mean, self.running_var
        momentum: Any = self.momentum
        if not self.training:
            by_batch = mean is None and var is None
        else:
            by_batch = True
            if not self.track_running_stats:
                mean = var = None
            elif self.num_batches_tracked is not None:
                batches = count_batch(self.num_batches_tracked)
                if momentum is None:
                    momentum = 1 / (batches if batches.dtype is float64 else batches.item())
        return F.batch_norm(
            input, mean, var, self.weight, self.bias, by_batch, 0.0 if momentum is None else momentum, self.eps
        )


class BatchNorm1d(_BatchNorm):
    """Mean 0 and variance 1 for each channel of (N, C) or (N, C, L), then `* weight + bias`.

    In training the statistics are those of the batch, and running ones are tracked for eval mode; with `momentum=None`
    these are averages over all batches.
    """

    _ranks, _letters = (2, 3), "(N, C) or (N, C, L)"


class BatchNorm2d(_BatchNorm):
    """Mean 0 and variance 1 for each channel of (N, C, H, W), then `* weight + bias`.

    In training the statistics are those of the batch, and running ones are tracked for eval mode; with `momentum=None`
    these are averages over all batches.
    """

    _ranks, _letters = (4,), "(N, C, H, W)"


class BatchNorm3d(_BatchNorm):
    """Mean 0 and variance 1 for each channel of (N, C, D, H, W), then `* weight + bias`.

    In training the statistics are those of the batch, and running ones are tracked for eval mode; with `momentum=None`
    these are averages over all batches.
    """

    _ranks, _letters = (5,), "(N, C, D, H, W)"


class _InstanceNorm(_RunningNorm):
    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, …), or without N, to the same shape."""
        self._check_input_dim(input)
        alone = input.ndim == self._ranks[0]
        channels = input.shape[0 if alone else 1]
        if channels != self.num_features:
            if self.affine:
                raise ArgumentError(f"{type(self).__name__}: the input {input.spec} has {channels} channels, the layer "
                                    f"takes {self.num_features}")  # fmt: skip
            warnings.warn(f"{type(self).__name__}: the input has {channels} channels, not num_features="
                          f"{self.num_features}; without affine that number is not used", stacklevel=3)  # fmt: skip
        momentum = 0.0 if self.momentum is None else self.momentum
        out = F.instance_norm(
            input.unsqueeze(0) if alone else input, self.running_mean, self.running_var, self.weight, self.bias,
            self.training or not self.track_running_stats, momentum, self.eps,
        )  # fmt: skip
        return out.squeeze(0) if alone else out


class InstanceNorm1d(_InstanceNorm):
    """Mean 0 and variance 1 for each channel of each example of (N, C, L), then with `affine` `* weight + bias`."""

    _ranks, _letters = (2, 3), "(N, C, L) or (C, L)"


class InstanceNorm2d(_InstanceNorm):
    """Mean 0 and variance 1 for each channel of each example of (N, C, H, W), then with `affine` `* weight + bias`."""

    _ranks, _letters = (3, 4), "(N, C, H, W) or (C, H, W)"


class InstanceNorm3d(_InstanceNorm):
    """Mean 0 and variance 1 for each channel of each example of (N, C, D, H, W); with `affine`, `* weight + bias`."""

    _ranks, _letters = (4, 5), "(N, C, D, H, W) or (C, D, H, W)"


def _as_shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    """One int is the size of the last dimension."""
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


class LayerNorm(_Scaling):
    """Mean 0 and variance 1 over the last dimensions, those of `normalized_shape`, then `* weight + bias`."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _as_shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self._add_scaling(self.normalized_shape, elementwise_affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """(…, *normalized_shape) to the same shape."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The shape and the settings."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """Divided by the root of the mean square over the last dimensions, those of `normalized_shape`, then `* weight`.

    The default `eps` is that of the dtype.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _as_shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        value = Parameter(empty(*self.normalized_shape, device=device, dtype=dtype)) if elementwise_affine else None
        self.weight: Parameter | None
        self.register_parameter("weight", value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale by one."""
        if self.weight is not None:
            ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        """(…, *normalized_shape) to the same shape."""
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """The shape and the settings."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Scaling):
    """Mean 0 and variance 1 over each of `num_groups` groups of channels of each example of (N, C, …), then
    `* weight + bias` for each channel."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None,
        dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_groups <= 0 or num_channels % num_groups:
            raise ArgumentError(f"GroupNorm: {num_channels} channels cannot be split into {num_groups} groups",
                                fix="num_channels must be a multiple of num_groups.")  # fmt: skip
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self._add_scaling((num_channels,), affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, …) to the same shape."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Groups, channels and settings."""
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(Module):
    """Each element of (N, C, …) divided by `(k + alpha * mean of squares over size neighbouring channels) ** beta`."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, …) to the same shape."""
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        """The settings."""
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
