"""Tables of text that fit 80 columns: numbers to the right, names to the left, too many columns left out."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 80


def short(text: str, width: int) -> str:
    """A text cut to a width."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def aligned(rows: Sequence[Sequence[str]], name_width: int) -> list[str]:
    """Rows of cells as lines: the first cell is a name, to the left; the others are numbers, to the right."""
    rows = [[short(row[0], name_width), *row[1:]] for row in rows]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        .rstrip()
        for row in rows
    ]  # fmt: skip


def square(names: Sequence[str], cells: Sequence[Sequence[str]], corner: str) -> list[str]:
    """A square table with names on both sides; columns that do not fit are left out, and a last line says so."""
    heads = [short(name, 10) for name in names]
    left = min(20, max(map(len, [*names, corner])))
    widths = [max(len(head), *(len(row[k]) for row in cells)) for k, head in enumerate(heads)]
    shown, used = 0, left
    while shown < len(heads) and used + 2 + widths[shown] <= WIDTH:
        used += 2 + widths[shown]
        shown += 1
    lines = [short(corner, left).ljust(left) + "".join("  " + heads[k].rjust(widths[k]) for k in range(shown))]
    for name, row in zip(names, cells, strict=True):
        lines.append(short(name, left).ljust(left) + "".join("  " + row[k].rjust(widths[k]) for k in range(shown)))
    if shown < len(heads):
        lines.append(f"({len(heads) - shown} more columns are not shown)")
    return lines


def class_names(names: Sequence[str] | None, count: int) -> list[str]:
    """Names of all classes: those given, numbers otherwise."""
    given = [str(name) for name in names or ()]
    return given + [str(k) for k in range(len(given), count)]
