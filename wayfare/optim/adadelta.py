"""Adadelta: steps as large as the recent ones were, in proportion to the recent gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import wayfare as wf
from wayfare.api.fused_update import FusedUpdate
from wayfare.optim.elementwise import ElementwiseOptimizer, Formula, check_range, number
from wayfare.optim.optimizer import Group, Params, options_in

__all__ = ["Adadelta"]


@cache
def _adadelta(decay: bool) -> FusedUpdate:
    @wf.fused_update(writes=("p", "square", "moved"))
    def adadelta(
        m: Any, p: Any, g: Any, square: Any, moved: Any, *, rate: Any, sign: Any, weight_decay: Any, keep: Any,
        fresh: Any, eps: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        g = m.fma(p, weight_decay, g * sign) if decay else g * sign
        square = m.fma(g * fresh, g, square * keep)
        move = m.sqrt(moved + eps) / m.sqrt(square + eps) * g
        return p - move * rate, square, m.fma(move * fresh, move, moved * keep)

    return adadelta


class Adadelta(ElementwiseOptimizer):
    """Adadelta: the step is `lr · g · √(average of squared steps + eps) / √(average of squared gradients + eps)`.

    `rho` is how much of the averages is kept. `foreach` and `capturable` change nothing: every step is one native call.
    """

    # Averages of the squares of gradients and of steps.
    states = ("square_avg", "acc_delta")

    def __init__(
        self, params: Params, lr: float | wf.Tensor = 1.0, rho: float = 0.9, eps: float = 1e-6,
        weight_decay: float = 0, foreach: bool | None = None, *, capturable: bool = False, maximize: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, options_in(locals()))

    def check_options(self, options: dict[str, Any]) -> None:
        """Raise if an option's value makes no sense."""
        super().check_options(options)
        check_range(type(self).__name__, options, "rho", most=1.0)

    def formula(self, group: Group, *counts: Any) -> Formula:
        """One step."""
        rho, decay = number(group["rho"]), number(group["weight_decay"])
        numbers = {
            "rate": number(group["lr"]), "sign": -1.0 if group["maximize"] else 1.0, "weight_decay": decay,
            "keep": rho, "fresh": 1.0 - rho, "eps": number(group["eps"]),
        }  # fmt: skip
        return _adadelta(decay != 0), numbers, {"step": counts[0] + 1}
