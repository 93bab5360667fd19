"""NAdam: Adam with Nesterov's momentum, which warms up."""

from __future__ import annotations

from functools import cache
from typing import Any

import wayfare as wf
from wayfare.api.fused_update import FusedUpdate
from wayfare.optim.elementwise import ElementwiseOptimizer, Formula, decay_of, decayed, number
from wayfare.optim.optimizer import Group, Params, options_in

__all__ = ["NAdam"]


@cache
def _nadam(decay: str) -> FusedUpdate:
    """The formula with weight decay of this kind (`decay_of`)."""

    @wf.fused_update(writes=("p", "average", "square"))
    def nadam(
        m: Any, p: Any, g: Any, average: Any, square: Any, *, rate: Any, rate_of_average: Any, sign: Any,
        weight_decay: Any, fresh: Any, keep_square: Any, fresh_square: Any, correction: Any, eps: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        p, g = decayed(m, p, g * sign, decay, weight_decay)
        average = m.fma(g - average, fresh, average)
        square = m.fma(g * fresh_square, g, square * keep_square)
        scale = m.sqrt(square / correction) + eps
        return p - g * rate / scale - average * rate_of_average / scale, average, square

    return nadam


class NAdam(ElementwiseOptimizer):
    """Adam whose step looks ahead by Nesterov's momentum; `momentum_decay` says how fast that warms up.

    `foreach` and `capturable` change nothing: every step is one native call.
    """

    counters = ("step", "mu_product")
    ranges = ("lr", "eps", "weight_decay", "momentum_decay")
    # The running averages.
    states = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, params: Params, lr: float | wf.Tensor = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False, *, foreach: bool | None = None, maximize: bool = False,
        capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, options_in(locals()))

    def new_state(self, name: str, p: wf.Tensor, group: Group) -> Any:
        """The product of all momentums so far begins at 1."""
        return 1.0 if name == "mu_product" else super().new_state(name, p, group)

    def formula(self, group: Group, *counts: Any) -> Formula:
        """One step."""
        step = counts[0] + 1
        rate = number(group["lr"])
        kind, decay = decay_of(group, rate)
        first, second = map(number, group["betas"])
        # The momentum grows from half of its final size.
        now, later = (first * (1.0 - 0.5 * 0.96 ** (s * number(group["momentum_decay"]))) for s in (step, step + 1))
        product = counts[1] * now
        numbers = {
            "rate": rate * (1.0 - now) / (1.0 - product), "rate_of_average": rate * later / (1.0 - product * later),
            "sign": -1.0 if group["maximize"] else 1.0, "weight_decay": decay, "fresh": 1.0 - first,
            "keep_square": second, "fresh_square": 1.0 - second, "correction": 1.0 - second**step,
            "eps": number(group["eps"]),
        }  # fmt: skip
        return _nadam(kind), numbers, {"step": step, "mu_product": product}
