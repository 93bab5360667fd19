"""Gradients of leaves: added to `.grad`, or captured for `grad()`."""

from __future__ import annotations

from typing import Any

from wayfare.codegen.routines.rows import Part, Rows
from wayfare.core.device import ARRAYS, BACKENDS, active_for, added, as_array, copied, device_of, is_writable
from wayfare.core.dispatch import tensor_ops
from wayfare.core.errors import ArgumentTypeError, GraphError
from wayfare.core.grad_layout import in_layout_of
from wayfare.core.mode import changed_mode, current, executor
from wayfare.core.node import Node
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.write_clock import note_write


class Leaves:
    """Receives gradients for leaves during one backward pass.

    A plain leaf adds each contribution at once. A leaf with hooks, or one that is captured, waits until its gradient
    is final; how many contributions that takes is counted when the first such leaf is met.
    """

    __slots__ = ("_accumulate", "_capture", "_create", "_roots", "_uses", "_waiting", "born")

    def __init__(self, roots: list[Any], create: bool, capture: Any, accumulate: bool) -> None:
        self._roots = roots
        self._create = create
        self._capture = capture
        self._accumulate = accumulate
        # Leaves whose .grad was made by this pass: nothing has read it yet, so adding to it is not noted as a write.
        self.born: dict[Tensor, Any] = {}
        self._waiting: dict[Tensor, Any] = {}
        self._uses: dict[Tensor, int] | None = None

    def receive(self, leaf: Tensor, g: Any, fresh: bool) -> None:
        """One contribution to a leaf's gradient."""
        if not leaf._requires_grad or (self._capture is not None and leaf not in self._capture.tensors):
            return
        if leaf._extras is None and self._capture is None:
            self._add_to(leaf, g, fresh)
            return
        if self._uses is None:
            self._uses = _count_uses(self._roots)
        old = self._waiting.get(leaf)
        self._waiting[leaf] = g if old is None else self.plus(old, g)
        self._uses[leaf] = left = self._uses.get(leaf, 1) - 1
        if left == 0:
            self._complete(leaf, self._waiting.pop(leaf))

    def plus(self, old: Any, new: Any) -> Any:
        """The sum of two contributions."""
        if self._create:
            return old + new
        if old.__class__ is Rows and new.__class__ is Rows:
            return old.absorb(new)
        first, second = (x.dense() if x.__class__ is Rows else x for x in (old, new))
        with active_for(first):
            return first + second

    def finish(self) -> None:
        """Complete the leaves that still wait: some paths to them gave no gradient."""
        while self._waiting:
            leaf, g = self._waiting.popitem()
            self._complete(leaf, g)

    def _complete(self, leaf: Tensor, g: Any) -> None:
        extras = leaf._extras or {}
        for hook in list(extras.get("hooks", {}).values()):
            g = call_hook(hook, g.dense() if g.__class__ is Rows else g, self._create)
        if self._capture is not None:
            self._capture.tensors[leaf] = g
            if not self._accumulate:
                return
        self._add_to(leaf, g, False)
        for hook in list(extras.get("post_hooks", {}).values()):
            with recording_as(self._create):
                if hook(leaf) is not None:
                    raise GraphError("backward: a post-accumulate hook must return None",
                                     fix="Change tensor.grad, not the returned value.")  # fmt: skip

    def _add_to(self, leaf: Tensor, g: Any, fresh: bool) -> None:
        there = BACKENDS.get(leaf._array.__class__) if BACKENDS else None
        if not BACKENDS or (there is not None and there.alone and g.__class__ is there.array):
            self._add_there(leaf, g, fresh)
            return
        if g.__class__ in ARRAYS and device_of(g) != leaf.device:
            raise GraphError(f"backward: a gradient on {device_of(g)} came to a tensor on {leaf.device}",
                             fix="Gradients are on the device of what they are of: look at gradient= and at hooks.")
        with active_for(leaf._array):
            self._add_there(leaf, g, fresh)

    def _add_there(self, leaf: Tensor, g: Any, fresh: bool) -> None:
        old = leaf._grad
        if self._create:
            before = leaf.grad  # read through the property, so that a recorder notices
            leaf.grad = _stored(g, leaf) if before is None else before + g
        elif old is None:
            leaf._grad = own = _own(g, fresh, leaf._array)
            if own.__class__ is Tensor:
                self.born[leaf] = own._array
        elif old.__class__ is Rows:
            if g.__class__ is Rows:
                total = old.absorb(_own(g, False, leaf._array))
                if not isinstance(total, Rows):
                    leaf._grad = own = wrap(in_layout_of(total, leaf._array))
                    self.born[leaf] = own._array
            else:
                dense = copied(in_layout_of(g, leaf._array))
                old.add_into(dense)
                leaf._grad = wrap(dense)
        elif old._edge is not None or not is_writable(old._array):
            leaf._grad = wrap(as_array(old._array + (g.dense() if g.__class__ is Rows else g)))
        else:
            if g.__class__ is Rows:
                g.add_into(old._array)
            else:
                added(old._array, g, True)
            if leaf not in self.born:
                note_write(old._array)


