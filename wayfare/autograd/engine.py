"""The backward pass: a loop over nodes in reverse order of creation, never a recursion.

A node's inputs exist before it does, so taking the youngest pending node first means that all its gradients have
arrived. No sorting or counting pass over the graph is needed: the cost is that of the nodes visited.

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
from wayfare.core.dispatch import tensor_ops
from wayfare.core.errors import GraphError
from wayfare.core.locks import lock
from wayfare.core.mode import STATE, UNUSUAL, executor, watcher
from wayfare.core.node import Node
from wayfare.core.op import joint, memory_error, raw_ops
from wayfare.core.quiet import quietly
from wayfare.core.tensor import wrap
from wayfare.core.write_clock import latest_write

_ndarray = np.ndarray
_add = np.add

# Threads share leaves and add to their gradients in place, so their passes take turns. A pass within a pass (from a
# hook, or the backward of a Function) is of the same thread and goes ahead.
_TURN = lock()


def run(
    roots: list[tuple[Any, Any]], *, retain: bool, create: bool, capture: Capture | None, accumulate: bool = True
) -> None:
    """Send gradients from the roots (edge, gradient) down to the leaves, or to what `capture` asks for."""
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
        self.owned: set[Node] = set()  # nodes whose pending gradient is our own buffer: it may be added to in place
        self.heap: list[tuple[int, Node]] = []

    def run(self, roots: list[tuple[Any, Any]]) -> None:
        """Take the youngest pending node until none is left."""
        retain, create, capture = self.retain, self.create, self.capture
        pending, owned, heap, born = self.pending, self.owned, self.heap, self.leaves.born
        m = tensor_ops if create else raw_ops
        mode = STATE.mode
        anomaly = None if mode is None else mode.anomaly
        watching = None if mode is None else mode.watcher
        plain = not (create or capture is not None)
        looking = anomaly is not None or watching is not None
        for edge, g in roots:
            self.send(edge, g, False)
        # `ahead` is the youngest pending node if it is not in the heap, `g_ahead` its gradient: a chain touches
        # neither the heap nor the dictionary.
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
            if usual and kept is not None and not node.attrs:
                if latest_write[0] > node.number:
                    check_versions(node)
                if looking and watching is not None:
                    watching.starts(node)
                grads = None
                if g.size >= op.slopes_from:
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
                g = prepare(node, g, create)
                if capture is not None:
                    if not capture.takes(node, g, node.outs is not None):
                        continue
                    edges = capture.towards(edges)
                if node.extras is not None and node.extras.pre_hooks:
                    g = call_pre_hooks(node, g, create)
                kept = unpack(node, create)
                if watching is not None:
                    watching.starts(node)
                grads = by_rule(node, m, g, kept, edges)
                if anomaly is not None:
                    anomaly.stepped(node, g, grads)
                grads = call_post_hooks(node, g, grads, m.differentiable)
                _tell(None, watching, node, g, grads)
            if not retain:
                node.kept = None
            for edge, gi in zip(edges, grads):  # noqa: B905 - of equal length, and strict= costs on this path
                if edge is None or gi is None:
                    continue
                if edge.__class__ is Node:
                    # An elementwise gradient has the output's shape, whatever the input's was.
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
                        except ValueError:  # It was broadcast: sum it to the leaf's shape first.
                            _add(buffer, fit(op, edge, gi, create), buffer)
                    else:
                        self.send(edge, fit(op, edge, gi, create), _is_fresh(node, gi, g, kept, grads))
            # Nothing of this node may outlive its turn: that would raise the peak.
            g = gi = kept = grads = y = x = None
        self.leaves.finish()

    def send(self, edge: Any, g: Any, fresh: bool) -> None:
        """Hand a gradient to where an edge leads; `fresh` says that nobody else holds its buffer."""
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
    """Those who look on hear of a step."""
    if anomaly is not None:
        anomaly.stepped(node, g, grads)
    if watching is not None:
        watching.stepped(node, g, grads)


def _at_once(node: Node, g: Any, kept: tuple[Any, ...]) -> Any:
    """All gradients of a node of large arrays as one native loop; None where its rules must run one by one."""
    slopes = node.op.large_slopes
    if slopes is None or g.__class__ is not _ndarray:
        return None
    return slopes(g, kept, tuple([edge is not None for edge in node.edges]), node.attrs)


def _is_fresh(node: Node, gi: Any, g: Any, kept: tuple[Any, ...], grads: Any) -> bool:
    """Was this gradient computed just now, so that nobody else (as a hook may) holds its buffer?"""
    if gi is g or gi.__class__ is not _ndarray or node.op.family == "custom":
        return False
    extras = node.extras
    if extras is not None and (extras.post_hooks or extras.pre_hooks or extras.tensor_hooks or extras.unpack):
        return False
    base: Any = gi.base
    if base is not None and not isinstance(base, Lease):
        return False
    # Of several outputs there are several gradients, and several values kept.
    held = [*kept, *(kept[0] if kept[0].__class__ is tuple else ()), *(g if g.__class__ is tuple else ())]
    if any(gi is k for k in held):
        return False
    return sum(gi is other for other in grads) == 1


def add_up(old: Any, new: Any, own: bool, create: bool) -> Any:
    """Add two gradients, into the old one's buffer when it is ours."""
    if create:
        return old + new
    if new.__class__ is Rows:
        if old.__class__ is Rows:
            return old.absorb(new)
        out = old if own and old.__class__ is _ndarray and old.flags.writeable else np.array(old)
        new.add_into(out)
        return out
    if old.__class__ is Rows:
        out = np.array(new)
        old.add_into(out)
        return out
    if own and old.__class__ is _ndarray and old.flags.writeable:
        return _add(old, new, out=old)
    return old + new


