"""HTML, built safely: everything that is not `Markup` is escaped, so that names are only ever text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from wayfare.see.pages.parts import one_line, policy

__all__ = ["Markup", "callout", "figures", "frame", "join", "muted", "row", "sheet", "standalone", "tag"]

_EMPTY = {"br", "hr", "img", "meta"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *inside: object, **attributes: object) -> Markup:
    """An element. An attribute's underscores are hyphens, one at the end is dropped; None leaves an attribute out."""
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is not None:
            parts.append(f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"')
    return Markup("".join([*parts, ">", *([] if name in _EMPTY else [join(inside), f"</{name}>"])]))


def join(parts: Iterable[object]) -> Markup:
    """Parts in a row; those that are not markup are escaped, None is left out."""
    return Markup("".join(
        part if isinstance(part, Markup) else "" if part is None else escape(str(part)) for part in parts
    ))  # fmt: skip


def sheet(
    names: Sequence[str], rows: Iterable[object], words: Iterable[int] = (0,), kind: str = "", tall: bool = False
) -> Markup:
    """Rows, made already, under their columns; `words` are columns of words, to the left, the others are numbers."""
    left = set(words)
    head = tag("tr", *(tag("th", name, class_=None if i in left else "number") for i, name in enumerate(names)))
    inner = tag("table", tag("thead", head) if any(names) else None, tag("tbody", *rows), class_=kind or None)
    return tag("div", inner, class_="scroll tall" if tall else "scroll")


def row(name: object, *cells: object, kind: str | None = None) -> Markup:
    """A row of such a table: its name, then cells. Markup stands to the left, the rest are numbers."""
    made = (tag("td", cell, class_=None if isinstance(cell, Markup) else "number") for cell in cells)
    return tag("tr", tag("th", name, scope="row"), *made, class_=kind)


def callout(text: object, good: bool) -> Markup:
    """A highlighted sentence: good, or in need of attention. A mark says which, also without colour."""
    mark = tag("span", "✓" if good else "!", class_="mark", aria_hidden="true")
    label = tag("span", "Fine: " if good else "Attention: ", class_="spoken")
    return tag("p", mark, tag("span", label, text), class_="callout good" if good else "callout warn")


def figures(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Numbers with their names, side by side."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs), class_="figures")


def muted(text: object) -> Markup:
    """A quiet paragraph."""
    return tag("p", text, class_="muted")


def standalone(title: str, body: object, style: str = "") -> str:
    """A page of its own that runs nothing and loads nothing."""
    head = join([
        tag("meta", charset="utf-8"), tag("meta", http_equiv="Content-Security-Policy", content=policy()),
        tag("title", one_line(title)), tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("style", Markup(":root { color-scheme: light dark; } " + style)),
    ])  # fmt: skip
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{join([body])}</body></html>\n'


def frame(page: str, title: str, height: int = 760, scripts: bool = False) -> Markup:
    """A whole page inside another, such as a notebook: neither changes how the other looks, or sees into it."""
    return tag("iframe", srcdoc=page, title=one_line(title), style=f"width:100%;height:{height}px;border:0",
               sandbox="allow-scripts" if scripts else "")  # fmt: skip
