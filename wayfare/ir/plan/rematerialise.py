"""Values that are computed again: cheap ones are not kept from the first time they are read to the second, where that
is what a run needs the most memory for.

Either a loop over what is kept anyway gives the value (the output of a normalisation from its input and statistics), or
what made it runs again: a small product, or a loop and the products before it (the weights of attention).
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
from wayfare.ir.plan.actions import Action, KernelAction, ProductAction, UpdateAction
from wayfare.ir.plan.buffers import Memory, Seat

# The share of a run's time that may be spent on it; and bytes from which on one value is worth it.
_BUDGET, _WORTH = 0.03, 256 * 1024
# Nanoseconds, about: of one multiplication of a product, of one element of a loop, of one addition to each element.
_MULTIPLY, _ELEMENT, _ADD = 0.02, 0.5, 0.02
# Something this much smaller may be kept longer for it.
_SMALL = 16

Bytes = np.ndarray[tuple[int], np.dtype[np.int64]]


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
    make: Callable[[Memory], list[Action]]


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
        before: dict[int, list[Action]] = {}
        moved: list[tuple[int, Memory, Memory]] = []
        # In the order in which they were made at first: one may be made of another.
        for choice in sorted(self._choose(), key=lambda c: self._made_at(c.memory)):
            own = Memory("arena", choice.memory.bytes)
            before.setdefault(choice.back, []).extend(choice.make(own))
            moved.append((choice.back, choice.memory, own))
        made: list[Action] = []
        moved.sort(key=lambda move: move[0], reverse=True)
        now: dict[Memory, Memory] = {}
        for i, action in enumerate(self._actions):
            while moved and moved[-1][0] <= i:
                _, old, new = moved.pop()
                now[old] = new
            made += [_reading(a, now) for a in (*before.get(i, ()), action)]
        return made

    def _made_at(self, memory: Memory) -> tuple[int, int]:
        """When something is made: by which action, and where in it."""
        v = self._values.get(memory)
        return self._uses[memory].writes[0], -1 if v is None else v.step.born

    # -- choosing

    def _choose(self) -> list[Choice]:
        live = self._live()
        budget = _BUDGET * sum(map(_work, self._actions))
        choices = {memory: c for memory in self._uses if (c := self._choice(memory)) is not None}
        taken: dict[Memory, Choice] = {}
        while choices:
            peak = int(live.argmax())
            fits = [c for c in choices.values() if c.gone < peak < c.back and c.work <= budget]
            if not fits:
                break
            best = min(fits, key=lambda c: (c.work / c.memory.bytes, c.gone))
            del choices[best.memory]
            budget -= best.work
            live[best.gone + 1 : best.back] -= best.memory.bytes
            taken[best.memory] = best
            for earlier in _bring_back(best, taken, live):
                for c in [choices[memory] for memory in earlier.needs if memory in choices]:
                    if earlier.back > c.gone:
                        c.back = min(c.back, earlier.back)
        chosen = list(taken.values())
        # What came to nothing because the peak stayed elsewhere.
        for choice in reversed(list(chosen)):
            other_way = live.copy()
            other_way[choice.gone + 1 : choice.back] += choice.memory.bytes
            if other_way.max() <= live.max():
                live = other_way
                chosen.remove(choice)
        return chosen

    def _live(self) -> Bytes:
        """The bytes in use at each action; results from when they are written."""
        change = np.zeros(len(self._actions) + 1, np.int64)
        for memory, use in self._uses.items():
            # The new values of an update take the place of the old ones.
            made = use.writes and not isinstance(self._actions[use.writes[0]], UpdateAction)
            if made and memory.kind in ("arena", "slot"):
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
            for read in action.overwritable(write):
                old = action.reads[read].memory.real
                if (
                    old.kind == "arena" and old is not own and old not in taken and old.bytes == own.bytes
                    and self._uses[old].last == i and old not in self._kept and action.may_overwrite(read, write)
                ):  # fmt: skip
                    taken.add(old)
                    found += old.bytes
                    break
        return found

    def _choice(self, memory: Memory) -> Choice | None:
        use = self._uses[memory]
        if memory.bytes < _WORTH or memory.kind != "arena" or memory in self._kept or len(use.writes) != 1:
            return None
        gone, back = max(pairwise([*use.writes, *use.reads]), key=lambda pair: pair[1] - pair[0], default=(0, 0))
        (seat,) = [s for s in self._actions[use.writes[0]].writes if s.memory.real is memory]
        if back - gone < 2 or math.prod(seat.shape) * seat.dtype.itemsize != memory.bytes:
            return None
        return self._from_kept(memory, gone, back) or self._as_before(memory, gone, back)

    def _there(self, memory: Memory, of: Memory, at: int) -> bool:
        """Is something that `of` is made of there at an action as it was, or small enough to be kept until then?"""
        if memory.kind in ("input", "constant"):
            return True
        use = self._uses.get(memory)
        if use is None or not use.writes or use.writes[-1] > self._uses[of].writes[0]:
            return False
        return use.last >= at or memory in self._kept or memory.bytes * _SMALL <= of.bytes

    # -- ways of computing something again

    def _from_kept(self, memory: Memory, gone: int, back: int) -> Choice | None:
        """By a loop over what is stored."""
        v = self._values.get(memory)
        if v is None:
            return None
        home = self._partition.order[self._partition.home[v]]
        assert isinstance(home, Group)
        if math.prod(home.shape) != math.prod(v.shape):
            return None  # one element for a whole row: such a loop would write it for each of them
        group = Group(home.position, home.shape)
        work = math.prod(group.shape) * (_ELEMENT + _ADD * self._chained(v, home, group))
        needs = [self._seat_of(r).memory.real for r, _ in group.reads]
        if math.isinf(work) or not all(self._there(m, memory, back) for m in needs):
            return None
        seat = self._seat_of(v)
        return Choice(memory, gone, back, work, needs, lambda own: [self._kernel(group, v, _moved(seat, own))])

    def _chained(self, v: Value, home: Group, group: Group) -> float:
        """Enter a value and what it is made of, down to what is stored; its cost, infinity where that does not go."""
        inputs = self._partition.inputs_in(home, v)
        group.add(v, home.maps[v], inputs)
        if is_along_rows(v.step):
            return math.inf
        cost = self._partition.cost[v]
        for r, own in inputs:
            if home.has(r, own) and r not in self._stored and r not in group.maps:
                cost += self._chained(r, home, group)
        return cost

    def _as_before(self, memory: Memory, gone: int, back: int) -> Choice | None:
        """By what made it, and the products that this reads if they are not there any more."""
        maker = self._actions[self._uses[memory].writes[0]]
        again: list[tuple[Memory, Action]] = []
        needs: list[Memory] = []
        for read in dict.fromkeys(s.memory.real for s in maker.reads):
            if self._there(read, memory, back):
                needs.append(read)
                continue
            before = self._uses[read].writes
            product = self._actions[before[0]] if len(before) == 1 else maker
            sources = [s.memory.real for s in product.reads]
            if product is maker or not _is_product(product) or not all(self._there(m, read, back) for m in sources):
                return None
            needs += sources
            again.append((read, product))
        if len(maker.writes) != 1 or not (isinstance(maker, KernelAction) or _is_product(maker)):
            return None
        again.append((memory, maker))

        def make(own: Memory) -> list[Action]:
            now = {old: Memory("arena", old.bytes) for old, _ in again} | {memory: own}
            return [_copied(action, now) for _, action in again]

        return Choice(memory, gone, back, sum(_work(a) for _, a in again), needs, make)


def _bring_back(choice: Choice, taken: dict[Memory, Choice], live: Bytes) -> list[Choice]:
    """What a value is made of, and what that is made of, must be back as early as it is. All that came earlier."""
    earlier = [choice]
    for choice in earlier:
        for other in [taken[memory] for memory in choice.needs if memory in taken]:
            if other.gone < choice.back < other.back:
                live[choice.back : other.back] += other.memory.bytes
                other.back = choice.back
                earlier.append(other)
    return earlier


def _is_product(action: Action) -> bool:
    return isinstance(action, ProductAction) and not action.add


def _moved(seat: Seat, memory: Memory) -> Seat:
    return replace(seat, memory=memory)


def _all_moved(seats: Sequence[Seat], now: dict[Memory, Memory]) -> list[Seat]:
    return [_moved(s, now[s.memory.real]) if s.memory.real in now else s for s in seats]


def _reading(action: Action, now: dict[Memory, Memory]) -> Action:
    """The same action with its inputs where they are now."""
    if not any(s.memory.real in now for s in action.reads):
        return action
    if isinstance(action, ProductAction):
        a, b = _all_moved(action.reads, now)
        return ProductAction(a, b, action.writes[0], action.add)
    action.reads = _all_moved(action.reads, now)
    return action


def _copied(action: Action, now: dict[Memory, Memory]) -> Action:
    """The same action once more, elsewhere."""
    reads, writes = _all_moved(action.reads, now), _all_moved(action.writes, now)
    if isinstance(action, KernelAction):
        return KernelAction(action.kernel, action.shape, action.axes, reads, writes)
    return ProductAction(reads[0], reads[1], writes[0], False)


def _work(action: Action) -> float:
    """Nanoseconds of one thread, about."""
    if isinstance(action, ProductAction):
        a, _, out = action.sides
        return math.prod(out.shape) * a.shape[-1] * _MULTIPLY
    sizes = [math.prod(s.shape) for s in (*action.reads, *action.writes)]
    return _ELEMENT * max(sizes, default=0)
