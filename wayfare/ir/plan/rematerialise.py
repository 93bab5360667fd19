"""Rematerialisation: cheap values are freed after their first use and computed again for the next, if that lowers the
peak memory of a run.

Either a loop over stored values computes the value (the output of a normalisation from its input and statistics), or
the action that made it runs again: a small matmul, or a loop and the matmuls before it (the weights of attention).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from wayfare.ir.fuse.partition import Group, Partition
from wayfare.ir.graph import Value
from wayfare.ir.lower import is_along_rows
from wayfare.ir.plan.actions import Action, KernelAction, MatmulAction, UpdateAction
from wayfare.ir.plan.buffers import Buffer, View

# The share of a run's time that may be spent on it.
_BUDGET = 0.04
# Rough times in nanoseconds: one multiplication of a matmul, one element of a loop, one addition in a loop.
_MULTIPLY, _ELEMENT, _ADD = 0.02, 0.5, 0.02
# An input that is this many times smaller may be kept longer for it.
_SMALL = 16

Bytes = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass
class Use:
    """The actions that write and read a buffer."""

    writes: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The last action that uses it."""
        return max([*self.writes[-1:], *self.reads[-1:]])


@dataclass
class Choice:
    """A value that may be rematerialised: the actions between which it is freed, the cost, and how it is made."""

    buffer: Buffer
    gone: int
    back: int
    work: float
    needs: list[Buffer]
    make: Callable[[Buffer], list[Action]]


