"""How much memory an op needs on its way to its result, in bytes, before it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wayfare.core.op import Op
from wayfare.core.spec import Spec

# The `workspace` of ops that state none: how many times the bytes of what they take and give, all counted as if they
# were dense, they make on their way. It was measured: the most resident memory for float16, float32 and int64, vectors,
# matrices, stacks and expanded values, rounded up.
_OF_FAMILY = {"linear algebra": 5, "scan": 2}


def room_of(op: Op, specs: Sequence[Spec], results: Sequence[Spec], attrs: dict[str, Any]) -> int:
    """What a call needs beside its inputs and results."""
    stated = op.signature.room if op.signature is not None else None
    itemsize = specs[0].dtype.itemsize if specs else 8
    elements = 0 if stated is None else stated(specs, attrs) * itemsize
    times = op.workspace if op.workspace is not None else _OF_FAMILY.get(op.family, 0)
    return max(elements, times * bytes_of([*specs, *results]) if times else 0)


def bytes_of(specs: Sequence[Spec]) -> int:
    """The bytes of values, each in memory of its own."""
    return sum(math.prod(s.shape) * s.dtype.itemsize for s in specs)
