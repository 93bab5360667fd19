"""Composite ops: records that are not elementwise and have a formula over other ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.core.op import Op
from wayfare.core.spec import NARROW_CHARS, OF_NUMPY, DType, float32


def composition(op: Op) -> Callable[..., Any] | None:
    """The formula of a composite op, else None."""
    return in_single(op.formula) if op.formula is not None and op.family != "elementwise" else None


def in_single(formula: Callable[..., Any]) -> Callable[..., Any]:
    """A formula that computes in float32 if its inputs are float16 or bfloat16, which are too coarse for sums."""

    def single(m: Any, *inputs: Any, **attrs: Any) -> Any:
        for x in inputs:
            if x.dtype.char in NARROW_CHARS:
                narrow = OF_NUMPY[x.dtype]
                break
        else:
            return formula(m, *inputs, **attrs)
        wide = [m.cast(x, dtype=float32) if x.dtype.char in NARROW_CHARS else x for x in inputs]
        made = formula(m, *wide, **attrs)
        return tuple(_narrow(m, out, narrow) for out in made) if isinstance(made, tuple) else _narrow(m, made, narrow)

    return single


def _narrow(m: Any, out: Any, dtype: DType) -> Any:
    return m.cast(out, dtype=dtype) if out.dtype == np.float32 else out
