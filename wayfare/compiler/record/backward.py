"""Recording a backward pass: the engine's own rules run on real arrays, and each node is recorded as one step.

The backward of a custom Function is recorded op by op, between two marker steps: `ARRIVES` for each gradient that it
receives, `LEAVES` for each that it returns. `replay/partial_gradient.py` uses them if only some gradients exist: they
tell what the Function receives, and whether it is called at all.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from wayfare.autograd.engine import by_rule, call_post_hooks, call_pre_hooks, raw_ops_for
from wayfare.autograd.function import FunctionCtx
from wayfare.autograd.kept import is_made_again, kept_arrays, unpack
from wayfare.autograd.leaves import Leaves, call_hook
from wayfare.codegen.routines.reductions import sum_to
from wayfare.codegen.routines.rows import Rows
from wayfare.compiler.record.memory import Memory
from wayfare.core.device import ARRAYS, as_array, is_writable, zeros_on_device_of
from wayfare.core.node import Node
from wayfare.core.op import REGISTRY, Op
from wayfare.core.spec import Spec, float32, spec_of
from wayfare.core.tensor import Tensor
from wayfare.ir.vjp import vjp_inputs, vjp_op

if TYPE_CHECKING:
    from wayfare.compiler.record.recorder import Recorder

_ADD = REGISTRY["add"]


def _mark(name: str) -> Op:
    return Op(
        name=name, family="movement", forward=lambda x, *_: x, infer=lambda x, *_: x, vjp=None,
        batch=lambda m, size, inputs, batched, attrs: inputs[0], samples=lambda rng: (), reference=lambda x, *_: x,
        formula=lambda m, x, *_: x,
    )  # fmt: skip


# A gradient that a custom Function receives; one that it returns, followed by those that it received.
ARRIVES, LEAVES = _mark("arrives"), _mark("leaves")


class Visit:
    """A node that a backward pass visited, and what it saved."""

    __slots__ = ("code", "custom", "grad_name", "name", "offset", "reads", "repeatable")

    def __init__(self, node: Node, reads: list[Memory]) -> None:
        self.name, self.grad_name, self.code, self.offset = node.op.name, node.name(), node.code, node.offset
        self.custom = node.op.family == "custom"
        self.reads = reads  # the memory of its saved values
        self.repeatable = is_made_again(node)  # it saves only shapes, so it can be visited any number of times


class RecordedPass:
    """One backward pass: visits the newest pending node until none is left, as the engine does."""

    def __init__(
        self, recorder: Recorder, retain: bool, capture: Any, accumulate: bool, bare: bool = False
    ) -> None:
        self.recorder = recorder
        self.retain = retain
        self.capture = capture
        self.accumulate = accumulate
        self.bare = bare  # without the hooks of captured tensors: the real backward pass calls them
        self.pending: dict[Node, list[Any]] = {}
        self.heap: list[tuple[int, Node]] = []
        # Of a bare pass: the visited nodes, by the steps that were recorded for them.
        self.visits: dict[int, list[Visit]] = {}

    def run(self, roots: list[tuple[Any, Any]]) -> None:
        """Send gradients from the roots (edge, array) to the leaves or to `capture`."""
        outer, self.recorder.passing = self.recorder.passing, True
        try:
            self._run(roots)
        finally:
            self.recorder.passing = outer

    def _run(self, roots: list[tuple[Any, Any]]) -> None:
        leaves = RecordedLeaves(self.recorder, [edge for edge, _ in roots], self.capture, self.accumulate, self.bare)
        for edge, g in roots:
            self.recorder.enter_seed(g)
            self._send(edge, g, leaves)
        while self.heap:
            node = heappop(self.heap)[1]
            self._visit(node, self.pending.pop(node), leaves)
        leaves.finish()

    def _visit(self, node: Node, arrived: list[Any], leaves: RecordedLeaves) -> None:
        several = node.outs is not None
        outside = self.bare and node.number < self.recorder.start
        grads = arrived if outside else self._after_hooks(node, arrived)
        g = tuple(grads) if several else grads[0]
        arrived = list(grads)
        if several and not node.op.takes_none:  # the rule receives zeros; the step records that there is no gradient
            one = next(x for x in grads if x is not None)
            g = tuple([zeros_on_device_of(one, *out) if x is None else x
                       for x, out in zip(grads, node.outs or (), strict=True)])  # fmt: skip
        edges = node.edges
        if self.capture is not None:
            goes_on = self.capture.takes(node, g, several)
            forgotten = outside and node not in self.capture.nodes
            if not goes_on and not forgotten:
                return
            edges = self.capture.towards(edges)
        if node.number < self.recorder.start:
            self.recorder.give_up("backward() continues into the graph of a tensor computed outside the function")
        if node.extras is not None and node.extras.pre_hooks:
            g = call_pre_hooks(node, g, False)
        kept = unpack(node, False)
        if self.bare and node.op.family == "custom":
            found = self._marked(node, g, kept, edges)
        else:
            found = [_dense(x) for x in by_rule(node, raw_ops_for(node, g), g, kept, edges)]
        if node.op.family != "custom":
            came = [x if there is not None else None for x, there in zip(g if several else (g,), arrived, strict=True)]
            self._enter(node, came, kept, edges, found)
        found = call_post_hooks(node, g, found, False)
        if not self.retain:
            node.kept = None
        for edge, x in zip(edges, found, strict=True):
            if edge is not None and x is not None:
                self._send(edge, x, leaves)

    def _marked(self, node: Node, g: Any, kept: tuple[Any, ...], edges: Any) -> list[Any]:
        """Run the backward of a custom Function, between marker steps."""
        recorder, several = self.recorder, node.outs is not None
        given = [x if x is None else x.view() for x in (g if several else (g,))]
        came = []
        with recorder.entering() as going:
            if going:
                for x, old in zip(given, g if several else (g,), strict=True):
                    if x is not None:
                        came.append(recorder.array_value(old))
                        recorder.enter(ARRIVES, came[-1:], {}, (x,))
        ctx, reads = kept[0], []
        if isinstance(ctx, FunctionCtx):
            reads = [s.array for s in ctx._saved or () if s is not None and s.array is not None]
            ctx._looked = False
        arrived = tuple(given) if several else given[0]
        found = [_dense(x) for x in by_rule(node, raw_ops_for(node, arrived), arrived, kept, edges)]
        visit = Visit(node, self._memories(reads if isinstance(ctx, FunctionCtx) and ctx._looked else ()))
        with recorder.entering() as going:
            if going:
                for i, x in enumerate(found):
                    if x is not None and edges[i] is not None:
                        found[i] = x.view()
                        recorder.enter(LEAVES, (recorder.array_value(x), *came), {}, (found[i],))
                        self._note(found[i], visit)
        return found

    def _note(self, made: Any, visit: Visit) -> None:
        self.visits.setdefault(id(self.recorder.array_value(made).step), []).append(visit)

    def _memories(self, arrays: Any) -> list[Memory]:
        found = [self.recorder.arrays.find(array) for array in arrays]
        return [known.memory for known in found if known is not None]

    def _after_hooks(self, node: Node, arrived: list[Any]) -> list[Any]:
        """The gradients of a node's outputs after the tensor hooks; None for an output without one."""
        recorder, grads = self.recorder, list(arrived)
        extras = node.extras
        if extras is not None and not self.bare:
            for number, hooks in extras.tensor_hooks.items():
                for hook in list(hooks.values()):
                    if grads[number] is not None:
                        grads[number] = call_hook(hook, grads[number], False)
            for number, reference in extras.retained.items():
                tensor = reference()
                if tensor is not None and grads[number] is not None:
                    old = tensor._grad
                    total = grads[number] if old is None else added(recorder, old._array, grads[number])
                    tensor._grad = recorder.copied(total)
        return grads

    def _enter(self, node: Node, g: Any, kept: tuple[Any, ...], edges: Any, grads: list[Any]) -> None:
        """Record the rule of a node as one step, and sum the gradients to the shapes of the inputs."""
        recorder, op = self.recorder, node.op
        inputs = tuple(_spec(edge, k) for edge, k in zip(node.edges, kept[1:], strict=True))
        needs = tuple(edge is not None for edge in edges)
        given = tuple(i for i, x in enumerate(grads) if x is not None and needs[i])
        for i in given:
            if op.broadcasts and grads[i].shape != tuple(inputs[i].shape):
                grads[i] = sum_to(grads[i], tuple(inputs[i].shape))
        if not given:
            return
        made = kept[0] if kept[0].__class__ is tuple else (kept[0],) * len(node.specs)
        for i in given:  # a rule may return the array it received: each gradient needs its own
            grads[i] = grads[i].view()
        with recorder.entering() as going:
            if going:
                values = [recorder.array_value(x) for x in vjp_inputs(op, needs, g, made, kept[1:])]
                # A saved input that requires no gradient stops gradients of this gradient.
                cuts = vjp_inputs(op, needs, [None if x is None else False for x in g], [False] * len(made),
                                  [edge is None for edge in node.edges])  # fmt: skip
                step = vjp_op(op, needs, tuple(x is not None for x in g), given, node.specs, inputs)
                recorder.enter(step, values, node.attrs, [grads[i] for i in given], None, tuple(cuts))
                if self.bare:
                    self._note(grads[given[0]], Visit(node, self._memories(kept_arrays(node))))

    def _send(self, edge: Any, g: Any, leaves: RecordedLeaves) -> None:
        if isinstance(edge, Tensor):
            leaves.receive(edge, g, False)
            return
        node, number = edge if edge.__class__ is tuple else (edge, 0)
        slots = self.pending.get(node)
        if slots is None:
            slots = self.pending[node] = [None] * (1 if node.outs is None else len(node.outs))
            heappush(self.heap, (-node.number, node))
        slots[number] = g if slots[number] is None else added(self.recorder, slots[number], g)


