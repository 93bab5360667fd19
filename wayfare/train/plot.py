"""Curves as text: what `History.plot` draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Curves = Mapping[str, Sequence[float]]

_MARKS = "●○▲△■□◆◇"


def _points(curves: Curves) -> list[float]:
    return [value for values in curves.values() for value in values if math.isfinite(value)]


def _range(curves: Curves) -> tuple[float, float]:
    """The lowest and highest value, a little apart even if they are equal."""
    points = _points(curves)
    low, high = min(points, default=0.0), max(points, default=1.0)
    if low == high:
        spread = abs(low) / 10 or 1.0
        low, high = low - spread, high + spread
    return low, high


def text_plot(curves: Curves, width: int = 72, height: int = 12) -> str:
    """Curves over the epochs, drawn with characters; each has its own mark, named below."""
    curves = {name: list(values) for name, values in curves.items() if values}
    if not _points(curves):
        return "(nothing to plot yet)"
    low, high = _range(curves)
    longest = max(map(len, curves.values()))
    labels = [f"{high - (high - low) * row / (height - 1):.4g}" for row in range(height)]
    margin = max(map(len, labels))
    columns = max(10, width - margin - 3)
    canvas = [[" "] * columns for _ in range(height)]
    for mark, values in zip(_MARKS * len(curves), curves.values(), strict=False):
        for column in range(columns):
            # More columns than epochs: points stand apart. Fewer: each column shows the last epoch that falls on it.
            epoch = round(column * (longest - 1) / (columns - 1))
            exact = round(epoch * (columns - 1) / (longest - 1)) == column if 1 < longest < columns else True
            if longest == 1:
                exact = column == 0
            if exact and epoch < len(values) and math.isfinite(values[epoch]):
                row = round((high - values[epoch]) / (high - low) * (height - 1))
                canvas[row][column] = mark
    lines = [f"{label:>{margin}} ┤{''.join(row).rstrip()}" for label, row in zip(labels, canvas, strict=True)]
    lines.append(" " * margin + " └" + "─" * columns)
    first, last = "1", str(longest)
    lines.append(" " * (margin + 2) + first + " " * max(1, columns - len(first) - len(last)) + last)
    legend = "  ".join(f"{mark} {name}" for mark, name in zip(_MARKS * len(curves), curves, strict=False))
    return "\n".join([*lines, " " * (margin + 2) + legend])
