"""Elementwise ops as expressions of the loop language."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import FLOATS, NARROW, OF_NUMPY, Expr, cast, const, load, truth, walk
from wayfare.codegen.math.library import cost_of, loop_math
from wayfare.core.errors import LoopError
from wayfare.core.op import Op

# Makes a number that is given at run time.
Parameter = Callable[[float, str], Expr]


def computed_in(dtype: np.dtype[Any]) -> str:
    """The dtype of the loop language in which this one is computed: float32 for float16 and bfloat16."""
    name = OF_NUMPY[dtype]
    return "f32" if name in NARROW else name


def converted(x: Expr, dtype: str) -> Expr:
    """A cast as NumPy's astype does it."""
    return x if x.dtype == dtype else truth(x) if dtype == "bool" else cast(x, dtype)


class _Math:
    """The `m` of a formula; `where` with two numbers has the dtype of the op."""

    differentiable = False

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(loop_math, name)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        if not isinstance(a, Expr) and not isinstance(b, Expr):
            a = const(a, self._dtype)
        return loop_math.where(condition, a, b)


def written(op: Op, args: Sequence[Expr], attrs: dict[str, Any], out: np.dtype[Any], parameter: Parameter) -> Expr:
    """An elementwise op as an expression; raises LoopError or AttributeError if that is impossible."""
    if op.expression is not None:
        return op.expression(args, attrs, parameter)  # type: ignore[no-any-return]
    wanted = computed_in(out)
    made = _by_formula(op, args, attrs, parameter)
    if not isinstance(made, Expr):
        made = const(made, wanted)
    return converted(made, wanted)


def _by_formula(op: Op, args: Sequence[Expr], attrs: dict[str, Any], parameter: Parameter) -> Any:
    if op.formula is None:
        if attrs:
            raise LoopError(f"{op.name} has attributes and no formula")
        return getattr(loop_math, op.name)(*args)
    dtype = args[0].dtype
    m = _Math(dtype)
    if dtype in FLOATS:
        try:
            # Attributes are given at run time, so that one loop serves all their values.
            given = {k: parameter(v, dtype) if isinstance(v, float) else v for k, v in attrs.items()}
            return op.formula(m, *args, **given)
        except LoopError:
            pass  # The formula branches on one of them.
    elif attrs and dtype in ("bool", "u8"):
        raise LoopError(f"{op.name}: the numbers of attributes may wrap around in {dtype}")
    return op.formula(m, *args, **attrs)


def cost(roots: Sequence[Expr]) -> int:
    """A rough cost of computing expressions for one element, in additions."""
    total = 0
    for e in walk(*roots):
        if e.args:
            total += cost_of(e.op)
    return total


def cost_of_op(op: Op, dtypes: Sequence[np.dtype[Any]], attrs: dict[str, Any], out: np.dtype[Any]) -> float:
    """The cost of one elementwise op; infinity if it cannot be written in the loop language."""
    if op.family != "elementwise" or op.outputs != 1 or any(d not in OF_NUMPY for d in (*dtypes, out)):
        return math.inf
    args = [load(i, computed_in(d)) for i, d in enumerate(dtypes)]
    try:
        return cost([written(op, args, attrs, out, lambda value, dtype: load(len(args), dtype))])
    except (LoopError, AttributeError):
        return math.inf
