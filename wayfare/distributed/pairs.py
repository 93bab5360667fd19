"""From one rank to another: tensors and other values in messages that one rank sends and one receives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.callsite import current_site
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.core.mode import executor
from wayfare.distributed.calls import numbers, put, room_like
from wayfare.distributed.engine import Array
from wayfare.distributed.objects import from_bytes, to_bytes
from wayfare.distributed.process_group import ProcessGroup, group_of
from wayfare.distributed.work import Work

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "recv_object_list", "send", "send_object_list"]


def _started(
    call: str, group: ProcessGroup, rank: int, array: Array, tag: int, what: str, *, sends: bool, finish: Any = None
) -> Work:
    """A message to or from a rank of the group; in debug mode both ends must say the same of `what` it holds."""
    executor().not_replayable(f"it calls wf.distributed.{call}, which another process answers")
    if isinstance(tag, bool) or not isinstance(tag, int) or tag < 0:
        raise ArgumentError(f"{call}: a tag must be a whole number from 0 on, it is {tag!r}")
    transfer = group.engine.send if sends else group.engine.receive
    request = transfer(array, rank, 4 * tag)
    if group.agreement is not None:
        request = group.agreement.of_pair(request, rank, tag, what, current_site(), sends=sends)
    return group.message(request, call, rank, sends=sends, size=array.nbytes if sends else 0, finish=finish)


def isend(tensor: wf.Tensor, dst: int, group: Any = None, tag: int = 0) -> Work:
    """Start to send a tensor to rank `dst`."""
    found, array = group_of(group), numbers(tensor, "send")
    return _started("send", found, found.index_of(dst, "dst"), array, tag, str(tensor.spec), sends=True)


def irecv(tensor: wf.Tensor, src: int | None = None, group: Any = None, tag: int = 0) -> Work:
    """Start to receive a tensor from rank `src`."""
    found, out = group_of(group), room_like(numbers(tensor, "recv"))
    return _started("recv", found, _source(found, src), out, tag, str(tensor.spec), sends=False,
                    finish=lambda: put(tensor, out))  # fmt: skip


def _source(group: ProcessGroup, src: int | None) -> int:
    """The rank in the group of the sender: of two ranks it is the other one."""
    if src is not None:
        return group.index_of(src, "src")
    if group.size() != 2:
        raise ArgumentError("recv: from which rank?", fix="Give src.")
    return 1 - group.rank()


def send(tensor: wf.Tensor, dst: int, group: Any = None, tag: int = 0) -> None:
    """Send a tensor to rank `dst`, and wait until its memory can be used again."""
    isend(tensor, dst, group, tag).wait()


def recv(tensor: wf.Tensor, src: int | None = None, group: Any = None, tag: int = 0) -> int:
    """Fill a tensor with what rank `src` sends; gives that rank."""
    irecv(tensor, src, group, tag).wait()
    found = group_of(group)
    return found.ranks[_source(found, src)]


class P2POp:
    """A message for `batch_isend_irecv`: `P2POp(isend, tensor, to)` or `P2POp(irecv, tensor, source)`."""

    def __init__(
        self, op: Callable[..., Work], tensor: wf.Tensor, peer: int | None = None, group: Any = None, tag: int = 0,
        group_peer: int | None = None,
    ) -> None:  # fmt: skip
        if op is not isend and op is not irecv:
            raise ArgumentTypeError("P2POp: op must be wf.distributed.isend or wf.distributed.irecv, not "
                                    f"{getattr(op, '__name__', op)}")  # fmt: skip
        if (peer is None) == (group_peer is None):
            raise ArgumentError("P2POp: needs the other rank: peer, or group_peer, its number in the group")
        numbers(tensor, op.__name__)
        self.op = op
        self.tensor = tensor
        self.peer = group_of(group).ranks[group_peer] if group_peer is not None else peer
        self.group = group
        self.tag = tag


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Start several messages; the order of sends and receives does not matter. Wait for every Work that it gives."""
    if not isinstance(p2p_op_list, (list, tuple)) or not p2p_op_list or not all(
        isinstance(each, P2POp) for each in p2p_op_list
    ):  # fmt: skip
        raise ArgumentTypeError("batch_isend_irecv: takes a list of P2POp")
    return [each.op(each.tensor, each.peer, each.group, each.tag) for each in p2p_op_list]


# -- other values


def send_object_list(object_list: list[Any], dst: int, group: Any = None, device: Any = None) -> None:
    """Send values to rank `dst`."""
    call, found = "send_object_list", group_of(group)
    to, data = found.index_of(dst, "dst"), to_bytes(list(object_list), call)
    for part in (np.array([data.size]), data):
        _started(call, found, to, part, 0, "objects", sends=True).wait()


def recv_object_list(object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None) -> int:
    """Fill a list with what rank `src` sends; gives that rank."""
    call, found, size = "recv_object_list", group_of(group), np.zeros(1, np.int64)
    source = _source(found, src)
    _started(call, found, source, size, 0, "objects", sends=False).wait()
    room = np.empty(int(size[0]), np.uint8)
    _started(call, found, source, room, 0, "objects", sends=False).wait()
    object_list[:] = from_bytes(room)
    return found.ranks[source]
