"""A small drawing of a graph: leaves and nodes as boxes from top to bottom, for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from wayfare.core.node import Node
from wayfare.core.walk import split_edge
from wayfare.see.graph.naming import Names
from wayfare.see.graph.node_info import CallSites
from wayfare.see.pages.markup import Markup, frame, join, standalone, tag

if TYPE_CHECKING:
    from wayfare.see.graph.text import Graph

# More than this many boxes are unreadable: the listing is shown instead.
LARGEST = 200
_HEIGHT, _GAP_X, _GAP_Y, _MARGIN, _LETTER = 38, 16, 26, 10, 7.2
# Under a class of its own: a page has one style for all drawings in it.
_STYLE = (
    ".wayfare-graph text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#1d2733}"
    ".wayfare-graph .small{font-size:10.5px;fill:#5c6b7a}"
    ".wayfare-graph rect{fill:#fff;stroke:#8fa1b3}"
    ".wayfare-graph .leaf rect{fill:#e8f1fb;stroke:#4a86c5}"
    ".wayfare-graph path{fill:none;stroke:#8fa1b3}"
)


def as_html(graph: Graph) -> str:
    """What a notebook shows: the drawing of a small graph, the listing of a larger one."""
    if len(graph.nodes) + len(graph.leaves) > LARGEST:
        shown = tag("pre", graph.text(fold=True))
    else:
        shown = join([tag("p", graph.title, style="font:13px system-ui,sans-serif;margin:4px 0"), Markup(graph.svg())])
    return frame(standalone(graph.title, shown, "body { background: #fff; color: #1d2733; }"), graph.title, 560)


def as_svg(nodes: Sequence[Node], leaves: Sequence[Any], names: Names) -> str:
    """The drawing as one self-contained SVG element."""
    rows = _layers(nodes, leaves)
    place: dict[Any, tuple[float, float, float]] = {}
    labels = {thing: _label(thing, names) for row in rows for thing in row}
    widths = [sum(_width(labels[thing]) + _GAP_X for thing in row) - _GAP_X for row in rows]
    whole = max(widths, default=0.0) + 2 * _MARGIN
    for level, row in enumerate(_untangled(rows)):
        x = (whole - widths[level]) / 2
        for thing in row:
            width = _width(labels[thing])
            place[thing] = (x, _MARGIN + level * (_HEIGHT + _GAP_Y), width)
            x += width + _GAP_X
    height = 2 * _MARGIN + len(rows) * (_HEIGHT + _GAP_Y) - _GAP_Y
    drawn = [_edge(place[source], place[node]) for node in nodes for source in _sources(node) if source in place]
    sites = CallSites()
    drawn += [_box(thing, labels[thing], place[thing], sites) for row in rows for thing in row]
    size = f"{whole:.0f}", f"{max(height, 0):.0f}"
    return (f'<svg class="wayfare-graph" xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
            f'viewBox="0 0 {size[0]} {size[1]}" role="img"><style>{_STYLE}</style>{"".join(drawn)}</svg>')  # fmt: skip


def _sources(node: Node) -> list[Any]:
    return [target for target in (split_edge(edge)[0] for edge in node.edges) if target is not None]


def _layers(nodes: Sequence[Node], leaves: Sequence[Any]) -> list[list[Any]]:
    """The rows of the drawing: a node below all its inputs, a leaf just above its first reader."""
    level: dict[Any, int] = {}
    for node in nodes:
        level[node] = max((level[source] + 1 for source in _sources(node) if source in level), default=1)
    for node in reversed(nodes):
        for source in _sources(node):
            if not isinstance(source, Node):
                level[source] = level[node] - 1
    rows: list[list[Any]] = [[] for _ in range(max(level.values(), default=0) + 1)]
    for thing in (*leaves, *nodes):
        rows[level.get(thing, 0)].append(thing)
    return [row for row in rows if row]


def _untangled(rows: list[list[Any]]) -> list[list[Any]]:
    """Each row in the order of what its boxes hang on above, so that few lines cross."""
    position: dict[Any, float] = {}
    for row in rows:
        centre: dict[Any, float] = {}
        for i, thing in enumerate(row):
            above = [position[s] for s in _sources(thing) if s in position] if isinstance(thing, Node) else []
            centre[thing] = sum(above) / len(above) if above else i / max(len(row), 1)
        row.sort(key=centre.__getitem__)
        position.update((thing, (i + 0.5) / len(row)) for i, thing in enumerate(row))
    return rows


def _label(thing: Any, names: Names) -> tuple[str, str]:
    if isinstance(thing, Node):
        return f"{names[thing]}  {thing.op.name}", ", ".join(map(repr, thing.specs))
    return names[thing], repr(thing.spec)


def _width(label: tuple[str, str]) -> float:
    return max(len(text) for text in label) * _LETTER + 18


def _box(thing: Any, label: tuple[str, str], place: tuple[float, float, float], sites: CallSites) -> str:
    x, y, width = place
    kind, hint = "leaf", "leaf"
    if isinstance(thing, Node):
        site = sites.of(thing)
        kind, hint = "node", "" if site is None else f"{site}  {site.text}"
    return (f'<g class="{kind}"><title>{escape(hint)}</title>'
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_HEIGHT}" rx="5"/>'
            f'<text x="{x + 9:.1f}" y="{y + 16:.1f}">{escape(label[0])}</text>'
            f'<text class="small" x="{x + 9:.1f}" y="{y + 30:.1f}">{escape(label[1])}</text></g>')  # fmt: skip


def _edge(source: tuple[float, float, float], target: tuple[float, float, float]) -> str:
    x0, y0 = source[0] + source[2] / 2, source[1] + _HEIGHT
    x1, y1 = target[0] + target[2] / 2, target[1]
    middle = (y0 + y1) / 2
    return f'<path d="M{x0:.1f} {y0:.1f}C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"/>'
