"""How much memory an op needs on its way to its result, in bytes, before it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wayfare.core.op import Op
from wayfare.core.spec import Spec

# How many times the bytes of what it takes and gives, all counted as if they were dense, an op makes on its way: the
# most resident memory for float16, float32 and int64, vectors, matrices, stacks and expanded values, rounded up.
_TIMES = {
    "mode": 14, "median": 9, "median_of_all": 9, "kthvalue": 5, "topk": 3, "sort": 2,
    "pinv": 9, "matrix_exp": 8, "svd": 6, "inv": 4, "qr": 4, "geqrf": 4, "solve": 4, "cholesky": 3, "cholesky_info": 3,
    "lu_factor": 1, "pivot_matrix": 1, "solve_triangular": 1, "cross": 1,
    "logcumsumexp": 3, "resample": 2, "matmul": 2, "erfinv": 1, "gather": 1, "searchsorted": 1, "lstm_sequence": 1,
}  # fmt: skip
_TIMES_OF_FAMILY = {"linear algebra": 5, "scan": 2}


def room_of(op: Op, specs: Sequence[Spec], results: Sequence[Spec], attrs: dict[str, Any]) -> int:
    """What a call needs beside its inputs and results."""
    stated = op.signature.room if op.signature is not None else None
    itemsize = specs[0].dtype.itemsize if specs else 8
    elements = 0 if stated is None else stated(specs, attrs) * itemsize
    times = _TIMES.get(op.name, _TIMES_OF_FAMILY.get(op.family, 0))
    return max(elements, times * bytes_of([*specs, *results]) if times else 0)


def bytes_of(specs: Sequence[Spec]) -> int:
    """The bytes of values, each in memory of its own."""
    return sum(math.prod(s.shape) * s.dtype.itemsize for s in specs)
