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
from wayfare.distributed.engine import Array, ReduceOp, Request
from wayfare.distributed.process_group import GroupMember, ProcessGroup, group_of
from wayfare.distributed.work import Work, seconds

__all__ = [
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast",
    "gather", "irecv", "isend", "monitored_barrier", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "scatter", "send",
]  # fmt: skip

# The calls that move other values than tensors, where it is not all_gather_object.
_FOR_OBJECTS = {
    "broadcast": "broadcast_object_list", "gather": "gather_object", "recv": "recv_object_list",
    "scatter": "scatter_object_list", "send": "send_object_list",
}  # fmt: skip


def numbers(tensor: Any, call: str) -> Array:
    """The numbers of a tensor as a C-contiguous array: its own memory where it is that."""
    if not isinstance(tensor, wf.Tensor):
        other = _FOR_OBJECTS.get(call, "all_gather_object")
        raise ArgumentTypeError(f"{call}: takes tensors, not a {type(tensor).__name__}",
                                fix=f"Make it one with wf.tensor(…); for other values there is {other}.")  # fmt: skip
    array = tensor.detach().numpy()
    return array if array.flags.c_contiguous else np.array(array, order="C")


def put(tensor: Any, array: Array) -> Any:
    """Write what has arrived into a tensor."""
    with wf.no_grad():
        tensor.copy_(wf.from_numpy(np.asarray(array).reshape(tensor.shape)))  # a row of one dimension is a scalar
    return tensor


def outside(group: Any) -> bool:
    """Is this process outside the group? Then a call does nothing, as in PyTorch."""
    return not isinstance(group, ProcessGroup) and group == GroupMember.NON_GROUP_MEMBER


def begin(call: str, group: Any, about: str) -> ProcessGroup:
    """The group of a call that is about to be made; compared between ranks in debug mode."""
    executor().not_replayable(f"it calls wf.distributed.{call}, which other processes answer")
    found = group_of(group)
    found.agree(call, about)
    return found


def _spec(*tensors: Any) -> str:
    return ", ".join(str(t.spec) if isinstance(t, wf.Tensor) else type(t).__name__ for t in tensors)


def _operator(op: Any, call: str) -> ReduceOp:
    if not isinstance(op, ReduceOp):
        raise ArgumentTypeError(f"{call}: op must be one of wf.distributed.ReduceOp, not {op!r}")
    return op


def _check_reducible(op: ReduceOp, array: Array, call: str) -> None:
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR) and array.dtype.kind == "f":
        raise ArgumentError(f"{call}: {op.name} is for whole numbers and truth values, not {array.dtype.name}")


def _ended(group: ProcessGroup, request: Request, call: str, size: int, finish: Any, async_op: bool) -> Work | None:
    work = group.work(request, call, size=size, finish=finish, background=async_op)
    if async_op:
        return work
    work.wait()
    return None


