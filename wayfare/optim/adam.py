"""Adam and AdamW: steps scaled by running averages of the gradient and of its square."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import wayfare as wf
from wayfare.api.fused_update import FusedUpdate
from wayfare.optim.elementwise import (
    ElementwiseOptimizer,
    Formula,
    check_betas,
    check_flags,
    check_range,
    decay_of,
    decayed,
    number,
)
from wayfare.optim.optimizer import Group, Params

__all__ = ["Adam", "AdamW"]


@cache
def _adam(decay: str, amsgrad: bool) -> FusedUpdate:
    """The formula with weight decay of this kind (`decay_of`)."""

    def formula(m: Any, p: Any, g: Any, average: Any, square: Any, largest: Any, n: dict[str, Any]) -> tuple[Any, ...]:
        p, g = decayed(m, p, g * n["sign"], decay, n["weight_decay"])
        average = m.fma(g - average, n["fresh"], average)
        square = m.fma(g * n["fresh_square"], g, square * n["keep_square"])
        if largest is not None:
            largest = m.maximum(largest, square)
        scale = m.fma(m.sqrt(square if largest is None else largest), n["root"], n["eps"])
        return p - average * n["rate"] / scale, average, square, largest

    if amsgrad:

        @wf.fused_update(writes=("p", "average", "square", "largest"))
        def adam_amsgrad(
            m: Any, p: Any, g: Any, average: Any, square: Any, largest: Any, *, rate: Any, sign: Any, weight_decay: Any,
            fresh: Any, keep_square: Any, fresh_square: Any, root: Any, eps: Any,
        ) -> tuple[Any, ...]:  # fmt: skip
            return formula(m, p, g, average, square, largest, locals())

        return adam_amsgrad

    @wf.fused_update(writes=("p", "average", "square"))
    def adam(
        m: Any, p: Any, g: Any, average: Any, square: Any, *, rate: Any, sign: Any, weight_decay: Any, fresh: Any,
        keep_square: Any, fresh_square: Any, root: Any, eps: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        return formula(m, p, g, average, square, None, locals())[:3]

    return adam


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
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "foreach": foreach, "capturable": capturable, "differentiable": differentiable,
            "fused": fused, "decoupled_weight_decay": decoupled_weight_decay,
        })  # fmt: skip

    def check_options(self, options: dict[str, Any]) -> None:
        """Raise if an option's value makes no sense."""
        check_range(type(self).__name__, options, "lr", "eps", "weight_decay")
        check_betas(type(self).__name__, options)
        check_flags(type(self).__name__, options)

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
