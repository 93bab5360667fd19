"""Convolutions as layers: Conv1d/2d/3d, their transposes, and Unfold and Fold, which make columns of windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import wayfare.nn.functional as F
from wayfare.api.functions.creation import empty
from wayfare.core.errors import ArgumentError
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.conv import IntOrInts, per_dim
from wayfare.nn.init import kaiming_uniform_, uniform_
from wayfare.nn.module import Module
from wayfare.nn.parameter import Parameter
from wayfare.nn.shown_options import differing, shows

__all__ = [
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Unfold", "Fold",
]  # fmt: skip

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _Convolving(Module):
    """What a convolution and its transpose have in common: a kernel, a bias, and how the kernel slides."""

    # The number of dimensions that the kernel slides over, the function that does it, and which way round it goes.
    _rank: int
    _function: Any
    transposed: bool

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrInts, stride: IntOrInts,
        padding: str | IntOrInts, dilation: IntOrInts, output_padding: IntOrInts, groups: int, bias: bool,
        padding_mode: str, device: Any, dtype: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        name, rank = type(self).__name__, self._rank
        if groups <= 0:
            raise ArgumentError(f"{name}: groups must be positive, it is {groups}")
        for what, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if channels % groups:
                raise ArgumentError(f"{name}: {what} {channels} cannot be split into {groups} groups",
                                    fix="It must be a multiple of groups.")  # fmt: skip
        if padding_mode not in _PADDING_MODES:
            raise ArgumentError(f"{name}: padding_mode must be one of {', '.join(_PADDING_MODES)}, "
                                f"not {padding_mode!r}")  # fmt: skip
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = per_dim(name, "kernel_size", kernel_size, rank)
        self.stride = per_dim(name, "stride", stride, rank, 1)
        self.padding = padding if isinstance(padding, str) else per_dim(name, "padding", padding, rank)
        self.dilation = per_dim(name, "dilation", dilation, rank, 1)
        self.output_padding = per_dim(name, "output_padding", output_padding, rank)
        self.groups = groups
        self.padding_mode = padding_mode
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ArgumentError(f"{name}: padding must be numbers, 'same' or 'valid', not {padding!r}")
            if padding == "same" and set(self.stride) != {1}:
                raise ArgumentError(f"{name}: padding='same' needs a stride of 1, not {self.stride}")
        ends = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(empty(*ends, *self.kernel_size, device=device, dtype=dtype))
        self.bias: Parameter | None
        self.register_parameter("bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a new weight and bias, uniform within ±1/√(number of inputs of one output)."""
        kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = math.prod(self.weight.shape[1:])
            bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0
            uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        """Channels, kernel and stride, and options that differ from the default."""
        zeros, ones = (0,) * self._rank, (1,) * self._rank
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        parts += differing(self, padding=zeros, dilation=ones, output_padding=zeros, groups=1)
        parts += ["bias=False"] if self.bias is None else []
        return ", ".join(parts + differing(self, padding_mode="zeros"))


