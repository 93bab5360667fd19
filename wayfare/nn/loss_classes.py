"""Losses of classification as modules: one class of many, yes or no, and sequences of labels (CTC)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import wayfare.nn.functional as F
from wayfare.core.tensor import Tensor
from wayfare.nn.loss import Loss, WeightedLoss

__all__ = [
    "CrossEntropyLoss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss", "MultiLabelSoftMarginLoss", "CTCLoss",
]  # fmt: skip


class CrossEntropyLoss(WeightedLoss):
    """The cross entropy of scores (logits) against classes, or against probabilities of the scores' own shape.

    `weight` has a number for each class; targets equal to `ignore_index` do not count; `label_smoothing` gives that
    share of the target to all classes alike.
    """

    def __init__(
        self, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
        reduction: str = "mean", label_smoothing: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Scores [N, C, …] or [C]; classes [N, …] or a single one, or probabilities like the scores."""
        return F.cross_entropy(
            input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip


class NLLLoss(WeightedLoss):
    """The negative of the log-probability that the input gives to each target class: use it after `LogSoftmax`."""

    def __init__(
        self, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
        reduction: str = "mean",
    ) -> None:  # fmt: skip
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Log-probabilities [N, C, …] or [C]; classes [N, …] or a single one."""
        return F.nll_loss(input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class BCELoss(WeightedLoss):
    """The cross entropy of probabilities of "yes" against targets between 0 and 1."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape."""
        return F.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(WeightedLoss):
    """`BCELoss` of `sigmoid(input)` without overflow; `pos_weight` weighs the "yes" side."""

    pos_weight: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(weight, size_average, reduce, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape."""
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, pos_weight=self.pos_weight, reduction=self.reduction
        )


class MultiLabelSoftMarginLoss(WeightedLoss):
    """The mean over classes of the cross entropy of sigmoid scores against targets 0 and 1."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Scores and targets [N, C]."""
        return F.multilabel_soft_margin_loss(input, target, self.weight, reduction=self.reduction)


class CTCLoss(Loss):
    """The negative log likelihood of label sequences, summed over all alignments to the time steps of the input.

    `zero_infinity`: targets too long for their input cost nothing instead of infinity.
    """

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.blank = blank
        self.zero_infinity = zero_infinity

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int],
        target_lengths: Tensor | Sequence[int],
    ) -> Tensor:  # fmt: skip
        """Log-probabilities [T, N, C] or [T, C]; labels [N, S], or all of them one after the other; lengths [N]."""
        return F.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )
