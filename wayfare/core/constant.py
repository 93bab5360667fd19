"""Python numbers as operands: 0-dim tensors, cached."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.quiet import in_dtype
from wayfare.core.symbolic_sizes import Dim, Number, plain
from wayfare.core.tensor import Tensor, wrap

_CONSTANTS: dict[Any, Tensor] = {}


def constant(value: Any, dtype: np.dtype[Any]) -> Tensor:
    """A 0-dim tensor for a Python number; cached, because making one costs as much as using it."""
    key = (value.__class__, value, dtype)
    found = _CONSTANTS.get(key)
    if found is None:
        array = np.asarray(plain(value))
        found = wrap(array.astype(dtype) if value == 0 else in_dtype(array, dtype, True))
        found._array.flags.writeable = False
        if isinstance(value, (Dim, Number)):  # a trace needs its formula
            found._extras = {"size": value}
            return found
        # 0.0 and -0.0 are equal as keys; NaN never is. Neither may be cached.
        if value == value and value != 0:
            if len(_CONSTANTS) >= 1024:
                _CONSTANTS.clear()
            _CONSTANTS[key] = found
    return found
