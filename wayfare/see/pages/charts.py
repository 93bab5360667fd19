"""Charts as SVG: inside a page, in its colours (light and dark), or as a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from wayfare.see.pages.markup import Markup, join, tag

__all__ = ["bar", "curves", "curves_picture", "heat", "strip"]

Curves = Mapping[str, Sequence[float]]

_WIDTH, _HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 12, 34
_COLOURS = 6
# A picture that stands alone has its title above.
_HEAD = 30
_FILE_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#4b5563}.title{font-size:15px;font-weight:600;fill:#111827}"
    ".grid{stroke:#e5e7eb}.end{text-anchor:end}.middle{text-anchor:middle}.curve{fill:none;stroke-width:2}"
) + "".join(
    f".curve.c{number}{{stroke:{colour}}}.dot.c{number}{{fill:{colour}}}"
    for number, colour in enumerate(("#2563eb", "#dc2626", "#059669", "#7c3aed", "#b45309", "#be185d"))
)
_MOST_DOTS = 60
_MOST_POINTS = 600


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers between two."""
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = size * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _spread(curves: Curves) -> tuple[float, float]:
    """The least and largest value, a little apart even if they are equal."""
    points = [value for values in curves.values() for value in values if math.isfinite(value)]
    low, high = min(points), max(points)
    space = (high - low) * 0.05 or abs(low) * 0.1 or 1.0
    return (0.0 if low >= 0 and low - space < 0 else low - space), high + space


def curves(
    given: Curves, title: str, across: str = "epoch", start: int = 1, unit: str = "{:.4g}",
    marks: Mapping[int, str] | None = None,
) -> Markup:  # fmt: skip
    """Values over epochs or events, each named with its last value; `marks` are words at places along the way."""
    shown = _finite(given)
    if not shown:
        return tag("figure", tag("figcaption", title), tag("p", "No finite number to draw.", class_="muted"))
    legend = [tag("li", tag("span", class_=f"key c{n % _COLOURS}"), name, " ", tag("b", unit.format(_last(values))))
              for n, (name, values) in enumerate(shown.items())]  # fmt: skip
    drawn = _drawn(shown, across, start, unit, marks or {})
    picture = tag("svg", *drawn, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=title)
    return tag("figure", tag("figcaption", title), picture, tag("ul", *legend, class_="legend"), class_="chart")


def curves_picture(given: Curves, title: str) -> str:
    """The same as a picture for a file of its own: with its colours, on white ground, the names under it."""
    shown = _finite(given)
    parts: list[Markup] = [
        tag("style", Markup(_FILE_STYLE)), tag("rect", width="100%", height="100%", fill="#ffffff"),
        tag("text", title, x=_LEFT, y=22, class_="title") if title else Markup(""),
        tag("g", *(_drawn(shown, "epoch", 1, "{:.4g}", {}) if shown else ()), transform=f"translate(0 {_HEAD})"),
    ]  # fmt: skip
    at, line = float(_LEFT), _HEAD + _HEIGHT + 18
    for number, (name, values) in enumerate(shown.items()):
        text = f"{name} {_last(values):.4g}"
        if at + 7 * len(text) + 30 > _WIDTH and at > _LEFT:
            at, line = float(_LEFT), line + 18
        parts.append(tag("line", x1=at, x2=at + 14, y1=line - 4, y2=line - 4, class_=f"curve c{number % _COLOURS}"))
        parts.append(tag("text", text, x=at + 20, y=line))
        at += 7 * len(text) + 44
    size = {"viewBox": f"0 0 {_WIDTH} {line + 14}", "width": _WIDTH, "height": line + 14}
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", role="img", **size) + "\n"


def _finite(given: Curves) -> dict[str, list[float]]:
    """The curves that have something to draw."""
    return {name: list(values) for name, values in given.items() if any(map(math.isfinite, values))}


def _last(values: Sequence[float]) -> float:
    return next(value for value in reversed(values) if math.isfinite(value))


