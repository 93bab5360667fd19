"""Which steps of a long graph share a loop: the groups of `partition`, looked for only near each step.

A step joins a group that has one of its inputs or reads one of them, and no other: so the work grows with the length of
the graph, and the same cell at each of sixty time steps becomes the same kernels each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from wayfare.codegen.runtime import kernel
from wayfare.core.symbolic_sizes import shown
from wayfare.ir.fuse.partition import Group, Map, Partition
from wayfare.ir.graph import Step, Value
from wayfare.ir.lower import is_along_rows, is_reduction
from wayfare.ir.plan.buffers import Memory, Seat, Seating, is_view

# Groups remembered as readers of one piece of memory.
_READERS = 2
# Values that are looked at to see whether something is cheap to compute again.
_CHAIN = 24

_prices: dict[Any, float] = {}


class NearPartition(Partition):
    """Groups and single steps of a graph whose sizes and memory are known."""

    sizes_are_numbers = True

    def __init__(
        self, outputs: Sequence[Value], seating: Seating, accumulated: dict[Value, tuple[Value, Value]]
    ) -> None:
        self._seating = seating
        self._accumulated = accumulated
        self._left_out = {product.step for _, product in accumulated.values()}
        # Groups that read from the same memory, be it another part of it: the gates of one cell, for one.
        self._readers: dict[Memory, list[Group]] = {}
        self._known_operands: dict[tuple[Step, Map], list[tuple[Value, Map]]] = {}
        self._loops = kernel.available()
        super().__init__(outputs)

    def _place(self, step: Step) -> None:
        op = step.op
        if op is None or step in self._left_out:
            return
        if step.outputs[0] in self._seating.copies or op.family == "check":
            self._place_alone(step)
            return
        if is_view(op):
            if not self._see(step):
                self._place_view(step)
            return
        super()._place(step)
        home = self.order[self.home[step.outputs[0]]]
        if isinstance(home, Group):
            for v in step.inputs:
                root = self.through(v)[0]
                if root.step.name != "number":
                    memory = self._seating[root].memory
                    readers = self._readers.setdefault(memory, [])
                    if home not in readers:
                        self._readers[memory] = [*readers[1 - _READERS :], home]

    def _place_view(self, step: Step) -> None:
        """Another look at memory: it is there as soon as that is written."""
        root = self.through(step.inputs[0])[0]
        self.home[step.outputs[0]] = self._position(root)
        self.forced.add(root)

    def _place_alone(self, step: Step) -> None:
        super()._place_alone(step)
        found = self._accumulated.get(step.outputs[0])
        if found is not None:
            # The product is not computed apart: what it is made of is read here.
            self.forced.update(self.through(v)[0] for v in found[1].step.inputs)

    def _price(self, step: Step) -> float:
        out = step.outputs[0]
        if not self._loops or out in self._accumulated or any(0 in v.shape for v in (*step.inputs, out)):
            return math.inf
        if is_along_rows(step):
            return super()._price(step)
        assert step.op is not None
        if step.op.family != "elementwise":
            return math.inf
        key = (step.op, tuple(v.dtype for v in step.inputs), repr(shown(step.attrs)), out.dtype)
        found = _prices.get(key)
        if found is None:
            if len(_prices) > 10_000:
                _prices.clear()
            found = _prices[key] = super()._price(step)
        return found

    def _join(self, step: Step, group: Group) -> bool:
        return (not group.members or self._walks(step, group)) and super()._join(step, group)

    def _walks(self, step: Step, group: Group) -> bool:
        """Can a row of several axes still be walked as one when this step joins?"""
        x = step.inputs[0]
        is_fold = is_reduction(step)
        if len(group.folded) < 2 and not (is_fold and not group.folded and len(step.attrs["dim"]) > 1):
            return True
        own = self._fitted(step, x.shape if is_fold else step.outputs[0].shape, group)
        if own is None:
            return False
        axes = group.folded or tuple(sorted(own[d] for d in step.attrs["dim"] if own[d] >= 0))
        operands = [(v, m) for v, m in self._inputs_of(step, own) if v not in group.maps]
        if not is_fold:
            operands.append((step.outputs[0], own))
        if not group.folded:
            operands += [*group.reads, *group.maps.items()]
        return all(is_one_row(self._seating[v], m, axes) for v, m in operands)

    def _operands_of(self, step: Step, own: Map) -> list[tuple[Value, Map]]:
        found = self._known_operands.get((step, own))
        if found is None:
            found = self._known_operands[step, own] = super()._operands_of(step, own)
        return found

    def _weighs(self, own: Map, group: Group) -> bool:
        # Small ones, too: a sum that grows with each time step would become another kernel each time.
        return True

    def _chain(
        self, root: Value, own: Map, group: Group, again: dict[Value, Map], leaves: dict[Value, Map], depth: int = 0
    ) -> bool:
        return len(again) + len(leaves) <= _CHAIN and super()._chain(root, own, group, again, leaves, depth)

    def _candidates(self, step: Step) -> Iterable[Group]:
        found: dict[int, Group] = {}
        for v in step.inputs:
            root = self.through(v)[0]
            at = self.home.get(root, -1)
            if at >= 0:
                home = self.order[at]
                if isinstance(home, Group):
                    found[at] = home
            for reader in self._readers.get(self._seating[root].memory, ()):
                found[reader.position] = reader
        return [found[at] for at in sorted(found, reverse=True)]


def is_one_row(seat: Seat, own: Map, axes: tuple[int, ...]) -> bool:
    """Do these axes of a group run on from one into the next in this memory?"""
    found = {a: (n, stride) for n, stride, a in zip(seat.shape, seat.strides, own, strict=True) if a >= 0}
    run = [found.get(a, (1, 0)) for a in axes]
    if not any(stride for _, stride in run):
        return True
    return all(a == n * b for (_, a), (n, b) in pairwise(run))
