"""Pooling as layers: the largest, the average or a norm of each window, and MaxUnpool, which puts elements back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import wayfare.nn.functional as F
from wayfare.core.errors import ArgumentError
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.conv import IntOrInts, per_dim
from wayfare.nn.module import Module
from wayfare.nn.shown_options import shows

__all__ = [
    "MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d", "AvgPool1d", "AvgPool2d",
    "AvgPool3d", "LPPool1d", "LPPool2d", "LPPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d",
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "FractionalMaxPool2d", "FractionalMaxPool3d",
]  # fmt: skip


class _Pooling(Module):
    # The number of dimensions that the windows lie in, and the function that pools.
    _rank: int
    _function: Any


class _MaxPool(_Pooling):
    def __init__(
        self, kernel_size: IntOrInts, stride: IntOrInts | None = None, padding: IntOrInts = 0, dilation: IntOrInts = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Any:
        """(N, C, *sizes), or without N, to (N, C, *number of windows); with `return_indices` the places too."""
        return self._function(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )

    extra_repr = shows("kernel_size", "stride", "padding", "dilation", "ceil_mode")


class MaxPool1d(_MaxPool):
    """The largest element of each window of (N, C, L); the stride is the size of the window unless it is given."""

    _rank, _function = 1, staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest element of each window of (N, C, H, W); the stride is the size of the window unless it is given."""

    _rank, _function = 2, staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest element of each window of (N, C, D, H, W); the stride is the size of the window unless given."""

    _rank, _function = 3, staticmethod(F.max_pool3d)


class _MaxUnpool(_Pooling):
    def __init__(self, kernel_size: IntOrInts, stride: IntOrInts | None = None, padding: IntOrInts = 0) -> None:
        super().__init__()
        name, rank = type(self).__name__, self._rank
        self.kernel_size = per_dim(name, "kernel_size", kernel_size, rank, 1)
        self.stride = per_dim(name, "stride", kernel_size if stride is None else stride, rank, 1)
        self.padding = per_dim(name, "padding", padding, rank)

    def forward(self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """What max pooling gave, with the places it returned, to the size before: the rest is zeros."""
        how = (self.kernel_size, self.stride, self.padding, output_size)
        return self._function(input, indices, *how)  # type: ignore[no-any-return]

    extra_repr = shows("kernel_size", "stride", "padding")


class MaxUnpool1d(_MaxUnpool):
    """Puts the elements that MaxPool1d (with `return_indices`) took back in their places, with zeros elsewhere."""

    _rank, _function = 1, staticmethod(F.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    """Puts the elements that MaxPool2d (with `return_indices`) took back in their places, with zeros elsewhere."""

    _rank, _function = 2, staticmethod(F.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    """Puts the elements that MaxPool3d (with `return_indices`) took back in their places, with zeros elsewhere."""

    _rank, _function = 3, staticmethod(F.max_unpool3d)


class _AvgPool(_Pooling):
    kernel_size: IntOrInts
    stride: IntOrInts
    padding: IntOrInts

    extra_repr = shows("kernel_size", "stride", "padding")


class AvgPool1d(_AvgPool):
    """The average of each window of (N, C, L); the stride is the size of the window unless it is given."""

    def __init__(
        self, kernel_size: IntOrInts, stride: IntOrInts | None = None, padding: IntOrInts = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        self.kernel_size = per_dim(name, "kernel_size", kernel_size, 1, 1)
        self.stride = per_dim(name, "stride", kernel_size if stride is None else stride, 1, 1)
        self.padding = per_dim(name, "padding", padding, 1)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, L), or without N, to (N, C, number of windows)."""
        return F.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )


