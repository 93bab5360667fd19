"""The memory of a plan: what may lie where something else lies, and one arena for all that lives only during a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from wayfare.ir.plan.actions import Action, CopyAction, FillAction, PythonAction, UpdateAction
from wayfare.ir.plan.buffers import Memory, Seat, fresh, is_row_after_row

# Pieces of the arena begin on lines of the cache, and large ones at different places in their pages: equal places of
# several operands would fall onto the same lines.
_LINE, _LARGE, _STAGGER = 64, 32 * 1024, 9 * 64


class Layout:
    """Decides where every piece of memory lies, and adds the copies that are needed at the end."""

    def __init__(self, actions: list[Action]) -> None:
        self.actions = actions
        self.arena_bytes = 0
        self.result_bytes = 0
        self.slot_bytes = 0

    def results(self, wanted: Sequence[Seat]) -> list[Memory]:
        """The memory of each result: its own, filled by what computes it, or by a copy at the end."""
        taken: set[Memory] = set()
        found: list[Memory] = []
        written = {s.memory.real for action in self.actions for s in action.writes}
        for seat in wanted:
            memory = seat.memory.real
            if memory.kind in ("arena", "slot") and memory not in taken and seat.is_whole and memory in written:
                if memory.kind == "arena":
                    memory.kind = "result"
            else:
                own = fresh(seat.shape, seat.dtype, "result")
                self.actions.append(CopyAction(seat, own))
                memory = own.memory
            taken.add(memory)
            found.append(memory)
        return found

    def writes(self, wanted: Sequence[tuple[Seat, Seat]]) -> None:
        """The memory of inputs gets new values: (the input's seat, the value's).

        A value is computed straight into its place if nothing can fail any more from there on and nobody reads what was
        there before; else it is copied at the end.
        """
        last_python = max([i for i, a in enumerate(self.actions) if isinstance(a, PythonAction)], default=-1)
        readers: dict[Memory, list[tuple[int, int]]] = {}
        writers: dict[Memory, list[tuple[int, int]]] = {}
        for i, action in enumerate(self.actions):
            for k, seat in enumerate(action.reads):
                readers.setdefault(seat.memory.real, []).append((i, k))
            for k, seat in enumerate(action.writes):
                writers.setdefault(seat.memory.real, []).append((i, k))
        wanted = [(target, source) for target, source in wanted if target != source]
        targets = {target.memory for target, _ in wanted}
        # What is copied at the end reads its source as the last thing of all.
        late = {source.memory.real for _, source in wanted if source.memory.real.kind != "arena"}
        copies: list[tuple[Seat, Seat]] = []
        for target, source in wanted:
            memory = source.memory.real
            made = writers.get(memory, [])
            direct = (
                memory.kind == "arena" and source.is_whole and is_row_after_row(target)
                and source.dtype == target.dtype and target.memory not in late and bool(made)
                and min(i for i, _ in made) > last_python
            )  # fmt: skip
            if direct:
                first, output = min(made)
                for i, k in readers.get(target.memory, ()):
                    alone = i == first and len(made) == 1 and self._same_place(i, k, output, target)
                    direct = direct and (i < first or alone)
            if direct:
                memory.become(target.memory)
            else:
                copies.append((target, source))
        kept: dict[Seat, Seat] = {}
        for _, source in copies:
            if source.memory.real in targets and source not in kept:
                # An input that is written itself: its old values are put aside first.
                kept[source] = fresh(source.shape, source.dtype)
                self.actions.append(CopyAction(source, kept[source]))
        for target, source in copies:
            self.actions.append(CopyAction(kept.get(source, source), target))

    def _same_place(self, i: int, read: int, write: int, target: Seat) -> bool:
        """Does an action read the input just where it would write it, element by element?"""
        action = self.actions[i]
        if not action.may_overwrite(read, write):
            return False
        return isinstance(action, UpdateAction) or action.reads[read].offset == 0

    # -- the arena

    def lay_out(self, results: Sequence[Memory]) -> None:
        """Find who may overwrite whom, then places in the arena; results are kept."""
        self._spans()
        for memory in results:
            memory.real.last = len(self.actions)
        for i, action in enumerate(self.actions):
            self._overwrite(i, action)
        self._allocate()

    def _spans(self) -> None:
        for i, action in enumerate(self.actions):
            for seat in (*action.reads, *action.writes):
                memory = seat.memory.real
                memory.first, memory.last = min(memory.first, i), max(memory.last, i)

    def _overwrite(self, i: int, action: Action) -> None:
        """Let outputs take the memory of inputs that are not needed any more."""
        taken: set[Memory] = set()
        ways = _ways(action)
        for write, out in enumerate(action.writes):
            own = out.memory.real
            if own.kind != "arena" or own.first != i or out.memory.bytes != own.bytes:
                continue
            for read in action.overwritable(write):
                seat = action.reads[read]
                old = seat.memory.real
                if (
                    old.kind == "arena" and old is not own and old.last == i and old not in taken
                    and old.bytes == own.bytes and seat.offset == 0 and out.offset == 0
                    and action.may_overwrite(read, write) and len(ways[old]) == 1
                ):  # fmt: skip
                    own.become(old)
                    old.last = own.last
                    taken.add(old)
                    break

    def _allocate(self) -> None:
        inside: list[Memory] = []
        results: list[Memory] = []
        changes = [0] * (len(self.actions) + 2)
        seen: set[Memory] = set()
        for action in self.actions:
            for seat in (*action.reads, *action.writes):
                memory = seat.memory.real
                if memory in seen:
                    continue
                seen.add(memory)
                if memory.kind == "arena":
                    inside.append(memory)
                elif memory.kind == "slot":
                    changes[int(memory.first)] += memory.bytes
                    changes[int(memory.last) + 1] -= memory.bytes
                elif memory.kind == "result":
                    self.result_bytes += memory.bytes
                    results.append(memory)
        self.arena_bytes = _pack(_lodge(inside, results))
        self.slot_bytes = max(accumulate(changes))


def with_zeros(actions: list[Action], needed: Sequence[Seat]) -> list[Action]:
    """Fill arrays whose parts do not cover them with zeros, before the first part is written."""
    first: dict[Memory, int] = {}
    for i, action in enumerate(actions):
        for seat in action.writes:
            first.setdefault(seat.memory.real, i)
    early: dict[int, list[Action]] = {}
    for seat in needed:
        early.setdefault(first.get(seat.memory.real, len(actions)), []).append(FillAction(seat))
    made: list[Action] = []
    for i, action in enumerate(actions):
        made += early.get(i, [])
        made.append(action)
    return made + early.get(len(actions), [])


def _ways(action: Action) -> dict[Memory, set[tuple[int, tuple[int, ...]]]]:
    """In which ways an action looks at each memory."""
    found: dict[Memory, set[tuple[int, tuple[int, ...]]]] = {}
    for seat in action.reads:
        found.setdefault(seat.memory.real, set()).add((seat.offset, seat.strides))
    return found


def _room(size: int) -> int:
    """Whole lines of the cache; large pieces begin at different places in their pages."""
    lines = max(1, -(-size // _LINE)) * _LINE
    return lines + _STAGGER if size >= _LARGE else lines


class _Region:
    """A stretch of memory, and what lies in it at which time."""

    def __init__(self, most: int) -> None:
        # Of each piece, from the lowest up: its first and last action, its first byte and the one behind it.
        self._pieces = np.zeros((4, most), np.int64)
        self._count = 0

    def place(self, memory: Memory, limit: float = math.inf) -> bool:
        """Find the lowest place that is free as long as some memory lives; False where that is beyond the limit."""
        count, size = self._count, _room(memory.bytes)
        first, last, start, end = self._pieces[:, :count]
        alive = (first <= memory.last) & (last >= memory.first)
        # Where the pieces before each one end, and behind all of them: the places that may be free.
        free_from = np.concatenate([[0], np.maximum.accumulate(end[alive])])
        fits = start[alive] - free_from[:-1] >= size
        at = int(free_from[int(fits.argmax()) if fits.any() else -1])
        if at + memory.bytes > limit:
            return False
        memory.offset = at
        new = int(np.searchsorted(start, at))
        self._pieces[:, new + 1 : count + 1] = self._pieces[:, new:count]
        self._pieces[:, new] = memory.first, memory.last, at, at + size
        self._count += 1
        return True

    @property
    def bytes(self) -> int:
        """How far it reaches."""
        return int(self._pieces[3].max(initial=0))


def _lodge(memories: list[Memory], results: list[Memory]) -> list[Memory]:
    """Put what it can hold into the memory of results that are not written yet, the longest-lived first; the others."""
    large = sorted([r for r in results if r.bytes >= _LARGE], key=lambda r: (r.bytes, r.first))
    hosts = [(r, _Region(len(memories))) for r in large]
    left = []
    for memory in sorted(memories, key=lambda m: (m.first - m.last, m.first)):
        if memory.bytes >= _LARGE:
            for result, region in hosts:
                if memory.last < result.first and region.place(memory, result.bytes):
                    memory.host = result
                    break
        if memory.host is None:
            left.append(memory)
    return left


def _pack(memories: list[Memory]) -> int:
    """Give each a place in one array, the largest first, each as low as those allow that live at the same time;
    how many bytes that takes."""
    region = _Region(len(memories))
    for memory in sorted(memories, key=lambda m: (-m.bytes, m.first)):
        region.place(memory)
    return region.bytes
