"""Gradients of weights that many groups share: their operands wait until the end, for one large gemm each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from wayfare.autograd.engine import by_rule, raw_ops_for
from wayfare.batch.record.call import Array
from wayfare.batch.record.memory import memory_of
from wayfare.core.device import BACKENDS, address
from wayfare.core.node import Node
from wayfare.core.op import REGISTRY, raw_ops
from wayfare.core.tensor import Tensor
from wayfare.ir.fuse.record import Factors, FusedRecord

_LINEAR, _LINEAR_PLAIN = REGISTRY["linear"], REGISTRY["linear_plain"]
# The gemm of a weight runs early when its operands have more elements than this.
_MAX_DEFERRED = 16 * 1024 * 1024


class _Product(NamedTuple):
    """The leaves whose gradients come from pairs of (output gradient, input): a weight and a bias, one of which may be
    None. `finish` makes the gradient of the bias from the sum of the output gradients, if it is not that sum, and
    `finish_weight` that of the weight from the product."""

    weight: Tensor | None
    bias: Tensor | None
    finish: Callable[[Array], Any] | None = None
    finish_weight: Callable[[Array], Any] | None = None

    @property
    def key(self) -> tuple[int, ...]:
        """What has all of this in common is one product."""
        return tuple(map(id, self))


class _DeferredGemm:
    """The deferred gemm for the gradient of one weight (and its bias): pairs of (output gradient, input)."""

    __slots__ = ("of", "pairs", "size")

    def __init__(self, of: _Product) -> None:
        self.of = of
        self.pairs: list[tuple[Array, Array | None]] = []
        self.size = 0


# Takes the gradient of a tensor from outside.
Deliver = Callable[[Tensor, Any], None]


class DeferredGemms:
    """The deferred gemms of a backward pass."""

    def __init__(self) -> None:
        self._gemms: dict[tuple[int, ...], _DeferredGemm] = {}

    def through(
        self, node: Node, g: Any, kept: Any, own: dict[int, int], deliver: Deliver
    ) -> tuple[Any, list[Any]] | None:
        """The edges of a node that get a gradient now, and the gradients; the others are deferred. None if nothing is.

        `own` are the ids of the inputs of the group, whose gradients are needed now.
        """
        op, edges = node.op, node.edges
        if op is _LINEAR or op is _LINEAR_PLAIN:
            of = _Product(edges[1], edges[2] if len(edges) > 2 else None)
            if g.ndim != 2 or not self._can_defer(of, own):
                return None
            self._defer(of, g, kept[1], deliver)
            left = (edges[0], *[None] * (len(edges) - 1))
            return left, by_rule(node, raw_ops_for(node, g), g, kept, left)
        fused = getattr(op.forward, "__self__", None)
        if not isinstance(fused, FusedRecord) or not fused.factors:
            return None
        outputs = g if node.outs is not None else [g]
        missing = [gi is None for gi in outputs[: len(fused.outputs)]]
        if any(missing) and not fused.may_be_zero(missing):
            return None  # a zero would stand for it, and zero times infinity is NaN
        products = [product_of(f, edges) for f in fused.factors]
        if not all([self._can_defer(of, own) for of in products]):
            return None
        grads, factors = fused.factored_grads([e is not None for e in edges], g, kept[0], kept[1:], **node.attrs)
        for of, f in zip(products, factors, strict=True):
            self._defer(of, f.gradient, f.x, deliver)
        return edges, grads

    def add(self, of: _Product, g: Array, x: Array | None, deliver: Deliver) -> None:
        """The gradients of a weight and its bias from their factors."""
        if self._can_defer(of, {}):
            self._defer(of, g, x, deliver)
        else:
            alone = _DeferredGemm(of)
            alone.pairs.append((g, x))
            self._run(alone, {}, deliver)

    def _can_defer(self, of: _Product, own: dict[int, int]) -> bool:
        """Whether these are leaves from outside."""
        for leaf in of[:2]:
            if leaf is not None and (not isinstance(leaf, Tensor) or id(leaf) in own):
                return False
        return of.weight is not None or of.bias is not None

    def _defer(self, of: _Product, g: Array, x: Array | None, deliver: Deliver) -> None:
        held = self._gemms.get(of.key)
        if held is None:
            held = self._gemms[of.key] = _DeferredGemm(of)
        held.pairs.append((g, x))
        held.size += g.size + (0 if x is None else x.size)
        if held.size > _MAX_DEFERRED:
            self._run(held, {}, deliver)

    def run(self, deliver: Deliver) -> None:
        """Run all of them."""
        known: dict[tuple[int, ...], list[Any]] = {}
        for held in self._gemms.values():
            self._run(held, known, deliver)

    def _run(self, held: _DeferredGemm, known: dict[tuple[int, ...], list[Any]], deliver: Deliver) -> None:
        if not held.pairs:
            return
        # The two weights of a recurrent cell get the same output gradients: concatenate and sum those only once.
        key = tuple([id(g) for g, _ in held.pairs])
        found = known.get(key)
        if found is None:
            parts = [g for g, _ in held.pairs]
            found = known[key] = [_joined(parts), None, parts]
        weight, bias, finish, finish_weight = held.of
        if weight is not None:
            product = memory_of(found[0]).matmul(found[0].T, _joined([x for _, x in held.pairs]))
            deliver(weight, product if finish_weight is None else finish_weight(product))
        if bias is not None:
            if found[1] is None:
                backend = BACKENDS.get(found[0].__class__)
                m = raw_ops if backend is None else backend.ops
                found[1] = m.sum_to(found[0], shape=found[0].shape[1:])
            deliver(bias, found[1] if finish is None else finish(found[1]))
        held.pairs.clear()
        held.size = 0



def product_of(f: Factors, tensors: Any) -> _Product:
    """Whose gradients some factors are; `tensors` are those (or the edges) of the inputs by number."""
    matrix, vector = (None if i is None else tensors[i] for i in (f.matrix, f.vector))
    return _Product(matrix, vector, f.finish, f.finish_matrix)


def _joined(parts: list[Any]) -> Array:
    """The rows of all parts, those of the last part first: a view where they lie so in one array, as in an arena."""
    parts = parts[::-1]
    first: Array = parts[0]
    if len(parts) == 1:
        return first
    base, at = first.base, address(first)
    for part in parts:
        if part.base is not base or base.__class__ is not np.ndarray or address(part) != at:
            return np.concatenate(parts)
        at += part.nbytes if part.flags.c_contiguous else -1
    rows = sum([len(part) for part in parts])
    return np.ndarray((rows, *first.shape[1:]), first.dtype, base, address(first) - address(base))
