"""ONNX rules of random draws: none, because a model file gives the same result for the same input."""

from __future__ import annotations

from typing import Any

from wayfare.core.op import NotExportable

NO_DRAWS = NotExportable("it draws random numbers, and a model file gives the same result each time; draw them outside "
                         "and pass them in")  # fmt: skip


def dropout(b: Any, x: Any, *, p: float, key: Any, shape: Any) -> Any:
    """The identity if p is 0; otherwise refused."""
    if p == 0:
        return x
    raise b.refuse("it drops numbers at random; call .eval() on the model first")
