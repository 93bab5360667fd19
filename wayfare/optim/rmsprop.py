"""RMSprop: steps scaled by a running average of the gradient's square."""

from __future__ import annotations

from functools import cache
from typing import Any

import wayfare as wf
from wayfare.api.fused_update import FusedUpdate
from wayfare.optim.elementwise import ElementwiseOptimizer, Formula, check_flags, check_range, number
from wayfare.optim.optimizer import Group, Params

__all__ = ["RMSprop"]


def _formula(
    decay: bool, m: Any, p: Any, g: Any, square: Any, average: Any, velocity: Any, n: dict[str, Any]
) -> tuple[Any, ...]:
    """The new values of p, square, average (None if it is not centered) and velocity (None without momentum)."""
    g = m.fma(p, n["weight_decay"], g * n["sign"]) if decay else g * n["sign"]
    square = m.fma(g * n["fresh"], g, square * n["keep"])
    spread = square
    if average is not None:
        average = m.fma(g - average, n["fresh"], average)
        spread = square - average * average
    scale = m.sqrt(spread) + n["eps"]
    if velocity is None:
        return p - g * n["rate"] / scale, square, average, velocity
    velocity = velocity * n["momentum"] + g / scale
    return p - velocity * n["rate"], square, average, velocity


@cache
def _rmsprop(decay: bool, centered: bool, momentum: bool) -> FusedUpdate:
    if centered and momentum:

        @wf.fused_update(writes=("p", "square", "average", "velocity"))
        def rmsprop_centered_momentum(
            m: Any, p: Any, g: Any, square: Any, average: Any, velocity: Any, *, rate: Any, sign: Any,
            weight_decay: Any, keep: Any, fresh: Any, eps: Any, momentum: Any,
        ) -> tuple[Any, ...]:  # fmt: skip
            return _formula(decay, m, p, g, square, average, velocity, locals())

        return rmsprop_centered_momentum
    if centered:

        @wf.fused_update(writes=("p", "square", "average"))
        def rmsprop_centered(
            m: Any, p: Any, g: Any, square: Any, average: Any, *, rate: Any, sign: Any, weight_decay: Any, keep: Any,
            fresh: Any, eps: Any, momentum: Any,
        ) -> tuple[Any, ...]:  # fmt: skip
            return _formula(decay, m, p, g, square, average, None, locals())[:3]

        return rmsprop_centered
    if momentum:

        @wf.fused_update(writes=("p", "square", "velocity"))
        def rmsprop_momentum(
            m: Any, p: Any, g: Any, square: Any, velocity: Any, *, rate: Any, sign: Any, weight_decay: Any, keep: Any,
            fresh: Any, eps: Any, momentum: Any,
        ) -> tuple[Any, ...]:  # fmt: skip
            p, square, _, velocity = _formula(decay, m, p, g, square, None, velocity, locals())
            return p, square, velocity

        return rmsprop_momentum

    @wf.fused_update(writes=("p", "square"))
    def rmsprop(
        m: Any, p: Any, g: Any, square: Any, *, rate: Any, sign: Any, weight_decay: Any, keep: Any, fresh: Any,
        eps: Any, momentum: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        return _formula(decay, m, p, g, square, None, None, locals())[:2]

    return rmsprop


class RMSprop(ElementwiseOptimizer):
    """RMSprop: `p -= lr · g / (√average of g² + eps)`; `alpha` is how much of the average is kept.

    `centered` takes the variance of the gradient instead (grad_avg is its mean), `momentum` moves by a velocity of such
    steps. `foreach` and `capturable` change nothing: every step is one native call.
    """

    def __init__(
        self, params: Params, lr: float | wf.Tensor = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0, momentum: float = 0, centered: bool = False, capturable: bool = False,
        foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {
            "lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered,
            "weight_decay": weight_decay, "capturable": capturable, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable,
        })  # fmt: skip

    def check_options(self, options: dict[str, Any]) -> None:
        """Raise if an option's value makes no sense."""
        check_range("RMSprop", options, "lr", "eps", "momentum", "weight_decay", "alpha")
        check_flags("RMSprop", options)

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
