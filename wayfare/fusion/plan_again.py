"""Values that are computed again: cheap ones are not kept from the first time they are read to the second, where that
is what a run needs the most memory for.

Either a loop over what is kept anyway gives the value (the output of a normalisation from its input and statistics), or
the loop that made it runs again, and the product before it (the weights of attention from queries and keys).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from wayfare.fusion.lower import ALONG
from wayfare.fusion.partition import Group, Partition
from wayfare.fusion.plan_actions import Action, KernelAction, ProductAction
from wayfare.fusion.plan_places import Memory, Seat, fresh
from wayfare.fusion.trace import Value

# The share of a run's time that may be spent on it; and bytes from which on one value is worth it.
_BUDGET, _WORTH = 0.03, 256 * 1024
# Nanoseconds, about: of one multiplication of a product, of one element of a loop, of one addition to each element.
_MULTIPLY, _ELEMENT, _ADD = 0.02, 0.5, 0.02
# Something this much smaller may be kept longer for it.
_SMALL = 16


@dataclass
class Use:
    """When some memory is written and read."""

    writes: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The last action that has to do with it."""
        return max([*self.writes[-1:], *self.reads[-1:]])


@dataclass
class Choice:
    """A value that might be computed again: between which actions it is away, what that takes, and how it is done."""

    memory: Memory
    gone: int
    back: int
    work: float
    needs: list[Memory]
    make: Callable[[Seat], list[Action]]


