"""Trees as index arrays: ONNX has no recursion, so a model file takes these in place of a tree.

    arrays = wf.onnx.levels(tree)

    def sentiment(values, children, roots):
        h, c = wf.onnx.over_levels((values, children, roots), leaf=lambda words: cell.leaf(embed(words)), node=cell)
        return head(h)

All leaves are computed at once, then all nodes whose children are known, and so on: one step per level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from wayfare.api.functions.creation import tensor, zeros
from wayfare.api.functions.grids import arange
from wayfare.api.functions.join import cat, stack
from wayfare.compiler.control_flow import scan
from wayfare.compiler.structure import put_together, take_apart
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.core.tensor import Tensor, wrap


class Levels(NamedTuple):
    """Trees as arrays. States stand in rows: row 0 is zeros, then the leaves, then the nodes level by level.

    `values` [leaves] is what the leaves hold; `children` [levels, width, arity] has the rows of the children of each
    node (0 where there is none); `roots` [trees] has the rows of the roots.
    """

    values: Tensor
    children: Tensor
    roots: Tensor


def levels(
    trees: Any, *, children: Callable[[Any], Sequence[Any]] | None = None, value: Callable[[Any], Any] | None = None,
    arity: int | None = None,
) -> Levels:  # fmt: skip
    """The index arrays of a tree, or of a list of trees.

    `children(node)` gives the children of a node (none for a leaf), `value(leaf)` what a leaf holds. Without them a
    node is a tuple of its children or has `.children`, or `.left` and `.right`; a leaf is anything else, and holds its
    `.word` or `.value`, or itself. `arity` is for how many children a node has places, by default as many as any of
    these has: a model file takes the arity it was made with.
    """
    roots = trees if isinstance(trees, list) else [trees]
    if not roots:
        raise ArgumentError("levels: the list of trees is empty", fix="Give at least one tree.")
    find = _CachedChildren(children or _children_of)
    depth, leaves, inner = _depths(roots, find)
    if not leaves:
        raise ArgumentError("levels: the trees have no leaves")
    by_level: list[list[Any]] = [[] for _ in range(max(depth.values()))]
    for node in inner:
        by_level[depth[id(node)] - 1].append(node)
    width = max(map(len, by_level), default=0)
    most = max((len(find(node)) for node in inner), default=0)
    if arity is None:
        arity = most or 2
    elif not isinstance(arity, int) or arity < most:
        raise ArgumentError(f"levels: arity is {arity!r}, and a node has {most} children",
                            fix="Give the most children that any tree will have.")  # fmt: skip
    row = {id(leaf): 1 + number for number, leaf in enumerate(leaves)}
    places = np.zeros((len(by_level), width, arity), np.int64)
    for number, nodes in enumerate(by_level):
        for at, node in enumerate(nodes):
            row[id(node)] = 1 + len(leaves) + number * width + at
            for k, child in enumerate(find(node)):
                places[number, at, k] = row[id(child)]
    held = [(value or _value_of)(leaf) for leaf in leaves]
    values = stack(held) if isinstance(held[0], Tensor) else tensor(held)
    return Levels(values, wrap(places), wrap(np.array([row[id(root)] for root in roots], np.int64)))


class _CachedChildren:
    """The children of each node, cached: a user's function may make new objects at each call."""

    def __init__(self, children: Callable[[Any], Sequence[Any]]) -> None:
        self._children = children
        self._kept: dict[int, tuple[Any, Sequence[Any]]] = {}

    def __call__(self, node: Any) -> Sequence[Any]:
        if id(node) not in self._kept:
            self._kept[id(node)] = (node, self._children(node))
        return self._kept[id(node)][1]


def _depths(roots: list[Any], children: Callable[[Any], Sequence[Any]]) -> tuple[dict[int, int], list[Any], list[Any]]:
    """How many levels are below each node; leaves and inner nodes, each once, children before their parents."""
    depth: dict[int, int] = {}
    leaves, inner = [], []
    open_nodes: set[int] = set()
    waiting = [(root, False) for root in reversed(roots)]
    while waiting:
        node, again = waiting.pop()
        if again:
            open_nodes.discard(id(node))
            below = children(node)
            depth[id(node)] = 1 + max(depth[id(child)] for child in below)
            inner.append(node)
            continue
        if id(node) in open_nodes:
            raise ArgumentError("levels: this is not a tree: a node is below itself")
        if id(node) in depth:
            continue  # a child that two nodes share is computed once
        below = children(node)
        if not below:
            depth[id(node)] = 0
            leaves.append(node)
            continue
        open_nodes.add(id(node))
        waiting.append((node, True))
        waiting.extend((child, False) for child in reversed(below))
    return depth, leaves, inner


def _children_of(node: Any) -> Sequence[Any]:
    if isinstance(node, tuple):
        return node
    if hasattr(node, "children"):
        return tuple(node.children)
    return tuple(side for side in (getattr(node, "left", None), getattr(node, "right", None)) if side is not None)


def _value_of(leaf: Any) -> Any:
    for name in ("word", "value"):
        if hasattr(leaf, name):
            return getattr(leaf, name)
    if isinstance(leaf, (int, float, Tensor)):
        return leaf
    raise ArgumentTypeError(f"levels: what a leaf of type {type(leaf).__name__} holds is not known",
                            fix="Say it with value=lambda leaf: ….")  # fmt: skip


def over_levels(
    arrays: Levels | tuple[Tensor, Tensor, Tensor], leaf: Callable[[Tensor], Any], node: Callable[..., Any]
) -> Any:
    """The states of the roots: `leaf(values)` for all leaves, then `node(*states of the children)` level by level.

    A state is a tensor, or several in a tuple, with a row for each leaf or node.
    """
    if not isinstance(arrays, tuple) or len(arrays) != 3:
        raise ArgumentTypeError(f"over_levels: takes what levels() gives, not {type(arrays).__name__}")
    values, children, roots = arrays
    parts: list[Tensor] = []
    shape = take_apart(leaf(values), parts, [])
    count, width = children.shape[0], children.shape[1]
    states = [cat([zeros(1, *p.shape[1:], dtype=p.dtype), p, zeros(count * width, *p.shape[1:], dtype=p.dtype)])
              for p in parts]  # fmt: skip
    if count:
        rows = (arange(count) * width).unsqueeze(1) + arange(width) + (values.shape[0] + 1)

        def level(carried: tuple[Tensor, ...], x: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
            below, where = x
            given = [put_together(shape, iter([s.index_select(0, below[:, k]) for s in carried]))
                     for k in range(children.shape[2])]  # fmt: skip
            made: list[Tensor] = []
            if take_apart(node(*given), made, []) != shape:
                raise ArgumentError("over_levels: leaf and node must give states of the same form")
            return tuple([s.index_copy(0, where, m) for s, m in zip(carried, made, strict=True)]), where

        (states, _) = scan(level, tuple(states), (children, rows))
    return put_together(shape, iter([s.index_select(0, roots) for s in states]))
