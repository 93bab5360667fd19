"""SGD: stochastic gradient descent, with momentum."""

from __future__ import annotations

from functools import cache
from typing import Any

import wayfare as wf
from wayfare.api.fused_update import FusedUpdate
from wayfare.core.errors import ArgumentError
from wayfare.optim.elementwise import ElementwiseOptimizer, Formula, State, number
from wayfare.optim.optimizer import Group, Params, options_in

__all__ = ["SGD"]


@cache
def _plain(decay: bool) -> FusedUpdate:
    @wf.fused_update(writes=("p",))
    def sgd(m: Any, p: Any, g: Any, *, rate: Any, sign: Any, weight_decay: Any) -> Any:
        return p - (m.fma(p, weight_decay, g * sign) if decay else g * sign) * rate

    return sgd


@cache
def _with_momentum(decay: bool, nesterov: bool) -> FusedUpdate:
    @wf.fused_update(writes=("p", "v"))
    def sgd_momentum(
        m: Any, p: Any, g: Any, v: Any, *, rate: Any, sign: Any, weight_decay: Any, keep: Any, take: Any, momentum: Any
    ) -> Any:
        g = m.fma(p, weight_decay, g * sign) if decay else g * sign
        v = v * keep + g * take
        return p - (g + v * momentum if nesterov else v) * rate, v

    return sgd_momentum


class SGD(ElementwiseOptimizer):
    """Stochastic gradient descent: `p -= lr · d`, where d is the gradient plus `weight_decay · p`.

    With `momentum` it moves by a velocity instead: `v = momentum · v + (1 - dampening) · d` (the first one is d), and
    with `nesterov` by `d + momentum · v`. Without momentum and weight decay a gradient of rows (of an embedding)
    changes these rows only. `foreach` and `fused` change nothing: every step is one native call.
    """

    counters = ()
    ranges = ("lr", "momentum", "weight_decay")

    def __init__(
        self, params: Params, lr: float | wf.Tensor = 1e-3, momentum: float = 0, dampening: float = 0,
        weight_decay: float | wf.Tensor = 0, nesterov: bool = False, *, maximize: bool = False,
        foreach: bool | None = None, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, options_in(locals()))

    def check_options(self, options: dict[str, Any]) -> None:
        """Raise if an option's value makes no sense."""
        super().check_options(options)
        if options.get("nesterov") and (options.get("momentum", 0) <= 0 or options.get("dampening", 0) != 0):
            raise ArgumentError("SGD: nesterov needs a momentum, and no dampening", fix="Give momentum=0.9, say.")

    def state_names(self, group: Group) -> tuple[str, ...]:
        """The velocity, if there is one."""
        return ("momentum_buffer",) if group["momentum"] != 0 else ()

    def counts(self, group: Group, states: list[State]) -> list[list[Any]]:
        """Is it the first step? Only dampening makes a difference then."""
        if group["momentum"] == 0 or group["dampening"] == 0:
            return []
        return [[s.get("momentum_buffer") is None for s in states]]

    def formula(self, group: Group, *counts: Any) -> Formula:
        """One step."""
        momentum, decay = number(group["momentum"]), number(group["weight_decay"])
        common = {"rate": number(group["lr"]), "sign": -1.0 if group["maximize"] else 1.0, "weight_decay": decay}
        if momentum == 0:
            return _plain(decay != 0), common, {}
        keep, take = (0.0, 1.0) if any(counts) else (momentum, 1.0 - number(group["dampening"]))
        numbers = {**common, "keep": keep, "take": take, "momentum": momentum}
        return _with_momentum(decay != 0, bool(group["nesterov"])), numbers, {}

    def takes_rows(self, group: Group) -> bool:
        """Momentum and decay move every row, also one without a gradient."""
        return bool(group["momentum"] == 0 and group["weight_decay"] == 0)

    def update_rows(self, group: Group, rows: wf.Tensor, tensors: list[Any], *counts: Any) -> State:
        """One step of some rows."""
        sign = -1.0 if group["maximize"] else 1.0
        _plain(False).at_rows(rows, *tensors, rate=number(group["lr"]), sign=sign, weight_decay=0.0)
        return {}
