"""Losses with a margin between right and wrong, near and far, as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wayfare.nn.functional as F
from wayfare.core.errors import ArgumentError
from wayfare.core.tensor import Tensor
from wayfare.nn.distance import PairwiseDistance
from wayfare.nn.loss import Loss, WeightedLoss

__all__ = [
    "SoftMarginLoss", "HingeEmbeddingLoss", "MarginRankingLoss", "CosineEmbeddingLoss", "MultiMarginLoss",
    "MultiLabelMarginLoss", "TripletMarginLoss", "TripletMarginWithDistanceLoss",
]  # fmt: skip


class _MarginLoss(Loss):
    """A loss with a margin."""

    def __init__(
        self, margin: float, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.margin = margin


class SoftMarginLoss(Loss):
    """`log(1 + exp(-target * input))` for targets 1 and -1."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape."""
        return F.soft_margin_loss(input, target, reduction=self.reduction)


class HingeEmbeddingLoss(_MarginLoss):
    """`input` (a distance) where the target is 1, `max(0, margin - input)` where it is -1."""

    def __init__(
        self, margin: float = 1.0, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
    ) -> None:
        super().__init__(margin, size_average, reduce, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Distances and targets of one shape."""
        return F.hinge_embedding_loss(input, target, margin=self.margin, reduction=self.reduction)


class MarginRankingLoss(_MarginLoss):
    """`max(0, margin - target * (input1 - input2))`; the target 1 says that the first should be larger."""

    def __init__(
        self, margin: float = 0.0, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
    ) -> None:
        super().__init__(margin, size_average, reduce, reduction)

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """Three tensors of one shape."""
        return F.margin_ranking_loss(input1, input2, target, margin=self.margin, reduction=self.reduction)


class CosineEmbeddingLoss(_MarginLoss):
    """`1 - cos` for pairs that belong together (target 1), `max(0, cos - margin)` for others (-1)."""

    def __init__(
        self, margin: float = 0.0, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
    ) -> None:
        super().__init__(margin, size_average, reduce, reduction)

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """Vectors [N, D] with targets [N], or [D] with a single one."""
        return F.cosine_embedding_loss(input1, input2, target, margin=self.margin, reduction=self.reduction)


class MultiMarginLoss(WeightedLoss):
    """The sum over the wrong classes of `max(0, margin - right score + wrong score) ** p`, divided by the classes."""

    def __init__(
        self, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, size_average: Any = None,
        reduce: Any = None, reduction: str = "mean",
    ) -> None:  # fmt: skip
        if p not in (1, 2):
            raise ArgumentError(f"MultiMarginLoss: p must be 1 or 2, it is {p}")
        if weight is not None and weight.ndim != 1:
            raise ArgumentError(f"MultiMarginLoss: weight needs one number for each class, [C], not {weight.spec}")
        super().__init__(weight, size_average, reduce, reduction)
        self.p = p
        self.margin = margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Scores [N, C] or [C]; classes [N] or a single one."""
        return F.multi_margin_loss(
            input, target, p=self.p, margin=self.margin, weight=self.weight, reduction=self.reduction
        )


class MultiLabelMarginLoss(Loss):
    """The hinge between every class that is set and every one that is not."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Scores [N, C] or [C]; of that shape the classes that are set, in each row up to the first -1."""
        return F.multilabel_margin_loss(input, target, reduction=self.reduction)


class TripletMarginLoss(_MarginLoss):
    """`max(0, margin + distance to the positive - distance to the negative)`, with distances by p-norm."""

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, size_average: Any = None,
        reduce: Any = None, reduction: str = "mean",
    ) -> None:  # fmt: skip
        if not margin > 0:
            raise ArgumentError(f"TripletMarginLoss: margin must be positive, it is {margin}")
        super().__init__(margin, size_average, reduce, reduction)
        self.p = p
        self.eps = eps
        self.swap = swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Vectors [N, D] or [D], three of one shape."""
        return F.triplet_margin_loss(
            anchor, positive, negative, margin=self.margin, p=self.p, eps=self.eps, swap=self.swap,
            reduction=self.reduction,
        )  # fmt: skip


class TripletMarginWithDistanceLoss(_MarginLoss):
    """`TripletMarginLoss` with a distance function of the user. `swap`: the nearer of anchor and positive counts."""

    distance_function: Callable[[Tensor, Tensor], Tensor]

    def __init__(
        self, *, distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0,
        swap: bool = False, reduction: str = "mean",
    ) -> None:  # fmt: skip
        if not margin > 0:
            raise ArgumentError(f"TripletMarginWithDistanceLoss: margin must be positive, it is {margin}")
        super().__init__(margin, reduction=reduction)
        self.distance_function = PairwiseDistance() if distance_function is None else distance_function
        self.swap = swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Three inputs of the distance function, of one shape."""
        return F.triplet_margin_with_distance_loss(
            anchor, positive, negative, distance_function=self.distance_function, margin=self.margin, swap=self.swap,
            reduction=self.reduction,
        )  # fmt: skip
