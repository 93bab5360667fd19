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
from wayfare.backend.writes import latest_write, tick, version, version_at
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

# Gradients up to so many bytes are copied where that saves a second plan.
_SMALL = 1 << 16


def _record_of(name: str, rule: Any) -> Op:
    return gradient_only(name, rule, "".join(w.capitalize() for w in name.strip("_<>").split("_")) + "Backward")


class Gradient:
    """The gradient of one recorded path, for calls from outside."""

    def __init__(self, recording: Recording, graph: Graph, name: str) -> None:
        self.recording = recording
        self.graph = graph
        self.name = name
        self.plan: Plan | None = None
        # Where each input of the plan comes from: (0, number of a saved value), (1, of a seed), (2, key of a source).
        self._inputs: list[tuple[int, int]] = []
        self.sources = [source for source, _ in recording.slopes]
        # All inputs that the gradient may be computed from when it is differentiated again.
        self.given = recording.sources
        self.op = _record_of(name, self._rule)
        self.op.work = self._work

    def node(self, arguments: Sequence[Tensor], saved: Sequence[Array], given: Sequence[Any], above: int = 2) -> Node:
        """The node of a call, whose line is to be looked for from so many frames above on."""
        node = Node()
        node.op = self.op
        node.attrs = {}
        tensors = [source.tensor(arguments) for source in self.sources]
        node.edges = tuple([(t._edge or t) if t is not None and t._requires_grad else None for t in tensors])
        node.number = tick()
        node.kept = (_Kept(self, arguments, saved, given, node.number),)
        node.extras = None
        frame = user_frame(above)
        node.code = frame.f_code if frame is not None else None
        node.offset = frame.f_lasti if frame is not None else 0
        return node

    def _work(self, inputs: Sequence[Any], outputs: Sequence[Any], attrs: dict[str, Any]) -> int | None:
        """The arithmetic of the call: that of the ops recorded."""
        return traced_flops(self.recording.made)

    def _rule(self, m: Any, needs: tuple[bool, ...], g: Any, kept: _Kept) -> list[Any]:
        kept.check(self.name)
        grads = list(g) if g.__class__ is tuple else [g]
        made: list[Any] = self._by_ops(grads, kept) if m.differentiable else self._by_plan(grads, kept)
        return [x if wanted else None for x, wanted in zip(made, needs, strict=True)]

    @cached_property
    def reads(self) -> list[tuple[int, Source]]:
        """The sources whose arrays the gradient reads, by their keys."""
        by_value = {source.value: source for source in self.given}
        targets = [value for _, value in self.recording.slopes]
        stop = {id(v.step) for v in self.recording.saved}
        found = [by_value[step.outputs[0]] for step in in_order(targets, stop)
                 if step.op is None and step.outputs[0] in by_value and id(step) not in stop]  # fmt: skip
        return [(id(source), source) for source in found]

    @cached_property
    def passing(self) -> list[Source]:
        """The sources that are not where they were when the call is over: gradients, and what views are of."""
        return [source for source in self.given if source.kind not in ("argument", "captured")]

    def _by_plan(self, grads: Sequence[Any], kept: _Kept) -> list[Array]:
        seeds = [np.zeros(v.shape, v.dtype) if x is None else _in_rows(np.asarray(x))
                 for v, x in zip(self.recording.seeds, grads, strict=True)]  # fmt: skip
        if self.plan is None:
            targets = [value for _, value in self.recording.slopes]
            inputs, leaves, values = rebased(targets, self.recording.saved, self.graph)
            places: dict[Any, tuple[int, int]] = {v: (0, i) for i, v in enumerate(self.recording.saved)}
            places |= {v: (1, i) for i, v in enumerate(self.recording.seeds)}
            self._inputs = [places[where] if isinstance(where, Value) else (2, id(where)) for where in inputs]
            self.plan = Plan(f"{self.name}_backward", leaves, values, [], kept.arrays_for(self._inputs, seeds))
        return self.plan.run(kept.arrays_for(self._inputs, seeds), kept.given)

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
            t = kept.tensor(source)
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


def _in_rows(gradient: Array) -> Array:
    """A small gradient row after row: that of a sum is one number stretched, and one plan is to serve all of them."""
    if gradient.flags.c_contiguous or gradient.nbytes > _SMALL:
        return gradient
    return np.ascontiguousarray(gradient)


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

    __slots__ = ("_arguments", "_arrays", "_passing", "_time", "given", "saved")

    def __init__(
        self, gradient: Gradient, arguments: Sequence[Tensor], saved: Sequence[Array], given: Sequence[Any], time: int
    ) -> None:
        self.saved, self.given = saved, tuple(given)
        self._arguments = tuple(arguments)
        self._passing = {id(source): source.tensor(arguments) for source in gradient.passing}
        self._arrays: dict[int, Array] = {}
        for key, source in gradient.reads:
            t = source.tensor(arguments)
            if t is not None:
                self._arrays[key] = t._array
        self._time = time

    def tensor(self, source: Source) -> Tensor | None:
        """The tensor that the call found there."""
        key = id(source)
        return self._passing[key] if key in self._passing else source.tensor(self._arguments)

    def arrays_for(self, places: Sequence[tuple[int, int]], seeds: Sequence[Array]) -> list[Array]:
        """The arrays for a plan: of saved values, of seeds, of sources."""
        held = (self.saved, seeds, self._arrays)
        return [held[kind][at] for kind, at in places]

    def check(self, name: str) -> None:
        """Refuse to compute a gradient from what was written in place since."""
        if latest_write[0] <= self._time:
            return
        for array in self._arrays.values():
            now, then = version(array), version_at(array, self._time)
            if now != then:
                raise InPlaceError(
                    f"{name}: a tensor it was given was written in place since, so its gradient cannot be computed: it "
                    f"is at version {now}, expected version {then}",
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