def _drawn(shown: Curves, across: str, start: int, unit: str, marks: Mapping[int, str]) -> list[Markup]:
    """Axes and curves."""
    low, high = _spread(shown)
    longest = max(map(len, shown.values()))

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (at / max(longest - 1, 1) if longest > 1 else 0.5)

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    parts: list[Markup] = []
    for value in _ticks(low, high):
        height = f"{y(value):.1f}"
        parts.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=height, y2=height, class_="grid"))
        parts.append(tag("text", unit.format(value), x=_LEFT - 8, y=f"{y(value) + 4:.1f}", class_="tick end"))
    every = max(1, math.ceil((longest - 1) / 8))
    for at in range(0, longest, every):
        parts.append(tag("text", f"{at + start}", x=f"{x(at):.1f}", y=_HEIGHT - _BOTTOM + 16, class_="tick middle"))
    parts.append(tag("text", across, x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - 3, class_="tick middle"))
    for at, word in marks.items():
        place, end = f"{x(at):.1f}", x(at) > _WIDTH * 0.7
        parts.append(tag("line", x1=place, x2=place, y1=_TOP, y2=_HEIGHT - _BOTTOM, class_="event"))
        beside = f"{x(at) + (-5 if end else 5):.1f}"
        parts.append(tag("text", word, x=beside, y=_TOP + 10, class_="tick end" if end else "tick"))
    for number, (name, values) in enumerate(shown.items()):
        told = [f"{name}, {across} {at + start}: {unit.format(value)}" for at, value in enumerate(values)]
        parts += _line(values, x, y, f"c{number % _COLOURS}", told)
    return parts


def _line(
    values: Sequence[float], x: Callable[[float], float], y: Callable[[float], float], colour: str, told: list[str]
) -> list[Markup]:
    """One curve, with gaps where a value is not finite; each point has its value as a tooltip."""
    # More points than can be seen apart: each stretch keeps its largest, so that no peak is lost.
    size = max(1, math.ceil(len(values) / _MOST_POINTS))
    kept = [max(range(at, min(at + size, len(values))), key=lambda i: (math.isfinite(values[i]), values[i]))
            for at in range(0, len(values), size)]  # fmt: skip
    pieces: list[list[int]] = [[]]
    for at in kept:
        if math.isfinite(values[at]):
            pieces[-1].append(at)
        elif pieces[-1]:
            pieces.append([])
    parts = [
        tag("polyline", points=" ".join(f"{x(at):.1f},{y(values[at]):.1f}" for at in piece), class_=f"curve {colour}")
        for piece in pieces if len(piece) > 1
    ]  # fmt: skip
    if len(values) <= _MOST_DOTS:
        parts += [
            tag("circle", tag("title", told[at]), cx=f"{x(at):.1f}", cy=f"{y(values[at]):.1f}", r=3,
                class_=f"dot {colour}")
            for piece in pieces for at in piece
        ]  # fmt: skip
    return parts


def bar(share: float, label: str = "", kind: str = "", more: float = 0.0) -> Markup:
    """A bar of a share from 0 to 1, with words behind it; `more` is a second part of it, in another colour."""
    filled = [tag("span", class_=f"fill{also}", style=f"width:{100 * _share(part):.1f}%")
              for part, also in ((share, ""), (more, " more")) if part or not also]  # fmt: skip
    return tag("span", tag("span", *filled, class_="track"), tag("span", label, class_="label") if label else None,
               class_=f"bar {kind}".strip())  # fmt: skip


def heat(share: float) -> str:
    """The style of a cell whose ground is the accent colour, as strong as the share; its words stay readable."""
    return f"--heat:{100 * _share(share):.0f}%"


def _share(value: float) -> float:
    """The number, clipped to 0 and 1."""
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


def strip(values: Sequence[float]) -> Markup:
    """Numbers as a row of cells: blue below zero, orange above, stronger the further from it."""
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0) or 1.0
    cells = []
    for value in values:
        strength = f"{100 * min(abs(value) / largest, 1):.0f}%" if math.isfinite(value) else "100%"
        sign = "bad" if not math.isfinite(value) else "above" if value >= 0 else "below"
        cells.append(tag("i", class_=sign, style=f"--heat:{strength}", title=f"{value:.4g}"))
    return tag("span", join(cells), class_="strip", role="img", aria_label=" ".join(f"{v:.3g}" for v in values[:8]))
