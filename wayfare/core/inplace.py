"""In-place writes: version checks, and the new history of a tensor whose view is written.

Every `op_` method computes its result as usual and then moves it into the tensor: the tensor's memory gets the values,
the tensor gets the history. When a view is written, the history of its base becomes "the base with that part replaced",
and every other view of the base updates its own history when it is next used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np

from wayfare.core.buffer_pool import owns_memory
from wayfare.core.device import ARRAYS, BACKENDS, active_for, copied, device_of, moved
from wayfare.core.dispatch import record_one
from wayfare.core.errors import InPlaceError, OperationError, ShapeError
from wayfare.core.mode import STATE, changed_mode, current
from wayfare.core.node import Node
from wayfare.core.op import REGISTRY
from wayfare.core.packed import pack
from wayfare.core.quiet import COMPLAINTS
from wayfare.core.refusals import refuse_stale
from wayfare.core.spec import OF_NUMPY
from wayfare.core.tensor import Tensor
from wayfare.core.walk import split_edge
from wayfare.core.write_clock import check_memory, note_write, tick, version, version_at


def check_writable(t: Tensor, name: str) -> None:
    """Refuse a write that would lose a gradient."""
    mode = STATE.mode
    if mode is not None and not mode.executor.works_on_arrays:
        stands: Tensor | None = mode.executor.behind(t, name)
        if stands is None:
            return
        t = stands
    check_history(t, name)
    if t._extras is not None and "inference" in t._extras and not current().inference:
        raise InPlaceError(f"{name}: a tensor made under inference_mode cannot be written outside it",
                           fix="Write to a .clone() of it.")  # fmt: skip
    check_memory(t._array, name)


def check_history(t: Tensor, name: str) -> None:
    """Refuse, while recording, a write that would give a leaf a history, or that the tensor's gradient would miss."""
    if not current().grad:
        return
    if t.requires_grad and t._edge is None:
        raise InPlaceError(f"{name}: a leaf variable that requires grad cannot be changed by an in-place operation "
                           "while recording",
                           fix="Do it under `with wf.no_grad():`, or write to a copy.")  # fmt: skip
    view = t._view
    shown = t if view is None else view.base
    if shown._extras is not None and "handed_through" in shown._extras:
        function = shown._extras["handed_through"][0]
        raise InPlaceError(f"{name}: this {t.spec} shows memory that the custom Function {function} was given or made; "
                           "written in place while recording, the Function's own gradient would be lost",
                           fix=f"Return a .clone() from {function}.forward, or write under "
                           "`with wf.no_grad():`.")  # fmt: skip
    if view is None or not view.base._requires_grad:
        return
    if view.base._edge is None:
        raise InPlaceError(f"{name}: this is a view of a leaf variable that requires grad; an in-place operation "
                           "would lose its gradient",
                           fix="Do it under `with wf.no_grad():`, or write to a clone.")  # fmt: skip
    if not t._requires_grad:
        raise InPlaceError(f"{name}: this view was made under no_grad, of a tensor that requires a gradient; written "
                           "in place while recording, the gradient would not notice",
                           fix="Make the view and write to it both inside no_grad, or both outside.")  # fmt: skip


def check_result(t: Tensor, result: Tensor, name: str) -> None:
    """Check that the result fits: it broadcasts to the shape, and its dtype is of no higher category."""
    if result._array.shape != t._array.shape:
        try:
            fits = np.broadcast_shapes(result._array.shape, t._array.shape) == t._array.shape
        except ValueError:
            fits = False
        if not fits:
            raise ShapeError(f"{name}: a result of {result.spec} cannot be written into {t.spec}")
    if OF_NUMPY[result._array.dtype].rank > OF_NUMPY[t._array.dtype].rank:
        raise OperationError(f"{name}: a result of {result.dtype} cannot be written into a tensor of {t.dtype}",
                             fix="Convert the tensor with .to(...) first.")  # fmt: skip


def write_in_place(t: Tensor, name: str, compute: Callable[[], Tensor]) -> Tensor:
    """What every `op_` does: compute as usual, then make `t` the result."""
    check_writable(t, name)
    since = tick()
    hooks = current().saved_hooks
    if hooks is None:
        return move_into(t, compute(), name, since)
    # Hooks must see the old values, which move_into copies, so they are called after it.
    with changed_mode(saved_hooks=None):
        result = compute()
        move_into(t, result, name, since)
    node = result.grad_fn
    if node is not None:
        pack(node, hooks)
    return t