def all_reduce(
    tensor: wf.Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """Every rank's tensor becomes the sum (mean, maximum, …) of all."""
    if outside(group):
        return None
    source, chosen = numbers(tensor, "all_reduce"), _operator(op, "all_reduce")
    _check_reducible(chosen, source, "all_reduce")
    found = begin("all_reduce", group, f"{_spec(tensor)}, {chosen.name}")
    out = np.empty_like(source)
    return _ended(found, found.engine.all_reduce(source, out, chosen), "all_reduce", source.nbytes,
                  lambda: put(tensor, out), async_op)  # fmt: skip


def reduce(
    tensor: wf.Tensor, dst: int = 0, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """The tensor of rank `dst` becomes the sum (mean, …) of all; those of the others stay as they are."""
    if outside(group):
        return None
    source, chosen = numbers(tensor, "reduce"), _operator(op, "reduce")
    _check_reducible(chosen, source, "reduce")
    found = begin("reduce", group, f"{_spec(tensor)}, {chosen.name}, dst={dst}")
    root = found.index_of(dst, "dst")
    out = np.empty_like(source)
    finish = (lambda: put(tensor, out)) if found.rank() == root else (lambda: tensor)
    return _ended(found, found.engine.reduce(source, out, chosen, root), "reduce", source.nbytes, finish, async_op)


def broadcast(tensor: wf.Tensor, src: int = 0, group: Any = None, async_op: bool = False) -> Work | None:
    """Every rank's tensor becomes that of rank `src`."""
    if outside(group):
        return None
    array = numbers(tensor, "broadcast")
    found = begin("broadcast", group, f"{_spec(tensor)}, src={src}")
    root = found.index_of(src, "src")
    mine = found.rank() == root
    out = array if mine else np.empty_like(array)
    return _ended(found, found.engine.broadcast(out, root), "broadcast", out.nbytes,
                  (lambda: tensor) if mine else (lambda: put(tensor, out)), async_op)  # fmt: skip


def all_gather(
    tensor_list: Sequence[wf.Tensor], tensor: wf.Tensor, group: Any = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """`tensor_list[r]` becomes the tensor of rank r. All tensors have one shape and dtype."""
    if outside(group):
        return None
    source = numbers(tensor, "all_gather")
    found = begin("all_gather", group, _spec(tensor))
    _check_list("all_gather", "tensor_list", tensor_list, found.size(), tensor)
    out = np.empty((found.size(), *source.shape), source.dtype)
    return _ended(found, found.engine.all_gather(source, out), "all_gather", source.nbytes,
                  lambda: [put(t, part) for t, part in zip(tensor_list, out, strict=True)], async_op)  # fmt: skip


def all_gather_into_tensor(
    output_tensor: wf.Tensor, input_tensor: wf.Tensor, group: Any = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """`output_tensor` becomes the tensors of all ranks, one behind the other or stacked."""
    if outside(group):
        return None
    source = numbers(input_tensor, "all_gather_into_tensor")
    found = begin("all_gather_into_tensor", group, _spec(input_tensor))
    _check_joined("all_gather_into_tensor", "output_tensor", output_tensor, input_tensor, found.size())
    out = np.empty((found.size(), *source.shape), source.dtype)
    return _ended(found, found.engine.all_gather(source, out), "all_gather_into_tensor", source.nbytes,
                  lambda: put(output_tensor, out), async_op)  # fmt: skip


def reduce_scatter(
    output: wf.Tensor, input_list: Sequence[wf.Tensor], op: ReduceOp = ReduceOp.SUM, group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Rank r's output becomes the sum (mean, …) of all `input_list[r]`."""
    if outside(group):
        return None
    found = begin("reduce_scatter", group, f"{_spec(output)}, {_operator(op, 'reduce_scatter').name}")
    _check_list("reduce_scatter", "input_list", input_list, found.size(), output)
    source = np.stack([numbers(t, "reduce_scatter") for t in input_list])
    return _scattered(found, "reduce_scatter", output, source, op, async_op)


def reduce_scatter_tensor(
    output: wf.Tensor, input: wf.Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:  # fmt: skip
    """The same with the inputs in one tensor, one behind the other or stacked."""
    if outside(group):
        return None
    call = "reduce_scatter_tensor"
    source = numbers(input, call)
    found = begin(call, group, f"{_spec(output)}, {_operator(op, call).name}")
    _check_joined(call, "input", input, output, found.size())
    return _scattered(found, call, output, source.reshape((found.size(), *output.shape)), op, async_op)


def _scattered(
    group: ProcessGroup, call: str, output: wf.Tensor, source: Array, op: ReduceOp, async_op: bool
) -> Work | None:
    _check_reducible(op, source, call)
    out = np.empty(source.shape[1:], source.dtype)
    return _ended(group, group.engine.reduce_scatter(source, out, op), call, source.nbytes, lambda: put(output, out),
                  async_op)  # fmt: skip


def all_to_all(
    output_tensor_list: Sequence[wf.Tensor], input_tensor_list: Sequence[wf.Tensor], group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """`output_tensor_list[r]` becomes the tensor that rank r has for this rank in its `input_tensor_list`."""
    if outside(group):
        return None
    sources = [numbers(t, "all_to_all") for t in input_tensor_list]
    found = begin("all_to_all", group, f"{len(sources)} tensors")
    _check_list("all_to_all", "input_tensor_list", input_tensor_list, found.size(), None)
    _check_list("all_to_all", "output_tensor_list", output_tensor_list, found.size(), None)
    outs = [np.empty_like(numbers(t, "all_to_all")) for t in output_tensor_list]
    return _ended(found, found.engine.all_to_all(sources, outs), "all_to_all", sum(s.nbytes for s in sources),
                  lambda: [put(t, out) for t, out in zip(output_tensor_list, outs, strict=True)], async_op)  # fmt: skip


def all_to_all_single(
    output: wf.Tensor, input: wf.Tensor, output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None, group: Any = None, async_op: bool = False,
) -> Work | None:  # fmt: skip
    """The same with the parts in one tensor: rows of dimension 0, equally many for each rank unless sizes are given."""
    if outside(group):
        return None
    count = group_of(group).size()
    source = numbers(input, "all_to_all_single")
    out = np.empty_like(numbers(output, "all_to_all_single"))
    found = begin("all_to_all_single", group, str(input.dtype))
    sources = _parts("input", source, input_split_sizes, count)
    outs = _parts("output", out, output_split_sizes, count)
    return _ended(found, found.engine.all_to_all(sources, outs), "all_to_all_single", source.nbytes,
                  lambda: put(output, out), async_op)  # fmt: skip


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


def gather(
    tensor: wf.Tensor, gather_list: Sequence[wf.Tensor] | None = None, dst: int = 0, group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """On rank `dst`, `gather_list[r]` becomes the tensor of rank r. The others give no list."""
    if outside(group):
        return None
    source = numbers(tensor, "gather")
    found = begin("gather", group, f"{_spec(tensor)}, dst={dst}")
    root = found.index_of(dst, "dst")
    if found.rank() != root:
        return _ended(found, found.engine.gather(source, None, root), "gather", source.nbytes, None, async_op)
    lists = gather_list or []
    _check_list("gather", "gather_list", lists, found.size(), tensor)
    outs = [np.empty_like(source) for _ in lists]
    return _ended(found, found.engine.gather(source, outs, root), "gather", source.nbytes,
                  lambda: [put(t, out) for t, out in zip(lists, outs, strict=True)], async_op)  # fmt: skip


def scatter(
    tensor: wf.Tensor, scatter_list: Sequence[wf.Tensor] | None = None, src: int = 0, group: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """The tensor of rank r becomes `scatter_list[r]` of rank `src`. The others give no list."""
    if outside(group):
        return None
    out = np.empty_like(numbers(tensor, "scatter"))
    found = begin("scatter", group, f"{_spec(tensor)}, src={src}")
    root = found.index_of(src, "src")
    sources = None
    if found.rank() == root:
        _check_list("scatter", "scatter_list", scatter_list or [], found.size(), tensor)
        sources = [numbers(t, "scatter") for t in scatter_list or []]
    return _ended(found, found.engine.scatter(sources, out, root), "scatter", out.nbytes, lambda: put(tensor, out),
                  async_op)  # fmt: skip


def _check_list(call: str, what: str, tensors: Any, count: int, like: wf.Tensor | None) -> None:
    if not isinstance(tensors, (list, tuple)) or len(tensors) != count:
        raise ArgumentError(f"{call}: {what} must be a list of {count} tensors, one for each rank of the group")
    for rank, t in enumerate(tensors):
        if not isinstance(t, wf.Tensor):
            raise ArgumentTypeError(f"{call}: {what}[{rank}] is no tensor but a {type(t).__name__}")
        if like is not None and (t.shape != like.shape or t.dtype is not like.dtype):
            raise ArgumentError(f"{call}: {what}[{rank}] is {t.spec} and should be {like.spec}")


def _check_joined(call: str, what: str, joined: wf.Tensor, one: wf.Tensor, count: int) -> None:
    stacked = (count, *one.shape)
    behind = (count * one.shape[0], *one.shape[1:]) if one.ndim else (count,)
    if tuple(joined.shape) not in (stacked, behind) or joined.dtype is not one.dtype:
        raise ArgumentError(f"{call}: {what} is {joined.spec}, for {count} times {one.spec} it should have the shape "
                            f"{list(behind)}")  # fmt: skip


# -- from one rank to another


def isend(tensor: wf.Tensor, dst: int, group: Any = None, tag: int = 0) -> Work:
    """Start to send a tensor to rank `dst`."""
    array = numbers(tensor, "send")
    found = begin_pair("send", group)
    to = found.index_of(dst, "dst")
    return found.work(found.engine.send(array, to, 2 * tag), "send", size=array.nbytes, background=True)


def irecv(tensor: wf.Tensor, src: int | None = None, group: Any = None, tag: int = 0) -> Work:
    """Start to receive a tensor from rank `src`."""
    found = begin_pair("recv", group)
    if src is None:
        if found.size() != 2:
            raise ArgumentError("recv: from which rank?", fix="Give src.")
        src = found.ranks[1 - found.rank()]
    out = np.empty_like(numbers(tensor, "recv"))
    request = found.engine.receive(out, found.index_of(src, "src"), 2 * tag)
    return found.work(request, "recv", finish=lambda: put(tensor, out), background=True)


def begin_pair(call: str, group: Any) -> ProcessGroup:
    """The group of a call between two ranks."""
    executor().not_replayable(f"it calls wf.distributed.{call}, which another process answers")
    return group_of(group)


def send(tensor: wf.Tensor, dst: int, group: Any = None, tag: int = 0) -> None:
    """Send a tensor to rank `dst`, and wait until its memory can be used again."""
    isend(tensor, dst, group, tag).wait()


def recv(tensor: wf.Tensor, src: int | None = None, group: Any = None, tag: int = 0) -> int:
    """Fill a tensor with what rank `src` sends; gives that rank."""
    irecv(tensor, src, group, tag).wait()
    found = group_of(group)
    return found.ranks[1 - found.rank()] if src is None else src


# -- meeting


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
    """Wait until every rank has come here."""
    if outside(group):
        return None
    found = begin("barrier", group, "")
    return _ended(found, found.engine.barrier(), "barrier", 0, None, async_op)


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """A barrier whose error names the ranks that did not come in time."""
    if outside(group):
        return
    found = group_of(group)
    executor().not_replayable("it calls wf.distributed.monitored_barrier, which other processes answer")
    limit = found.timeout if timeout is None else seconds(timeout)
    lines = exchange(found.engine, "monitored_barrier", limit, "monitored_barrier")
    if set(lines) != {"monitored_barrier"}:
        raise DistributedError("monitored_barrier: other ranks make another call", fix="Every rank must come here.")
