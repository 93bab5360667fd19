"""Values in words: what a value is, and a few of its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import wayfare as wf
from wayfare.core.format import counted, cut

__all__ = ["described", "first_tensor", "numbers", "sample"]

LONGEST = 240  # characters of a text that is shown


def numbers(t: wf.Tensor, count: int = 5) -> str:
    """The first values of a tensor, to read."""
    flat = t.detach().flatten()
    shown = " ".join(_number(value) for value in flat[:count].tolist())
    return shown if flat.numel() <= count else f"{shown} …"


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:+.3f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:+.2e}"


def described(value: Any) -> str:
    """What a value is: the dtype and shape of a tensor, what a list is of."""
    if isinstance(value, wf.Tensor):
        return repr(value.spec)
    if isinstance(value, wf.Ragged):
        return f"Ragged {value.values.spec}"
    if isinstance(value, Mapping):
        return cut("{" + ", ".join(f"{key}: {described(inside)}" for key, inside in value.items()) + "}", 80)
    if isinstance(value, (tuple, list)):
        return _described_list(value)
    if isinstance(value, str):
        return "text"
    return "nothing" if value is None else type(value).__name__


def _described_list(value: Any) -> str:
    if not value:
        return "nothing"
    if len(value) <= 3 and not all(isinstance(inside, (int, float, str)) for inside in value):
        return "(" + ", ".join(described(inside) for inside in value) + ")"
    kinds = {type(inside) for inside in value}
    if kinds == {wf.Tensor}:
        lengths = sorted({tuple(t.shape) for t in value})
        same = described(value[0]) if len(lengths) == 1 else f"{list(lengths[0])} to {list(lengths[-1])}"
        return f"{len(value)} tensors, {same}"
    name = {str: "text", int: "number", float: "number"}.get(next(iter(kinds)), next(iter(kinds)).__name__)
    return counted(len(value), name if len(kinds) == 1 else "value")


def sample(value: Any, count: int = 6) -> str:
    """A few numbers or words of a value."""
    if isinstance(value, str):
        return cut(value, LONGEST)
    if isinstance(value, Mapping):
        return cut("; ".join(f"{key}: {sample(inside, 3)}" for key, inside in list(value.items())[:4]), LONGEST)
    if isinstance(value, (tuple, list)) and value:
        if all(isinstance(inside, (int, float, str)) for inside in value[:count]):
            shown = " ".join(_number(inside) for inside in value[:count])
            return cut(shown + (" …" if len(value) > count else ""), LONGEST)
        more = "; …" if len(value) > 2 else ""
        return cut("; ".join(sample(inside, max(3, count // 2)) for inside in value[:2]) + more, LONGEST)
    found = first_tensor(value)
    return numbers(found, count) if found is not None else cut(str(value), LONGEST) if value is not None else ""


def first_tensor(value: Any) -> wf.Tensor | None:
    """The tensor, the values of a ragged one, or the first one of several; None if there is none."""
    if isinstance(value, wf.Tensor):
        return value
    if isinstance(value, wf.Ragged):
        return value.values
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    return next((found for found in map(first_tensor, inside) if found is not None), None)
