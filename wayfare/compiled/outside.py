"""A compiled call as one node of the graph outside: its gradient is a plan of its own.

What that plan needs of the call is computed with the results and kept by the node. Where the gradient is itself to be
differentiated, the steps run once more, op by op, on tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from wayfare.backend.cpu import Array
from wayfare.backend.writes import tick, version
from wayfare.compiled.graph import Graph, Source
from wayfare.compiled.notes import RETOLD
from wayfare.compiled.recording import Recording
from wayfare.compiled.tree import rebased
from wayfare.eager import apply, tensor_ops
from wayfare.errors import GraphError, InPlaceError
from wayfare.fusion.counting import traced_flops
from wayfare.fusion.plan import Plan, Slot
from wayfare.fusion.trace import Step, Value, in_order
from wayfare.graph.node import Node
from wayfare.op import Op, gradient_only
from wayfare.site import user_frame
from wayfare.tensor import Tensor, wrap


def _record_of(name: str, rule: Any) -> Op:
    return gradient_only(name, rule, "".join(w.capitalize() for w in name.strip("_<>").split("_")) + "Backward")


class Gradient:
    """The gradient of one recorded path, for calls from outside."""

    def __init__(self, recording: Recording, graph: Graph, name: str) -> None:
        self.recording = recording
        self.graph = graph
        self.name = name
        self.plan: Plan | None = None
        self._inputs: list[Source | Value] = []
        self.sources = [source for source, _ in recording.slopes]
        # All inputs that the gradient may be computed from when it is differentiated again.
        self.given = recording.sources
        self.op = _record_of(name, self._rule)
        self.op.work = self._work

    def node(self, arguments: Sequence[Tensor], saved: Sequence[Array], given: Sequence[Any]) -> Node:
        """The node of a call."""
        node = Node()
        node.op = self.op
        node.attrs = {}
        tensors = [source.tensor(arguments) for source in self.sources]
        node.edges = tuple([(t._edge or t) if t is not None and t._requires_grad else None for t in tensors])
        held = {id(source): source.tensor(arguments) for source in self.given}
        node.kept = (_Kept(tuple(saved), held, tuple(given)),)
        node.number = tick()
        node.extras = None
        frame = user_frame(2)
        node.code = frame.f_code if frame is not None else None
        node.offset = frame.f_lasti if frame is not None else 0
        return node

    def _work(self, inputs: Sequence[Any], outputs: Sequence[Any], attrs: dict[str, Any]) -> int | None:
        """The arithmetic of the call: that of the ops recorded."""
        return traced_flops(self.recording.made)

    def _rule(self, m: Any, needs: tuple[bool, ...], g: Any, kept: _Kept) -> list[Any]:
        kept.check(self.name, self._used)
        grads = list(g) if g.__class__ is tuple else [g]
        recording = self.recording
        made: list[Any]
        if m.differentiable:
            made = self._by_ops(grads, kept)
        else:
            seeds = {v: np.zeros(v.shape, v.dtype) if x is None else np.asarray(x)
                     for v, x in zip(recording.seeds, grads, strict=True)}  # fmt: skip
            made = self._by_plan(seeds, kept)
        return [x if wanted else None for x, wanted in zip(made, needs, strict=True)]

    @cached_property
    def _used(self) -> set[int]:
        """The sources whose arrays the gradient reads."""
        by_value = {source.value: id(source) for source in self.given}
        targets = [value for _, value in self.recording.slopes]
        stop = {id(v.step) for v in self.recording.saved}
        return {by_value[step.outputs[0]] for step in in_order(targets, stop)
                if step.op is None and step.outputs[0] in by_value and id(step) not in stop}  # fmt: skip

    def _by_plan(self, seeds: dict[Value, Array], kept: _Kept) -> list[Array]:
        arrays: dict[Any, Array] = dict(zip(self.recording.saved, kept.saved, strict=True))
        arrays |= seeds
        if self.plan is None:
            targets = [value for _, value in self.recording.slopes]
            self._inputs, leaves, values = rebased(targets, self.recording.saved, self.graph)
            samples = [self._array(where, arrays, kept) for where in self._inputs]
            self.plan = Plan(f"{self.name}_backward", leaves, values, [], samples)
        return self.plan.run([self._array(where, arrays, kept) for where in self._inputs], kept.given)

    def _array(self, where: Source | Value, arrays: dict[Any, Array], kept: _Kept) -> Array:
        if isinstance(where, Value):
            return arrays[where]
        return kept.arrays[id(where)]

    def _by_ops(self, grads: list[Any], kept: _Kept) -> list[Tensor]:
        """The gradient on tensors, from the inputs, so that it can be differentiated again."""
        recording = self.recording
        if recording.customs:
            raise GraphError(
                f"backward: {self.name} was compiled, and uses the custom Function {recording.customs[0]}: the "
                "gradient of its gradient would need that Function's own rule once more",
                fix="Call the function without wf.compile where second derivatives are wanted.",
            )
        known: dict[Value, Any] = {}
        saved = dict(zip(recording.saved, kept.saved, strict=True))
        for source in self.given:
            t = kept.tensors[id(source)]
            if t is not None:
                values = saved.get(source.value)  # as they were before the call wrote over them
                known[source.value] = t if values is None else _retold(wrap(values), t)
        for v, x in zip(recording.seeds, grads, strict=True):
            known[v] = wrap(np.zeros(v.shape, v.dtype)) if x is None else x
        targets = [value for _, value in recording.slopes]
        for step in in_order(targets, {id(v.step) for v in known}):
            if not all(v in known for v in step.outputs):
                cut = self.graph.cuts.get(step.outputs[0], ())
                made = _run(step, known, kept.given, cut)
                known.update(zip(step.outputs, made, strict=True))
        return [known[v] for v in targets]


def _retold(values: Tensor, history: Tensor) -> Tensor:
    """The values of the one with the history of the other."""
    return history + (values - history).detach() if history.requires_grad else values


def _run(step: Step, known: dict[Value, Any], given: Sequence[Any], cut: tuple[bool, ...]) -> Sequence[Tensor]:
    """One step on tensors."""
    if step.op is None:
        kind, what = step.leaf
        return (wrap(np.asarray(what, step.outputs[0].dtype) if kind == "number" else np.array(what)),)
    inputs = tuple(known[v] for v in step.inputs)
    if cut:
        inputs = tuple(t.detach() if end else t for t, end in zip(inputs, cut, strict=True))
    attrs = {k: given[v.number] if v.__class__ is Slot else v for k, v in step.attrs.items()}
    made: Any
    if step.op is RETOLD:
        made = _retold(*inputs)
    elif step.op.family == "vjp":
        assert step.op.formula is not None
        made = step.op.formula(tensor_ops, *inputs, **attrs)
    else:
        made = apply(step.op, inputs, attrs)
    return made if isinstance(made, (tuple, list)) else (made,)


class _Kept:
    """What a node keeps of its call: values for the plan, the tensors it was given, and its random keys."""

    __slots__ = ("arrays", "given", "saved", "tensors", "versions")

    def __init__(self, saved: tuple[Array, ...], tensors: dict[int, Tensor | None], given: tuple[Any, ...]) -> None:
        self.saved, self.tensors, self.given = saved, tensors, given
        self.arrays = {key: t._array for key, t in tensors.items() if t is not None}
        self.versions = [version(array) for array in self.arrays.values()]

    def check(self, name: str, used: set[int]) -> None:
        """Refuse to compute a gradient from what was written in place since."""
        for (key, array), then in zip(self.arrays.items(), self.versions, strict=True):
            if key in used and version(array) != then:
                raise InPlaceError(
                    f"{name}: a tensor it was given was written in place since, so its gradient cannot be computed: it "
                    f"is at version {version(array)}, expected version {then}",
                    fix="Write to a .clone(), or use the form of the op without the underscore.",
                )


@lru_cache
def _dead_record(name: str) -> Op:
    return _record_of(name, lambda *_: ())


def used_up(name: str) -> Node:
    """A node whose gradient was used inside the call: asking for it again is the error it would be without compile."""
    node = Node()
    node.op = _dead_record(name)
    node.attrs = {}
    node.edges = ()
    node.kept = None
    node.number = tick()
    node.extras = None
    node.code, node.offset = None, 0
    return node
