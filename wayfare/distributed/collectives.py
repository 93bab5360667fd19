"""The calls that all ranks of a group make together, on tensors: PyTorch's names, arguments and meaning.

A call moves numbers, and records nothing for gradients. With `async_op=True` it returns a `Work`; its tensors hold the
result after `work.wait()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DistributedError
from wayfare.core.mode import executor
from wayfare.distributed.agreement import exchange
from wayfare.distributed.calls import check_list, collective, numbers, put, room_like, run
from wayfare.distributed.engine import Array, ReduceOp
from wayfare.distributed.process_group import group_of
from wayfare.distributed.work import Work, seconds

__all__ = [
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast",
    "gather", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
]  # fmt: skip


def _operator(op: Any, array: Array, call: str) -> ReduceOp:
    """The reduction that is meant, if it is one for these numbers."""
    if not isinstance(op, ReduceOp):
        raise ArgumentTypeError(f"{call}: op must be one of wf.distributed.ReduceOp, not {op!r}")
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR) and array.dtype.kind not in "biu":
        raise ArgumentError(f"{call}: {op.name} is for whole numbers and truth values, not {array.dtype.name}")
    return op


@collective
def all_reduce(
    tensor: wf.Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """Every rank's tensor becomes the sum (mean, maximum, …) of all."""
    found, source = group_of(group), numbers(tensor, "all_reduce")
    chosen, out = _operator(op, source, "all_reduce"), room_like(source)
    return run("all_reduce", found, f"{tensor.spec}, {chosen.name}",
               lambda: found.engine.all_reduce(source, out, chosen), size=source.nbytes,
               finish=lambda: put(tensor, out), async_op=async_op)  # fmt: skip


