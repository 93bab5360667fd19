"""Estimates of the workspace of ops: the memory they need beside inputs and results, known before they run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wayfare.core.op import Op
from wayfare.core.spec import Spec

# Workspace as a multiple of the bytes of inputs and results, all counted as dense. Measured as the largest resident
# memory for float16, float32 and int64 with vectors, matrices, stacks and expanded values; rounded up.
_TIMES = {
    "mode": 14, "median": 9, "median_of_all": 9, "kthvalue": 5, "topk": 3, "sort": 2,
    "pinv": 9, "matrix_exp": 8, "svd": 6, "inv": 4, "qr": 4, "geqrf": 4, "solve": 4, "cholesky": 3, "cholesky_info": 3,
    "lu_factor": 1, "pivot_matrix": 1, "solve_triangular": 1, "cross": 1,
    "logcumsumexp": 3, "resample": 2, "matmul": 2, "erfinv": 1, "gather": 1, "searchsorted": 1, "lstm_sequence": 1,
}  # fmt: skip
_TIMES_OF_FAMILY = {"linear algebra": 5, "scan": 2}


def room_of(op: Op, specs: Sequence[Spec], results: Sequence[Spec], attrs: dict[str, Any]) -> int:
    """The bytes that a call needs in addition to its inputs and results."""
    stated = op.signature.room if op.signature is not None else None
    itemsize = specs[0].dtype.itemsize if specs else 8
    elements = 0 if stated is None else stated(specs, attrs) * itemsize
    times = _TIMES.get(op.name, _TIMES_OF_FAMILY.get(op.family, 0))
    return max(elements, times * bytes_of([*specs, *results]) if times else 0)


def bytes_of(specs: Sequence[Spec]) -> int:
    """The bytes of these values, without sharing."""
    return sum(math.prod(s.shape) * s.dtype.itemsize for s in specs)
