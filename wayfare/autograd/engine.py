"""The backward pass: a loop over nodes in reverse order of creation, never a recursion.

A node is always younger than its inputs. So when the youngest pending node runs, all its gradients have arrived. No
topological sort of the graph is needed: the cost is that of the nodes visited.

With `create` the rules run on Tensors and are themselves recorded; otherwise they run on raw arrays.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np

from wayfare.autograd.capture import Capture
from wayfare.autograd.kept import check_versions, unpack
from wayfare.autograd.leaves import Leaves, call_hook, checked_gradient, other_shape, own_tensor, recording_as
from wayfare.autograd.leaves import as_tensor as _as_tensor
from wayfare.codegen.routines.reductions import sum_to
from wayfare.codegen.routines.rows import Rows
from wayfare.core.buffer_pool import Lease
from wayfare.core.device import ARRAYS, BACKENDS, active_for, added, copied, is_writable, zeros_on_device_of
from wayfare.core.dispatch import tensor_ops
from wayfare.core.errors import GraphError
from wayfare.core.locks import lock
from wayfare.core.mode import STATE, UNUSUAL, executor, watcher
from wayfare.core.native import NATIVE
from wayfare.core.node import Node
from wayfare.core.op import joint, raw_ops
from wayfare.core.op_failure import explain_fault, memory_error
from wayfare.core.quiet import quietly
from wayfare.core.spec import BFLOAT16, narrowed, widened
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.write_clock import latest_write

_ndarray = np.ndarray
_add = np.add

# Threads may share leaves and add to their gradients in place, so only one backward pass runs at a time. A pass inside
# a pass (started by a hook, or by the backward of a Function) is in the same thread and does not wait.
_TURN = lock()


def run(
    roots: list[tuple[Any, Any]], *, retain: bool, create: bool, capture: Capture | None, accumulate: bool = True
) -> None:
    """Propagate gradients from the roots (edge, gradient) to the leaves, or to the tensors that `capture` wants."""
    if UNUSUAL and executor().backward(
        roots, retain=retain, create=create, capture=capture, accumulate=accumulate
    ):  # fmt: skip
        return
    with _TURN:
        this = _Pass(retain, create, capture, Leaves([edge for edge, _ in roots], create, capture, accumulate))
        looking = watcher()
        if looking is not None:
            looking.starts(this)
        try:
            with quietly():
                this.run(roots)
        except MemoryError as error:
            raise memory_error("backward", error) from None
        except RuntimeError as error:
            explain_fault("backward", error)
            raise
        finally:
            if looking is not None:
                looking.ended(this)


class _Pass:
    """One backward pass."""

    __slots__ = ("capture", "create", "heap", "leaves", "owned", "pending", "retain")

    def __init__(self, retain: bool, create: bool, capture: Capture | None, leaves: Leaves) -> None:
        self.retain = retain
        self.create = create
        self.capture = capture
        self.leaves = leaves
        self.pending: dict[Node, Any] = {}
        self.owned: set[Node] = set()  # nodes whose pending gradient is a buffer of this pass: may be added to in place
        self.heap: list[tuple[int, Node]] = []

    def run(self, roots: list[tuple[Any, Any]]) -> None:
        """Run the youngest pending node until none is left."""
        retain, create, capture = self.retain, self.create, self.capture
        pending, owned, heap, born = self.pending, self.owned, self.heap, self.leaves.born
        m = tensor_ops if create else raw_ops
        mode = STATE.mode
        anomaly = None if mode is None else mode.anomaly
        watching = None if mode is None else mode.watcher
        plain = not (create or capture is not None)
        looking = anomaly is not None or watching is not None
        if plain and not looking and NATIVE is not None:
            NATIVE.backward(roots, retain, born, m, self.step, self.send, fit, _is_fresh, add_up, check_versions)
            self.leaves.finish()
            return
        for edge, g in roots:
            self.send(edge, g, False)
        # `ahead` is a pending node that is not in the heap, usually the next one, and `g_ahead` its gradient: a chain
        # of nodes needs neither the heap nor the dictionary.
        ahead: Node | None = None
        g_ahead: Any = None
        grads: Any
        while True:
            if ahead is not None and (not heap or ahead.number > -heap[0][0]):
                node, g = ahead, g_ahead
                ahead = g_ahead = None
            elif heap:
                node = heappop(heap)[1]
                g = pending.pop(node)
            else:
                break
            if owned:
                owned.discard(node)
            op, edges, kept = node.op, node.edges, node.kept
            rules: Any = op.vjp
            usual = plain and op.simple_rules and node.extras is None and g.__class__ is not Rows
            usual = usual and g.dtype is not BFLOAT16 and g.__class__ not in BACKENDS
            if usual and kept is not None and not node.attrs:
                if latest_write[0] > node.number:
                    check_versions(node)
                if looking and watching is not None:
                    watching.starts(node)
                grads = None
                if g.size >= op.large_vjp_from:
                    grads = _at_once(node, g, kept)
                if grads is not None:
                    pass
                elif len(edges) == 1:
                    y, x = kept
                    grads = (rules[0](m, g, y, x),)
                else:
                    y, x, x2 = kept
                    by_first, by_second = rules
                    first, second = edges
                    grads = (
                        None if first is None else by_first(m, g, y, x, x2),
                        None if second is None else by_second(m, g, y, x, x2),
                    )
                    x2 = None
                if looking:
                    _tell(anomaly, watching, node, g, grads)
            else:
                if capture is not None and capture.ends_at(node):
                    several = node.outs is not None
                    capture.takes(node, [_dense(x) for x in g] if several else _dense(g), several)
                    continue
                made = self.step(node, g, anomaly, watching)
                if made is None:
                    continue
                edges, grads, kept, g = made
                made = None
            if not retain:
                node.kept = None
            for edge, gi in zip(edges, grads):  # noqa: B905 - of equal length, and strict= costs on this path
                if edge is None or gi is None:
                    continue
                if edge.__class__ is Node:
                    # The rule of an op that broadcasts gives a gradient of the output's shape.
                    if op.broadcasts and node.shape != edge.shape:
                        gi = fit(op, edge, gi, create)
                    if edge is ahead:
                        g_ahead = add_up(g_ahead, gi, edge in owned, create)
                        owned.add(edge)
                    elif pending and edge in pending:
                        pending[edge] = add_up(pending[edge], gi, edge in owned, create)
                        owned.add(edge)
                    elif ahead is None:
                        ahead, g_ahead = edge, gi
                    elif ahead.number < edge.number:
                        heappush(heap, (-ahead.number, ahead))
                        pending[ahead] = g_ahead
                        ahead, g_ahead = edge, gi
                    else:
                        heappush(heap, (-edge.number, edge))
                        pending[edge] = gi
                else:
                    buffer = born.get(edge)
                    if buffer is not None and gi.__class__ is _ndarray:
                        try:
                            _add(buffer, gi, buffer)
                        except ValueError:  # the leaf was broadcast: sum the gradient to its shape first
                            _add(buffer, fit(op, edge, gi, create), buffer)
                    else:
                        self.send(edge, fit(op, edge, gi, create), _is_fresh(node, gi, g, kept, grads))
            # Drop all references to this node's arrays now: they would raise the peak of memory.
            g = gi = kept = grads = y = x = None
        self.leaves.finish()

    def step(self, node: Node, g: Any, anomaly: Any = None, watching: Any = None) -> Any:
        """Any node: (edges, their gradients, what it kept, its own gradient); None if its gradient was all wanted."""
        capture, edges = self.capture, node.edges
        g = prepare(node, g, self.create)
        if capture is not None:
            if not capture.takes(node, g, node.outs is not None):
                return None
            edges = capture.towards(edges)
        if node.extras is not None and node.extras.pre_hooks:
            g = call_pre_hooks(node, g, self.create)
        kept = unpack(node, self.create)
        if watching is not None:
            watching.starts(node)
        grads = by_rule(node, tensor_ops if self.create else raw_ops_for(node, g), g, kept, edges)
        if anomaly is not None:
            anomaly.stepped(node, g, grads)
        grads = call_post_hooks(node, g, grads, self.create)
        _tell(None, watching, node, g, grads)
        return edges, grads, kept, g

    def send(self, edge: Any, g: Any, fresh: bool) -> None:
        """Add a gradient to the target of an edge; `fresh` means that nothing else references its buffer."""
        pending = self.pending
        if edge.__class__ is tuple:
            node, number = edge
            slots = pending.get(node)
            if slots is None:
                slots = pending[node] = [None] * len(node.outs)
                heappush(self.heap, (-node.number, node))
            slots[number] = g if slots[number] is None else add_up(slots[number], g, False, self.create)
        elif edge.__class__ is Node:
            old = pending.get(edge)
            if old is None:
                pending[edge] = g
                heappush(self.heap, (-edge.number, edge))
            else:
                pending[edge] = add_up(old, g, edge in self.owned, self.create)
                self.owned.add(edge)
        else:
            self.leaves.receive(edge, g, fresh)


def _tell(anomaly: Any, watching: Any, node: Node, g: Any, grads: Any) -> None:
    """Tell anomaly mode and the watcher about a step."""
    if anomaly is not None:
        anomaly.stepped(node, g, grads)
    if watching is not None:
        watching.stepped(node, g, grads)


def _at_once(node: Node, g: Any, kept: tuple[Any, ...]) -> Any:
    """All gradients of a node of large arrays as one native loop; None where its rules must run one by one."""
    rule = node.op.large_vjp
    if rule is None or g.__class__ is not _ndarray:
        return None
    return rule(g, kept, tuple([edge is not None for edge in node.edges]), node.attrs)


def raw_ops_for(node: Node, g: Any) -> Any:
    """The `m` of a rule on raw arrays: that of the device on which the gradient lives."""
    one = next((x for x in g if x is not None), None) if node.outs is not None else g
    found = BACKENDS.get(one.__class__)
    return raw_ops if found is None else found.ops


def _is_fresh(node: Node, gi: Any, g: Any, kept: tuple[Any, ...], grads: Any) -> bool:
    """Is this gradient a new array that nothing else references (a hook may)?"""
    if gi is g or gi.__class__ not in ARRAYS or node.op.family == "custom":
        return False
    extras = node.extras
    if extras is not None and (extras.post_hooks or extras.pre_hooks or extras.tensor_hooks or extras.unpack):
        return False
    base: Any = gi.base
    if base is not None and not isinstance(base, Lease):
        return False
    # A node of several outputs has tuples of gradients and of kept outputs.
    held = [*kept, *(kept[0] if kept[0].__class__ is tuple else ()), *(g if g.__class__ is tuple else ())]
    if any(gi is k for k in held):
        return False
    return sum(gi is other for other in grads) == 1


def add_up(old: Any, new: Any, own: bool, create: bool) -> Any:
    """Add two gradients; in place if the buffer of the old one is our own."""
    if create:
        return old + new
    if BACKENDS:
        with active_for(new.parts[0].values if new.__class__ is Rows else new):
            return _add_up(old, new, own)
    return _add_up(old, new, own)


def _add_up(old: Any, new: Any, own: bool) -> Any:
    if new.__class__ is Rows:
        if old.__class__ is Rows:
            return old.absorb(new)
        out = old if own and old.__class__ in ARRAYS and is_writable(old) else copied(old)
        new.add_into(out)
        return out
    if old.__class__ is Rows:
        out = copied(new)
        old.add_into(out)
        return out
    return added(old, new, own)


def fit(op: Any, edge: Any, g: Any, create: bool) -> Any:
    """Sum a gradient to the shape of the input, if that was broadcast."""
    if not op.broadcasts or g.__class__ is Rows:
        return g
    if edge.__class__ is Node:
        shape = edge.shape
    elif edge.__class__ is tuple:
        shape = edge[0].outs[edge[1]][0]
    else:
        shape = tuple(edge.shape)
    if g.shape == shape:
        return g
    try:
        if g.__class__ in BACKENDS:
            with active_for(g):
                return BACKENDS[g.__class__].ops.sum_to(g, shape=shape)
        return tensor_ops.sum_to(g, shape=shape) if create else sum_to(g, shape)
    except (ValueError, IndexError):
        raise other_shape(op.grad_name, g.shape, shape) from None


def prepare(node: Node, g: Any, create: bool) -> Any:
    """Prepare the gradients of a node: zeros for missing ones, dense arrays for Rows, then the hooks of tensors."""
    outs = node.outs
    if outs is None:
        grads = [_dense(g)]
    else:
        takes_none = node.op.takes_none
        there = next((_raw(x) for x in g if x is not None), None)
        grads = [_dense(x) if x is not None or takes_none else _zeros(there, *outs[i], create) for i, x in enumerate(g)]
    extras = node.extras
    if extras is not None:
        for number, hooks in extras.tensor_hooks.items():
            for hook in list(hooks.values()):
                if grads[number] is not None:  # an unused output has no gradient
                    grads[number] = call_hook(hook, grads[number], create)
        for number, reference in extras.retained.items():
            tensor = reference()
            if tensor is not None and grads[number] is not None:
                value = own_tensor(grads[number])
                tensor._grad = value if tensor._grad is None else tensor._grad + value
    return grads[0] if outs is None else tuple(grads)


def call_pre_hooks(node: Node, g: Any, create: bool) -> Any:
    """Call the node's own pre-hooks. They see what the rule will be given, not what is captured for its outputs."""
    assert node.extras is not None
    grads = [g] if node.outs is None else list(g)
    for hook in list(node.extras.pre_hooks.values()):
        grads = _several_from(hook, grads, create, tuple(_as_tensor(x) for x in grads))
    return grads[0] if node.outs is None else tuple(grads)


