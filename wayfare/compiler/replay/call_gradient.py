"""The gradient of a replayed call, which is one node of the caller's autograd graph: a plan of its own.

The values that this plan reads are computed with the results and saved in the node. There is one plan for each set of
results with a gradient and of inputs that need one. If the gradient is differentiated again, or the gradient of a
result is needed from which another result is computed, the node is expanded into the nodes of its ops.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import cached_property, lru_cache
from typing import Any

from wayfare.autograd.backward import grad as gradients_of
from wayfare.compiler.record.backward import Visit
from wayfare.compiler.record.graph import Graph, Source, like
from wayfare.compiler.record.recording import Recording
from wayfare.compiler.replay.call_node import CallNode, Kept
from wayfare.compiler.replay.expand import ExpandedNodes, date_back
from wayfare.compiler.replay.partial_gradient import PartialBackward
from wayfare.compiler.replay.trace_tree import rebased
from wayfare.core.callsite import user_frame
from wayfare.core.device import as_array
from wayfare.core.dispatch import record_one
from wayfare.core.errors import GraphError
from wayfare.core.mode import changed_mode
from wayfare.core.node import Node
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY, Op, gradient_only
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.walk import split_edge
from wayfare.core.write_clock import tick
from wayfare.ir.flops import traced_flops
from wayfare.ir.graph import Value, in_order
from wayfare.ir.plan.plan import Plan

# Gradients up to this many bytes are made contiguous, which saves a second plan.
_SMALL = 1 << 16
# The most plans for one path.
_PARTS = 16
_CLONE = REGISTRY["clone"]


def _record_of(name: str, rule: Any) -> Op:
    return gradient_only(name, rule, "".join(w.capitalize() for w in name.strip("_<>").split("_")) + "Backward")


class Gradient:
    """The gradient of one recorded path with respect to its inputs."""

    def __init__(self, recording: Recording, graph: Graph, name: str) -> None:
        self.recording = recording
        self.graph = graph
        self.name = name
        self.sources = [source for source, _ in recording.input_grads]
        # All inputs that the gradient may depend on when it is differentiated again.
        self.given = recording.sources
        self.wanted = [v for v, needs in zip(recording.made, recording.made_needs, strict=True) if needs]
        self.outs = tuple([(tuple(v.shape), v.dtype) for v in self.wanted])
        self.saved_at = {v: i for i, v in enumerate(recording.saved)}
        self.made_at = {v: i for i, v in reversed(list(enumerate(recording.made)))}
        # For each saved value: the number of the result that is the same value, or None.
        self.shared = [self.made_at.get(v) for v in recording.saved]
        self.by_value = {source.value: source for source in self.given}
        self._parts: dict[Any, Part] = {}
        self.op = _record_of(name, self._rule)
        self.op.work = self._work

    def node(
        self, arguments: Sequence[Tensor], made: Sequence[Array], saved: Sequence[Array], given: Sequence[Any],
        above: int = 2,
    ) -> CallNode:  # fmt: skip
        """The node of a call; its source line is searched from `above` frames up."""
        node = CallNode()
        node.op = self.op
        node.attrs = {}
        node.gradient = self
        node.results = ()
        node.shape, node.dtype = self.outs[0]
        tensors = [source.tensor(arguments) for source in self.sources]
        node.edges = tuple([(t._edge or t) if t is not None and t._requires_grad else None for t in tensors])
        node.number = tick()
        node._kept = kept = Kept(self, arguments, made, saved, given, node.number)
        node.extras = None
        frame = user_frame(above)
        node.code = frame.f_code if frame is not None else None
        node.offset = frame.f_lasti if frame is not None else 0
        kept.edges, kept.line = node.edges, (node.code, node.offset)
        return node

    def _work(self, inputs: Sequence[Any], outputs: Sequence[Any], attrs: dict[str, Any]) -> int | None:
        """The FLOPs of the call: the sum over its ops."""
        return traced_flops(self.recording.made)

    def _rule(self, m: Any, needs: tuple[bool, ...], g: Any, kept: Kept) -> list[Any]:
        arrived = tuple([x is not None for x in g])
        part = self._part(arrived, needs)
        kept.check(part)
        kept.last = arrived, part.keeping
        return self._by_ops(g, needs, kept) if m.differentiable else self._by_plan(part, g, kept)

    def _part(self, arrived: tuple[bool, ...], needs: tuple[bool, ...]) -> Part:
        found = self._parts.get((arrived, needs))
        if found is None:
            if len(self._parts) >= _PARTS:
                self._parts.pop(next(iter(self._parts)))
            found = self._parts[arrived, needs] = Part(self.recording, arrived, needs)
        return found

    # -- what a node must save

    @cached_property
    def reads(self) -> list[tuple[int, Source]]:
        """The sources whose arrays the gradient reads, or whose memory holds a saved value, with their ids."""
        targets = [value for _, value in self.recording.input_grads]
        stop = {id(v.step) for v in self.recording.saved}
        found = {id(self.by_value[step.outputs[0]]): self.by_value[step.outputs[0]] for step in in_order(targets, stop)
                 if step.op is None and step.outputs[0] in self.by_value and id(step) not in stop}  # fmt: skip
        homes = [home for homes in self.recording.homes.values() for home in homes]
        found |= {id(home): home for home in homes if isinstance(home, Source)}
        return list(found.items())

    @cached_property
    def shown(self) -> list[int]:
        """The numbers of the results that share memory with a saved value."""
        return sorted({home for homes in self.recording.homes.values() for home in homes if isinstance(home, int)})

    @cached_property
    def passing(self) -> list[Source]:
        """The sources that cannot be found again after the call: `.grad` tensors, and bases of views."""
        return [source for source in self.given if source.kind not in ("argument", "captured")]

    @cached_property
    def keeping(self) -> frozenset[int]:
        """The steps whose nodes save tensors."""
        return keeping(self.recording, self.recording.visits)

    @cached_property
    def nested(self) -> bool:
        """Is a result computed from another result?"""
        return len(self.wanted) > 1 and any(
            other is not v and id(v.step) in steps
            for other in self.wanted for steps in ({id(step) for step in in_order([other])},)
            for v in self.wanted if v.step.op is not None
        )  # fmt: skip

    # -- with a plan

    @property
    def plan(self) -> Plan | None:
        """The newest plan."""
        return next((part.plan for part in reversed(self._parts.values()) if part.plan is not None), None)

    def _by_plan(self, part: Part, grads: Sequence[Any], kept: Kept) -> list[Any]:
        if not part.values:
            return [None] * len(self.sources)
        seeds = [None if x is None else _in_rows(as_array(x)) for x in grads]
        if part.plan is None:
            inputs, leaves, values = rebased(part.values, self.recording.saved, self.graph)
            places: dict[Any, tuple[int, int]] = {v: (0, i) for i, v in enumerate(self.recording.saved)}
            places |= {v: (1, i) for i, v in enumerate(self.recording.seeds)}
            part.inputs = [places[where] if isinstance(where, Value) else (2, id(where)) for where in inputs]
            part.plan = Plan(f"{self.name}_backward", leaves, values, [], kept.arrays_for(part.inputs, seeds))
        made = part.plan.run(kept.arrays_for(part.inputs, seeds), kept.given)
        found: list[Any] = [None] * len(self.sources)
        for i, array in zip(part.places, made, strict=True):
            found[i] = array
        return found

    # -- expanded into single nodes

    def _by_ops(self, grads: Sequence[Any], needs: Sequence[bool], kept: Kept) -> list[Any]:
        """The gradient on tensors, so that it can be differentiated again."""
        self._refuse_customs()
        with changed_mode(grad=True):
            # This pass must stop at the inputs: they are cut off, and get their edges back below.
            cut = [None if edge is None else _without_history(source) for source, edge in
                   zip(self.sources, kept.edges, strict=True)]  # fmt: skip
            edges = {source.value: t._edge for source, t in zip(self.sources, cut, strict=True) if t is not None}
            here = [i for i, x in enumerate(grads) if x is not None]
            made = self._history(edges, kept).tensors([self.wanted[i] for i in here])
            pairs = [(t, grads[i]) for i, t in zip(here, made, strict=True) if t._requires_grad]
            asked = [t for t, need in zip(cut, needs, strict=True) if need and t is not None]
            found = iter(gradients_of(
                [t for t, _ in pairs], asked, [g for _, g in pairs], create_graph=True, allow_unused=True
            ) if pairs and asked else [None] * len(asked))  # fmt: skip
        for t, edge in zip(cut, kept.edges, strict=True):
            if t is not None:
                t._edge.edges = (edge,)
        return [next(found) if need and t is not None else None for t, need in zip(cut, needs, strict=True)]

    def unroll(self, node: CallNode, kept: Kept) -> None:
        """Replace the node of a call by the nodes of its ops."""
        self._refuse_customs()
        edges = {source.value: edge for source, edge in zip(self.sources, kept.edges, strict=True) if edge is not None}
        freed = {id(step) for step in in_order([self.wanted[i] for i in kept.spent])}
        history = self._history(edges, kept, freed)
        made = history.tensors(self.wanted)
        date_back(history.nodes, node.number)
        node.op, node.edges = _PASSED_ON, tuple([t._edge for t in made])
        for reference, t in zip(node.results, made, strict=True):
            result = reference()
            if result is not None and t._edge is not None and split_edge(result._edge)[0] is node:
                result._edge = t._edge

    def _history(self, edges: dict[Value, Any], kept: Kept, freed: Container[int] = ()) -> ExpandedNodes:
        return ExpandedNodes(self.graph, kept.array_of, edges, kept.given, kept.line, freed)

    def _refuse_customs(self) -> None:
        if self.recording.customs:
            raise GraphError(
                f"backward: {self.name} was compiled, and uses the custom Function {self.recording.customs[0]}: the "
                "gradient of its gradient, or of a result inside it, would need that Function's own backward again",
                fix="Call the function without wf.compile where such gradients are wanted.",
            )


class Part:
    """The gradient for one set of results with a gradient and of inputs that need one."""

    def __init__(self, recording: Recording, arrived: tuple[bool, ...], needs: tuple[bool, ...]) -> None:
        part = PartialBackward(recording.seeds, arrived, [value for _, value in recording.input_grads], needs)
        self.values = [v for v in part.values if v is not None]
        self.places = [i for i, v in enumerate(part.values) if v is not None]
        self.keeping = keeping(recording, part.steps)
        # The nodes in the order of the backward pass: step, node, and where its saved values are visible.
        self.way: list[tuple[int, Visit, list[int | Source]]] = [
            (step, visit, [home for memory in visit.reads for home in recording.homes.get(id(memory), ())])
            for step in reversed(part.steps) for visit in recording.visits.get(step, ())
        ]  # fmt: skip
        self.homes = list({home: None for _, _, homes in self.way for home in homes})
        self.plan: Plan | None = None
        # Where each input of the plan comes from: (0, number of a saved value), (1, of a seed) or (2, id of a source).
        self.inputs: list[tuple[int, int]] = []


def keeping(recording: Recording, steps: Any) -> frozenset[int]:
    """The steps whose nodes save more than shapes."""
    return frozenset(step for step in steps if any(not visit.repeatable for visit in recording.visits.get(step, ())))


def _in_rows(gradient: Array) -> Array:
    """Make a small gradient contiguous: that of a sum is one number broadcast, and one plan should serve both."""
    if gradient.flags.c_contiguous or gradient.nbytes > _SMALL:
        return gradient
    return gradient.copy("C")


def _without_history(source: Source) -> Tensor:
    """A tensor without numbers that stands for an input."""
    given, copy = (wrap(like(source.value.shape, source.value.dtype)) for _ in range(2))
    given._requires_grad = True
    record_one(_CLONE, (given,), [given._array], copy, {})
    copy._edge.edges = (None,)
    return copy


_PASSED_ON = gradient_only("compiled", lambda m, needs, g, kept: list(g), "CompiledBackward")


@lru_cache
def _dead_record(name: str) -> Op:
    return _record_of(name, lambda *_: ())


def used_up(name: str) -> Node:
    """A node that a backward pass inside the call has used up: another backward raises the same error as in eager
    mode."""
    node = Node()
    node.op = _dead_record(name)
    node.attrs = {}
    node.edges = ()
    node.kept = None
    node.number = tick()
    node.extras = None
    node.code, node.offset = None, 0
    return node
