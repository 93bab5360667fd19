"""The autograd node of a segment, and what it keeps.

For the graph outside, a segment is one node. Its backward pass goes through the groups, from the last to the first
(`backward_pass.py`). For gradients of intermediate values and second derivatives its calls run again as ordinary ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Any

from wayfare.autograd.backward import grad as gradients_of
from wayfare.autograd.kept import FREED
from wayfare.batch.function_profile import MapTiming
from wayfare.batch.record.call import Value
from wayfare.batch.run.backward_pass import BackwardPass, age
from wayfare.batch.run.reachability import reachable_from
from wayfare.batch.run.rematerialise import Rematerialised
from wayfare.batch.run.segment import Segment
from wayfare.core.callsite import user_frame
from wayfare.core.dispatch import record_one
from wayfare.core.errors import GraphError
from wayfare.core.mode import changed_mode, executor
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
        backward_pass = BackwardPass(self.count)
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
    for i, node in enumerate(sorted(found, key=age)):
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
