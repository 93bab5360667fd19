"""Where gradients end: summed into leaves' `.grad`, or captured for `grad()`."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.backend.rows import Part, Rows
from wayfare.backend.writes import note_write
from wayfare.graph.node import Node
from wayfare.tensor import Tensor, wrap

_add = np.add


class Leaves:
    """Receives gradients for leaves during one backward pass.

    A plain leaf takes each contribution at once. One with hooks, or one that is captured, waits until its gradient
    is final; how many contributions that takes is counted when the first such leaf is met.
    """

    __slots__ = ("_accumulate", "_capture", "_create", "_roots", "_uses", "_waiting", "born")

    def __init__(self, roots: list[Any], create: bool, capture: Any, accumulate: bool) -> None:
        self._roots = roots
        self._create = create
        self._capture = capture
        self._accumulate = accumulate
        # Leaves whose .grad was made by this pass: nobody has seen it, so adding to it is no write to be noticed.
        self.born: dict[Tensor, Any] = {}
        self._waiting: dict[Tensor, Any] = {}
        self._uses: dict[Tensor, int] | None = None

    def receive(self, leaf: Tensor, g: Any, fresh: bool) -> None:
        """One contribution to a leaf's gradient."""
        if self._capture is not None and leaf not in self._capture.tensors:
            return
        if leaf._extras is None and self._capture is None:
            self._add_to(leaf, g, fresh)
            return
        if self._uses is None:
            self._uses = _count_uses(self._roots)
        old = self._waiting.get(leaf)
        self._waiting[leaf] = g if old is None else _plus(old, g, self._create)
        self._uses[leaf] = left = self._uses.get(leaf, 1) - 1
        if left == 0:
            self._complete(leaf, self._waiting.pop(leaf))

    def finish(self) -> None:
        """What still waits is final now: some ways to it gave no gradient."""
        while self._waiting:
            leaf, g = self._waiting.popitem()
            self._complete(leaf, g)

    def _complete(self, leaf: Tensor, g: Any) -> None:
        extras = leaf._extras or {}
        for hook in list(extras.get("hooks", {}).values()):
            seen = g if isinstance(g, Tensor) else wrap(np.asarray(g.dense() if g.__class__ is Rows else g))
            result = hook(seen)
            g = result if result is not None else seen
            if not self._create:
                g = g._array
        if self._capture is not None:
            self._capture.tensors[leaf] = g
            if not self._accumulate:
                return
        self._add_to(leaf, g, False)
        for hook in list(extras.get("post_hooks", {}).values()):
            hook(leaf)

    def _add_to(self, leaf: Tensor, g: Any, fresh: bool) -> None:
        old = leaf._grad
        if self._create:
            leaf._grad = g if old is None else leaf.grad + g
        elif old is None:
            leaf._grad = own = _own(g, fresh)
            if own.__class__ is Tensor:
                self.born[leaf] = own._array
        elif old.__class__ is Rows:
            if g.__class__ is Rows:
                total = old.absorb(_own(g, False))
                if not isinstance(total, Rows):
                    leaf._grad = wrap(total)
                    self.born[leaf] = total
            else:
                dense = np.array(g)
                old.add_into(dense)
                leaf._grad = wrap(dense)
        else:
            if g.__class__ is Rows:
                g.add_into(old._array)
            elif old._edge is None and old._array.flags.writeable:
                _add(old._array, g, out=old._array)
            else:
                leaf._grad = wrap(old._array + g)
                return
            if leaf not in self.born:
                note_write(old._array)


def _own(g: Any, fresh: bool) -> Any:
    """A gradient in a buffer that nobody else holds."""
    if g.__class__ is Rows:
        return Rows(g.shape, g.dtype, [Part(p.index, np.array(p.values), p.basic) for p in g.parts])
    return wrap(g if fresh else np.array(g))


def _plus(old: Any, new: Any, create: bool) -> Any:
    if create:
        return old + new
    if old.__class__ is Rows and new.__class__ is Rows:
        return old.absorb(new)
    first, second = (x.dense() if x.__class__ is Rows else x for x in (old, new))
    return first + second


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