class _Convolution(_Convolving):
    transposed = False

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrInts, stride: IntOrInts = 1,
        padding: str | IntOrInts = 0, dilation: IntOrInts = 1, groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, 0, groups, bias, padding_mode, device,
            dtype,
        )  # fmt: skip

    def _around(self) -> list[int]:
        """How much `pad` has to add before and behind, the last dimension first; the odd one of "same" is behind."""
        padding = self.padding
        if padding == "valid":
            return [0, 0] * self._rank
        if isinstance(padding, str):
            totals = [gap * (size - 1) for gap, size in zip(self.dilation, self.kernel_size, strict=True)]
            return [amount for total in reversed(totals) for amount in (total // 2, total - total // 2)]
        return [amount for amount in reversed(padding) for _ in range(2)]

    def forward(self, input: Tensor) -> Tensor:
        """(N, in_channels, *sizes), or without N, to (N, out_channels, *sizes of the result)."""
        padding: str | IntOrInts = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._around(), self.padding_mode), 0
        return self._function(  # type: ignore[no-any-return]
            input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )


class Conv1d(_Convolution):
    """Convolution of (N, in_channels, L) with a weight (out_channels, in_channels / groups, kernel).

    `padding` is a number of elements on both sides, "same" or "valid"; `padding_mode` says what they are: "zeros",
    "reflect", "replicate" or "circular".
    """

    _rank, _function = 1, staticmethod(F.conv1d)


class Conv2d(_Convolution):
    """Convolution of (N, in_channels, H, W) with a weight (out_channels, in_channels / groups, kernel H, kernel W).

    `padding` is a number of elements on all sides, one for each dimension, "same" or "valid"; `padding_mode` says what
    they are: "zeros", "reflect", "replicate" or "circular".
    """

    _rank, _function = 2, staticmethod(F.conv2d)


class Conv3d(_Convolution):
    """Convolution of (N, in_channels, D, H, W) with a weight (out_channels, in_channels / groups, *kernel_size).

    `padding` is a number of elements on all sides, one for each dimension, "same" or "valid"; `padding_mode` says what
    they are: "zeros", "reflect", "replicate" or "circular".
    """

    _rank, _function = 3, staticmethod(F.conv3d)


class _TransposedConvolution(_Convolving):
    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrInts, stride: IntOrInts = 1,
        padding: IntOrInts = 0, output_padding: IntOrInts = 0, groups: int = 1, bias: bool = True,
        dilation: IntOrInts = 1, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        if padding_mode != "zeros":
            raise ArgumentError(f"{type(self).__name__}: padding_mode must be 'zeros', not {padding_mode!r}",
                                fix="A transposed convolution takes elements away, so none are added.")  # fmt: skip
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, output_padding, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """(N, in_channels, *sizes), or without N, to (N, out_channels, *sizes of the result).

        With strides several sizes of the result are possible: `output_size` picks one.
        """
        extra = self.output_padding if output_size is None else self._extra(input, output_size)
        return self._function(  # type: ignore[no-any-return]
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
        )

    def _extra(self, input: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        """The output padding that leads to a size."""
        name, rank = type(self).__name__, self._rank
        wanted = tuple(output_size)
        if len(wanted) == input.ndim:
            wanted = wanted[-rank:]
        if len(wanted) != rank:
            raise ArgumentError(f"{name}: output_size must have {rank} numbers, or {input.ndim} with the batch and the "
                                f"channels, it has {len(wanted)}: {list(wanted)}")  # fmt: skip
        around: Any = self.padding
        spans = zip(input.shape[-rank:], self.kernel_size, self.stride, around, self.dilation, strict=True)
        least = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, p, d in spans]
        most = [size + step - 1 for size, step in zip(least, self.stride, strict=True)]
        if not all(low <= size <= high for low, size, high in zip(least, wanted, most, strict=True)):
            raise ArgumentError(f"{name}: an input of {input.spec} can give sizes from {least} to {most}, not "
                                f"{list(wanted)}")  # fmt: skip
        return tuple(size - low for size, low in zip(wanted, least, strict=True))


class ConvTranspose1d(_TransposedConvolution):
    """The adjoint of Conv1d: (N, in_channels, L) with a weight (in_channels, out_channels / groups, kernel)."""

    _rank, _function = 1, staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_TransposedConvolution):
    """The adjoint of Conv2d: (N, in_channels, H, W) with a weight (in_channels, out_channels / groups, *kernel)."""

    _rank, _function = 2, staticmethod(F.conv_transpose2d)


class ConvTranspose3d(_TransposedConvolution):
    """The adjoint of Conv3d: (N, in_channels, D, H, W), a weight (in_channels, out_channels / groups, *kernel)."""

    _rank, _function = 3, staticmethod(F.conv_transpose3d)


class Unfold(Module):
    """The windows of (N, C, H, W) as columns: (N, C · kernel H · kernel W, number of windows)."""

    def __init__(
        self, kernel_size: IntOrInts, dilation: IntOrInts = 1, padding: IntOrInts = 0, stride: IntOrInts = 1
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C · kernel H · kernel W, number of windows)."""
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    extra_repr = shows("kernel_size", "dilation", "padding", "stride")


class Fold(Module):
    """The adjoint of Unfold: every column is added where its window lies in (N, C, *output_size)."""

    def __init__(
        self, output_size: IntOrInts, kernel_size: IntOrInts, dilation: IntOrInts = 1, padding: IntOrInts = 0,
        stride: IntOrInts = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        """(N, C · kernel H · kernel W, number of windows) to (N, C, *output_size)."""
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    extra_repr = shows("output_size", "kernel_size", "dilation", "padding", "stride")
