"""Adagrad: steps scaled by the sum of all squares of the gradient so far."""

from __future__ import annotations

from functools import cache
from typing import Any

import wayfare as wf
from wayfare.api.fused_update import FusedUpdate
from wayfare.optim.elementwise import ElementwiseOptimizer, Formula, State, number
from wayfare.optim.optimizer import Group, Params, options_in

__all__ = ["Adagrad"]


@cache
def _adagrad(decay: bool) -> FusedUpdate:
    @wf.fused_update(writes=("p", "total"))
    def adagrad(m: Any, p: Any, g: Any, total: Any, *, rate: Any, sign: Any, weight_decay: Any, eps: Any) -> Any:
        g = m.fma(p, weight_decay, g * sign) if decay else g * sign
        total = m.fma(g, g, total)
        return p - g * rate / (m.sqrt(total) + eps), total

    return adagrad


class Adagrad(ElementwiseOptimizer):
    """Adagrad: `p -= rate · g / (√sum + eps)`, where sum is that of all squares of g so far.

    The rate is `lr / (1 + (step - 1) · lr_decay)`. Without weight decay a gradient of rows (of an embedding) changes
    these rows only. `foreach` and `fused` change nothing: every step is one native call.
    """

    ranges = ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")
    # The sum of squares.
    states = ("sum",)

    def __init__(
        self, params: Params, lr: float | wf.Tensor = 1e-2, lr_decay: float = 0, weight_decay: float = 0,
        initial_accumulator_value: float = 0, eps: float = 1e-10, foreach: bool | None = None, *,
        maximize: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, options_in(locals()))

    def add_param_group(self, param_group: Group) -> None:
        """Take over another group; its sums begin now."""
        super().add_param_group(param_group)
        for p in param_group["params"]:
            self._begin(param_group, p, self.state[p])

    def new_state(self, name: str, p: wf.Tensor, group: Group) -> Any:
        """Sums begin at a given value."""
        if name == "sum":
            return wf.full_like(p, number(group["initial_accumulator_value"]))
        return super().new_state(name, p, group)

    def formula(self, group: Group, *counts: Any) -> Formula:
        """One step."""
        return _adagrad(group["weight_decay"] != 0), self._numbers(group, counts[0]), {"step": counts[0] + 1}

    def takes_rows(self, group: Group) -> bool:
        """Weight decay moves every row, also one without a gradient."""
        return bool(group["weight_decay"] == 0)

    def update_rows(self, group: Group, rows: wf.Tensor, tensors: list[Any], *counts: Any) -> State:
        """One step of some rows."""
        _adagrad(False).at_rows(rows, *tensors, **self._numbers(group, counts[0]))
        return {"step": counts[0] + 1}

    def _numbers(self, group: Group, before: int) -> dict[str, float]:
        return {
            "rate": number(group["lr"]) / (1.0 + before * number(group["lr_decay"])),
            "sign": -1.0 if group["maximize"] else 1.0,
            "weight_decay": number(group["weight_decay"]),
            "eps": number(group["eps"]),
        }
