"""Python values between ranks: what a file can hold (numbers, texts, tensors, and lists and dicts of them), no pickle.

What another process sends is decoded by the same strict reader as a file: nothing in it is ever run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.distributed.collectives import begin, begin_pair, outside
from wayfare.distributed.engine import Array
from wayfare.distributed.process_group import ProcessGroup
from wayfare.io.message import decoded, encoded

__all__ = ["all_gather_object", "broadcast_object_list", "gather_object", "recv_object_list", "scatter_object_list",
           "send_object_list"]  # fmt: skip


def _bytes(value: Any, call: str) -> Array:
    try:
        return np.frombuffer(encoded(value), np.uint8)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{call}: {error.sentence.removeprefix('save: ')}", fix=error.fix) from None


def _value(data: Array) -> Any:
    return decoded(data.tobytes())


def _wait(group: ProcessGroup, call: str, request: Any, size: int = 0) -> None:
    group.work(request, call, size=size).wait()


def everyones(group: ProcessGroup, value: Any, call: str) -> list[Any]:
    """The values of all ranks, in their order."""
    data = _bytes(value, call)
    sizes = np.empty((group.size(), 1), np.int64)
    _wait(group, call, group.engine.all_gather(np.array([data.size]), sizes))
    longest = int(sizes.max())
    padded = np.zeros(longest, np.uint8)
    padded[: data.size] = data
    every = np.empty((group.size(), longest), np.uint8)
    _wait(group, call, group.engine.all_gather(padded, every), longest)
    return [_value(row[:size]) for row, size in zip(every, sizes[:, 0].tolist(), strict=True)]


def from_rank(group: ProcessGroup, value: Any, root: int, call: str) -> Any:
    """The value of one rank (by its number in the group) on all ranks."""
    data = _bytes(value, call) if group.rank() == root else np.empty(0, np.uint8)
    size = np.array([data.size])
    _wait(group, call, group.engine.broadcast(size, root))
    room = data.copy() if group.rank() == root else np.empty(int(size[0]), np.uint8)
    _wait(group, call, group.engine.broadcast(room, root), room.nbytes)
    return value if group.rank() == root else _value(room)


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """`object_list[r]` becomes the value of rank r."""
    if outside(group):
        return
    found = begin("all_gather_object", group, "")
    _check("all_gather_object", "object_list", object_list, found.size())
    object_list[:] = everyones(found, obj, "all_gather_object")


def gather_object(obj: Any, object_gather_list: list[Any] | None = None, dst: int = 0, group: Any = None) -> None:
    """On rank `dst`, `object_gather_list[r]` becomes the value of rank r."""
    if outside(group):
        return
    found = begin("gather_object", group, f"dst={dst}")
    root = found.index_of(dst, "dst")
    if found.rank() == root:
        _check("gather_object", "object_gather_list", object_gather_list, found.size())
    values = everyones(found, obj, "gather_object")
    if found.rank() == root and object_gather_list is not None:
        object_gather_list[:] = values


def broadcast_object_list(object_list: list[Any], src: int = 0, group: Any = None, device: Any = None) -> None:
    """Every rank's list gets the values of rank `src`."""
    if outside(group):
        return
    found = begin("broadcast_object_list", group, f"{len(object_list)} objects, src={src}")
    values = from_rank(found, list(object_list), found.index_of(src, "src"), "broadcast_object_list")
    if len(values) != len(object_list):
        raise ArgumentError(f"broadcast_object_list: rank {src} sends {len(values)} objects, and this rank's list has "
                            f"room for {len(object_list)}")  # fmt: skip
    object_list[:] = values


def scatter_object_list(
    scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None, src: int = 0,
    group: Any = None,
) -> None:  # fmt: skip
    """The first place of rank r's list gets the value `scatter_object_input_list[r]` of rank `src`."""
    if outside(group):
        return
    found = begin("scatter_object_list", group, f"src={src}")
    root = found.index_of(src, "src")
    if found.rank() == root:
        _check("scatter_object_list", "scatter_object_input_list", scatter_object_input_list, found.size())
    values = from_rank(found, scatter_object_input_list, root, "scatter_object_list")
    scatter_object_output_list[:1] = [values[found.rank()]]


def send_object_list(object_list: list[Any], dst: int, group: Any = None, device: Any = None) -> None:
    """Send values to rank `dst`."""
    found = begin_pair("send_object_list", group)
    to, data = found.index_of(dst, "dst"), _bytes(list(object_list), "send_object_list")
    _wait(found, "send_object_list", found.engine.send(np.array([data.size]), to, 0))
    _wait(found, "send_object_list", found.engine.send(data, to, 0), data.nbytes)


def recv_object_list(object_list: list[Any], src: int, group: Any = None, device: Any = None) -> int:
    """Fill a list with what rank `src` sends."""
    found = begin_pair("recv_object_list", group)
    source, size = found.index_of(src, "src"), np.zeros(1, np.int64)
    _wait(found, "recv_object_list", found.engine.receive(size, source, 0))
    room = np.empty(int(size[0]), np.uint8)
    _wait(found, "recv_object_list", found.engine.receive(room, source, 0))
    object_list[:] = _value(room)
    return src


def _check(call: str, what: str, values: Any, count: int) -> None:
    if not isinstance(values, list) or len(values) != count:
        raise ArgumentError(f"{call}: {what} must be a list of {count} places, one for each rank of the group")
