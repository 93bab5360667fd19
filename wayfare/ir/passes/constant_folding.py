"""What need not be computed at every run: steps on constants are done once, and copies are what was copied.

Plans of compiled functions and exported programs follow the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.core.spec import spec_of

# What is computed beforehand may be so many bytes larger than what it is computed from.
_GROWTH = 4096


def computed(op: Op, arrays: Sequence[Array], attrs: dict[str, Any]) -> list[Array] | None:
    """The results of an op on constants; None where they are better computed at each run."""
    if not arrays or "key" in attrs:
        return None
    specs = op.infer(*map(spec_of, arrays), **attrs)
    size = sum(math.prod(s.shape) * s.dtype.itemsize for s in (specs if isinstance(specs, (tuple, list)) else (specs,)))
    if size > _GROWTH + sum(_bytes(op, a) for a in arrays):
        return None
    made = op.forward(*arrays, **attrs)
    # Memory of their own: a view would keep all it looks into.
    return [np.array(r) for r in (made if isinstance(made, (tuple, list)) else (made,))]


def _bytes(op: Op, array: Array) -> int:
    """What an array counts for. One number stretched over a picture is sooner computed with than read back."""
    return array.itemsize if op.family == "elementwise" and not any(array.strides) else array.nbytes
