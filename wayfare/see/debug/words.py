"""Facts found while code runs and kept as a few words: the line, the name of a variable, an attribute."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.callsite import user_frame
from wayfare.core.spec import OF_NUMPY, spec_of
from wayfare.core.tensor import Tensor
from wayfare.see.graph.listing import short

# Types of attributes that never change and have a short text.
PLAIN = frozenset({int, float, bool, str, tuple, type(None)})


def user_line() -> tuple[Any, int]:
    """The user's line that runs now: a code object and the place in it."""
    frame = user_frame()
    return (None, 0) if frame is None else (frame.f_code, frame.f_lasti)


def variable_of(t: Any) -> tuple[int, str] | None:
    """What the user calls a tensor: a variable of the file that runs now."""
    frame = user_frame()
    if frame is None:
        return None
    # Not those of a function: before Python 3.13, asking for them leaves a copy in the frame that holds them all.
    for name, value in list(frame.f_globals.items()):
        if value is t and not name.startswith("_"):
            return -1, name
    return None


def attribute_text(value: Any) -> Any:
    """An attribute as text where it is large or may change."""
    if value.__class__ in PLAIN and value.__class__ is not tuple:
        return value
    if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype in OF_NUMPY):
        return repr(spec_of(value if isinstance(value, np.ndarray) else value._array))
    if isinstance(value, (tuple, list)) and len(value) <= 100:
        inside = ", ".join(str(attribute_text(v)) for v in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    return short(value, 200)


def outcome_text(how: str, array: Any) -> str:
    """What Python read: a number or a truth value; the shape if there are several."""
    if array.size == 1:
        value = array.reshape(-1)[0]
        return str(bool(value)) if how == "bool()" else str(value.item())
    return repr(spec_of(array))