def other_shape(source: str, given: Any, shape: Any) -> GraphError:
    """The error for a gradient whose shape does not fit its tensor."""
    return GraphError(f"backward: {source} gave a gradient of shape {list(given)} for a tensor of shape {list(shape)}",
                      fix="Set .data to another shape before the forward pass, not after it.")  # fmt: skip


def recording_as(create: bool) -> changed_mode:
    """The mode for the user's code (hooks) in a backward pass: recording only if the pass itself is recorded."""
    return changed_mode(grad=create and current().grad)


def as_tensor(g: Any) -> Any:
    """A gradient as a Tensor, for a hook."""
    if g is None or isinstance(g, Tensor):
        return g
    return wrap(as_array(g.dense() if g.__class__ is Rows else g))


def own_tensor(g: Any) -> Tensor:
    """A copy of a gradient for the user, who may write to it."""
    if isinstance(g, Tensor):
        return tensor_ops.clone(g)  # type: ignore[no-any-return]
    return wrap(copied(g))


def _stored(g: Tensor, leaf: Tensor) -> Tensor:
    """A copy of a gradient, with its history, in the memory layout of the leaf."""
    own = own_tensor(g)
    if own.__class__ is Tensor and executor().works_on_arrays:
        own._array = in_layout_of(own._array, leaf._array)
    return own


def call_hook(hook: Any, g: Any, create: bool) -> Any:
    """The gradient after a tensor's hook, which may replace it."""
    with recording_as(create):
        result = hook(as_tensor(g))
    return g if result is None else checked_gradient(result, g, create)


def checked_gradient(new: Any, old: Any, create: bool) -> Any:
    """What a hook returned, after checking that it can replace the old gradient."""
    if new is None:
        return None
    if not isinstance(new, Tensor):
        raise ArgumentTypeError(f"backward: a hook must return a Tensor or None, not {type(new).__name__}")
    if old is not None and (tuple(new.shape) != tuple(old.shape) or new.dtype is not as_tensor(old).dtype):
        raise GraphError(f"backward: a hook returned {new.spec} in place of a gradient of {as_tensor(old).spec}")
    if BACKENDS and old is not None and new.device != (place := as_tensor(old).device):
        raise GraphError(f"backward: a hook returned a gradient on {new.device} in place of one on {place}",
                         fix=f"Move it back with .to('{place}').")  # fmt: skip
    return new if create else new._array


def _own(g: Any, fresh: bool, like: Any) -> Any:
    """A gradient in a buffer that nothing else references, in the memory layout of its tensor."""
    if g.__class__ is Rows:
        return Rows(g.shape, g.dtype, [Part(p.index, copied(p.values), p.basic) for p in g.parts])
    if g.shape != like.shape:
        raise other_shape("the node before it", g.shape, like.shape)
    if g.ndim > 1 and g.strides != like.strides:
        laid = in_layout_of(g, like)
        fresh, g = fresh or laid is not g, laid
    return wrap(g if fresh else copied(g))


def _count_uses(roots: list[Any]) -> dict[Tensor, int]:
    """How many edges of the graph lead to each leaf."""
    uses: dict[Tensor, int] = {}
    seen: set[Node] = set()
    stack: list[Any] = list(roots)
    while stack:
        edge = stack.pop()
        target = edge[0] if edge.__class__ is tuple else edge
        if isinstance(target, Tensor):
            uses[target] = uses.get(target, 0) + 1
        elif target is not None and target not in seen:
            seen.add(target)
            stack.extend(target.edges)
    return uses
