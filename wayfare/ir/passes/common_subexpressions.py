"""Common subexpressions: steps and constants with equal keys are the same, so one of them is enough.

The recorder merges equal steps while it records, the lowering while it lowers, and `simplify` in finished programs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.core.op import Op
from wayfare.core.spec import DType
from wayfare.core.symbolic_sizes import Repeated, shown
from wayfare.ir.graph import Slot, Value

# Constants up to this many bytes are compared by content.
_SMALL = 1 << 16
# Types of attributes that are compared by `==`; others that can be compared are compared by their `repr`.
_BY_VALUE = frozenset({int, bool, str, type(None), type(Ellipsis), DType, Slot})
_BY_TEXT = (int, float, str, slice, Repeated)


def step_key(op: Op, inputs: Iterable[Value], attrs: dict[str, Any]) -> Any:
    """Equal for steps that compute the same; None if the attributes cannot be compared."""
    try:
        return op, tuple(map(id, inputs)), _described(attrs) if attrs else ()
    except TypeError:
        return None


def number_key(number: Any, dtype: np.dtype[Any]) -> Any:
    """Equal for equal numbers or formulas of one dtype; 0.0 and -0.0 are not equal."""
    return "number", repr(shown(number)), dtype.char


def array_key(array: Any) -> Any:
    """Equal for equal constant arrays; None for a large one."""
    return ("array", array.shape, array.dtype.char, array.tobytes()) if array.nbytes <= _SMALL else None


def _described(value: Any) -> Any:
    """An attribute as something that can be hashed and compared. The type is part of it, because 1 == 1.0 == True."""
    kind = value.__class__
    if kind in _BY_VALUE:
        return kind, value
    if isinstance(value, (tuple, list)):
        return tuple([_described(part) for part in value])
    if isinstance(value, dict):
        return tuple([(name, _described(part)) for name, part in value.items()])
    if isinstance(value, _BY_TEXT):
        return kind, repr(shown(value))
    raise TypeError(f"{kind.__name__} cannot be compared")
