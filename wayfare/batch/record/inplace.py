"""In-place writes while calls are recorded.

A lazy tensor without views is simply bound to the new value. Where memory is shared (with views, or with tensors from
outside that have a history) everything is materialised first, and then the write is done for real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from wayfare.batch.record.call import row_of, row_of_array
from wayfare.batch.record.lazy_tensor import LazyTensor
from wayfare.batch.record.refcount import is_unshared
from wayfare.batch.record.signature import snapshot
from wayfare.core.mode import current
from wayfare.core.op import REGISTRY
from wayfare.core.tensor import Tensor

if TYPE_CHECKING:
    from wayfare.batch.session import Session

_EXPAND, _CAST, _CLONE = REGISTRY["expand"], REGISTRY["cast"], REGISTRY["clone"]


def write(session: Session, tensor: Tensor, result: Tensor, move: Callable[[Tensor, Tensor], Any]) -> None:
    """Write `result` into `tensor`; `move` does it for ordinary tensors."""
    # Under no_grad a tensor keeps its history, whatever is written into it.
    silent = tensor._requires_grad and not current().grad
    if not silent and _may_become(session, tensor) and _become(session, tensor, result):
        return
    if tensor.__class__ is not LazyTensor and result.__class__ is not LazyTensor and not session.has_outside_views:
        example = session.hub.current
        if example is not None and session.ownership.maker(tensor) is example and not session.is_read(tensor):
            # No other example can see it, and no pending call reads it.
            with session.outside():
                move(tensor, result)
            return
    memory = _memory_of(tensor)
    if memory is not None:
        # Pending calls must read the old values.
        before: Any = None
        for call in session.pending:
            if any([v is memory for v in call.inputs]):
                before = snapshot(memory) if before is None else before
                call.inputs = tuple([before if v is memory else v for v in call.inputs])
    lazy_ones = tensor.__class__ is LazyTensor or result.__class__ is LazyTensor
    if lazy_ones or session.has_outside_views or tensor.requires_grad or result.requires_grad:
        # Calls that have run already must keep the history they were computed from.
        session.materialise()
    else:
        # Pending calls must run before the values change.
        session.hub.wait(None)
        session.common_results.clear()
    with session.outside():
        move(tensor, result)


def _memory_of(tensor: Tensor) -> Tensor | None:
    """The ordinary tensor that this one is, or is a view of; None if that is lazy too."""
    while tensor.__class__ is LazyTensor:
        origin = tensor._lazy.origin
        if origin is None:
            return None
        tensor = origin[0]
    return tensor


def _may_become(session: Session, tensor: Tensor) -> bool:
    if tensor.__class__ is LazyTensor:
        value = tensor._lazy
        return value.origin is None and not hasattr(value, "has_views")
    return (
        tensor._view is None and tensor._edge is None and not tensor._requires_grad and tensor._extras is None
        and not hasattr(tensor, "_role") and tensor._array.base is None and is_unshared(tensor)
        and session.hub.current is not None and session.ownership.maker(tensor) is session.hub.current
    )  # fmt: skip


def _become(session: Session, tensor: Tensor, result: Tensor) -> bool:
    if result.__class__ is not LazyTensor:
        if tensor.__class__ is not LazyTensor:
            return False
        result = _as_lazy(session, result)
    row = tensor._lazy.row if tensor.__class__ is LazyTensor else row_of_array(tensor._array)
    made: Any = result
    if made._lazy.row.dtype != row.dtype:
        if made.dtype.rank > tensor.dtype.rank:
            return False
        made = session.apply(_CAST, (made,), {"dtype": tensor.dtype})
    if made._lazy.row.shape != row.shape:
        made = session.apply(_EXPAND, (made,), {"shape": row.shape})
    old = made._lazy
    # A value of its own, so that later writes to one tensor do not show in the other.
    value = old.part(row_of(row.shape, row.dtype, row.layout), 0, old.needs_grad)
    if tensor.__class__ is not LazyTensor:
        if any([tensor is v for call in session.pending for v in call.inputs]):
            # Pending calls must read the old values before the tensor becomes lazy.
            session.flush()
        session.overwritten.append((tensor, tensor._array))
        tensor.__class__ = LazyTensor
    tensor._lazy = value
    tensor._requires_grad = value.needs_grad
    session.live.append(ref(tensor))
    return True


def _as_lazy(session: Session, tensor: Tensor) -> Tensor:
    """An ordinary tensor as the output of a recorded `clone`."""
    return session.apply(_CLONE, (tensor,), {})  # type: ignore[no-any-return]