class Rematerialisation:
    """Chooses values to rematerialise, and adds the actions for it."""

    def __init__(
        self, actions: Sequence[Action], values: dict[Buffer, Value], kept: set[Buffer], partition: Partition,
        kernel: Callable[[Group, Value, View], KernelAction], view_of: Callable[[Value], View], worth: int,
    ) -> None:  # fmt: skip
        """`worth`: the smallest buffer that is worth it, in bytes."""
        self._worth = worth
        self._actions = list(actions)
        self._values, self._kept, self._partition = values, kept, partition
        self._kernel, self._view_of = kernel, view_of
        self._stored = partition.stores()
        self._uses: dict[Buffer, Use] = {}
        for i, action in enumerate(self._actions):
            for view in action.reads:
                self._use(view).reads.append(i)
            for view in action.writes:
                self._use(view).writes.append(i)

    def _use(self, view: View) -> Use:
        return self._uses.setdefault(view.buffer.real, Use())

    def actions(self) -> list[Action]:
        """The actions, including those that rematerialise values."""
        before: dict[int, list[Action]] = {}
        moved: list[tuple[int, Buffer, Buffer]] = []
        # In the order in which they were first made: one may be computed from another.
        for choice in sorted(self._choose(), key=lambda c: self._made_at(c.buffer)):
            own = Buffer("arena", choice.buffer.bytes)
            before.setdefault(choice.back, []).extend(choice.make(own))
            moved.append((choice.back, choice.buffer, own))
        made: list[Action] = []
        moved.sort(key=lambda move: move[0], reverse=True)
        now: dict[Buffer, Buffer] = {}
        for i, action in enumerate(self._actions):
            while moved and moved[-1][0] <= i:
                _, old, new = moved.pop()
                now[old] = new
            made += [_reading(a, now) for a in (*before.get(i, ()), action)]
        return made

    def _made_at(self, buffer: Buffer) -> tuple[int, int]:
        """When a value is first made: the number of its action, and its order in that action."""
        v = self._values.get(buffer)
        return self._uses[buffer].writes[0], -1 if v is None else v.step.born

    # -- choosing

    def _choose(self) -> list[Choice]:
        live = self._live()
        budget = _BUDGET * sum(map(_work, self._actions))
        choices = {buffer: c for buffer in self._uses if (c := self._choice(buffer)) is not None}
        taken: dict[Buffer, Choice] = {}
        while choices:
            peak = int(live.argmax())
            fits = [c for c in choices.values() if c.gone < peak < c.back and c.work <= budget]
            if not fits:
                break
            best = min(fits, key=lambda c: (c.work / c.buffer.bytes, c.gone))
            del choices[best.buffer]
            budget -= best.work
            live[best.gone + 1 : best.back] -= best.buffer.bytes
            taken[best.buffer] = best
            for earlier in _bring_back(best, taken, live):
                for c in [choices[buffer] for buffer in earlier.needs if buffer in choices]:
                    if earlier.back > c.gone:
                        c.back = min(c.back, earlier.back)
        chosen = list(taken.values())
        # Drop choices that did not lower the peak.
        for choice in reversed(list(chosen)):
            other_way = live.copy()
            other_way[choice.gone + 1 : choice.back] += choice.buffer.bytes
            if other_way.max() <= live.max():
                live = other_way
                chosen.remove(choice)
        return chosen

    def _live(self) -> Bytes:
        """The bytes in use at each action."""
        change = np.zeros(len(self._actions) + 1, np.int64)
        for buffer, use in self._uses.items():
            # An update overwrites the old values.
            made = use.writes and not isinstance(self._actions[use.writes[0]], UpdateAction)
            if made and buffer.kind in ("arena", "slot"):
                change[use.writes[0]] += buffer.bytes
                if buffer not in self._kept:
                    change[use.last + 1] -= buffer.bytes
        live = change.cumsum()
        for i, action in enumerate(self._actions):
            live[i] -= self._overwritten(i, action)
        return live

    def _overwritten(self, i: int, action: Action) -> int:
        """The bytes of inputs that outputs may overwrite."""
        found, taken = 0, set()
        for write, out in enumerate(action.writes):
            own = out.buffer.real
            if own.kind != "arena" or self._uses[own].writes[0] != i:
                continue
            for read in action.overwritable(write):
                old = action.reads[read].buffer.real
                if (
                    old.kind == "arena" and old is not own and old not in taken and old.bytes == own.bytes
                    and self._uses[old].last == i and old not in self._kept and action.may_overwrite(read, write)
                ):  # fmt: skip
                    taken.add(old)
                    found += old.bytes
                    break
        return found

    def _choice(self, buffer: Buffer) -> Choice | None:
        use = self._uses[buffer]
        if buffer.bytes < self._worth or buffer.kind != "arena" or buffer in self._kept or len(use.writes) != 1:
            return None
        gone, back = max(pairwise([*use.writes, *use.reads]), key=lambda pair: pair[1] - pair[0], default=(0, 0))
        (view,) = [s for s in self._actions[use.writes[0]].writes if s.buffer.real is buffer]
        if back - gone < 2 or math.prod(view.shape) * view.dtype.itemsize != buffer.bytes:
            return None
        return self._from_kept(buffer, gone, back) or self._as_before(buffer, gone, back)

    def _there(self, buffer: Buffer, of: Buffer, at: int) -> bool:
        """Is an input of `of` still unchanged at an action, or small enough to be kept until then?"""
        if buffer.kind in ("input", "constant"):
            return True
        use = self._uses.get(buffer)
        if use is None or not use.writes or use.writes[-1] > self._uses[of].writes[0]:
            return False
        return use.last >= at or buffer in self._kept or buffer.bytes * _SMALL <= of.bytes

    # -- how to rematerialise

    def _from_kept(self, buffer: Buffer, gone: int, back: int) -> Choice | None:
        """With a loop over stored values."""
        v = self._values.get(buffer)
        if v is None:
            return None
        home = self._partition.order[self._partition.home[v]]
        assert isinstance(home, Group)
        if math.prod(home.shape) != math.prod(v.shape):
            return None  # one element for each row: the loop would write it once per element
        group = Group(home.position, home.shape)
        work = math.prod(group.shape) * (_ELEMENT + _ADD * self._chained(v, home, group))
        needs = [self._view_of(r).buffer.real for r, _ in group.reads]
        if math.isinf(work) or not all(self._there(m, buffer, back) for m in needs):
            return None
        view = self._view_of(v)
        return Choice(buffer, gone, back, work, needs, lambda own: [self._kernel(group, v, _moved(view, own))])

    def _chained(self, v: Value, home: Group, group: Group) -> float:
        """Add a value and its inputs, down to stored values, to a group. Returns the cost; infinity if that is
        impossible."""
        inputs = self._partition.inputs_in(home, v)
        group.add(v, home.maps[v], inputs)
        if is_along_rows(v.step):
            return math.inf
        cost = self._partition.cost[v]
        for r, own in inputs:
            if home.has(r, own) and r not in self._stored and r not in group.maps:
                cost += self._chained(r, home, group)
        return cost

    def _as_before(self, buffer: Buffer, gone: int, back: int) -> Choice | None:
        """By running its action again, and the matmuls that it reads if they are freed."""
        maker = self._actions[self._uses[buffer].writes[0]]
        repeated: list[tuple[Buffer, Action]] = []
        needs: list[Buffer] = []
        for read in dict.fromkeys(s.buffer.real for s in maker.reads):
            if self._there(read, buffer, back):
                needs.append(read)
                continue
            before = self._uses[read].writes
            matmul = self._actions[before[0]] if len(before) == 1 else maker
            sources = [s.buffer.real for s in matmul.reads]
            if matmul is maker or not _is_matmul(matmul) or not all(self._there(m, read, back) for m in sources):
                return None
            needs += sources
            repeated.append((read, matmul))
        if len(maker.writes) != 1 or not (isinstance(maker, KernelAction) or _is_matmul(maker)):
            return None
        repeated.append((buffer, maker))

        def make(own: Buffer) -> list[Action]:
            now = {old: Buffer("arena", old.bytes) for old, _ in repeated} | {buffer: own}
            return [_copied(action, now) for _, action in repeated]

        return Choice(buffer, gone, back, sum(_work(a) for _, a in repeated), needs, make)


