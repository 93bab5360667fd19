"""Adam and AdamW: steps scaled by running averages of the gradient and of its square."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import wayfare as wf
from wayfare.api.fused_update import FusedUpdate
from wayfare.optim.elementwise import ElementwiseOptimizer, Formula, decay_of, decayed, number, update_of
from wayfare.optim.optimizer import Group, Params, options_in

__all__ = ["Adam", "AdamW"]


@cache
def _adam(decay: str, amsgrad: bool) -> FusedUpdate:
    """The formula with weight decay of this kind (`decay_of`)."""

    def adam(m: Any, p: Any, g: Any, average: Any, square: Any, *largest: Any, **n: Any) -> tuple[Any, ...]:
        p, g = decayed(m, p, g * n["sign"], decay, n["weight_decay"])
        average = m.fma(g - average, n["fresh"], average)
        square = m.fma(g * n["fresh_square"], g, square * n["keep_square"])
        largest = tuple([m.maximum(before, square) for before in largest])
        scale = m.fma(m.sqrt(largest[0] if amsgrad else square), n["root"], n["eps"])
        return p - average * n["rate"] / scale, average, square, *largest

    adam.__name__ += "_amsgrad" * amsgrad
    states = ("average", "square", "largest") if amsgrad else ("average", "square")
    return update_of(adam, states, "rate sign weight_decay fresh keep_square fresh_square root eps")


class Adam(ElementwiseOptimizer):
    """Adam: running averages of the gradient and of its square, corrected for their start at 0, scale the step.

    `weight_decay · p` is added to the gradient, or with `decoupled_weight_decay` taken from the parameter itself as
    AdamW does. `amsgrad` divides by the largest average of squares so far. `foreach`, `fused` and `capturable` change
    nothing: every step is one native call.
    """

    def __init__(
        self, params: Params, lr: float | wf.Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, foreach: bool | None = None,
        maximize: bool = False, capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, options_in(locals()))

    def state_names(self, group: Group) -> tuple[str, ...]:
        """The running averages, with `amsgrad` the largest of the second too."""
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")

    def formula(self, group: Group, *counts: Any) -> Formula:
        """One step."""
        step = counts[0] + 1
        rate = number(group["lr"])
        kind, decay = decay_of(group, rate)
        first, second = map(number, group["betas"])
        numbers = {
            "rate": rate / (1.0 - first**step),
            "sign": -1.0 if group["maximize"] else 1.0,
            "weight_decay": decay,
            "fresh": 1.0 - first,
            "keep_square": second,
            "fresh_square": 1.0 - second,
            # The average of squares is corrected under the root.
            "root": 1.0 / math.sqrt(1.0 - second**step),
            "eps": number(group["eps"]),
        }
        return _adam(kind, bool(group["amsgrad"])), numbers, {"step": step}


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters themselves: `p *= 1 - lr · weight_decay` before each step."""

    def __init__(
        self, params: Params, lr: float | wf.Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
        foreach: bool | None = None, capturable: bool = False, differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize, capturable=capturable,
            differentiable=differentiable, fused=fused, decoupled_weight_decay=True,
        )  # fmt: skip
