"""Adamax: Adam with the largest recent gradient in place of the average of squares."""

from __future__ import annotations

from functools import cache
from typing import Any

import wayfare as wf
from wayfare.api.fused_update import FusedUpdate
from wayfare.optim.elementwise import ElementwiseOptimizer, Formula, number
from wayfare.optim.optimizer import Group, Params, options_in

__all__ = ["Adamax"]


@cache
def _adamax(decay: bool) -> FusedUpdate:
    @wf.fused_update(writes=("p", "average", "largest"))
    def adamax(
        m: Any, p: Any, g: Any, average: Any, largest: Any, *, rate: Any, sign: Any, weight_decay: Any, fresh: Any,
        keep_largest: Any, eps: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        g = m.fma(p, weight_decay, g * sign) if decay else g * sign
        average = m.fma(g - average, fresh, average)
        largest = m.maximum(largest * keep_largest, m.abs(g) + eps)
        return p - average * rate / largest, average, largest

    return adamax


class Adamax(ElementwiseOptimizer):
    """Adamax: `p -= lr · average of g / largest recent |g|`, where the largest fades by the second of `betas`.

    `foreach` and `capturable` change nothing: every step is one native call.
    """

    # The average of the gradient and its largest recent size.
    states = ("exp_avg", "exp_inf")

    def __init__(
        self, params: Params, lr: float | wf.Tensor = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, foreach: bool | None = None, *, maximize: bool = False,
        differentiable: bool = False, capturable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, options_in(locals()))

    def formula(self, group: Group, *counts: Any) -> Formula:
        """One step."""
        step, decay = counts[0] + 1, number(group["weight_decay"])
        first, second = map(number, group["betas"])
        numbers = {
            "rate": number(group["lr"]) / (1.0 - first**step), "sign": -1.0 if group["maximize"] else 1.0,
            "weight_decay": decay, "fresh": 1.0 - first, "keep_largest": second, "eps": number(group["eps"]),
        }  # fmt: skip
        return _adamax(decay != 0), numbers, {"step": step}