class _AvgPoolPlane(_AvgPool):
    def __init__(
        self, kernel_size: IntOrInts, stride: IntOrInts | None = None, padding: IntOrInts = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, *sizes), or without N, to (N, C, *number of windows)."""
        return self._function(  # type: ignore[no-any-return]
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
            self.divisor_override,
        )  # fmt: skip


class AvgPool2d(_AvgPoolPlane):
    """The average of each window of (N, C, H, W); the stride is the size of the window unless it is given."""

    _rank, _function = 2, staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPoolPlane):
    """The average of each window of (N, C, D, H, W); the stride is the size of the window unless it is given."""

    _rank, _function = 3, staticmethod(F.avg_pool3d)


class _LPPool(_Pooling):
    def __init__(
        self, norm_type: float, kernel_size: IntOrInts, stride: IntOrInts | None = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, *sizes), or without N, to (N, C, *number of windows)."""
        how = (float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)
        return self._function(input, *how)  # type: ignore[no-any-return]

    extra_repr = shows("norm_type", "kernel_size", "stride", "ceil_mode")


class LPPool1d(_LPPool):
    """The `norm_type`-norm of each window of (N, C, L)."""

    _rank, _function = 1, staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    """The `norm_type`-norm of each window of (N, C, H, W)."""

    _rank, _function = 2, staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool):
    """The `norm_type`-norm of each window of (N, C, D, H, W)."""

    _rank, _function = 3, staticmethod(F.lp_pool3d)


class _AdaptiveMaxPool(_Pooling):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        """(N, C, *sizes), or without N, to (N, C, *output_size); with `return_indices` the places too."""
        return self._function(input, self.output_size, self.return_indices)

    extra_repr = shows("output_size")


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest element of each of `output_size` cells of (N, C, L), of nearly equal size."""

    _rank, _function = 1, staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest element of each of `output_size` cells of (N, C, H, W), of nearly equal size; None keeps a size."""

    _rank, _function = 2, staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest element of each of `output_size` cells of (N, C, D, H, W), of nearly equal size."""

    _rank, _function = 3, staticmethod(F.adaptive_max_pool3d)


class _AdaptiveAvgPool(_Pooling):
    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, *sizes), or without N, to (N, C, *output_size)."""
        return self._function(input, self.output_size)  # type: ignore[no-any-return]

    extra_repr = shows("output_size")


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The average of each of `output_size` cells of (N, C, L), of nearly equal size."""

    _rank, _function = 1, staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The average of each of `output_size` cells of (N, C, H, W), of nearly equal size; None keeps a size."""

    _rank, _function = 2, staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """The average of each of `output_size` cells of (N, C, D, H, W), nearly equal in size; None keeps a size."""

    _rank, _function = 3, staticmethod(F.adaptive_avg_pool3d)


class _FractionalMaxPool(_Pooling):
    def __init__(
        self, kernel_size: IntOrInts, output_size: Any = None, output_ratio: Any = None,
        return_indices: bool = False, _random_samples: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name, rank = type(self).__name__, self._rank
        if (output_size is None) == (output_ratio is None):
            raise ArgumentError(f"{name}: give either output_size or output_ratio")
        self.kernel_size = per_dim(name, "kernel_size", kernel_size, rank, 1)
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.output_size = None if output_size is None else per_dim(name, "output_size", output_size, rank, 1)
        self.output_ratio = None
        if output_ratio is not None:
            several = isinstance(output_ratio, (tuple, list))
            self.output_ratio = tuple(output_ratio) if several else (output_ratio,) * rank
            if not all(0 < ratio < 1 for ratio in self.output_ratio):
                raise ArgumentError(f"{name}: output_ratio must be between 0 and 1, it is {output_ratio}")

    _random_samples: Tensor | None

    def forward(self, input: Tensor) -> Any:
        """(N, C, *sizes), or without N, to the size asked for; with `return_indices` the places too."""
        how = (self.kernel_size, self.output_size, self.output_ratio, self.return_indices)
        return self._function(input, *how, _random_samples=self._random_samples)


class FractionalMaxPool2d(_FractionalMaxPool):
    """The largest element of windows of (N, C, H, W) at random places: `output_size` of them, or a ratio of H and W."""

    _rank, _function = 2, staticmethod(F.fractional_max_pool2d)


class FractionalMaxPool3d(_FractionalMaxPool):
    """The largest element of windows of (N, C, D, H, W) at random places: `output_size` of them, or a ratio."""

    _rank, _function = 3, staticmethod(F.fractional_max_pool3d)
