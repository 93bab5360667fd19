"""Partitioning: which steps share a loop.

A group is a set of steps over one iteration space: its axes are the sizes other than 1 of its first value, and at most
one set of adjacent axes is reduced. For every value of a group, `maps` has the axis of the group for each axis of the
value. Steps join the latest group they fit into; cheap values of another group are recomputed, not stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from wayfare.ir.fuse.expressions import cost_of_op
from wayfare.ir.graph import Step, Value, in_order
from wayfare.ir.lower import is_along_rows, is_reduction

# The most that may be recomputed, in additions per element; and the most of it that a loop repeats along an outer axis
# although the value does not change there.
RECOMPUTE, RECOMPUTE_SMALL = 40, 12
# The most arrays of one kernel (each needs a register for its address), and the most work (compile time grows faster).
_OPERANDS, _COST = 24, 300

# For each axis of a value: the axis of the group, or -1 where the size is 1.
Map = tuple[int, ...]


class Group:
    """The steps of one loop."""

    def __init__(self, position: int, shape: tuple[int, ...]) -> None:
        self.position = position
        self.shape = shape
        self.reduced: tuple[int, ...] = ()
        self.cost = 0.0
        self.members: list[Value] = []
        self.recomputed: list[Value] = []  # values of other groups that are recomputed here
        self.maps: dict[Value, Map] = {}
        self.reads: set[tuple[Value, Map]] = set()
        self.operands: dict[Value, list[tuple[Value, Map]]] = {}

    def add(self, v: Value, own: Map, inputs: Iterable[tuple[Value, Map]]) -> None:
        """Add a value with its map and its inputs."""
        self.maps[v] = own
        self.reads.discard((v, own))
        self.reads.update((r, m) for r, m in inputs if not self.has(r, m))

    @property
    def rows(self) -> frozenset[int]:
        """The axes that are not reduced."""
        return frozenset(range(len(self.shape))) - frozenset(self.reduced)

    def has(self, v: Value, own: Map) -> bool:
        """Is a value computed here with this map? (The same value may be needed along other axes.)"""
        return self.maps.get(v) == own

    def covers(self, own: Map) -> bool:
        """Does a value with this map have one element for each iteration, or one for each row?"""
        axes = frozenset(a for a in own if a >= 0)
        return len(axes) == len(self.shape) or (bool(self.reduced) and axes == self.rows)


class Partition:
    """The groups and single steps, in the order in which they run."""

    # Are sizes plain numbers, which differ between graphs that are otherwise equal?
    sizes_are_numbers = False

    def __init__(self, outputs: Sequence[Value]) -> None:
        self.order: list[Group | Step] = []
        self.home: dict[Value, int] = {}
        self.cost: dict[Value, float] = {}
        self.forced: set[Value] = set()
        self._views: dict[Value, tuple[Value, tuple[int | None, ...]]] = {}
        for step in in_order(outputs):
            self._place(step)
        for v in outputs:
            self.forced.add(self.through(v)[0])
        for group in self.groups:
            self._recompute(group)

    @property
    def groups(self) -> list[Group]:
        """The loops."""
        return [g for g in self.order if isinstance(g, Group)]

    # -- views that only insert, remove or broadcast axes of size 1: they need no copy and no index computation

    def through(self, v: Value) -> tuple[Value, tuple[int | None, ...]]:
        """The value behind such views, and for each axis of `v` the axis there (None: it is new)."""
        return self._views.get(v) or (v, tuple(range(v.ndim)))

    def _see(self, step: Step) -> bool:
        assert step.op is not None
        if step.op.name == "expand":
            (x,), (out,) = step.inputs, step.outputs
            shift = out.ndim - x.ndim
            own = [None if i < shift or (x.shape[i - shift] == 1 and n != 1) else i - shift
                   for i, n in enumerate(out.shape)]  # fmt: skip
        elif step.op.moves == "reshape":
            (x,), (out,) = step.inputs, step.outputs
            before = [i for i, n in enumerate(x.shape) if n != 1]
            after = [i for i, n in enumerate(out.shape) if n != 1]
            if len(before) != len(after) or any(x.shape[i] != out.shape[k] for i, k in zip(before, after, strict=True)):
                return False
            place = dict(zip(after, before, strict=True))
            own = [place.get(i) for i in range(out.ndim)]
        else:
            return False
        root, axes = self.through(x)
        self._views[out] = (root, tuple(None if i is None else axes[i] for i in own))
        return True

    # -- assigning steps to groups

    def _position(self, v: Value) -> int:
        return self.home.get(v, -1)

    def _place(self, step: Step) -> None:
        if step.op is None or self._see(step):
            return
        price = self._price(step)
        if math.isinf(price):
            self._place_alone(step)
            return
        self.cost[step.outputs[0]] = price
        if not any(self._join(step, group) for group in self._candidates(step)):
            seen = step.inputs[0] if is_reduction(step) else step.outputs[0]
            group = Group(len(self.order), tuple(n for n in seen.shape if n != 1))
            self.order.append(group)
            if not self._join(step, group):
                raise AssertionError(f"{step.name} does not fit into a group of its own")

    def _price(self, step: Step) -> float:
        """The cost of a step in additions per element; infinity if it cannot be part of a loop."""
        assert step.op is not None
        if is_along_rows(step) and not _real(step):
            return math.inf
        if is_reduction(step) and step.attrs["keepdim"]:
            return 1
        return cost_of_op(step.op, [v.dtype for v in step.inputs], step.attrs, step.outputs[0].dtype)

    def _place_alone(self, step: Step) -> None:
        """An opaque step: its inputs must be stored."""
        for v in step.outputs:
            self.home[v] = len(self.order)
        self.order.append(step)
        self.forced.update(self.through(v)[0] for v in step.inputs)

    def _candidates(self, step: Step) -> Iterable[Group]:
        """The groups to try: those that compute an input, then all others, latest first."""
        own = {self._position(self.through(v)[0]) for v in step.inputs}
        groups = list(reversed(self.groups))
        yield from (g for g in groups if g.position in own)
        yield from (g for g in groups if g.position not in own)

    def _join(self, step: Step, group: Group) -> bool:
        out = step.outputs[0]
        reduces = is_reduction(step)
        seen = step.inputs[0].shape if reduces else out.shape
        own = self._fitted(step, seen, group)
        if own is None:
            return False
        reduced = group.reduced
        if is_along_rows(step):
            axes = tuple(sorted(own[d] for d in _dims(step) if own[d] >= 0))
            if _axes(own) != len(group.shape) or (reduced and reduced != axes):
                return False
            if not reduced and axes != tuple(range(axes[0], axes[-1] + 1)):
                return False
            reduced = axes
        elif not group.covers(own):
            return False
        needed = self._inputs_of(step, own)
        recomputed: dict[Value, Map] = {}
        for root, root_map in needed:
            if not self._reachable(root, root_map, group, recomputed):
                return False
        if not self._cheap(recomputed, group):
            return False
        if len(group.reads) + len(needed) > _OPERANDS or (group.members and group.cost + self.cost[out] > _COST):
            return False
        group.cost += self.cost[out]
        group.reduced = reduced
        self._add_recomputed(group, recomputed)
        group.add(out, tuple(-1 if reduces and d in step.attrs["dim"] else a for d, a in enumerate(own)), needed)
        group.members.append(out)
        self.home[out] = group.position
        return True

    def _reachable(self, root: Value, own: Map, group: Group, recomputed: dict[Value, Map], depth: int = 0) -> bool:
        """Is a value available in this group: computed there, stored before, or cheap to recompute?"""
        known = group.maps.get(root, recomputed.get(root))
        if known is not None:
            return known == own
        if self._position(root) < group.position:
            return True
        if root not in self.cost or is_along_rows(root.step) or depth > RECOMPUTE:
            return False
        for r, r_map in self._inputs_of(root.step, own):
            if not self._reachable(r, r_map, group, recomputed, depth + 1):
                return False
        recomputed[root] = own
        return True

    def _fitted(self, step: Step, shape: tuple[int, ...], group: Group) -> Map | None:
        """The map of a shape that `step` works on to the axes of a group; None if it does not fit."""
        own: list[int | None] = [-1 if n == 1 else None for n in shape]
        for v in step.inputs:
            root, axes = self.through(v)
            known = group.maps.get(root)
            if known is None:
                continue
            shift = len(shape) - v.ndim
            for i, a in enumerate(axes):
                at = -1 if a is None else known[a]
                if at >= 0:
                    if own[i + shift] not in (None, at):
                        return None
                    own[i + shift] = at
        after = len(group.shape)
        for i in range(len(shape) - 1, -1, -1):
            at_i = own[i]
            if at_i == -1:
                continue
            if at_i is None:
                before = max((a for a in own[:i] if a is not None), default=-1)
                at_i = next((k for k in range(after - 1, before, -1) if group.shape[k] == shape[i]), None)
                if at_i is None:
                    return None
                own[i] = at_i
            if at_i >= after or group.shape[at_i] != shape[i]:
                return None
            after = at_i
        return tuple(a for a in own if a is not None)

    def _inputs_of(self, step: Step, own: Map) -> list[tuple[Value, Map]]:
        """The values (no numbers) behind the inputs of a step with their maps, given the map of the step."""
        return [(r, m) for r, m in self._operands_of(step, own) if r.step.name != "number"]

    def _operands_of(self, step: Step, own: Map) -> list[tuple[Value, Map]]:
        found = []
        for v in step.inputs:
            root, axes = self.through(v)
            shift = len(own) - v.ndim
            root_map = [-1] * root.ndim
            for i, a in enumerate(axes):
                if a is not None and root.shape[a] != 1:
                    root_map[a] = own[i + shift]
            found.append((root, tuple(root_map)))
        return found

    def operands_in(self, group: Group, v: Value) -> list[tuple[Value, Map]]:
        """The values behind the inputs of a value of the group, with their maps."""
        found = group.operands.get(v)
        if found is None:
            own = self._reduction_map(group, v) if is_reduction(v.step) else group.maps[v]
            found = group.operands[v] = self._operands_of(v.step, own)
        return found

    def inputs_in(self, group: Group, v: Value) -> list[tuple[Value, Map]]:
        """The same without the numbers."""
        return [(r, m) for r, m in self.operands_in(group, v) if r.step.name != "number"]

    def _reduction_map(self, group: Group, v: Value) -> Map:
        """The map of the input of a reduction: that of its output, with the reduced axes."""
        own = list(group.maps[v])
        axes = list(group.reduced)
        for d in sorted(v.step.attrs["dim"]):
            if v.step.inputs[0].shape[d] != 1:
                own[d] = axes.pop(0)
        return tuple(own)

    # -- what a group reads and stores

    def inside(self, group: Group, v: Value) -> list[Value]:
        """The values of the group from which one of them is computed."""
        return [r for r, own in self.inputs_in(group, v) if group.has(r, own)]

    def _add_recomputed(self, group: Group, recomputed: dict[Value, Map]) -> None:
        for v, own in recomputed.items():
            group.add(v, own, self._inputs_of(v.step, own))
            group.recomputed.append(v)

    def _recompute(self, group: Group) -> None:
        """Recompute values that other groups would have to store only for this one."""
        for root, own in sorted(group.reads, key=lambda pair: (pair[0].step.born, pair[1])):
            if root not in self.cost or is_along_rows(root.step) or root in self.forced:
                continue
            recomputed: dict[Value, Map] = {}
            leaves: dict[Value, Map] = {}
            if not self._chain(root, own, group, recomputed, leaves):
                continue
            if not self._cheap(recomputed, group):
                continue
            new = [v for v, m in leaves.items() if (v, m) not in group.reads and self._weighs(m, group)]
            if len(new) <= 2 and len(group.reads) + len(leaves) <= _OPERANDS:
                self._add_recomputed(group, recomputed)

    def _weighs(self, own: Map, group: Group) -> bool:
        """Does reading one more array with this map take time? A small one does not."""
        return _axes(own) == len(group.shape)

    def _cheap(self, recomputed: dict[Value, Map], group: Group) -> bool:
        """Are these values cheap to recompute in a group?"""
        last = len(group.shape) - 1
        # A value that changes only along an outer axis is computed once for many elements.
        repeated = [v for v, m in recomputed.items() if _axes(m) < len(group.shape) and last in m]
        if sum(self.cost[v] for v in repeated) > RECOMPUTE_SMALL:
            return False
        return sum(self.cost[v] for v in recomputed) <= RECOMPUTE

    def _chain(
        self, root: Value, own: Map, group: Group, recomputed: dict[Value, Map], leaves: dict[Value, Map],
        depth: int = 0,
    ) -> bool:  # fmt: skip
        """Collect the steps from stored values to this one; False if there are none."""
        known = group.maps.get(root, recomputed.get(root))
        if known is not None:
            return known == own
        if root not in self.cost or is_along_rows(root.step) or root in self.forced:
            if self._position(root) < group.position:
                leaves[root] = own
                return True
            # It is stored, but by a later group, so it must be recomputed here.
            if root not in self.cost or is_along_rows(root.step):
                return False
        for r, r_map in self._inputs_of(root.step, own):
            if depth > RECOMPUTE or not self._chain(r, r_map, group, recomputed, leaves, depth + 1):
                return False
        recomputed[root] = own
        return True

    def stores(self) -> dict[Value, int]:
        """The values that groups must store, with the position of their group."""
        wanted = set(self.forced)
        # Last group first: each reads only what earlier ones store.
        for group in reversed(self.groups):
            for v in self.live(group, wanted):
                wanted.update(
                    root for root, own in self.inputs_in(group, v) if not group.has(root, own) and root in self.home
                )
        return {v: self.home[v] for v in wanted if v in self.home}

    def live(self, group: Group, wanted: set[Value]) -> set[Value]:
        """The values of a group that are needed for those it stores."""
        stack = [v for v in group.members if v in wanted]
        found: set[Value] = set()
        while stack:
            v = stack.pop()
            if v in found:
                continue
            found.add(v)
            stack.extend(self.inside(group, v))
        return found


def _axes(own: Map) -> int:
    return len([a for a in own if a >= 0])


def _dims(step: Step) -> tuple[int, ...]:
    dim = step.attrs["dim"]
    return dim if isinstance(dim, tuple) else (dim,)


def _real(step: Step) -> Any:
    x = step.inputs[0]
    real = [d for d in _dims(step) if x.shape[d] != 1]
    return real and all(x.shape[k] == 1 for k in range(real[0], real[-1] + 1) if k not in real)
