"""Loops over all calls: grouping them, ordering their rows, reading where rows lie, and marking calls as run.

They cost time for every recorded call, so the native module has them too (`native/loops.h`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any
from weakref import ref

import numpy as np

from wayfare.batch.record.call import Array, Call, Row, Value
from wayfare.batch.record.signature import Signature
from wayfare.batch.run.steps import StackCalls, Steps
from wayfare.core.native import NATIVE
from wayfare.core.tensor import Tensor


def kind_of(call: Call) -> Any:
    """What a call is scheduled by: the ragged signature that its own is part of, if there is one, else its own."""
    return getattr(call.signature, "ragged", None) or call.signature


def _by_depth(calls: Sequence[Call]) -> list[list[Call]]:
    """Groups of one signature and one depth (the longest chain of pending calls before them), by ascending depth."""
    levels: list[dict[int, list[Call]]] = []
    for call in calls:
        depth = 0
        for v in call.inputs:
            if v.__class__ is Value:
                producer = v.call
                if producer.group is None and producer.depth > depth:
                    depth = producer.depth
        if depth == len(levels):
            levels.append({})
        call.depth = depth + 1
        level = levels[depth]
        signature = id(kind_of(call))
        if signature in level:
            level[signature].append(call)
        else:
            level[signature] = [call]
    return [group for level in levels for group in level.values()]


class _SignatureCalls:
    """The calls of one signature, by how many calls of that signature come before them."""

    __slots__ = ("levels", "reads")

    def __init__(self) -> None:
        self.levels: list[list[Call]] = []
        self.reads: set[int] = set()  # ids of other signatures whose results they read


def _one_after_another(calls: Sequence[Call]) -> list[list[Call]]:
    """One signature after another, each in as many groups as its longest chain has calls; no order has fewer groups.

    Empty if that is impossible, because two signatures read each other.
    """
    by_signature: dict[int, _SignatureCalls] = {}
    for call in calls:
        signature = kind_of(call)
        own = by_signature.get(id(signature))
        if own is None:
            own = by_signature[id(signature)] = _SignatureCalls()
        level = 0
        last = last_signature = None
        for v in call.inputs:
            if v.__class__ is Value:
                producer = v.call
                # Often several outputs of one call, or of calls of one signature, are read together.
                if producer is not last and producer.group is None:
                    last = producer
                    read = kind_of(producer)
                    if read is signature:
                        if producer.depth >= level:
                            level = producer.depth + 1
                    elif read is not last_signature:
                        last_signature = read
                        own.reads.add(id(last_signature))
        call.depth = level
        if level == len(own.levels):
            own.levels.append([call])
        else:
            own.levels[level].append(call)
    groups: list[list[Call]] = []
    waiting = list(by_signature.items())
    done: set[int] = set()
    while waiting:
        later = []
        for signature_id, own in waiting:
            if own.reads <= done:
                groups += own.levels
                done.add(signature_id)
            else:
                later.append((signature_id, own))
        if len(later) == len(waiting):
            return []
        waiting = later
    return groups


def _order_rows(groups: list[list[Call]]) -> None:
    """Reorder the calls inside each group so that rows which are read together are adjacent in memory.

    The rows of a group are in the order in which the nearest later group reads them, input by input; then come rows
    that only groups further away read, and last the rows that no call reads.
    """
    for group in groups:
        for call in group:
            call.depth = 0
    # From the last reader to the first: each gives its rows ranks before all others, so that the nearest one decides.
    rank = 0
    by_rank = attrgetter("depth")
    for group in reversed(groups):
        if len(group) > 1 and group.__class__ is not Steps:
            group.sort(key=by_rank)
        ends: Any = None
        if group.__class__ is StackCalls:
            columns = [group.rows()]
        elif group.__class__ is Steps:
            columns = [tuple([call.inputs[0] for call in group])]
        else:
            columns = list(zip(*[call.inputs for call in group], strict=False))
        for column in reversed(columns):
            if column[0].__class__ is Value and column[-1].__class__ is Value:
                # Probably two outputs of the same calls, judged by the first and the last: they are ordered already.
                if ends == (column[0].call, column[-1].call):
                    continue
                ends = (column[0].call, column[-1].call)
            for v in reversed(column):
                if v.__class__ is Value:
                    rank -= 1
                    v.call.depth = rank


def _take_needed(calls: list[Call], looked_at: int, targets: list[Call], together: bool) -> list[Call]:
    """Take the pending calls that must run out of the list, and return them: those that `targets` need; `together`
    with them calls of unfinished examples that can run in the same groups. Those groups run anyway.

    Calls before `looked_at` stayed pending in an earlier round. They are looked at again only if one of them is needed
    now, so that a round costs no time for them.
    """
    needed = {c for c in targets if c.group is None}
    waiting = list(needed)
    while waiting:
        for v in waiting.pop().inputs:
            if v.__class__ is Value:
                call = v.call
                if call.group is None and call not in needed:
                    needed.add(call)
                    waiting.append(call)
    begin = min(looked_at, len(calls))
    if sum([c in needed for c in calls[begin:]]) < len(needed):
        begin = 0
    kinds = {id(kind_of(c)) for c in needed} if together else ()
    due: list[Call] = []
    left: list[Call] = []
    for c in calls[begin:]:
        if c not in needed and id(kind_of(c)) in kinds and (c.example is None or not c.example.done):
            if all([v.__class__ is not Value or v.call.group is not None or v.call in needed for v in c.inputs]):
                needed.add(c)
        (due if c in needed else left).append(c)
    calls[begin:] = left
    return due


def _steps_of(levels: list[list[Call]], signature: Any, outs: Sequence[Row], needs: int) -> list[Call] | None:
    """The calls of a chain in order of steps, those of the longest sequence first; None if the levels are no chain,
    because a state is read twice, or read as an input, or is not the whole result, or is detached from it. `needs`: the
    results require gradients never (0), if an input of the call does (1), or always (2)."""
    chains = [[call] for call in levels[0]]
    for number, call in enumerate(levels[0]):
        call.depth = number
    for depth, level in enumerate(levels[1:], 1):
        for call in level:
            inputs = call.inputs
            before = inputs[1].call if inputs[1].__class__ is Value else None
            if before is None or before.signature is not signature:
                return None
            x = inputs[0]
            if x.__class__ is Value and x.call.signature is signature and x.call.group is None:
                return None
            for number, out in enumerate(outs):
                state = inputs[number + 1]
                if state.__class__ is not Value or state.call is not before:
                    return None
                if state.number != number or state.offset or state.row is not out:
                    return None
                if needs and not state.needs_grad and (needs == 2 or _any_needs_grad(before)):
                    return None
            # The scratch space of a call that is not in these levels holds something else.
            at = before.depth
            if at.__class__ is not int or not 0 <= at < len(chains):
                return None
            chain = chains[at]
            if len(chain) != depth or chain[-1] is not before:
                return None
            chain.append(call)
            call.depth = at
    chains.sort(key=len, reverse=True)
    return [chain[depth] for depth, level in enumerate(levels) for chain in chains[: len(level)]]


def _any_needs_grad(call: Call) -> bool:
    return any([v.needs_grad if v.__class__ is Value else v._requires_grad for v in call.inputs])


def _reads_of(calls: list[Call], depth: int) -> set[int]:
    """The depths above 0 of the pending calls that these calls read. Sets their own depth."""
    producers = [v.call for call in calls for v in call.inputs if v.__class__ is Value]
    found = {producer.depth for producer in producers if producer.group is None} - {0}
    for call in calls:
        call.depth = depth
    return found


def _columns_of(calls: list[Call]) -> list[tuple[Any, ...]]:
    """For each input of the calls, its rows."""
    return list(zip(*[c.inputs for c in calls], strict=True))


# ids of rows, offsets (None: all are zero), how many need a gradient, the distance between two ids if that is always
# the same and the offsets are equal, else 0; if it is 0, the addresses; and if all need a gradient, too, the numbers of
# the outputs that they belong to.
Rows = tuple[Array, Array | None, int, int, Array | None, tuple[int, ...] | None]


def _rows_of(values: tuple[Any, ...], addresses: Array, outputs: Array) -> Rows | None:
    """Where the rows of values lie, by tables of the addresses of all rows and of their outputs (-1: none).

    None if not all are values of calls.
    """
    if set(map(type, values)) != {Value}:
        return None
    ids = [v.call.row_id + v.number for v in values]
    offsets = [v.offset for v in values]
    step = ids[1] - ids[0] if len(ids) > 1 else 0
    regular = step > 0 and offsets.count(offsets[0]) == len(ids) and ids == list(range(ids[0], ids[-1] + 1, step))
    needed = [v.needs_grad for v in values].count(True)
    rows: Array = np.array(ids)
    moved = np.array(offsets) if any(offsets) else None
    if regular:
        return rows, moved, needed, step, None, None
    numbers = tuple(sorted(set(outputs[rows].tolist()) - {-1})) if needed == len(values) else None
    return rows, moved, needed, 0, addresses[rows] + (0 if moved is None else moved), numbers


def _how_many(flags: Array) -> int:
    """0 if none of the flags is set, 2 if all are, else 1."""
    return 2 if flags.all() else 1 if flags.any() else 0


def _mark_as_run(calls: list[Call], group: Any, start: int, step: int, live: list[ref[Tensor]]) -> None:
    """The calls have run, as rows of a group from `start` on; references to tensors still held go to `live`."""
    live += [held for call in calls for held in call.handles if held() is not None]
    row_ids = repeat(start) if step == 0 else range(start, start + step * len(calls), step)
    for call, row_id in zip(calls, row_ids, strict=False):
        call.group = group
        call.row_id = row_id
        call.inputs = ()
        call.handles = None


by_depth, one_after_another, reads_of = _by_depth, _one_after_another, _reads_of
steps_of, order_rows = _steps_of, _order_rows
columns_of, rows_of, mark_as_run, take_needed = _columns_of, _rows_of, _mark_as_run, _take_needed
how_many = _how_many
if NATIVE is not None:
    NATIVE.set_up_loops(Call, Value, Steps, StackCalls, Signature)
    by_depth, one_after_another, reads_of = NATIVE.by_depth, NATIVE.one_after_another, NATIVE.reads_of
    steps_of, order_rows = NATIVE.steps_of, NATIVE.order_rows
    columns_of, rows_of = NATIVE.columns_of, NATIVE.rows_of
    how_many = NATIVE.how_many
    mark_as_run, take_needed = NATIVE.mark_as_run, NATIVE.take_needed
