"""SparseAdam: Adam for embeddings, which changes only the rows that were looked up."""

from __future__ import annotations

import math
from typing import Any

import wayfare as wf
from wayfare.optim.elementwise import ElementwiseOptimizer, Formula, Lists, State, check_betas, check_range, number
from wayfare.optim.optimizer import Group, Params

__all__ = ["SparseAdam"]


@wf.fused_update(writes=("p", "average", "square"))
def _sparse_adam(
    m: Any, p: Any, g: Any, average: Any, square: Any, *, rate: Any, sign: Any, fresh: Any, fresh_square: Any, eps: Any
) -> tuple[Any, ...]:
    g = g * sign
    average = m.fma(g - average, fresh, average)
    square = m.fma(g * g - square, fresh_square, square)
    return p - average * rate / (m.sqrt(square) + eps), average, square


@wf.fused_update(writes=("p", "average", "square"))
def _chosen_sparse_adam(
    m: Any, p: Any, g: Any, average: Any, square: Any, chosen: Any, *, rate: Any, sign: Any, fresh: Any,
    fresh_square: Any, eps: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The same, where `chosen` is not 0."""
    now = (p, average, square)
    g = g * sign
    average = m.fma(g - average, fresh, average)
    square = m.fma(g * g - square, fresh_square, square)
    after = (p - average * rate / (m.sqrt(square) + eps), average, square)
    return tuple(m.where(chosen != 0, new, old) for new, old in zip(after, now, strict=True))


class SparseAdam(ElementwiseOptimizer):
    """Adam that changes only those rows of a parameter, and of its states, that have a gradient.

    A step costs what these rows cost, however large the table is. Where the gradient is a whole tensor (because
    somebody looked at `.grad`, say), the rows that are not all zeros count; PyTorch refuses such gradients.
    """

    # The running averages.
    states = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, params: Params, lr: float | wf.Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize})

    def check_options(self, options: dict[str, Any]) -> None:
        """Raise if an option's value makes no sense."""
        check_range("SparseAdam", options, "lr", "eps", strict=True)
        check_betas("SparseAdam", options)

    def takes_rows(self, group: Group) -> bool:
        """Always: this optimiser is made for them."""
        return True

    def formula(self, group: Group, *counts: Any) -> Formula:
        """One step of whole tensors, in which the rows without a gradient stay as they are."""
        return _chosen_sparse_adam, self._numbers(group, counts[0] + 1), {"step": counts[0] + 1}

    def formula_lists(self, lists: Lists) -> Lists:
        """Which elements lie in rows that have a gradient, as a further list."""
        chosen = []
        for p, grad in zip(lists[0], lists[1], strict=True):
            rows = _rows_with_gradient(grad).to(p.dtype)
            chosen.append(rows.reshape((-1,) + (1,) * (p.ndim - 1) if p.ndim else ()).expand(p.shape))
        return [*lists, chosen]

    def update(self, group: Group, lists: Lists, *counts: Any) -> State:
        """One step of parameters whose gradient is a whole tensor."""
        numbers = self._numbers(group, counts[0] + 1)
        for p, grad, average, square in zip(*lists, strict=True):
            if p.ndim == 0:
                _sparse_adam([p], [grad], [average], [square], **numbers)
                continue
            places = _rows_with_gradient(grad).nonzero().flatten()
            _sparse_adam.at_rows(places, p, grad.detach()[places], average, square, **numbers)
        return {"step": counts[0] + 1}

    def update_rows(self, group: Group, rows: wf.Tensor, tensors: list[Any], *counts: Any) -> State:
        """One step of some rows."""
        _sparse_adam.at_rows(rows, *tensors, **self._numbers(group, counts[0] + 1))
        return {"step": counts[0] + 1}

    def _numbers(self, group: Group, step: int) -> dict[str, float]:
        first, second = map(number, group["betas"])
        return {
            "rate": number(group["lr"]) * math.sqrt(1.0 - second**step) / (1.0 - first**step),
            "sign": -1.0 if group["maximize"] else 1.0,
            "fresh": 1.0 - first,
            "fresh_square": 1.0 - second,
            "eps": number(group["eps"]),
        }


def _rows_with_gradient(grad: wf.Tensor) -> wf.Tensor:
    """Which rows are not all zeros; a tensor of no dimension always counts."""
    if grad.ndim == 0:
        return wf.ones_like(grad, dtype=wf.bool)
    return (grad.flatten(1) != 0).any(1) if grad.ndim > 1 else grad != 0
