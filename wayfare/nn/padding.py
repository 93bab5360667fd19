"""Padding as layers: zeros, a constant, or the input continued by reflection, by its edge or circularly."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from wayfare.api.functions._along import check_tensor
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.pad import pad
from wayfare.nn.module import Module
from wayfare.nn.shown_options import shows

__all__ = [
    "ZeroPad1d", "ZeroPad2d", "ZeroPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "ReflectionPad1d",
    "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d", "CircularPad1d",
    "CircularPad2d", "CircularPad3d",
]  # fmt: skip


class _Padding(Module):
    """One amount for all sides, or (left, right) of the last dimension, then of the one before, …"""

    _rank: int
    _mode: str

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        several = isinstance(padding, (tuple, list))
        amounts: tuple[Any, ...] = tuple(padding) if several else (padding,) * (2 * self._rank)  # type: ignore[arg-type]
        try:
            self.padding = tuple(operator.index(amount) for amount in amounts)
        except TypeError:
            self.padding = ()
        if len(self.padding) != 2 * self._rank:
            raise ArgumentTypeError(f"{type(self).__name__}: padding must be an int or {2 * self._rank} of them, not "
                                    f"{padding!r}")  # fmt: skip

    def forward(self, input: Tensor) -> Tensor:
        """The input with more (negative amounts: with fewer) elements around its last dimensions."""
        return pad(input, self.padding, self._mode)

    def extra_repr(self) -> str:
        """The amounts."""
        return f"{self.padding}"


class _ConstantPadding(_Padding):
    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        """The input with the value around its last dimensions."""
        return pad(input, self.padding, "constant", self.value)

    extra_repr = shows("padding", "value")


class ConstantPad1d(_ConstantPadding):
    """A constant before and behind the last dimension: `padding` is an int or (left, right)."""

    _rank = 1


class ConstantPad2d(_ConstantPadding):
    """A constant around the last two dimensions: `padding` is an int or (left, right, top, bottom)."""

    _rank = 2


class ConstantPad3d(_ConstantPadding):
    """A constant around the last three dimensions: `padding` is an int or (left, right, top, bottom, front, back)."""

    _rank = 3


class _ZeroPadding(_ConstantPadding):
    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__(padding, 0.0)

    extra_repr = _Padding.extra_repr


class ZeroPad1d(_ZeroPadding, ConstantPad1d):
    """Zeros before and behind the last dimension: `padding` is an int or (left, right)."""


class ZeroPad2d(_ZeroPadding, ConstantPad2d):
    """Zeros around the last two dimensions: `padding` is an int or (left, right, top, bottom)."""


class ZeroPad3d(_ZeroPadding, ConstantPad3d):
    """Zeros around the last three dimensions: `padding` is an int or (left, right, top, bottom, front, back)."""


class ReflectionPad1d(_Padding):
    """The last dimension of (N, C, L) continued by reflection at its edges, which are not repeated."""

    _rank, _mode = 1, "reflect"


class ReflectionPad2d(_Padding):
    """The last two dimensions of (N, C, H, W) continued by reflection at the edges, which are not repeated."""

    _rank, _mode = 2, "reflect"


class ReflectionPad3d(_Padding):
    """The last three dimensions of (N, C, D, H, W) continued by reflection at the edges, which are not repeated."""

    _rank, _mode = 3, "reflect"


class ReplicationPad1d(_Padding):
    """The last dimension of (N, C, L) continued by its first and its last element."""

    _rank, _mode = 1, "replicate"


class ReplicationPad2d(_Padding):
    """The last two dimensions of (N, C, H, W) continued by the elements at their edges."""

    _rank, _mode = 2, "replicate"


class ReplicationPad3d(_Padding):
    """The last three dimensions of (N, C, D, H, W) continued by the elements at their edges."""

    _rank, _mode = 3, "replicate"


class _CircularPadding(_Padding):
    _mode = "circular"

    def forward(self, input: Tensor) -> Tensor:
        """The input with its last dimensions continued circularly."""
        check_tensor(type(self).__name__, input)
        if input.ndim not in (self._rank + 1, self._rank + 2):
            raise ArgumentError(f"{type(self).__name__}: the input must have {self._rank + 2} dimensions, or "
                                f"{self._rank + 1} without a batch; this is {input.spec}")  # fmt: skip
        return pad(input, self.padding, self._mode)


class CircularPad1d(_CircularPadding):
    """The last dimension of (N, C, L) continued circularly: the end before the beginning, and so on."""

    _rank = 1


class CircularPad2d(_CircularPadding):
    """The last two dimensions of (N, C, H, W) continued circularly."""

    _rank = 2


class CircularPad3d(_CircularPadding):
    """The last three dimensions of (N, C, D, H, W) continued circularly."""

    _rank = 3