def _dense(g: Any) -> Any:
    return g.dense() if g.__class__ is Rows else g


def _raw(g: Any) -> Any:
    return g._array if g.__class__ is Tensor else g


def _zeros(like: Any, shape: tuple[int, ...], dtype: Any, create: bool) -> Any:
    zeros = zeros_on_device_of(like, shape, dtype)
    return wrap(zeros) if create else zeros


def _several_from(hook: Any, grads: list[Any], create: bool, *given: tuple[Any, ...]) -> list[Any]:
    """The gradients after a hook of the node, which may replace them."""
    with recording_as(create):
        result = hook(*given)
    if result is None:
        return grads
    changed = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    if len(changed) != len(grads):
        raise GraphError(f"backward: a hook returned {len(changed)} gradients in place of {len(grads)}",
                         fix="Return one for each, or None to leave them as they are.")  # fmt: skip
    return [checked_gradient(new, old, create) for new, old in zip(changed, grads, strict=True)]


def by_rule(node: Node, m: Any, g: Any, kept: tuple[Any, ...], edges: Any) -> list[Any]:
    """The gradient of every input, by the gradient rule of the op."""
    if BACKENDS:
        with active_for(next(iter(_arrays(g)), None)):
            return _by_rule(node, m, g, kept, edges)
    return _by_rule(node, m, g, kept, edges)