class Again:
    """Finds what to compute again in a list of actions, and does so."""

    def __init__(
        self, actions: Sequence[Action], values: dict[Memory, Value], kept: set[Memory], partition: Partition,
        kernel: Callable[[Group, Value, Seat], KernelAction], seat_of: Callable[[Value], Seat],
    ) -> None:  # fmt: skip
        self._actions = list(actions)
        self._values, self._kept, self._partition = values, kept, partition
        self._kernel, self._seat_of = kernel, seat_of
        self._stored = partition.stores()
        self._uses: dict[Memory, Use] = {}
        for i, action in enumerate(self._actions):
            for seat in action.reads:
                self._use(seat).reads.append(i)
            for seat in action.writes:
                self._use(seat).writes.append(i)

    def _use(self, seat: Seat) -> Use:
        return self._uses.setdefault(seat.memory.real, Use())

    def actions(self) -> list[Action]:
        """The actions, with those that compute something again."""
        chosen = self._choose()
        before: dict[int, list[Action]] = {}
        replaced: list[tuple[Memory, int, Seat]] = []
        for choice in chosen:
            seat = self._seat_of(self._values[choice.memory])
            own = fresh(seat.shape, seat.dtype)
            before.setdefault(choice.back, []).extend(choice.make(own))
            replaced.append((choice.memory, choice.back, own))
        made: list[Action] = []
        for i, action in enumerate(self._actions):
            made += before.get(i, [])
            for memory, since, own in replaced:
                if i >= since and any(s.memory.real is memory for s in action.reads):
                    action = _reading(action, memory, own.memory)
            made.append(action)
        return made

    # -- choosing

    def _choose(self) -> list[Choice]:
        live = self._live()
        budget = _BUDGET * sum(map(_work, self._actions))
        choices = [c for memory, v in self._values.items() if (c := self._choice(memory, v)) is not None]
        chosen: list[Choice] = []
        while choices:
            peak = int(live.argmax())
            fits = [c for c in choices if c.gone < peak < c.back and c.work <= budget and _free(c, chosen)]
            if not fits:
                break
            best = min(fits, key=lambda c: (c.work / c.memory.bytes, c.gone))
            choices.remove(best)
            chosen.append(best)
            budget -= best.work
            live[best.gone + 1 : best.back] -= best.memory.bytes
        # What came to nothing because the peak stayed elsewhere.
        for choice in reversed(list(chosen)):
            other = live.copy()
            other[choice.gone + 1 : choice.back] += choice.memory.bytes
            if other.max() <= live.max():
                live = other
                chosen.remove(choice)
        return chosen

    def _live(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The bytes in use at each action; results from when they are written."""
        change = np.zeros(len(self._actions) + 1, np.int64)
        for memory, use in self._uses.items():
            if memory.kind in ("arena", "slot") and use.writes:
                change[use.writes[0]] += memory.bytes
                if memory not in self._kept:
                    change[use.last + 1] -= memory.bytes
        live = change.cumsum()
        for i, action in enumerate(self._actions):
            live[i] -= self._overwritten(i, action)
        return live

    def _overwritten(self, i: int, action: Action) -> int:
        """Bytes of inputs that outputs may take over."""
        found, taken = 0, set()
        for write, out in enumerate(action.writes):
            own = out.memory.real
            if own.kind != "arena" or self._uses[own].writes[0] != i:
                continue
            for read, seat in enumerate(action.reads):
                old = seat.memory.real
                if (
                    old.kind == "arena" and old is not own and old not in taken and old.bytes == own.bytes
                    and self._uses[old].last == i and old not in self._kept and action.may_overwrite(read, write)
                ):  # fmt: skip
                    taken.add(old)
                    found += old.bytes
                    break
        return found

    def _choice(self, memory: Memory, v: Value) -> Choice | None:
        use = self._uses[memory]
        if memory.bytes < _WORTH or memory.kind != "arena" or memory in self._kept or len(use.writes) != 1:
            return None
        moments = [*use.writes, *use.reads]
        if len(moments) < 2 or not self._seat_of(v).is_whole:
            return None
        gone, back = max(pairwise(moments), key=lambda pair: pair[1] - pair[0])
        if back - gone < 2:
            return None
        return self._from_kept(memory, v, gone, back) or self._as_before(memory, use.writes[0], gone, back)

    # -- ways of computing something again

    def _there(self, memory: Memory, at: int, instead_of: int) -> bool:
        """Is some memory there at an action, or small enough to be kept until then?"""
        if memory.kind in ("input", "constant"):
            return True
        use = self._uses.get(memory)
        if use is None or not use.writes or use.writes[-1] >= at:
            return False
        return use.last >= at or memory in self._kept or memory.bytes * _SMALL <= instead_of

    def _from_kept(self, memory: Memory, v: Value, gone: int, back: int) -> Choice | None:
        """By a loop over what is stored."""
        home = self._partition.order[self._partition.home[v]]
        assert isinstance(home, Group)
        group = Group(home.position, home.shape)
        work = math.prod(group.shape) * (_ELEMENT + _ADD * self._chained(v, home, group))
        needs = [self._seat_of(r).memory.real for r, _ in group.reads]
        if math.isinf(work) or not all(self._there(m, back, memory.bytes) for m in needs):
            return None
        return Choice(memory, gone, back, work, needs, lambda own: [self._kernel(group, v, own)])

    def _chained(self, v: Value, home: Group, group: Group) -> float:
        """Enter a value and what it is made of, down to what is stored; its cost, infinity where that does not go."""
        inputs = self._partition.inputs_in(home, v)
        group.add(v, home.maps[v], inputs)
        if v.step.name in ALONG:
            return math.inf
        cost = self._partition.cost[v]
        for r, own in inputs:
            if home.has(r, own) and r not in self._stored and r not in group.maps:
                cost += self._chained(r, home, group)
        return cost

    def _as_before(self, memory: Memory, at: int, gone: int, back: int) -> Choice | None:
        """By the loop that made it, and the products it reads that are not there any more."""
        kernel = self._actions[at]
        if not isinstance(kernel, KernelAction) or len(kernel.writes) != 1:
            return None
        again: dict[Memory, ProductAction] = {}
        needs: list[Memory] = []
        for seat in kernel.reads:
            read = seat.memory.real
            if self._there(read, back, memory.bytes):
                needs.append(read)
                continue
            product = self._actions[self._uses[read].writes[0]] if self._uses[read].writes else None
            if not isinstance(product, ProductAction) or len(self._uses[read].writes) != 1 or product.add:
                return None
            sources = [s.memory.real for s in product.reads]
            if not all(self._there(m, back, memory.bytes) for m in sources):
                return None
            needs += sources
            again[read] = product

        def make(own: Seat) -> list[Action]:
            made: list[Action] = []
            reads = list(kernel.reads)
            for read, product in again.items():
                (out,) = product.writes
                copy = Memory("arena", read.bytes)
                made.append(ProductAction(product.reads[0], product.reads[1], _moved(out, copy), False))
                reads = [_moved(s, copy) if s.memory.real is read else s for s in reads]
            out = _moved(kernel.writes[0], own.memory)
            return [*made, KernelAction(kernel.kernel, kernel.shape, kernel.axes, reads, [out])]

        work = _work(kernel) + sum(map(_work, again.values()))
        return Choice(memory, gone, back, work, needs, make)


def _free(choice: Choice, chosen: Sequence[Choice]) -> bool:
    """Does a choice need nothing that is to be away, and is it nothing that others need?"""
    away, needed = {c.memory for c in chosen}, {m for c in chosen for m in c.needs}
    return away.isdisjoint(choice.needs) and choice.memory not in needed


def _moved(seat: Seat, memory: Memory) -> Seat:
    return replace(seat, memory=memory)


def _reading(action: Action, old: Memory, new: Memory) -> Action:
    """The same action with its input elsewhere."""
    reads = [_moved(s, new) if s.memory.real is old else s for s in action.reads]
    if isinstance(action, ProductAction):
        return ProductAction(reads[0], reads[1], action.writes[0], action.add)
    action.reads = reads
    return action


def _work(action: Action) -> float:
    """Nanoseconds of one thread, about."""
    if isinstance(action, ProductAction):
        a, _, out = action.sides
        return math.prod(out.shape) * a.shape[-1] * _MULTIPLY
    sizes = [math.prod(s.shape) for s in (*action.reads, *action.writes)]
    return _ELEMENT * max(sizes, default=0)
