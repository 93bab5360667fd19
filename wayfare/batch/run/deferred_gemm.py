"""Gradients of weights that many groups share: their operands wait until the end, for one large gemm each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.autograd.engine import by_rule
from wayfare.batch.record.call import Array
from wayfare.codegen.runtime.gemm import matmul
from wayfare.core.node import Node
from wayfare.core.op import REGISTRY, raw_ops
from wayfare.core.tensor import Tensor
from wayfare.ir.fuse.record import FusedRecord

_LINEAR, _LINEAR_PLAIN = REGISTRY["linear"], REGISTRY["linear_plain"]
# The gemm of a weight runs early when its operands have more elements than this.
_MAX_DEFERRED = 16 * 1024 * 1024


class _DeferredGemm:
    """The deferred gemm for the gradient of one weight (and its bias): pairs of (output gradient, input)."""

    __slots__ = ("bias", "pairs", "size", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self.pairs: list[tuple[Array, Array]] = []
        self.size = 0


# Takes the gradient of a tensor from outside.
Deliver = Callable[[Tensor, Any], None]


class DeferredGemms:
    """The deferred gemms of a backward pass."""

    def __init__(self) -> None:
        self._gemms: dict[int, _DeferredGemm] = {}

    def through(
        self, node: Node, g: Any, kept: Any, own: dict[int, int], deliver: Deliver
    ) -> tuple[Any, list[Any]] | None:
        """The edges of a node that get a gradient now, and the gradients; the others are deferred. None if nothing is.

        `own` are the ids of the inputs of the group, whose gradients are needed now.
        """
        op, edges = node.op, node.edges
        if op is _LINEAR or op is _LINEAR_PLAIN:
            bias = edges[2] if len(edges) > 2 else None
            if g.ndim != 2 or not self._can_defer(edges[1], bias, own):
                return None
            self._defer(edges[1], bias, g, kept[1], deliver)
            left = (edges[0], *[None] * (len(edges) - 1))
            return left, by_rule(node, raw_ops, g, kept, left)
        fused = getattr(op.forward, "__self__", None)
        if not isinstance(fused, FusedRecord) or not fused.factors:
            return None
        outputs = g if node.outs is not None else [g]
        if any([gi is None for gi in outputs[: len(fused.outputs)]]):
            return None  # a zero would stand for it, and zero times infinity is NaN
        for f in fused.factors:
            if not self._can_defer(edges[f.matrix], None if f.vector is None else edges[f.vector], own):
                return None
        grads, factors = fused.factored_grads([e is not None for e in edges], g, kept[0], kept[1:], **node.attrs)
        for f in factors:
            self._defer(edges[f.matrix], None if f.vector is None else edges[f.vector], f.gradient, f.x, deliver)
        return edges, grads

    def _can_defer(self, weight: Any, bias: Any, own: dict[int, int]) -> bool:
        """Whether these are leaves from outside, and the weight always comes with this bias."""
        if not isinstance(weight, Tensor) or id(weight) in own:
            return False
        if bias is not None and (not isinstance(bias, Tensor) or id(bias) in own):
            return False
        held = self._gemms.get(id(weight))
        return held is None or held.bias is bias

    def _defer(self, weight: Tensor, bias: Tensor | None, g: Array, x: Array, deliver: Deliver) -> None:
        held = self._gemms.get(id(weight))
        if held is None:
            held = self._gemms[id(weight)] = _DeferredGemm(weight, bias)
        held.pairs.append((g, x))
        held.size += g.size + x.size
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
            found = known[key] = [parts[0] if len(parts) == 1 else np.concatenate(parts), None, parts]
        x = held.pairs[0][1] if len(held.pairs) == 1 else np.concatenate([x for _, x in held.pairs])
        deliver(held.weight, matmul(found[0].T, x))
        if held.bias is not None:
            if found[1] is None:
                found[1] = raw_ops.sum_to(found[0], shape=held.bias._array.shape)
            deliver(held.bias, found[1])
        held.pairs.clear()
        held.size = 0

