"""The gradient of a weight that many groups share: its operands wait until the end, for one large gemm."""

from __future__ import annotations

from wayfare.batch.record.call import Array
from wayfare.core.tensor import Tensor


class DeferredGemm:
    """The deferred gemm for the gradient of one weight (and its bias): pairs of (output gradient, input)."""

    __slots__ = ("bias", "pairs", "size", "weight")

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.bias: Tensor | None = None
        self.pairs: list[tuple[Array, Array]] = []
        self.size = 0
