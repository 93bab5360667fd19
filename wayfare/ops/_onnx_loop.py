"""ONNX's Loop, for rules that repeat a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.core.spec import bool_, int64


def loop(b: Any, trips: Any, inits: Any, step: Callable[..., Any], asks: Callable[..., Any] | None = None) -> Any:
    """`state = step(inner builder, iteration, *state)`, `trips` times, or while `asks(builder, *state)` holds.

    The state keeps its shapes and dtypes; a value from outside is used as `inner.own(value)`.
    """
    inner = b.body(b.fresh_name("loop"))
    iteration, going = inner.input("iteration", int64, ()), inner.input("going", bool_, ())
    state = [inner.input("carried", v.dtype, v.shape) for v in inits]
    after = step(inner, iteration, *state)
    inner.output("goes_on", asks(inner, *after) if asks else going, ())
    for init, value in zip(inits, after, strict=True):
        inner.output("after", value, init.shape)
    first = asks(b, *inits) if asks else None
    dtypes = tuple(v.dtype for v in inits)
    made = b.node("Loop", trips, first, *inits, outputs=len(inits), dtype=dtypes if len(inits) > 1 else dtypes[0],
                  body=inner.graph)  # fmt: skip
    found = made if isinstance(made, tuple) else (made,)
    for init, value in zip(inits, found, strict=True):
        value.shape = init.shape
    return found
