"""Dropout as modules: they drop in training mode and pass everything on otherwise."""

from __future__ import annotations

import wayfare.nn.functional as F
from wayfare.core.errors import ArgumentError
from wayfare.core.tensor import Tensor
from wayfare.nn.module import Module

__all__ = ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"]


class _Dropping(Module):
    """What all forms share: the probability, and whether to write into the input."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ArgumentError(f"{type(self).__name__}: p is a probability from 0 to 1, but is {p!r}")
        self.p = p
        self.inplace = inplace

    def extra_repr(self) -> str:
        """The probability of being dropped."""
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropping):
    """In training each element becomes zero with probability `p`; the others grow by 1 / (1 - p)."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape; the shape stays."""
        return F.dropout(input, self.p, self.training, self.inplace)


class Dropout1d(_Dropping):
    """In training whole channels of [N, C, L] or [C, L] become zero with probability `p`."""

    def forward(self, input: Tensor) -> Tensor:
        """The shape stays."""
        return F.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(_Dropping):
    """In training whole channels of [N, C, H, W] become zero with probability `p`."""

    def forward(self, input: Tensor) -> Tensor:
        """The shape stays."""
        return F.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(_Dropping):
    """In training whole channels of [N, C, D, H, W] or [C, D, H, W] become zero with probability `p`."""

    def forward(self, input: Tensor) -> Tensor:
        """The shape stays."""
        return F.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(_Dropping):
    """Dropout for `SELU`: what is dropped takes its lowest value; mean and deviation stay as they were."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape; the shape stays."""
        return F.alpha_dropout(input, self.p, self.training, self.inplace)


class FeatureAlphaDropout(_Dropping):
    """`AlphaDropout` of whole channels of [N, C, …]."""

    def forward(self, input: Tensor) -> Tensor:
        """The shape stays."""
        return F.feature_alpha_dropout(input, self.p, self.training, self.inplace)
