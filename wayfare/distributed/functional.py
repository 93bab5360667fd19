"""Calls to other ranks that gradients pass through."""

from __future__ import annotations

from typing import Any

import wayfare as wf
from wayfare.distributed.calls import numbers, room_like, run
from wayfare.distributed.engine import ReduceOp
from wayfare.distributed.process_group import group_of

__all__ = ["all_reduce"]


class _AllReduce(wf.autograd.Function):
    """The sum over all ranks; every rank's loss depends on it, so its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: wf.Tensor, group: Any) -> wf.Tensor:
        ctx.group = group
        return _sum(tensor, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return all_reduce(grads[0], ctx.group), None


def _sum(tensor: wf.Tensor, group: Any) -> wf.Tensor:
    found, source = group_of(group), numbers(tensor, "all_reduce")
    out = room_like(source)
    run("all_reduce", found, f"{tensor.spec}, SUM", lambda: found.engine.all_reduce(source, out, ReduceOp.SUM),
        size=source.nbytes)  # fmt: skip
    return wf.from_numpy(out)


def all_reduce(tensor: wf.Tensor, group: Any = None) -> wf.Tensor:
    """The sum of the tensors of all ranks, as a new tensor with a gradient."""
    return _AllReduce.apply(tensor, group)  # type: ignore[no-any-return]
