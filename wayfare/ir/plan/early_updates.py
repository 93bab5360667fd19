"""Large parameters are updated as soon as their gradients are there: not all gradients live at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from wayfare.ir.fuse.update_op import of_update, update_op
from wayfare.ir.plan.actions import Action, PythonAction, UpdateAction
from wayfare.ir.plan.buffers import Buffer, View


def early_updates(actions: Sequence[Action], worth: int) -> list[Action]:
    """The actions, with updates of large sets directly after the last action that uses one of their arrays. A gradient
    of `worth` bytes has an update of its own.

    None comes before an action that may fail: a run that fails has written nothing.
    """
    last: dict[Buffer, int] = {}
    after: dict[int, list[Action]] = {}
    failing = max([i for i, action in enumerate(actions) if isinstance(action, PythonAction)], default=-1)
    kept = list(actions)
    for i, action in enumerate(actions):
        if isinstance(action, UpdateAction):
            late: list[int] = []
            for k in range(action.of.sets):
                reads, writes = (_of_sets(views, action.of.sets, [k]) for views in (action.reads, action.writes))
                at = max([failing, *[last.get(view.buffer.real, -1) for view in (*reads, *writes)]])
                if at < i - 1 and _gradient_bytes(action, k) >= worth:
                    after.setdefault(at, []).append(_update(action, reads, writes, 1))
                else:
                    late.append(k)
            if len(late) < action.of.sets:
                reads, writes = (_of_sets(views, action.of.sets, late) for views in (action.reads, action.writes))
                kept[i] = _update(action, reads, writes, len(late))
        for view in (*action.reads, *action.writes):
            last[view.buffer.real] = i
    made = list(after.get(-1, ()))
    for i, action in enumerate(kept):
        if not isinstance(action, UpdateAction) or action.of.sets:
            made.append(action)
        made += after.get(i, ())
    return made


def _of_sets(views: Sequence[View], sets: int, wanted: Sequence[int]) -> list[View]:
    """The views of some sets, which lie argument by argument."""
    return [views[first + k] for first in range(0, len(views), sets) for k in wanted]


def _gradient_bytes(action: UpdateAction, number: int) -> int:
    """The bytes of the arrays of a set that are only read, and that live in the arena."""
    read = action.reads[action.of.count :][number :: action.of.sets]
    return sum(view.buffer.real.bytes for view in read if view.buffer.real.kind == "arena")


def _update(action: UpdateAction, reads: list[View], writes: list[View], sets: int) -> UpdateAction:
    return UpdateAction(of_update(update_op(action.of.update, sets)), action.numbers, reads, writes)
