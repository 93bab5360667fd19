"""How a ragged tensor prints: a line for each row, none longer than 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import wayfare as wf

WIDTH = 80
# So many rows at each end are shown of a long one.
EDGE = 4


def described(values: wf.Tensor, bounds: Sequence[int]) -> str:
    """The text of a ragged tensor; `bounds` are the offsets as a list."""
    rows = len(bounds) - 1
    shown = list(range(rows)) if rows <= 2 * EDGE + 1 else [*range(EDGE), -1, *range(rows - EDGE, rows)]
    lines = [_head(values, bounds)]
    digits = len(str(max(rows - 1, 0)))
    for row in shown:
        if row < 0:
            lines.append(f"  {'…':>{digits}}")
        else:
            lines.append(f"  {row:>{digits}}: " + _row(values, bounds[row], bounds[row + 1], WIDTH - digits - 4))
    return "\n".join(lines)


def _head(values: wf.Tensor, bounds: Sequence[int]) -> str:
    rows = len(bounds) - 1
    lengths = [end - begin for begin, end in pairwise(bounds)]
    low, high = min(lengths, default=0), max(lengths, default=0)
    said = [f"{rows} row{'' if rows == 1 else 's'} of " + (f"{low}" if low == high else f"{low} to {high}")]
    said.append(f"{values.shape[0]} in all")
    if values.ndim > 1:
        said.append(f"features {list(values.shape[1:])}")
    said.append(str(values.dtype).removeprefix("wayfare."))
    if values.grad_fn is not None:
        said.append(f"grad_fn=<{values.grad_fn.name()}>")
    elif values.requires_grad:
        said.append("requires_grad=True")
    text = f"Ragged({', '.join(said)})"
    return text if len(text) <= WIDTH else f"Ragged({', '.join(said[:-1])},\n       {said[-1]})"


def _row(values: wf.Tensor, begin: int, end: int, width: int) -> str:
    """As many values of a row as fit."""
    text = "["
    for place in range(begin, end):
        more = ("" if place == begin else ", ") + _value(values[place].detach().tolist())
        # Room must remain for ", …]".
        if len(text) + len(more) > width - 4:
            return _cut(text, more, width, first=place == begin)
        text += more
    return text + "]"


def _cut(text: str, more: str, width: int, first: bool) -> str:
    if first:
        return text + more[: width - 3] + "…]"
    return text + ", …]"


def _value(value: Any) -> str:
    if isinstance(value, list):
        shown = value if len(value) <= 6 else value[:3]
        return "[" + ", ".join(map(_value, shown)) + (", …]" if len(shown) < len(value) else "]")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
