"""Python values between ranks: what a file can hold (numbers, texts, tensors, and lists and dicts of them), no pickle.

What another process sends is decoded by the same strict reader as a file: nothing in it is ever run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.distributed.calls import begin, check_list, collective
from wayfare.distributed.engine import Array
from wayfare.distributed.process_group import ProcessGroup, group_of
from wayfare.io.message import decoded, encoded

__all__ = ["all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"]


def to_bytes(value: Any, call: str) -> Array:
    """A value as it travels."""
    try:
        return np.frombuffer(encoded(value), np.uint8)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{call}: {error.sentence.removeprefix('save: ')}", fix=error.fix) from None


def from_bytes(data: Array) -> Any:
    """The value that has arrived."""
    return decoded(data.tobytes())


def everyones(group: ProcessGroup, value: Any, call: str) -> list[Any]:
    """The values of all ranks, in their order."""
    return _gathered(group, to_bytes(value, call), call)


def _gathered(group: ProcessGroup, data: Array, call: str) -> list[Any]:
    sizes = np.empty((group.size(), 1), np.int64)
    group.work(group.engine.all_gather(np.array([data.size]), sizes), call).wait()
    longest = int(sizes.max())
    padded = np.zeros(longest, np.uint8)
    padded[: data.size] = data
    every = np.empty((group.size(), longest), np.uint8)
    group.work(group.engine.all_gather(padded, every), call, size=longest).wait()
    return [from_bytes(row[:size]) for row, size in zip(every, sizes[:, 0].tolist(), strict=True)]


def from_rank(group: ProcessGroup, value: Any, root: int, call: str) -> Any:
    """The value of one rank (by its number in the group) on all ranks."""
    return _spread(group, to_bytes(value, call) if group.rank() == root else None, root, call)


def _spread(group: ProcessGroup, data: Array | None, root: int, call: str) -> Any:
    size = np.array([0 if data is None else data.size])
    group.work(group.engine.broadcast(size, root), call).wait()
    room = np.empty(int(size[0]), np.uint8) if data is None else data.copy()
    group.work(group.engine.broadcast(room, root), call, size=room.nbytes).wait()
    return from_bytes(room)


@collective
def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """`object_list[r]` becomes the value of rank r."""
    call, found = "all_gather_object", group_of(group)
    check_list(call, "object_list", object_list, found.size(), "places")
    data = to_bytes(obj, call)
    begin(call, found, "")
    object_list[:] = _gathered(found, data, call)


@collective
def gather_object(obj: Any, object_gather_list: list[Any] | None = None, dst: int = 0, group: Any = None) -> None:
    """On rank `dst`, `object_gather_list[r]` becomes the value of rank r."""
    call, found = "gather_object", group_of(group)
    is_root = found.rank() == found.index_of(dst, "dst")
    if is_root:
        check_list(call, "object_gather_list", object_gather_list, found.size(), "places")
    data = to_bytes(obj, call)
    begin(call, found, f"dst={dst}")
    values = _gathered(found, data, call)
    if is_root and object_gather_list is not None:
        object_gather_list[:] = values


@collective
def broadcast_object_list(object_list: list[Any], src: int = 0, group: Any = None, device: Any = None) -> None:
    """Every rank's list gets the values of rank `src`."""
    call, found = "broadcast_object_list", group_of(group)
    root = found.index_of(src, "src")
    data = to_bytes(list(object_list), call) if found.rank() == root else None
    begin(call, found, f"{len(object_list)} objects, src={src}")
    values = _spread(found, data, root, call)
    if len(values) != len(object_list):
        raise ArgumentError(f"broadcast_object_list: rank {src} sends {len(values)} objects, and this rank's list has "
                            f"room for {len(object_list)}")  # fmt: skip
    if data is None:
        object_list[:] = values


@collective
def scatter_object_list(
    scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None, src: int = 0,
    group: Any = None,
) -> None:  # fmt: skip
    """The first place of rank r's list gets the value `scatter_object_input_list[r]` of rank `src`."""
    call, found = "scatter_object_list", group_of(group)
    root = found.index_of(src, "src")
    data = None
    if found.rank() == root:
        check_list(call, "scatter_object_input_list", scatter_object_input_list, found.size(), "places")
        data = to_bytes(scatter_object_input_list, call)
    begin(call, found, f"src={src}")
    scatter_object_output_list[:1] = [_spread(found, data, root, call)[found.rank()]]
