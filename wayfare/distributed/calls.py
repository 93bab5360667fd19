"""What the calls on tensors and on other values have in common: their group, their arguments, their transfer."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

import wayfare as wf
from wayfare.core import buffer_pool
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DistributedError
from wayfare.core.mode import executor
from wayfare.distributed.engine import Array, Request
from wayfare.distributed.process_group import GroupMember, ProcessGroup, group_of
from wayfare.distributed.work import Work

__all__ = ["begin", "check_list", "collective", "numbers", "put", "room_like", "run"]

# The calls that move other values than tensors, where it is not all_gather_object.
_FOR_OBJECTS = {
    "broadcast": "broadcast_object_list", "gather": "gather_object", "recv": "recv_object_list",
    "scatter": "scatter_object_list", "send": "send_object_list",
}  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")


def collective(function: Callable[P, R]) -> Callable[P, R]:
    """A call that all ranks of a group make together. Outside the group it does nothing, as in PyTorch.

    A rank that refuses its arguments does so before anything is sent, and in debug mode it tells the others, which
    would wait for it.
    """
    place = list(inspect.signature(function).parameters).index("group")

    @functools.wraps(function)
    def made(*args: P.args, **options: P.kwargs) -> R:
        group: Any = args[place] if len(args) > place else options.get("group")
        if not isinstance(group, ProcessGroup) and group == GroupMember.NON_GROUP_MEMBER:
            return None  # type: ignore[return-value]
        try:
            return function(*args, **options)
        except (ArgumentError, ArgumentTypeError) as error:
            with contextlib.suppress(DistributedError):  # it is that of the other ranks
                group_of(group).agree(function.__name__, f"refused: {error.sentence}")
            raise

    return made


def begin(call: str, group: ProcessGroup, about: str) -> None:
    """All ranks of a group are about to make a call; compared between them in debug mode."""
    executor().not_replayable(f"it calls wf.distributed.{call}, which other processes answer")
    group.agree(call, about)


def run(
    call: str, group: ProcessGroup, about: str, start: Callable[[], Request], *, size: int = 0, finish: Any = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Make a call whose arguments were checked: wait for it, or return its Work."""
    begin(call, group, about)
    work = group.work(start(), call, size=size, finish=finish, background=async_op)
    if async_op:
        return work
    work.wait()
    return None


def numbers(tensor: Any, call: str) -> Array:
    """The numbers of a tensor as a C-contiguous array: its own memory where it is that."""
    if not isinstance(tensor, wf.Tensor):
        other = _FOR_OBJECTS.get(call, "all_gather_object")
        raise ArgumentTypeError(f"{call}: takes tensors, not a {type(tensor).__name__}",
                                fix=f"Make it one with wf.tensor(…); for other values there is {other}.")  # fmt: skip
    if not tensor.is_cpu:
        raise ArgumentTypeError(f"{call}: the tensor is on {tensor.device}, and tensors of the CPU are sent",
                                fix="Give a copy with .cpu(), and copy the result back.")  # fmt: skip
    array = tensor.detach().numpy()
    return array if array.flags.c_contiguous else np.array(array, order="C")


def room_like(array: Array) -> Array:
    """A new array of the same shape and dtype: of the pool, because new pages would cost more than a transfer."""
    return buffer_pool.empty(array.shape, array.dtype)


def put(tensor: Any, array: Array) -> Any:
    """Write what has arrived into a tensor."""
    with wf.no_grad():
        tensor.copy_(wf.from_numpy(np.asarray(array).reshape(tensor.shape)))  # a row of one dimension is a scalar
    return tensor


def check_list(call: str, what: str, values: Any, count: int, of: str = "tensors", like: Any = None) -> None:
    """An argument that must have one value for each rank: tensors with the shape and dtype of `like`, or places."""
    if not isinstance(values, (list, tuple) if of == "tensors" else list) or len(values) != count:
        raise ArgumentError(f"{call}: {what} must be a list of {count} {of}, one for each rank of the group")
    for rank, t in enumerate(values if of == "tensors" else ()):
        if not isinstance(t, wf.Tensor):
            raise ArgumentTypeError(f"{call}: {what}[{rank}] is no tensor but a {type(t).__name__}")
        if like is not None and (t.shape != like.shape or t.dtype is not like.dtype):
            raise ArgumentError(f"{call}: {what}[{rank}] is {t.spec} and should be {like.spec}")
