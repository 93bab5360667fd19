"""What need not be computed at every run: steps on constants are done once, and copies are what was copied.

Plans of compiled functions and exported programs follow the same rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.backend.cpu import Array
from wayfare.op import Op

# In a graph nothing is written over, so a copy is as good as what it was made from.
COPIES = frozenset({"clone", "contiguous"})
# What is computed beforehand may be so many bytes larger than what it is computed from: a number stretched over a
# picture is sooner computed than read, and makes a file no larger.
_GROWTH = 4096


def computed(op: Op, arrays: Sequence[Array], attrs: dict[str, Any]) -> list[Array] | None:
    """The results of an op on constants; None where they are better computed at each run."""
    if not arrays or "key" in attrs:
        return None
    made = op.forward(*arrays, **attrs)
    results = [np.asarray(a) for a in (made if isinstance(made, (tuple, list)) else (made,))]
    if sum(r.nbytes for r in results) > _GROWTH + sum(a.nbytes for a in arrays):
        return None
    # Memory of their own: a view would keep all it looks into.
    return [np.array(r) for r in results]
