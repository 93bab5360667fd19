"""One fold (a sum, a maximum, …) of a large array as a native loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.codegen.routines.reductions import reduce_axes
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.core.spec import OF_NUMPY, Spec
from wayfare.ir.lower import FOLDS

# From how many elements on a native loop is faster than NumPy's.
_FROM = 16384


class LargeFold:
    """The forward of a record that is a plain fold, on large arrays."""

    __slots__ = ("_dtypes", "kind", "op")

    def __init__(self, op: Op) -> None:
        self.op = op
        self.kind = FOLDS[op.name]
        self._dtypes: dict[np.dtype[Any], np.dtype[Any]] = {}

    def __call__(self, x: Array, *, dim: tuple[int, ...], keepdim: bool) -> Any:
        made = self._dtypes.get(x.dtype)
        if made is None:
            made = self._dtypes[x.dtype] = self.op.infer(Spec((), OF_NUMPY[x.dtype]), dim=(), keepdim=False).dtype.numpy
        out = reduce_axes(self.kind, x, dim, keepdim, made)
        return self.op.forward(x, dim=dim, keepdim=keepdim) if out is None else out


def prepare_fold(op: Op) -> None:
    """Give a record that is a plain fold its form for large arrays."""
    if op.name in FOLDS:
        op.large = LargeFold(op)
        op.large_from = _FROM
