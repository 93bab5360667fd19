"""Expanding the node of a replayed call into one node for each op, from the values that the node saved.

The new nodes are those that eager mode would have recorded. Only values that they save and the call did not are
computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from wayfare.compiler.record.graph import Graph, like
from wayfare.compiler.record.recorder_state import KEEP_HISTORY
from wayfare.core.node import Node
from wayfare.core.numpy_math import Array
from wayfare.core.op import VALUE
from wayfare.core.quiet import quietly
from wayfare.core.spec import FLOAT_KINDS
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.write_clock import tick
from wayfare.ir.graph import Slot, Step, Value, in_order
from wayfare.ir.target import target_of


class Gone(Exception):
    """The saved values of a node were freed."""


class ExpandedNodes:
    """Nodes for the values of one call.

    `array_of` returns the array of an input or a saved value, None for other values, or raises `Gone`; `edges` are the
    graph edges of the inputs; `freed` holds the ids of steps whose saved values were freed.
    """

    def __init__(
        self, graph: Graph, array_of: Callable[[Value], Array | None], edges: dict[Value, Any], given: Sequence[Any],
        line: tuple[Any, int], freed: Container[int] = (),
    ) -> None:  # fmt: skip
        self._cuts = graph.cuts
        self._array_of = array_of
        self._edges = edges
        self._given = given
        self._line = line
        self._freed = freed
        self._arrays: dict[Value, Array] = {}
        self.nodes: list[Node] = []

    def tensors(self, values: Sequence[Value]) -> list[Tensor]:
        """Tensors with the autograd history of these values, but without their numbers."""
        for step in in_order(values, {id(v.step) for v in self._edges}):
            if step.op is not None and not all(v in self._edges for v in step.outputs):
                self._enter(step)
        found = []
        for v in values:
            t = wrap(like(v.shape, v.dtype))
            t._edge = self._edges.get(v)
            t._requires_grad = t._edge is not None
            found.append(t)
        return found

    def _enter(self, step: Step) -> None:
        op: Any = step.op
        if op is KEEP_HISTORY:
            self._edges[step.outputs[0]] = self._edges.get(step.inputs[1])
            return
        cut = self._cuts.get(step.outputs[0], (False,) * len(step.inputs))
        edges = tuple([None if end else self._edges.get(v) for v, end in zip(step.inputs, cut, strict=True)])
        with_grad = op.differentiable_outputs
        wanted = [v.dtype.kind in FLOAT_KINDS and (with_grad is None or v.position in with_grad)
                  for v in step.outputs]  # fmt: skip
        if op.vjp is None or not any(edge is not None for edge in edges) or not any(wanted):
            return
        node = Node()
        node.op, node.edges, node.attrs = op, edges, self._attrs(step)
        node.number = tick()
        node.extras = None
        node.code, node.offset = self._line
        node.shape, node.dtype = step.outputs[0].shape, step.outputs[0].dtype
        several = len(step.outputs) > 1
        if several:
            node.more().outs = tuple([(v.shape, v.dtype) for v in step.outputs])
        node.kept = None
        if id(step) not in self._freed:
            with suppress(Gone):
                node.kept = self._kept(step, tuple(edge is not None for edge in edges), several)
        self.nodes.append(node)
        for v, here in zip(step.outputs, wanted, strict=True):
            if here:
                self._edges[v] = (node, v.position) if several else node

    def _kept(self, step: Step, needs: tuple[bool, ...], several: bool) -> tuple[Any, ...]:
        op: Any = step.op
        of_output, of_inputs = op.keeps(needs)
        read = op.kept_outputs if several and op.kept_outputs is not None else range(len(step.outputs))
        made = [(self._array(v) if of_output == VALUE else like(v.shape, v.dtype)) if v.position in read else None
                for v in step.outputs]  # fmt: skip
        inputs = [self._array(v) if how == VALUE else like(v.shape, v.dtype)
                  for v, how in zip(step.inputs, of_inputs, strict=True)]  # fmt: skip
        return op.packer(needs)(tuple(made) if several else made[0], *inputs)  # type: ignore[no-any-return]

    # -- numbers

    def _array(self, value: Value) -> Array:
        found = self._known(value)
        if found is not None:
            return found
        # Compute it from saved values.
        stack = [value.step]
        while stack:
            step = stack[-1]
            missing = [v.step for v in step.inputs if self._known(v) is None]
            if missing:
                stack += missing
                continue
            stack.pop()
            if self._known(step.outputs[0]) is None:
                self._run(step)
        return self._arrays[value]

    def _known(self, value: Value) -> Array | None:
        found = self._arrays.get(value)
        if found is None:
            found = self._array_of(value)
            if found is None and value.step.op is None:
                what = value.step.data
                found = np.asarray(what, value.dtype) if value.step.kind == "number" else np.array(what)
            if found is not None:
                self._arrays[value] = found
        return found

    def _run(self, step: Step) -> None:
        assert step.op is not None
        arrays = [self._arrays[v] for v in step.inputs]
        target = target_of(arrays)
        with quietly():
            forward = target.forward(step.op, [v.dtype for v in step.inputs])
            made = forward(*[target.constant(a) for a in arrays], **self._attrs(step))
        made = made if isinstance(made, (tuple, list)) else (made,)
        self._arrays.update((v, target.as_array(a)) for v, a in zip(step.outputs, made, strict=True))

    def _attrs(self, step: Step) -> dict[str, Any]:
        return {k: self._given[v.number] if v.__class__ is Slot else v for k, v in step.attrs.items()}


def date_back(nodes: Sequence[Node], number: float) -> None:
    """Number the nodes just below `number`, in order, so that the engine visits them after all nodes that use them."""
    for i, node in enumerate(nodes):
        node.number = number - 1 + (i + 1) / (len(nodes) + 1)  # type: ignore[assignment]