@collective
def reduce(
    tensor: wf.Tensor, dst: int = 0, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """The tensor of rank `dst` becomes the sum (mean, …) of all; those of the others stay as they are."""
    found, source = group_of(group), numbers(tensor, "reduce")
    chosen, out = _operator(op, source, "reduce"), room_like(source)
    root = found.index_of(dst, "dst")
    return run("reduce", found, f"{tensor.spec}, {chosen.name}, dst={dst}",
               lambda: found.engine.reduce(source, out, chosen, root), size=source.nbytes,
               finish=lambda: put(tensor, out) if found.rank() == root else tensor, async_op=async_op)  # fmt: skip


@collective
def broadcast(tensor: wf.Tensor, src: int = 0, group: Any = None, async_op: bool = False) -> Work | None:
    """Every rank's tensor becomes that of rank `src`."""
    found, array = group_of(group), numbers(tensor, "broadcast")
    root = found.index_of(src, "src")
    mine = found.rank() == root
    out = array if mine else room_like(array)
    return run("broadcast", found, f"{tensor.spec}, src={src}", lambda: found.engine.broadcast(out, root),
               size=out.nbytes, finish=lambda: tensor if mine else put(tensor, out), async_op=async_op)  # fmt: skip


@collective
def all_gather(
    tensor_list: Sequence[wf.Tensor], tensor: wf.Tensor, group: Any = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """`tensor_list[r]` becomes the tensor of rank r. All tensors have one shape and dtype."""
    found, source = group_of(group), numbers(tensor, "all_gather")
    check_list("all_gather", "tensor_list", tensor_list, found.size(), like=tensor)
    out = np.empty((found.size(), *source.shape), source.dtype)
    return run("all_gather", found, str(tensor.spec), lambda: found.engine.all_gather(source, out), size=source.nbytes,
               finish=lambda: [put(t, part) for t, part in zip(tensor_list, out, strict=True)],
               async_op=async_op)  # fmt: skip


@collective
def all_gather_into_tensor(
    output_tensor: wf.Tensor, input_tensor: wf.Tensor, group: Any = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """`output_tensor` becomes the tensors of all ranks, one behind the other or stacked."""
    call, found = "all_gather_into_tensor", group_of(group)
    source = numbers(input_tensor, call)
    _check_joined(call, "output_tensor", output_tensor, input_tensor, found.size())
    out = np.empty((found.size(), *source.shape), source.dtype)
    return run(call, found, str(input_tensor.spec), lambda: found.engine.all_gather(source, out), size=source.nbytes,
               finish=lambda: put(output_tensor, out), async_op=async_op)  # fmt: skip


@collective
def reduce_scatter(
    output: wf.Tensor, input_list: Sequence[wf.Tensor], op: ReduceOp = ReduceOp.SUM, group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Rank r's output becomes the sum (mean, …) of all `input_list[r]`."""
    numbers(output, "reduce_scatter")
    check_list("reduce_scatter", "input_list", input_list, group_of(group).size(), like=output)
    source = np.stack([numbers(t, "reduce_scatter") for t in input_list])
    return _scattered("reduce_scatter", group, output, source, op, async_op)


@collective
def reduce_scatter_tensor(
    output: wf.Tensor, input: wf.Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """The same with the inputs in one tensor, one behind the other or stacked."""
    call, count = "reduce_scatter_tensor", group_of(group).size()
    numbers(output, call)
    source = numbers(input, call)
    _check_joined(call, "input", input, output, count)
    return _scattered(call, group, output, source.reshape((count, *output.shape)), op, async_op)


def _scattered(call: str, group: Any, output: wf.Tensor, source: Array, op: ReduceOp, async_op: bool) -> Work | None:
    found, chosen = group_of(group), _operator(op, source, call)
    out = room_like(source[0])
    return run(call, found, f"{output.spec}, {chosen.name}",
               lambda: found.engine.reduce_scatter(source, out, chosen), size=source.nbytes,
               finish=lambda: put(output, out), async_op=async_op)  # fmt: skip


@collective
def all_to_all(
    output_tensor_list: Sequence[wf.Tensor], input_tensor_list: Sequence[wf.Tensor], group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """`output_tensor_list[r]` becomes the tensor that rank r has for this rank in its `input_tensor_list`."""
    found = group_of(group)
    check_list("all_to_all", "input_tensor_list", input_tensor_list, found.size())
    check_list("all_to_all", "output_tensor_list", output_tensor_list, found.size())
    sources = [numbers(t, "all_to_all") for t in input_tensor_list]
    outs = [room_like(numbers(t, "all_to_all")) for t in output_tensor_list]
    return run("all_to_all", found, f"{len(sources)} tensors", lambda: found.engine.all_to_all(sources, outs),
               size=sum(s.nbytes for s in sources),
               finish=lambda: [put(t, out) for t, out in zip(output_tensor_list, outs, strict=True)],
               async_op=async_op)  # fmt: skip


@collective
def all_to_all_single(
    output: wf.Tensor, input: wf.Tensor, output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None, group: Any = None, async_op: bool = False,
) -> Work | None:  # fmt: skip
    """The same with the parts in one tensor: rows of dimension 0, equally many for each rank unless sizes are given."""
    call, found = "all_to_all_single", group_of(group)
    source, out = numbers(input, call), room_like(numbers(output, call))
    sources = _parts("input", source, input_split_sizes, found.size())
    outs = _parts("output", out, output_split_sizes, found.size())
    return run(call, found, str(input.dtype), lambda: found.engine.all_to_all(sources, outs), size=source.nbytes,
               finish=lambda: put(output, out), async_op=async_op)  # fmt: skip


def _parts(what: str, array: Array, sizes: Sequence[int] | None, count: int) -> list[Array]:
    """The rows for each rank."""
    rows = array.shape[0] if array.ndim else 0
    given = [rows // count] * count if sizes is None else list(sizes)
    if len(given) != count or sum(given) != rows:
        raise ArgumentError(f"all_to_all_single: the {rows} rows of {what} cannot be split into {given} for "
                            f"{count} ranks",
                            fix=f"Give {what}_split_sizes that add up to the rows.")  # fmt: skip
    ends = np.cumsum([0, *given])
    return [array[start:end] for start, end in pairwise(ends)]


@collective
def gather(
    tensor: wf.Tensor, gather_list: Sequence[wf.Tensor] | None = None, dst: int = 0, group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """On rank `dst`, `gather_list[r]` becomes the tensor of rank r. The others give no list."""
    found, source = group_of(group), numbers(tensor, "gather")
    root = found.index_of(dst, "dst")
    lists: Sequence[wf.Tensor] = ()
    if found.rank() == root:
        lists = gather_list or []
        check_list("gather", "gather_list", lists, found.size(), like=tensor)
    outs = [room_like(source) for _ in lists]
    return run("gather", found, f"{tensor.spec}, dst={dst}",
               lambda: found.engine.gather(source, outs if lists else None, root), size=source.nbytes,
               finish=lambda: [put(t, out) for t, out in zip(lists, outs, strict=True)], async_op=async_op)  # fmt: skip


@collective
def scatter(
    tensor: wf.Tensor, scatter_list: Sequence[wf.Tensor] | None = None, src: int = 0, group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """The tensor of rank r becomes `scatter_list[r]` of rank `src`. The others give no list."""
    found, out = group_of(group), room_like(numbers(tensor, "scatter"))
    root = found.index_of(src, "src")
    sources = None
    if found.rank() == root:
        check_list("scatter", "scatter_list", scatter_list or [], found.size(), like=tensor)
        sources = [numbers(t, "scatter") for t in scatter_list or []]
    return run("scatter", found, f"{tensor.spec}, src={src}", lambda: found.engine.scatter(sources, out, root),
               size=out.nbytes, finish=lambda: put(tensor, out), async_op=async_op)  # fmt: skip


def _check_joined(call: str, what: str, joined: wf.Tensor, one: wf.Tensor, count: int) -> None:
    numbers(joined, call)
    stacked = (count, *one.shape)
    behind = (count * one.shape[0], *one.shape[1:]) if one.ndim else (count,)
    if tuple(joined.shape) not in (stacked, behind) or joined.dtype is not one.dtype:
        raise ArgumentError(f"{call}: {what} is {joined.spec}, for {count} times {one.spec} it should have the shape "
                            f"{list(behind)}")  # fmt: skip


# -- meeting


@collective
def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
    """Wait until every rank has come here."""
    found = group_of(group)
    return run("barrier", found, "", found.engine.barrier, async_op=async_op)


@collective
def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """A barrier whose error names the ranks that did not come in time."""
    found, call = group_of(group), "monitored_barrier"
    executor().not_replayable("it calls wf.distributed.monitored_barrier, which other processes answer")
    limit = found.timeout if timeout is None else seconds(timeout)
    lines = exchange(found.engine, call, limit, call, found.departures.call(call))
    if set(lines) != {call}:
        raise DistributedError("monitored_barrier: other ranks make another call", fix="Every rank must come here.")
