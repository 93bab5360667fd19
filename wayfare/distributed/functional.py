"""Calls to other ranks that gradients pass through."""

from __future__ import annotations

from typing import Any

import numpy as np

import wayfare as wf
from wayfare.distributed.collectives import begin, numbers
from wayfare.distributed.engine import ReduceOp

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
    source = numbers(tensor, "all_reduce")
    found = begin("all_reduce", group, f"{tensor.spec}, SUM")
    out = np.empty_like(source)
    found.work(found.engine.all_reduce(source, out, ReduceOp.SUM), "all_reduce", size=source.nbytes).wait()
    return wf.from_numpy(out)


def all_reduce(tensor: wf.Tensor, group: Any = None) -> wf.Tensor:
    """The sum of the tensors of all ranks, as a new tensor with a gradient."""
    return _AllReduce.apply(tensor, group)  # type: ignore[no-any-return]
