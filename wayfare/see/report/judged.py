"""Metrics of predictions: for classes, for yes and no, or for numbers, as the targets say."""

from __future__ import annotations

from typing import Any

import wayfare as wf
from wayfare.core.errors import ArgumentTypeError

__all__ = ["judge"]


def judge(said: Any, true: Any, names: list[str] | None, logits: bool | None = None) -> tuple[Any, dict[str, float]]:
    """(a classification report or None, scores by name) of predictions and targets."""
    if not isinstance(said, wf.Tensor) or not isinstance(true, wf.Tensor):
        raise ArgumentTypeError("report: predictions must be (what the model said, what is true), two tensors, not "
                                f"({type(said).__name__}, {type(true).__name__})")  # fmt: skip
    said, true = said.detach(), true.detach()
    if not true.is_floating_point():
        return wf.metrics.classification_report(said, true, names=names, logits=_are_logits(said, true, logits)), {}
    if _yes_and_no(true) and said.numel() == true.numel():
        # One number for each target is yes or no: a probability, or its logit.
        are_logits = _are_logits(said, true, logits)
        return wf.metrics.classification_report(said, true.long(), names=names, logits=are_logits), {}
    measures = {
        "mean squared error": wf.metrics.MeanSquaredError(), "mean absolute error": wf.metrics.MeanAbsoluteError(),
        "R²": wf.metrics.R2(),
    }  # fmt: skip
    return None, {name: float(measure(said, true)) for name, measure in measures.items()}


def _yes_and_no(true: wf.Tensor) -> bool:
    return bool(((true == 0) | (true == 1)).all().item()) and true.numel() > 0


def _are_logits(said: wf.Tensor, true: wf.Tensor, told: bool | None) -> bool:
    """Are these logits of yes and no? `told` says it; if it is None, any number outside of 0 to 1 means logits."""
    if said.numel() != true.numel() or not said.is_floating_point():
        return False
    return told if told is not None else bool(((said < 0) | (said > 1)).any().item())
