"""Curves as text and as SVG: what `History.plot` draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

Curves = Mapping[str, Sequence[float]]

_MARKS = "●○▲△■□◆◇"
_COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")


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


def svg_plot(curves: Curves, width: int = 720, height: int = 400, title: str = "") -> str:
    """The same as one SVG picture, readable on light and on dark ground."""
    curves = {name: list(values) for name, values in curves.items() if values}
    low, high = _range(curves)
    longest = max(map(len, curves.values()), default=1)
    left, right, top, bottom = 70, 20, 40, 70

    def x(epoch: int) -> float:
        return left + (width - left - right) * (epoch / max(longest - 1, 1))

    def y(value: float) -> float:
        return top + (height - top - bottom) * (high - value) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    if title:
        parts.append(f'<text x="{left}" y="24" font-size="15" font-weight="600" fill="#111827">{escape(title)}</text>')
    for step in range(6):
        value = low + (high - low) * step / 5
        at = y(value)
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end" fill="#4b5563">{value:.4g}</text>')
    for epoch in sorted({round(i * (longest - 1) / 5) for i in range(6)}):
        parts.append(f'<text x="{x(epoch):.1f}" y="{height - bottom + 20}" text-anchor="middle" '
                     f'fill="#4b5563">{epoch + 1}</text>')  # fmt: skip
    parts.append(f'<text x="{(left + width - right) / 2}" y="{height - bottom + 38}" text-anchor="middle" '
                 'fill="#4b5563">epoch</text>')  # fmt: skip
    at = float(left)
    for number, (name, values) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [(x(i), y(v)) for i, v in enumerate(values) if math.isfinite(v)]
        shown = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{shown}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.5" fill="{colour}"/>' for px, py in points[:200]]
        parts.append(f'<rect x="{at:.0f}" y="{height - 20}" width="12" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{at + 18:.0f}" y="{height - 13}" fill="#111827">{escape(name)}</text>')
        at += 36 + 7.5 * len(name)
    return "\n".join([*parts, "</svg>"]) + "\n"