def move_into(t: Tensor, result: Tensor, name: str, since: int | None = None) -> Tensor:
    """Make `t` equal to `result`: copy its values into t's memory, and give `t` its history.

    `since` is the time when the computation of the result began; if it is None, only the last step counts as new.
    """
    mode = STATE.mode
    if mode is not None and not mode.executor.works_on_arrays:
        mode.executor.write(t, result, lambda into, values: move_into(into, values, name, since))
        return t
    check_result(t, result, name)
    if result._edge is not None:
        _keep_old_values(t, result, since)
    values = result._array
    try:
        if BACKENDS:
            with active_for(t._array):
                np.copyto(t._array, moved(values, device_of(t._array)), casting="unsafe")
        else:
            np.copyto(t._array, values, casting="unsafe")
    except COMPLAINTS:
        pass  # a number too large for this dtype becomes inf; NumPy complains only after writing all of them
    note_write(t._array)
    if since is not None:
        _keep_in_place(t, result, since)
    if t._view is not None:
        t._renew()
        stand_alone(t)
    if (result.requires_grad or t._requires_grad) and current().grad:
        history = result
        if result._array.dtype != t._array.dtype:
            history = _shadow(t, result, "cast", {"dtype": t.dtype})
        if history._array.shape != t._array.shape:
            history = _shadow(t, history, "expand", {"shape": t._array.shape})
        rewrite(t, history)
    return t


def _shadow(t: Tensor, source: Tensor, op: str, attrs: dict[str, Any]) -> Tensor:
    """A tensor with t's memory and a new node on top of `source`'s history: the values are there already."""
    out = t.detach()
    if source._requires_grad:
        record_one(REGISTRY[op], (source,), [source._array], out, attrs)
    return out


def _keep_old_values(t: Tensor, result: Tensor, since: int | None) -> None:
    """Copy the values that are overwritten for those nodes of the result that keep them for their gradient."""
    waiting, seen = [result._edge], set()
    while waiting:
        edge = waiting.pop()
        node = edge[0] if edge.__class__ is tuple else edge
        if node.__class__ is not Node or node in seen or node.kept is None:
            continue
        if since is None or node.number > since:
            seen.add(node)
            node.kept = tuple([_set_aside(k) if _is_memory_of(k, t) else k for k in node.kept])
            if since is not None:
                waiting.extend(node.edges)


def _set_aside(kept: Any) -> Any:
    copy = copied(kept, "C")
    if STATE.copies is not None:
        STATE.copies.append((kept, copy))
    return copy


def _keep_in_place(t: Tensor, result: Tensor, since: int) -> None:
    """If a node keeps its own result (`exp_`), let it keep t's memory, which has the same values."""
    node = result._edge
    if node.__class__ is not Node or node.number < since or node.kept is None:
        return
    if result._array.dtype == t._array.dtype and result._array.shape == t._array.shape:
        if any(k is result._array for k in node.kept):
            node.kept = tuple([t._array if k is result._array else k for k in node.kept])
            node.number = tick()  # newer than the write, so that what it keeps does not count as stale


def _is_memory_of(kept: Any, t: Tensor) -> bool:
    if kept.__class__ not in ARRAYS or kept.__class__ is not t._array.__class__:
        return False
    return kept is t._array or (not owns_memory(kept) and np.may_share_memory(kept, t._array))


def rewrite(t: Tensor, history: Tensor) -> None:
    """Give `t` the history of `history`; if `t` is a view, update the history of its base too."""
    view = t._view
    if view is None:
        set_history(t, history._edge, history._requires_grad)
        return
    base = view.base
    if not (history._requires_grad or base._requires_grad):
        return
    shadow = base.detach()
    record_one(REGISTRY["write_through"], (base, history), [base._array, history._array], shadow, {"path": view.path})
    set_history(base, shadow._edge, True)
    t._renew()


def stand_alone(t: Tensor) -> None:
    """Unlink a view whose base nothing else references (the intermediate result in `conv(x).view(n, -1)`).

    Any other view of that memory would hold the base too. So drop the reference, and see whether the base is still
    alive.
    """
    view = t._view
    if view is None:
        return
    base, again = ref(view.base), view.of(None)
    t._view = view = None
    if (held := base()) is not None:
        again.base = held
        t._view = again


def renew(t: Tensor) -> None:
    """Update a view's history after its base was written."""
    view = t._view
    if view is None:
        return
    base = view.base
    if base._view is not None:
        # The base has itself become a view (`base.t_()`): its base is the base now.
        base = view.base = base._view.base
    if base._extras is not None and "handed_through" in base._extras and t._requires_grad and current().grad:
        refuse_stale(base, "a view")
    if base._edge is view.base_edge:
        return
    view.base_edge = base._edge
    if base._requires_grad:
        now = t.detach()
        record_one(REGISTRY["look_through"], (base,), [base._array], now, {"path": view.path})
        set_history(t, now._edge, True)
    elif t._edge is None or _written_since(t):  # otherwise the base was detached, which does not concern the view
        set_history(t, None, False)


def _written_since(t: Tensor) -> bool:
    """Was the memory of `t` written after its history was made?"""
    return version(t._array) != version_at(t._array, split_edge(t._edge)[0].number)


def set_history(t: Tensor, edge: Any, requires_grad: bool) -> None:
    """Set the history of `t`. A `retain_grad()` belongs to the tensor, so it moves to the new node."""
    old, number = split_edge(t._edge)
    t._edge = edge
    t._requires_grad = requires_grad
    if old is not None and old.extras is not None and number in old.extras.retained and edge is not None:
        if old.extras.retained[number]() is t:
            node, place = split_edge(edge)
            node.more().retained[place] = old.extras.retained.pop(number)


Tensor._renew = renew  # type: ignore[method-assign, assignment]
