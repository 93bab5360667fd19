"""The backward pass of a segment: through its groups, from the last to the first.

For the autograd graph outside, a segment is one node. Inside, the gradients of a group's output are one array for all
its calls. The input gradients of a group are added to those arrays row by row, at the rows the inputs came from. The
weight gradients of linear layers are deferred to the end: one large gemm for each weight instead of many small ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Any

import numpy as np

from wayfare.autograd.backward import grad as gradients_of
from wayfare.autograd.engine import add_up, by_rule, fit, prepare, raw_ops_for
from wayfare.autograd.kept import FREED, unpack
from wayfare.batch.function_profile import MapTiming
from wayfare.batch.record.call import Array, Row, Value
from wayfare.batch.record.memory import memory_of
from wayfare.batch.run.call_loops import how_many
from wayfare.batch.run.deferred_gemm import DeferredGemms, product_of
from wayfare.batch.run.group import Group, Scattered, Shared, Slice
from wayfare.batch.run.ragged_group import RaggedRows
from wayfare.batch.run.reachability import reachable_from
from wayfare.batch.run.rematerialise import Rematerialised
from wayfare.batch.run.row_group import Arena, RowGroup
from wayfare.batch.run.segment import Segment
from wayfare.codegen.routines.rows import Rows
from wayfare.core.callsite import user_frame
from wayfare.core.device import copied
from wayfare.core.dispatch import record_one
from wayfare.core.errors import GraphError
from wayfare.core.mode import changed_mode, executor
from wayfare.core.native import NATIVE
from wayfare.core.node import Node
from wayfare.core.op import REGISTRY, gradient_only
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.walk import reachable, split_edge
from wayfare.core.write_clock import tick

_CLONE = REGISTRY["clone"]


class Tape:
    """What the autograd node of a segment saves."""

    __slots__ = ("count", "groups", "last", "outside", "seeds", "timing", "used")

    def __init__(self, segment: Segment, seeds: list[Value], outside: list[Tensor], timing: MapTiming | None) -> None:
        self.timing = timing
        self.groups = segment.groups
        self.count = segment.count
        # The values that were materialised (the node's outputs), and the outside tensors that need a gradient (its
        # inputs).
        self.seeds = seeds
        self.outside = outside
        # Outputs that the last backward pass went through, and outputs whose graph is freed.
        self.last: list[int] = []
        self.used: set[int] = set()

    def node(self) -> MapNode:
        """The autograd node of the segment."""
        return map_node(MapNode(), self, [(v.row.shape, v.row.dtype) for v in self.seeds])

    def pull(self, given: list[Any], wanted: tuple[bool, ...]) -> list[Any]:
        """The gradients of the outside tensors from those of the outputs."""
        began = thread_time()
        backward_pass = _BackwardPass(self)
        backward_pass.add_to_values([(v, g) for v, g in zip(self.seeds, given, strict=True) if g is not None])
        for group in reversed(self.groups):
            with group.memory.active():
                backward_pass.through_group(group)
        backward_pass.run_deferred_gemms()
        if self.timing is not None:
            self.timing.backward += thread_time() - began
        return [backward_pass.leaves.get(id(t)) if want else None for t, want in zip(self.outside, wanted, strict=True)]

    def rematerialised(self) -> list[Tensor]:
        """The outputs, computed again by ordinary ops on the outside tensors."""
        made = Rematerialised(self.groups, {})
        return [made.tensor_of(v) for v in self.seeds]

    def pull_recorded(self, given: list[Any], wanted: tuple[bool, ...]) -> list[Any]:
        """The same for `create_graph=True`: calls are rematerialised as ordinary ops and differentiated as usual."""
        # The pass must end at the outside tensors. So those with a history are replaced by copies without one, which
        # get the history back afterwards, for the next derivative; and hooks of leaves do not run here.
        cut = {id(t): without_history(t) for t in self.outside if t._edge is not None}
        with eagerly(), without_hooks([t for t in self.outside if t._edge is None]):
            reached, rows = reachable_from(self, [v for v, g in zip(self.seeds, given, strict=True) if g is not None])
            made = Rematerialised(self.groups, cut, rows)
            pairs = [(made.tensor_of(v), g) for v, g in zip(self.seeds, given, strict=True) if g is not None]
            pairs = [(t, g) for t, g in pairs if t.requires_grad]
            wanted = tuple([want and id(t) in reached for t, want in zip(self.outside, wanted, strict=True)])
            asked = [cut.get(id(t), t) for t, want in zip(self.outside, wanted, strict=True) if want]
            found = iter(
                gradients_of([t for t, _ in pairs], asked, [g for _, g in pairs], create_graph=True, allow_unused=True)
                if pairs and asked else [None] * len(asked)
            )  # fmt: skip
        for t in self.outside:
            if id(t) in cut:
                cut[id(t)]._edge.edges = (t._edge,)
        return [next(found) if want else None for want in wanted]


def eagerly() -> Any:
    """A mode in which ops run at once and are recorded by autograd, not by a session."""
    return changed_mode(grad=True, executor=None) if executor().batches else changed_mode(grad=True)


@contextmanager
def without_hooks(leaves: list[Tensor]) -> Iterator[None]:
    """Remove the hooks of leaves for a while: the outer backward pass calls them."""
    taken = [(t._extras, t._extras.pop("hooks")) for t in leaves if t._extras and "hooks" in t._extras]
    try:
        yield
    finally:
        for extras, hooks in taken:
            extras["hooks"] = hooks


def without_history(t: Tensor) -> Tensor:
    copy = wrap(t._array)
    record_one(_CLONE, (t,), [t._array], copy, {})
    copy._edge.edges = (None,)
    return copy


def _backdate(number: int, edges: list[Any], began: int) -> None:
    """Renumber the nodes made since `began` to just before `number`, so that the engine visits them in that order."""
    found = [n for n in reachable([e for e in edges if e is not None])[0] if n.number > began]
    for i, node in enumerate(sorted(found, key=_age)):
        node.number = number - 1 + (i + 1) / (len(found) + 1)  # type: ignore[assignment]


class MapNode(Node):
    """The autograd node of a segment. Each of its outputs can be differentiated once: in the loop the results of
    different examples would have graphs of their own."""

    __slots__ = ("_tape", "results")

    _tape: Tape | None
    # Weak references to the tensors that are its outputs.
    results: list[Any]

    def unroll(self) -> None:
        """Replace this node by an ordinary graph of single calls, which has gradients of intermediate values too."""
        tape = self._tape
        if tape is None or self.op is _UNROLLED:
            return
        with eagerly():
            began = tick()
            tensors = tape.rematerialised()
            _backdate(self.number, [t._edge for t in tensors], began)
        self.op, self.edges = _UNROLLED, tuple([t._edge or (t if t._requires_grad else None) for t in tensors])
        self._tape = None
        for reference, t in zip(self.results, tensors, strict=True):
            result = reference()
            if result is not None and split_edge(result._edge)[0] is self:
                result._edge = t._edge

    @property
    def kept(self) -> Any:
        """The tape; None when the graphs of all outputs are freed."""
        if self.op is _UNROLLED:
            return (None,)
        return None if self._tape is None else (self._tape,)

    @kept.setter
    def kept(self, value: Any) -> None:
        if value is not None:
            self._tape = value[0]
        elif self._tape is not None:
            self._tape.used.update(self._tape.last)
            if len(self._tape.used) == len(self._tape.seeds):
                self._tape = None


def map_node(node: MapNode, tape: Any, outs: list[tuple[Any, Any]]) -> MapNode:
    """Fill in a node: its tape, and shape and dtype of its outputs."""
    node.op = _RECORD
    node.attrs = {}
    node.edges = tuple([t._edge or t for t in tape.outside])
    node.kept = (tape,)
    node.number = tick()
    node.extras = None
    shapes = node.more().outs = tuple(outs)
    node.shape, node.dtype = shapes[0]
    frame = user_frame(3)
    node.code = frame.f_code if frame is not None else None
    node.offset = frame.f_lasti if frame is not None else 0
    return node


def _rule(m: Any, needs_grad: tuple[bool, ...], g: Any, tape: Tape) -> list[Any]:
    tape.last = [i for i, gi in enumerate(g) if gi is not None]
    if not tape.used.isdisjoint(tape.last):
        raise GraphError("backward: the results of this map were already used and what they kept is freed",
                         fix=FREED)  # fmt: skip
    return tape.pull_recorded(list(g), needs_grad) if m.differentiable else tape.pull(list(g), needs_grad)


_RECORD = gradient_only("map", _rule, "MapBackward")
# After `unroll`: passes the gradients on to the nodes of the single calls.
_UNROLLED = gradient_only("map", lambda m, needs_grad, g, tape: list(g), "MapBackward")


class _BackwardPass:
    """One backward pass through a segment."""

    def __init__(self, tape: Tape) -> None:
        # (group, output) → its gradient, made when the first part of it arrives.
        self._grads: dict[tuple[int, int], Array] = {}
        self._addresses: Array = np.empty(tape.count, np.int64)
        # The rows that got a gradient. The others have none, which is not the same as a gradient of zero.
        self._reached: Array = np.zeros(tape.count, np.bool_)
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
            node = max(nodes, key=_age) if len(nodes) > 1 else nodes[0]
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


def _age(node: Node) -> int:
    return node.number
