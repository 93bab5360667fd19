"""RAdam: Adam that scales by the average of squares only when that average is good enough."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import wayfare as wf
from wayfare.api.fused_update import FusedUpdate
from wayfare.optim.elementwise import ElementwiseOptimizer, Formula, decay_of, decayed, number
from wayfare.optim.optimizer import Group, Params, options_in

__all__ = ["RAdam"]


@cache
def _radam(decay: str, adaptive: bool) -> FusedUpdate:
    """The formula with weight decay of this kind (`decay_of`)."""

    @wf.fused_update(writes=("p", "average", "square"))
    def radam(
        m: Any, p: Any, g: Any, average: Any, square: Any, *, rate: Any, sign: Any, weight_decay: Any, fresh: Any,
        keep_square: Any, fresh_square: Any, eps: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        p, g = decayed(m, p, g * sign, decay, weight_decay)
        average = m.fma(g - average, fresh, average)
        square = m.fma(g * fresh_square, g, square * keep_square)
        move = average * rate
        return p - (move / (m.sqrt(square) + eps) if adaptive else move), average, square

    return radam


class RAdam(ElementwiseOptimizer):
    """Adam whose first steps are those of momentum, until the average of squares rests on enough gradients.

    From then on the rate is rectified by how much that average still varies. `foreach` and `capturable` change nothing:
    every step is one native call.
    """

    # The running averages.
    states = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, params: Params, lr: float | wf.Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, decoupled_weight_decay: bool = False, *,
        foreach: bool | None = None, maximize: bool = False, capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, options_in(locals()))

    def formula(self, group: Group, *counts: Any) -> Formula:
        """One step."""
        step = counts[0] + 1
        rate = number(group["lr"])
        kind, decay = decay_of(group, rate)
        first, second = map(number, group["betas"])
        rate /= 1.0 - first**step
        # How many gradients the average of squares rests on, at last and now.
        last = 2.0 / (1.0 - second) - 1.0
        correction = 1.0 - second**step
        now = last - 2.0 * step * second**step / correction
        if now > 5.0:
            rectified = (now - 4.0) * (now - 2.0) * last / ((last - 4.0) * (last - 2.0) * now)
            rate *= math.sqrt(correction * rectified)
        numbers = {
            "rate": rate, "sign": -1.0 if group["maximize"] else 1.0, "weight_decay": decay, "fresh": 1.0 - first,
            "keep_square": second, "fresh_square": 1.0 - second, "eps": number(group["eps"]),
        }  # fmt: skip
        return _radam(kind, now > 5.0), numbers, {"step": step}