def _by_rule(node: Node, m: Any, g: Any, kept: tuple[Any, ...], edges: Any) -> list[Any]:
    needs = tuple(edge is not None for edge in edges)
    at_once: list[Any] | None = None
    device = next((BACKENDS.get(x.__class__) for x in _arrays(g)), None) if BACKENDS else None
    if device is not None:
        at_once = device.gradients(node, g, kept, needs)
    elif not m.differentiable and node.outs is None and g.size >= node.op.large_vjp_from:
        at_once = _at_once(node, g, kept)
    if at_once is not None:
        return at_once
    if not m.differentiable and not node.op.gradient_as_is and BFLOAT16 in [x.dtype for x in _arrays(g)] and not (
        device is not None and device.gradient_as_is(node.op)
    ):
        return _in_float32(node, m, g, kept, edges)
    return _by_rules(node, m, g, kept, needs)


def _arrays(g: Any) -> list[Any]:
    return [x for x in (g if g.__class__ is tuple else (g,)) if x is not None]


def _in_float32(node: Node, m: Any, g: Any, kept: tuple[Any, ...], edges: Any) -> list[Any]:
    """The gradient rule of a bfloat16 op, in float32; its results are rounded once, to the dtype of each input."""

    def wide(value: Any) -> Any:
        if value.__class__ is tuple:
            return tuple([wide(v) for v in value])
        return widened(value) if value.__class__ in ARRAYS else value

    found = _by_rules(node, m, wide(g), wide(kept), tuple(edge is not None for edge in edges))
    return [x if x is None or edge is None else _narrow(x, _dtype_of(edge))
            for x, edge in zip(found, edges, strict=True)]  # fmt: skip


