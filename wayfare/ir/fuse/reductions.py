"""One reduction (a sum, a maximum, …) of a large array as a native loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.codegen.routines.reductions import reduce_axes
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.core.spec import OF_NUMPY, Spec

# Arrays of at least this many elements are reduced by a native loop; for smaller ones NumPy is faster.
_FROM = 16384


class LargeReduction:
    """The forward of a reduction on large arrays."""

    __slots__ = ("_dtypes", "kind", "op")

    def __init__(self, op: Op) -> None:
        self.op = op
        self.kind = op.loop_reduction
        self._dtypes: dict[np.dtype[Any], np.dtype[Any]] = {}

    def __call__(self, x: Array, *, dim: tuple[int, ...], keepdim: bool) -> Any:
        made = self._dtypes.get(x.dtype)
        if made is None:
            made = self._dtypes[x.dtype] = self.op.infer(Spec((), OF_NUMPY[x.dtype]), dim=(), keepdim=False).dtype.numpy
        out = reduce_axes(self.kind, x, dim, keepdim, made)
        return self.op.forward_for((x.dtype,))(x, dim=dim, keepdim=keepdim) if out is None else out


def prepare_reduction(op: Op) -> None:
    """Give the record of a reduction its forward for large arrays."""
    if op.loop_reduction:
        op.large = LargeReduction(op)
        op.large_from = _FROM