class RecordedLeaves(Leaves):
    """The leaves of a backward pass; every sum and every `.grad` is recorded."""

    __slots__ = ("_bare", "_recorder")

    def __init__(self, recorder: Recorder, roots: list[Any], capture: Any, accumulate: bool, bare: bool) -> None:
        super().__init__(roots, False, capture, accumulate)
        self._recorder = recorder
        self._bare = bare

    def _complete(self, leaf: Tensor, g: Any) -> None:
        if self._bare:
            self._capture.tensors[leaf] = g
        else:
            super()._complete(leaf, g)

    def plus(self, old: Any, new: Any) -> Any:
        """The sum of two contributions."""
        return added(self._recorder, old, new)

    def _add_to(self, leaf: Tensor, g: Any, fresh: bool) -> None:
        recorder = self._recorder
        old = leaf.grad
        if old is None:
            leaf.grad = recorder.copied(g, leaf._array)
        elif old._edge is not None or not is_writable(old._array):
            leaf.grad = recorder.copied(added(recorder, old._array, g))
        else:
            recorder.add_into(old, g)


def added(recorder: Recorder, old: Any, new: Any) -> Any:
    """The sum of two arrays, recorded as a step."""
    total = as_array(old + new)
    with recorder.entering() as going:
        if going:
            recorder.enter(_ADD, (recorder.array_value(old), recorder.array_value(new)), {}, (total,))
    return total


def _dense(g: Any) -> Any:
    if g is None:
        return None
    if isinstance(g, Tensor):
        return g._array
    return g.dense() if g.__class__ is Rows else as_array(g)


def _spec(edge: Any, kept: Any) -> Spec:
    """The shape and dtype of an input of a node."""
    if edge.__class__ is Node:
        return edge.specs[0]
    if edge.__class__ is tuple:
        return edge[0].specs[edge[1]]  # type: ignore[no-any-return]
    if isinstance(edge, Tensor):
        return edge.spec
    if isinstance(kept, Spec):
        return kept
    # Nothing was saved of it, so the rule does not use its shape and dtype.
    return spec_of(kept) if kept.__class__ in ARRAYS else Spec((), float32)
