"""In-place writes while calls are recorded.

A lazy tensor without views is simply bound to the new value. Where memory is shared (with views, or with tensors from
outside that have a history) everything is materialised first, and then the write is done for real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from wayfare.batch.record.call import row_of, row_of_array
from wayfare.core.mode import current
from wayfare.core.op import REGISTRY
from wayfare.core.stand_in import StandIn, set_class
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import owner_of

if TYPE_CHECKING:
    from wayfare.batch.session import Session

_EXPAND, _CAST, _CLONE = REGISTRY["expand"], REGISTRY["cast"], REGISTRY["clone"]


def write(session: Session, tensor: Tensor, result: Tensor, move: Callable[[Tensor, Tensor], Any]) -> None:
    """Write `result` into `tensor`; `move` does it for ordinary tensors."""
    # Under no_grad a tensor keeps its history, whatever is written into it.
    silent = tensor._requires_grad and not current().grad
    if not silent and _may_become(session, tensor) and _become(session, tensor, result):
        return
    if tensor.__class__ is not StandIn and result.__class__ is not StandIn:
        example = session.hub.current
        own = example is not None and session.ownership.maker(tensor) is example
        if own and id(owner_of(tensor._array)) not in session.viewed_memory and not session.is_read(tensor):
            # No other example can see it, no lazy tensor is a view of it, and no pending call reads it.
            with session.outside():
                move(tensor, result)
            return
    lazy_ones = tensor.__class__ is StandIn or result.__class__ is StandIn
    if lazy_ones or session.viewed_memory or tensor.requires_grad or result.requires_grad:
        # Calls that have run already must keep the history they were computed from.
        session.materialise()
    else:
        # Pending calls must run before the values change.
        session.hub.wait(None)
        session.common_results.clear()
    with session.outside():
        move(tensor, result)


def _may_become(session: Session, tensor: Tensor) -> bool:
    if tensor.__class__ is StandIn:
        value = tensor._handle
        return value.origin is None and not hasattr(value, "has_views")
    return (
        tensor._edge is None and not tensor._requires_grad and tensor._extras is None and not hasattr(tensor, "_role")
        and session.ownership.has_private_memory(tensor, session.hub.current)
    )  # fmt: skip


def _become(session: Session, tensor: Tensor, result: Tensor) -> bool:
    if result.__class__ is not StandIn:
        if tensor.__class__ is not StandIn:
            return False
        result = _as_lazy(session, result)
    row = tensor._handle.row if tensor.__class__ is StandIn else row_of_array(tensor._array)
    made: Any = result
    if made._handle.row.memory is not row.memory:
        return False
    if made._handle.row.dtype != row.dtype:
        if made.dtype.rank > tensor.dtype.rank:
            return False
        made = session.apply(_CAST, (made,), {"dtype": tensor.dtype})
    if made._handle.row.shape != row.shape:
        made = session.apply(_EXPAND, (made,), {"shape": row.shape})
    old = made._handle
    # A value of its own, so that later writes to one tensor do not show in the other.
    value = old.part(row_of(row.shape, row.dtype, row.layout, row.memory), 0, old.needs_grad)
    if tensor.__class__ is not StandIn:
        session.overwritten.append((tensor, tensor._array))
        set_class(tensor, StandIn)
    tensor._handle = value
    tensor._requires_grad = value.needs_grad
    session.live.append(ref(tensor))
    return True


def _as_lazy(session: Session, tensor: Tensor) -> Tensor:
    """An ordinary tensor as the output of a recorded `clone`."""
    return session.apply(_CLONE, (tensor,), {})  # type: ignore[no-any-return]
