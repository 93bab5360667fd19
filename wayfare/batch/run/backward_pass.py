"""One backward pass through the groups of a segment: gradients of rows, and of tensors from outside.

The gradients of a group's output are one array for all its calls. The input gradients of a group are added to those
arrays row by row, at the rows the inputs came from. The weight gradients of linear layers are deferred to the end: one
large gemm for each weight instead of many small ones.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.autograd.engine import add_up, by_rule, fit, prepare, raw_ops_for
from wayfare.autograd.kept import unpack
from wayfare.batch.record.call import Array, Row, Value
from wayfare.batch.record.memory import memory_of
from wayfare.batch.run.call_loops import how_many
from wayfare.batch.run.deferred_gemm import DeferredGemms, product_of
from wayfare.batch.run.group import Group, Scattered, Shared, Slice
from wayfare.batch.run.ragged_group import RaggedRows
from wayfare.batch.run.row_group import Arena, RowGroup
from wayfare.codegen.routines.rows import Rows
from wayfare.core.device import copied
from wayfare.core.native import NATIVE
from wayfare.core.node import Node
from wayfare.core.tensor import Tensor
from wayfare.core.walk import split_edge


class BackwardPass:
    """One backward pass through a segment with so many rows."""

    def __init__(self, count: int) -> None:
        # (group, output) → its gradient, made when the first part of it arrives.
        self._grads: dict[tuple[int, int], Array] = {}
        self._addresses: Array = np.empty(count, np.int64)
        # The rows that got a gradient. The others have none, which is not the same as a gradient of zero.
        self._reached: Array = np.zeros(count, np.bool_)
        # id of an outside tensor → its gradient
        self.leaves: dict[int, Any] = {}
        self._gemms = DeferredGemms()
        # Arena of the results of native groups → that of the factors of their weight gradients.
        self._arenas: dict[Any, Arena] = {}

    def _grad_of(self, group: Group, number: int) -> Array:
        found = self._grads.get((group.number, number))
        if found is None:
            row = group.signature.outs[number]
            found = self._grads[group.number, number] = row.memory.zeros(group.room(number), row.dtype)
            group.place_rows(self._addresses, number, found)
        return found

    def add_to_values(self, pairs: list[tuple[Value, Any]]) -> None:
        """Add to the gradients of values; on other devices than the CPU to those of one row at once."""
        together: dict[Row, list[tuple[Value, Any]]] = {}
        for value, g in pairs:
            if value.row.memory.is_host:
                self.add_to_value(value, g)
            elif value.call.group.differentiable:
                together.setdefault(value.row, []).append((value, g))
        for row, several in together.items():
            if len(several) == 1:
                self.add_to_value(*several[0])
                continue
            for value, _ in several:
                self._grad_of(value.call.group, value.number)
                self._reached[value.call.row_id + value.number] = True
            addresses = [self._addresses[value.call.row_id + value.number] + value.offset for value, _ in several]
            arrays = [g.dense() if g.__class__ is Rows else g for _, g in several]
            row.memory.add(np.array(addresses, np.int64), row.memory.stack(arrays, row))

    def add_to_value(self, value: Value, g: Any) -> None:
        """Add `g` to the gradient of one value."""
        group: Group = value.call.group
        if not group.differentiable:
            return
        self._reached[value.call.row_id + value.number] = True
        target = group.row_at(self._grad_of(group, value.number), value.number, group.index_of(value.call))
        if value.is_part:
            target = value.row.memory.part(target, value.row, value.offset)
        np.add(target, g.dense() if g.__class__ is Rows else g, out=target)

    def through_group(self, group: Group) -> None:
        """Run the backward pass of a group, and add the results to the gradients of its sources."""
        given = [self._grads.pop((group.number, k), None) for k in range(len(group.signature.outs))]
        step = len(group.signature.outs)
        rows = self._reached[group.start : group.start + step * (1 if group.single else group.calls)]
        if not how_many(rows):
            return
        group.mark_before(rows)
        by_call: Any = None
        if how_many(rows) < 2:
            by_call = rows.reshape((-1, step))
            given = [g if one else None for g, one in zip(given, np.any(by_call, axis=0), strict=True)]
            parts = group.split_by_gradient(by_call, by_call.any(axis=1))
            if parts:
                self._through_split(group, given, by_call, parts)
                return
        if group.__class__ is RowGroup and group.plan is not None:
            if not self._through_rows(group, given, by_call):
                self._through_split(group, given, rows.reshape((-1, step)), [np.arange(group.calls)])
            return
        pairs = [(out, g[0] if group.single else g) for out, g in zip(group.outputs, given, strict=False)
                 if g is not None and out._requires_grad]  # fmt: skip
        own = {id(leaf): i for i, leaf in enumerate(group.leaves) if group.sources[i] is not None}
        for i, g in self._pull(pairs, own).items():
            self._deliver(group.sources[i], g, group.reached_rows(i, by_call))

    def _through_rows(self, group: RowGroup, given: list[Any], by_call: Array | None) -> bool:
        """The same by the native program of a group; False if its calls must be computed again."""
        group.check_saved()
        whole = [np.zeros((group.calls, *row.shape), row.dtype) if g is None else g
                 for g, row in zip(given, group.signature.outs, strict=True)]  # fmt: skip
        found = group.input_grads(whole, self._arenas)
        if found is None:
            return False
        grads, factors = found
        assert group.plan is not None
        if any([g is None for g in given]):
            one = group.plan.reached_by(given)
            factors = [f for f in factors if any([i is not None and one[i] for i in (f.matrix, f.vector)])]
            # Zeros stood for the gradients of unused outputs, and zero times infinity is NaN.
            if not all([np.isfinite(g).all() for g in [*[g for _, g in grads], *[f.gradient for f in factors]]]):
                return False
        for f in factors:
            self._gemms.add(product_of(f, group.plan.shared), f.gradient, f.x, self._to_outside)
        for i, g in grads:
            self._deliver(group.sources[i], g, group.reached_rows(i, by_call))
        return True

    def _through_split(self, group: Group, given: list[Any], by_call: Array, parts: list[Array]) -> None:
        """The same in parts: each part is recomputed and differentiated by itself.

        Calls without a gradient are left out: zero times infinity would make the gradients of shared weights NaN.
        """
        group.check_saved()
        for chosen in parts:
            leaves, outputs = group.recompute(chosen)
            wanted: Array = np.any(by_call[chosen], axis=0)
            pairs = [(out, group.memory.take(g, group.rows_of_output(k, chosen)))
                     for k, (out, g, want) in enumerate(zip(outputs, given, wanted, strict=False))
                     if want and g is not None and out._requires_grad]  # fmt: skip
            own = {id(leaf): i for i, leaf in enumerate(leaves) if group.sources[i] is not None}
            part = np.zeros(group.calls, np.bool_)
            part[chosen] = True
            for i, g in self._pull(pairs, own).items():
                if group.batched[i]:
                    flags = group.rows_of_input(i, part)
                    rows = g.dense() if g.__class__ is Rows else g
                    g = memory_of(rows).spread(rows, np.flatnonzero(flags), len(flags))
                self._deliver(group.sources[i], g, group.reached_rows(i, by_call & part[:, None]))

    def _deliver(self, source: Any, g: Any, reached: Array | None) -> None:
        if reached is not None and not reached.any():
            return
        if g.__class__ is Rows:
            g = g.dense()
        if source.__class__ is Shared:
            if source.value.__class__ is Value:
                self.add_to_value(source.value, g)
            else:
                self._to_outside(source.value, g)
        elif source.__class__ is Slice:
            self._to_slice(source, g, reached)
        else:
            self._to_rows(source, g, reached)

    def _to_slice(self, source: Slice, g: Array, reached: Array | None) -> None:
        group, number = source.group, source.number
        row = group.signature.outs[number]
        if not group.differentiable:
            return
        step = len(group.signature.outs)
        first = group.start + number + source.first * step
        now = self._reached[first : first + source.size * step : step]
        if reached is None:
            now[...] = True
        else:
            now |= reached
        rows = self._grad_of(group, number)[source.first : source.first + source.size]
        if not source.row.bytes:
            return
        if source.offset or source.row is not row:
            first, count = source.offset // row.dtype.itemsize, source.row.bytes // row.dtype.itemsize
            rows = rows.reshape((source.size, -1))[:, first : first + count]
            g = g.reshape((source.size, -1))
        np.add(rows, g, out=rows)

    def _to_rows(self, source: Scattered, g: Array, reached: Array | None) -> None:
        for i, tensor in source.outside:
            if reached is None or reached[i]:
                self._to_outside(tensor, copied(source.part(g, i)))
        if not len(source.row_ids):
            return
        for group, number in source.groups:
            if (group.number, number) not in self._grads:
                self._grad_of(group, number)
        ragged = source if isinstance(source, RaggedRows) else None
        if source.at is None and NATIVE is not None and ragged is None and g.__class__ is np.ndarray:
            if NATIVE.add_rows(self._addresses, self._reached, source.row_ids, source.offsets, g, reached):
                return
        self._reached[source.row_ids if reached is None else
                      source.row_ids[reached if source.at is None else reached[source.at]]] = True  # fmt: skip
        addresses = self._addresses[source.row_ids]
        if source.offsets is not None:
            addresses += source.offsets
        memory = memory_of(g)
        if ragged is not None:
            g = ragged.taken(g)
            addresses = ragged.addresses(addresses, g.itemsize * math.prod(g.shape[1:]))
        elif source.at is not None:
            g = memory.take(g, source.at)
        if g.size:
            memory.add(addresses, memory.contiguous(g))

    def _to_outside(self, tensor: Tensor, g: Any) -> None:
        old = self.leaves.get(id(tensor))
        self.leaves[id(tensor)] = g if old is None else add_up(old, g, False, False)

    # -- inside a group

    def _pull(self, pairs: list[tuple[Tensor, Any]], own: dict[int, int]) -> dict[int, Any]:
        """The backward pass through the few autograd nodes of one group: {input: gradient}."""
        pending: dict[Node, Any] = {}
        nodes: list[Node] = []
        found: dict[int, Any] = {}

        def send(edge: Any, g: Any) -> None:
            target, number = split_edge(edge)
            if isinstance(target, Tensor):
                where = own.get(id(target))
                if where is None:
                    self._to_outside(target, g)
                else:
                    old = found.get(where)
                    found[where] = g if old is None else add_up(old, g, False, False)
                return
            if target not in pending:
                nodes.append(target)
                pending[target] = None if target.outs is None else [None] * len(target.outs)
            if target.outs is None:
                old = pending[target]
                pending[target] = g if old is None else add_up(old, g, False, False)
            else:
                slots = pending[target]
                slots[number] = g if slots[number] is None else add_up(slots[number], g, False, False)

        for out, g in pairs:
            send(out._edge or out, g)
        while nodes:
            node = max(nodes, key=age) if len(nodes) > 1 else nodes[0]
            nodes.remove(node)
            g = prepare(node, pending.pop(node), False)
            kept = unpack(node, False)
            edges = node.edges
            deferred = self._gemms.through(node, g, kept, own, self._to_outside)
            if deferred is None:
                grads = by_rule(node, raw_ops_for(node, g), g, kept, edges)
            else:
                edges, grads = deferred
            for edge, gi in zip(edges, grads, strict=True):
                if edge is not None and gi is not None:
                    send(edge, fit(node.op, edge, gi, False))
        return found

    def run_deferred_gemms(self) -> None:
        """Run all deferred gemms."""
        self._gemms.run(self._to_outside)


def age(node: Node) -> int:
    """The number of a node: a later one is larger."""
    return node.number