def _bring_back(choice: Choice, taken: dict[Buffer, Choice], live: Bytes) -> list[Choice]:
    """Let the inputs of a value, and their inputs, be back as early as the value. Returns all that moved."""
    earlier = [choice]
    for choice in earlier:
        for other in [taken[buffer] for buffer in choice.needs if buffer in taken]:
            if other.gone < choice.back < other.back:
                live[choice.back : other.back] += other.buffer.bytes
                other.back = choice.back
                earlier.append(other)
    return earlier


def _is_matmul(action: Action) -> bool:
    return isinstance(action, MatmulAction) and not action.add


def _moved(view: View, buffer: Buffer) -> View:
    return replace(view, buffer=buffer)


def _all_moved(views: Sequence[View], now: dict[Buffer, Buffer]) -> list[View]:
    return [_moved(s, now[s.buffer.real]) if s.buffer.real in now else s for s in views]


def _reading(action: Action, now: dict[Buffer, Buffer]) -> Action:
    """The action with its inputs in their current buffers."""
    if not any(s.buffer.real in now for s in action.reads):
        return action
    if isinstance(action, MatmulAction):
        a, b = _all_moved(action.reads, now)
        return MatmulAction(a, b, action.writes[0], action.add)
    action.reads = _all_moved(action.reads, now)
    return action


def _copied(action: Action, now: dict[Buffer, Buffer]) -> Action:
    """A copy of the action that uses other buffers."""
    reads, writes = _all_moved(action.reads, now), _all_moved(action.writes, now)
    if isinstance(action, KernelAction):
        return KernelAction(action.kernel, action.shape, action.axes, reads, writes)
    return MatmulAction(reads[0], reads[1], writes[0], False)


def _work(action: Action) -> float:
    """A rough time of an action on one thread, in nanoseconds."""
    if isinstance(action, MatmulAction):
        a, _, out = action.sides
        return math.prod(out.shape) * a.shape[-1] * _MULTIPLY
    sizes = [math.prod(s.shape) for s in (*action.reads, *action.writes)]
    return _ELEMENT * max(sizes, default=0)
