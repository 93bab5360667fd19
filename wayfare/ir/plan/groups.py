"""Which steps of a long graph share a loop: as in `fuse/partition.py`, but only nearby groups are tried.

A step may only join a group that computes or reads one of its inputs. So planning time grows linearly with the graph,
and the same cell at each of sixty time steps becomes the same kernels each time.
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
from wayfare.ir.plan.buffers import Buffer, BufferAssignment, View, is_view

# The most groups that are kept as readers of one buffer.
_READERS = 2
# The most values that may be visited to decide whether a value is cheap to recompute.
_CHAIN = 24

_prices: dict[Any, float] = {}


class NearPartition(Partition):
    """Groups and single steps of a graph with known sizes and buffers."""

    sizes_are_numbers = True

    def __init__(
        self, outputs: Sequence[Value], assignment: BufferAssignment, accumulated: dict[Value, tuple[Value, Value]]
    ) -> None:
        self._assignment = assignment
        self._accumulated = accumulated
        self._left_out = {matmul.step for _, matmul in accumulated.values()}
        # Groups that read a buffer, perhaps different parts of it (such as the gates of one cell).
        self._readers: dict[Buffer, list[Group]] = {}
        self._known_operands: dict[tuple[Step, Map], list[tuple[Value, Map]]] = {}
        self._loops = kernel.available()
        super().__init__(outputs)

    def _place(self, step: Step) -> None:
        op = step.op
        if op is None or step in self._left_out:
            return
        if step.outputs[0] in self._assignment.copies or op.family == "check":
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
                    buffer = self._assignment[root].buffer
                    readers = self._readers.setdefault(buffer, [])
                    if home not in readers:
                        self._readers[buffer] = [*readers[1 - _READERS :], home]

    def _place_view(self, step: Step) -> None:
        """A view op: its output exists as soon as its buffer is written."""
        root = self.through(step.inputs[0])[0]
        self.home[step.outputs[0]] = self._position(root)
        self.forced.add(root)

    def _place_alone(self, step: Step) -> None:
        super()._place_alone(step)
        found = self._accumulated.get(step.outputs[0])
        if found is not None:
            # The matmul is computed together with the addition, which therefore reads its inputs.
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
        """Can the reduced axes still be walked as one axis if this step joins?"""
        x = step.inputs[0]
        reduces = is_reduction(step)
        if len(group.reduced) < 2 and not (reduces and not group.reduced and len(step.attrs["dim"]) > 1):
            return True
        own = self._fitted(step, x.shape if reduces else step.outputs[0].shape, group)
        if own is None:
            return False
        axes = group.reduced or tuple(sorted(own[d] for d in step.attrs["dim"] if own[d] >= 0))
        operands = [(v, m) for v, m in self._inputs_of(step, own) if v not in group.maps]
        if not reduces:
            operands.append((step.outputs[0], own))
        if not group.reduced:
            operands += [*group.reads, *group.maps.items()]
        return all(is_one_row(self._assignment[v], m, axes) for v, m in operands)

    def _operands_of(self, step: Step, own: Map) -> list[tuple[Value, Map]]:
        found = self._known_operands.get((step, own))
        if found is None:
            found = self._known_operands[step, own] = super()._operands_of(step, own)
        return found

    def _weighs(self, own: Map, group: Group) -> bool:
        # Also small arrays: otherwise a sum that grows with each time step would become another kernel each time.
        return True

    def _chain(
        self, root: Value, own: Map, group: Group, recomputed: dict[Value, Map], leaves: dict[Value, Map],
        depth: int = 0,
    ) -> bool:  # fmt: skip
        return len(recomputed) + len(leaves) <= _CHAIN and super()._chain(root, own, group, recomputed, leaves, depth)

    def _candidates(self, step: Step) -> Iterable[Group]:
        found: dict[int, Group] = {}
        for v in step.inputs:
            root = self.through(v)[0]
            at = self.home.get(root, -1)
            if at >= 0:
                home = self.order[at]
                if isinstance(home, Group):
                    found[at] = home
            for reader in self._readers.get(self._assignment[root].buffer, ()):
                found[reader.position] = reader
        return [found[at] for at in sorted(found, reverse=True)]


def is_one_row(view: View, own: Map, axes: tuple[int, ...]) -> bool:
    """Can these axes of a group be walked as one axis in this view?"""
    found = {a: (n, stride) for n, stride, a in zip(view.shape, view.strides, own, strict=True) if a >= 0}
    run = [found.get(a, (1, 0)) for a in axes]
    if not any(stride for _, stride in run):
        return True
    return all(a == n * b for (_, a), (n, b) in pairwise(run))
