"""Estimates of the workspace of ops: the memory they need beside inputs and results, known before they run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wayfare.core.op import Op
from wayfare.core.spec import Spec

# The workspace of ops whose records state none, as a multiple of the bytes of inputs and results, all counted as dense.
# Measured as the largest resident memory for float16, float32 and int64 with vectors, matrices, stacks and expanded
# values; rounded up.
_OF_FAMILY = {"linear algebra": 5, "scan": 2}


def workspace_of(op: Op, specs: Sequence[Spec], results: Sequence[Spec], attrs: dict[str, Any]) -> int:
    """The bytes that a call needs in addition to its inputs and results."""
    stated = op.workspace if op.workspace is not None else _OF_FAMILY.get(op.family, 0)
    if callable(stated):
        return stated(specs, attrs) * (specs[0].dtype.itemsize if specs else 8)
    return stated * bytes_of([*specs, *results])


def bytes_of(specs: Sequence[Spec]) -> int:
    """The bytes of these values, without sharing."""
    return sum(math.prod(s.shape) * s.dtype.itemsize for s in specs)
