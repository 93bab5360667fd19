"""RMSprop: steps scaled by a running average of the gradient's square."""

from __future__ import annotations

from functools import cache
from typing import Any

import wayfare as wf
from wayfare.api.fused_update import FusedUpdate
from wayfare.optim.elementwise import ElementwiseOptimizer, Formula, number, update_of
from wayfare.optim.optimizer import Group, Params, options_in

__all__ = ["RMSprop"]


@cache
def _rmsprop(decay: bool, centered: bool, momentum: bool) -> FusedUpdate:
    def rmsprop(m: Any, p: Any, g: Any, square: Any, *others: Any, **n: Any) -> tuple[Any, ...]:
        average, velocity = others[0] if centered else None, others[-1] if momentum else None
        g = m.fma(p, n["weight_decay"], g * n["sign"]) if decay else g * n["sign"]
        square = m.fma(g * n["fresh"], g, square * n["keep"])
        spread = square
        if centered:
            average = m.fma(g - average, n["fresh"], average)
            spread = square - average * average
        scale = m.sqrt(spread) + n["eps"]
        if momentum:
            velocity = velocity * n["momentum"] + g / scale
        p = p - velocity * n["rate"] if momentum else p - g * n["rate"] / scale
        return p, square, *([average] if centered else []), *([velocity] if momentum else [])

    rmsprop.__name__ += "_centered" * centered + "_momentum" * momentum
    states = ("square", *(["average"] if centered else []), *(["velocity"] if momentum else []))
    return update_of(rmsprop, states, "rate sign weight_decay keep fresh eps momentum")


class RMSprop(ElementwiseOptimizer):
    """RMSprop: `p -= lr · g / (√average of g² + eps)`; `alpha` is how much of the average is kept.

    `centered` takes the variance of the gradient instead (grad_avg is its mean), `momentum` moves by a velocity of such
    steps. `foreach` and `capturable` change nothing: every step is one native call.
    """

    ranges = ("lr", "eps", "momentum", "weight_decay", "alpha")

    def __init__(
        self, params: Params, lr: float | wf.Tensor = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0, momentum: float = 0, centered: bool = False, capturable: bool = False,
        foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, options_in(locals()))

    def state_names(self, group: Group) -> tuple[str, ...]:
        """The average of squares, that of the gradient if centered, the velocity with momentum."""
        names = ("square_avg", "grad_avg") if group["centered"] else ("square_avg",)
        return (*names, "momentum_buffer") if group["momentum"] > 0 else names

    def formula(self, group: Group, *counts: Any) -> Formula:
        """One step."""
        alpha, decay, momentum = number(group["alpha"]), number(group["weight_decay"]), number(group["momentum"])
        numbers = {
            "rate": number(group["lr"]), "sign": -1.0 if group["maximize"] else 1.0, "weight_decay": decay,
            "keep": alpha, "fresh": 1.0 - alpha, "eps": number(group["eps"]), "momentum": momentum,
        }  # fmt: skip
        return _rmsprop(decay != 0, bool(group["centered"]), momentum > 0), numbers, {"step": counts[0] + 1}