def _narrow(x: Any, dtype: Any) -> Any:
    return x.narrowed(dtype) if x.__class__ is Rows else narrowed(x, dtype)


def _dtype_of(edge: Any) -> Any:
    if edge.__class__ is Node:
        return edge.dtype
    return edge[0].outs[edge[1]][1] if edge.__class__ is tuple else edge.dtype.numpy


def _by_rules(node: Node, m: Any, g: Any, kept: tuple[Any, ...], needs: tuple[bool, ...]) -> list[Any]:
    vjp, attrs = node.op.vjp, node.attrs
    if isinstance(vjp, joint):
        return list(vjp.rule(m, needs, g, *kept, **attrs))
    assert vjp is not None
    pairs = zip(needs, vjp, strict=True)
    return [rule(m, g, *kept, **attrs) if wanted and rule is not None else None for wanted, rule in pairs]


def call_post_hooks(node: Node, g: Any, grads: list[Any], create: bool) -> list[Any]:
    """Call the node's post-hooks, which see the gradients of its inputs and outputs."""
    if node.extras is not None and node.extras.post_hooks:
        outputs = tuple(_as_tensor(x) for x in (g if node.outs is not None else (g,)))
        for hook in list(node.extras.post_hooks.values()):
            grads = _several_from(hook, grads, create, tuple(_as_tensor(x) for x in grads), outputs)
    return grads


if NATIVE is not None:
    NATIVE.set_up_backward(Rows)