def fit(op: Any, edge: Any, g: Any, create: bool) -> Any:
    """Sum away what broadcasting stretched."""
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
        return tensor_ops.sum_to(g, shape=shape) if create else sum_to(g, shape)
    except (ValueError, IndexError):
        raise other_shape(op.grad_name, g.shape, shape) from None


def prepare(node: Node, g: Any, create: bool) -> Any:
    """Missing gradients of a node of several outputs become zeros, Rows become dense, tensors' hooks have their say."""
    outs = node.outs
    if outs is None:
        grads = [_dense(g)]
    else:
        takes_none = node.op.takes_none
        grads = [_dense(x) if x is not None or takes_none else _zeros(*outs[i], create) for i, x in enumerate(g)]
    extras = node.extras
    if extras is not None:
        for number, hooks in extras.tensor_hooks.items():
            for hook in list(hooks.values()):
                if grads[number] is not None:  # an output that played no part has no gradient to look at
                    grads[number] = call_hook(hook, grads[number], create)
        for number, reference in extras.retained.items():
            tensor = reference()
            if tensor is not None and grads[number] is not None:
                value = own_tensor(grads[number])
                tensor._grad = value if tensor._grad is None else tensor._grad + value
    return grads[0] if outs is None else tuple(grads)


def call_pre_hooks(node: Node, g: Any, create: bool) -> Any:
    """The hooks of the node itself: they see what its rule will be given, not what is captured for its outputs."""
    assert node.extras is not None
    grads = [g] if node.outs is None else list(g)
    for hook in list(node.extras.pre_hooks.values()):
        grads = _several_from(hook, grads, create, tuple(_as_tensor(x) for x in grads))
    return grads[0] if node.outs is None else tuple(grads)


def _dense(g: Any) -> Any:
    return g.dense() if g.__class__ is Rows else g


def _zeros(shape: tuple[int, ...], dtype: Any, create: bool) -> Any:
    zeros = np.zeros(shape, dtype)
    return wrap(zeros) if create else zeros


def _several_from(hook: Any, grads: list[Any], create: bool, *given: tuple[Any, ...]) -> list[Any]:
    """What a node's hook makes of the gradients."""
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
    """The gradient of every input, as the node's record computes it."""
    vjp, attrs = node.op.vjp, node.attrs
    needs = tuple(edge is not None for edge in edges)
    at_once: list[Any] | None = None
    if not m.differentiable and node.outs is None and g.size >= node.op.slopes_from:
        at_once = _at_once(node, g, kept)
    if at_once is not None:
        return at_once
    if isinstance(vjp, joint):
        return list(vjp.rule(m, needs, g, *kept, **attrs))
    assert vjp is not None
    pairs = zip(needs, vjp, strict=True)
    return [rule(m, g, *kept, **attrs) if wanted and rule is not None else None for wanted, rule in pairs]


def call_post_hooks(node: Node, g: Any, grads: list[Any], create: bool) -> list[Any]:
    """The hooks of the node that see what its rule was given and what it made of it."""
    if node.extras is not None and node.extras.post_hooks:
        outputs = tuple(_as_tensor(x) for x in (g if node.outs is not None else (g,)))
        for hook in list(node.extras.post_hooks.values()):
            grads = _several_from(hook, grads, create, tuple(_as_tensor(x) for x in grads), outputs)
    return grads
