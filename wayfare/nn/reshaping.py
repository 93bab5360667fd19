"""Layers that move or resize without anything to learn: Flatten, Unflatten, pixel and channel shuffles, Upsample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.api.functions._along import check_tensor
from wayfare.core.errors import ArgumentTypeError
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.resize import interpolate
from wayfare.nn.functional.shuffle import channel_shuffle, pixel_shuffle, pixel_unshuffle
from wayfare.nn.module import Module
from wayfare.nn.shown_options import shows

__all__ = [
    "Flatten", "Unflatten", "PixelShuffle", "PixelUnshuffle", "ChannelShuffle", "Upsample", "UpsamplingNearest2d",
    "UpsamplingBilinear2d",
]  # fmt: skip


class Flatten(Module):
    """The dimensions from `start_dim` to `end_dim` as one; by default (N, …) to (N, all the rest)."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Tensor) -> Tensor:
        """(N, …) to (N, product of the rest)."""
        check_tensor("flatten", input)
        return input.flatten(self.start_dim, self.end_dim)

    extra_repr = shows("start_dim", "end_dim")


class Unflatten(Module):
    """One dimension as several: `Unflatten(1, (2, 5, 5))` makes (N, 2, 5, 5) of (N, 50)."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(unflattened_size, (tuple, list)):
            raise ArgumentTypeError(f"Unflatten: unflattened_size must be a tuple of ints, not "
                                    f"{type(unflattened_size).__name__}")  # fmt: skip
        for place, size in enumerate(unflattened_size):
            if not isinstance(size, int):
                raise ArgumentTypeError(f"Unflatten: unflattened_size must be a tuple of ints, but number {place} is "
                                        f"of type {type(size).__name__}")  # fmt: skip
        self.dim = dim
        self.unflattened_size = unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        """(…, size of dim, …) to (…, *unflattened_size, …)."""
        check_tensor("unflatten", input)
        return input.unflatten(self.dim, self.unflattened_size)

    extra_repr = shows("dim", "unflattened_size")


class PixelShuffle(Module):
    """(…, C·r², H, W) to (…, C, H·r, W·r): channels become pixels."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """(…, C·r², H, W) to (…, C, H·r, W·r)."""
        return pixel_shuffle(input, self.upscale_factor)

    extra_repr = shows("upscale_factor")


class PixelUnshuffle(Module):
    """(…, C, H·r, W·r) to (…, C·r², H, W): pixels become channels."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """(…, C, H·r, W·r) to (…, C·r², H, W)."""
        return pixel_unshuffle(input, self.downscale_factor)

    extra_repr = shows("downscale_factor")


class ChannelShuffle(Module):
    """(N, C, …) with the channels of `groups` groups dealt out in turn."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, …) to the same shape."""
        return channel_shuffle(input, self.groups)

    extra_repr = shows("groups")


class Upsample(Module):
    """(N, C, *sizes) resized to `size` or by `scale_factor`: "nearest", "nearest-exact", "linear" (3 dimensions),
    "bilinear" and "bicubic" (4), "trilinear" (5) or "area"."""

    def __init__(
        self, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest", align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.name = type(self).__name__
        self.size = size
        self.scale_factor: Any = None
        if isinstance(scale_factor, (tuple, list)):
            self.scale_factor = tuple(float(factor) for factor in scale_factor)
        elif scale_factor:
            self.scale_factor = float(scale_factor)  # type: ignore[arg-type]
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, *sizes) to (N, C, *new sizes)."""
        return interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        """The factor or the size, and the mode."""
        wanted = f"size={self.size!r}" if self.scale_factor is None else f"scale_factor={self.scale_factor!r}"
        return f"{wanted}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """(N, C, H, W) resized by repeating the nearest pixel."""

    def __init__(
        self, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
    ) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """(N, C, H, W) resized linearly in both directions; the corners keep their values."""

    def __init__(
        self, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
    ) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)
