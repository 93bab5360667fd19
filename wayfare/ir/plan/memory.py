"""Memory planning: which buffers may share memory, and one arena for all buffers that live only during a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from wayfare.ir.plan.actions import Action, CopyAction, FillAction, PythonAction, UpdateAction
from wayfare.ir.plan.buffers import Buffer, View, is_contiguous, new_view

# Buffers in the arena start at cache lines. Large ones start at different offsets in their pages: with equal offsets,
# several operands of a loop would compete for the same cache lines.
_LINE, _LARGE, _STAGGER = 64, 32 * 1024, 9 * 64


class Layout:
    """Places every buffer in memory, and adds the copies that are needed at the end."""

    def __init__(self, actions: list[Action]) -> None:
        self.actions = actions
        self.arena_bytes = 0
        self.result_bytes = 0
        self.slot_bytes = 0

    def results(self, wanted: Sequence[View]) -> list[Buffer]:
        """The buffer of each result: that of the value if it can be returned, else a new one, filled by a copy at the
        end."""
        taken: set[Buffer] = set()
        found: list[Buffer] = []
        written = {s.buffer.real for action in self.actions for s in action.writes}
        for view in wanted:
            buffer = view.buffer.real
            if buffer.kind in ("arena", "slot") and buffer not in taken and view.is_whole and buffer in written:
                if buffer.kind == "arena":
                    buffer.kind = "result"
            else:
                own = new_view(view.shape, view.dtype, "result")
                self.actions.append(CopyAction(view, own))
                buffer = own.buffer
            taken.add(buffer)
            found.append(buffer)
        return found

    def writes(self, wanted: Sequence[tuple[View, View]]) -> None:
        """Write values to the memory of inputs: (view of the input, view of the value).

        A value is computed directly into the input if no later action can fail and none reads the old value; else it is
        copied at the end.
        """
        last_python = max([i for i, a in enumerate(self.actions) if isinstance(a, PythonAction)], default=-1)
        readers: dict[Buffer, list[tuple[int, int]]] = {}
        writers: dict[Buffer, list[tuple[int, int]]] = {}
        for i, action in enumerate(self.actions):
            for k, view in enumerate(action.reads):
                readers.setdefault(view.buffer.real, []).append((i, k))
            for k, view in enumerate(action.writes):
                writers.setdefault(view.buffer.real, []).append((i, k))
        wanted = [(target, source) for target, source in wanted if target != source]
        targets = {target.buffer for target, _ in wanted}
        # Sources that are copied at the end are read after all other actions.
        late = {source.buffer.real for _, source in wanted if source.buffer.real.kind != "arena"}
        copies: list[tuple[View, View]] = []
        for target, source in wanted:
            buffer = source.buffer.real
            made = writers.get(buffer, [])
            direct = (
                buffer.kind == "arena" and source.is_whole and is_contiguous(target)
                and source.dtype == target.dtype and target.buffer not in late and bool(made)
                and min(i for i, _ in made) > last_python
            )  # fmt: skip
            if direct:
                first, output = min(made)
                for i, k in readers.get(target.buffer, ()):
                    alone = i == first and len(made) == 1 and self._in_place(i, k, output, target)
                    direct = direct and (i < first or alone)
            if direct:
                buffer.become(target.buffer)
            else:
                copies.append((target, source))
        kept: dict[View, View] = {}
        for _, source in copies:
            if source.buffer.real in targets and source not in kept:
                # The source is an input that is written itself: save its old values first.
                kept[source] = new_view(source.shape, source.dtype)
                self.actions.append(CopyAction(source, kept[source]))
        for target, source in copies:
            self.actions.append(CopyAction(kept.get(source, source), target))

    def _in_place(self, i: int, read: int, write: int, target: View) -> bool:
        """Does an action read the input element by element, where it would write it?"""
        action = self.actions[i]
        if not action.may_overwrite(read, write):
            return False
        return isinstance(action, UpdateAction) or action.reads[read].offset == 0

    # -- the arena

    def lay_out(self, results: Sequence[Buffer]) -> None:
        """Merge buffers of outputs with those of inputs, then place all buffers in the arena. Results are not freed."""
        self._spans()
        for buffer in results:
            buffer.real.last = len(self.actions)
        for i, action in enumerate(self.actions):
            self._overwrite(i, action)
        self._allocate()

    def _spans(self) -> None:
        for i, action in enumerate(self.actions):
            for view in (*action.reads, *action.writes):
                buffer = view.buffer.real
                buffer.first, buffer.last = min(buffer.first, i), max(buffer.last, i)

    def _overwrite(self, i: int, action: Action) -> None:
        """Let outputs reuse the buffers of inputs that are not needed any more."""
        taken: set[Buffer] = set()
        ways = _ways(action)
        for write, out in enumerate(action.writes):
            own = out.buffer.real
            if own.kind != "arena" or own.first != i or out.buffer.bytes != own.bytes:
                continue
            for read in action.overwritable(write):
                view = action.reads[read]
                old = view.buffer.real
                if (
                    old.kind == "arena" and old is not own and old.last == i and old not in taken
                    and old.bytes == own.bytes and view.offset == 0 and out.offset == 0
                    and action.may_overwrite(read, write) and len(ways[old]) == 1
                ):  # fmt: skip
                    own.become(old)
                    old.last = own.last
                    taken.add(old)
                    break

    def _allocate(self) -> None:
        inside: list[Buffer] = []
        results: list[Buffer] = []
        changes = [0] * (len(self.actions) + 2)
        seen: set[Buffer] = set()
        for action in self.actions:
            for view in (*action.reads, *action.writes):
                buffer = view.buffer.real
                if buffer in seen:
                    continue
                seen.add(buffer)
                if buffer.kind == "arena":
                    inside.append(buffer)
                elif buffer.kind == "slot":
                    changes[int(buffer.first)] += buffer.bytes
                    changes[int(buffer.last) + 1] -= buffer.bytes
                elif buffer.kind == "result":
                    self.result_bytes += buffer.bytes
                    results.append(buffer)
        self.arena_bytes = _pack(_reuse_results(inside, results))
        self.slot_bytes = max(accumulate(changes))


def with_zeros(actions: list[Action], needed: Sequence[View]) -> list[Action]:
    """Fill arrays that their parts do not cover with zeros, before the first part is written."""
    first: dict[Buffer, int] = {}
    for i, action in enumerate(actions):
        for view in action.writes:
            first.setdefault(view.buffer.real, i)
    early: dict[int, list[Action]] = {}
    for view in needed:
        early.setdefault(first.get(view.buffer.real, len(actions)), []).append(FillAction(view))
    made: list[Action] = []
    for i, action in enumerate(actions):
        made += early.get(i, [])
        made.append(action)
    return made + early.get(len(actions), [])


def _ways(action: Action) -> dict[Buffer, set[tuple[int, tuple[int, ...]]]]:
    """The different (offset, strides) with which an action reads each buffer."""
    found: dict[Buffer, set[tuple[int, tuple[int, ...]]]] = {}
    for view in action.reads:
        found.setdefault(view.buffer.real, set()).add((view.offset, view.strides))
    return found


def _room(size: int) -> int:
    """The size rounded up to cache lines; with an extra offset for large buffers."""
    lines = max(1, -(-size // _LINE)) * _LINE
    return lines + _STAGGER if size >= _LARGE else lines


class _Region:
    """A region of memory, and the buffers that were placed in it."""

    def __init__(self, most: int) -> None:
        # For each buffer, lowest first: first action, last action, first byte, end.
        self._pieces = np.zeros((4, most), np.int64)
        self._count = 0

    def allocate(self, buffer: Buffer, limit: float = math.inf) -> bool:
        """Place a buffer at the lowest offset that is free during its lifetime; False if that exceeds the limit."""
        count, size = self._count, _room(buffer.bytes)
        first, last, start, end = self._pieces[:, :count]
        alive = (first <= buffer.last) & (last >= buffer.first)
        # Candidate offsets: the ends of all buffers alive at the same time.
        free_from = np.concatenate([[0], np.maximum.accumulate(end[alive])])
        fits = start[alive] - free_from[:-1] >= size
        at = int(free_from[int(fits.argmax()) if fits.any() else -1])
        if at + buffer.bytes > limit:
            return False
        buffer.offset = at
        new = int(np.searchsorted(start, at))
        self._pieces[:, new + 1 : count + 1] = self._pieces[:, new:count]
        self._pieces[:, new] = buffer.first, buffer.last, at, at + size
        self._count += 1
        return True

    @property
    def bytes(self) -> int:
        """How far it reaches."""
        return int(self._pieces[3].max(initial=0))


def _reuse_results(buffers: list[Buffer], results: list[Buffer]) -> list[Buffer]:
    """Place large buffers in the memory of results that are not written yet, the longest-lived first. Returns the
    others."""
    large = sorted([r for r in results if r.bytes >= _LARGE], key=lambda r: (r.bytes, r.first))
    hosts = [(r, _Region(len(buffers))) for r in large]
    left = []
    for buffer in sorted(buffers, key=lambda m: (m.first - m.last, m.first)):
        if buffer.bytes >= _LARGE:
            for result, region in hosts:
                if buffer.last < result.first and region.allocate(buffer, result.bytes):
                    buffer.host = result
                    break
        if buffer.host is None:
            left.append(buffer)
    return left


def _pack(buffers: list[Buffer]) -> int:
    """Place buffers in the arena, the largest first, each as low as possible. Returns the size of the arena."""
    region = _Region(len(buffers))
    for buffer in sorted(buffers, key=lambda m: (-m.bytes, m.first)):
        region.allocate(buffer)
    return region.bytes
