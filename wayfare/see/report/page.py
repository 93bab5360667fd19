"""The page: head, summary, sections, joined into one file that needs no other and no network."""

from __future__ import annotations

from collections.abc import Sequence

from wayfare.see.pages.markup import Markup, figures, join, tag
from wayfare.see.pages.parts import digest, one_line, part, policy
from wayfare.see.report.section import Section

__all__ = ["whole_page"]

_HERE = "wayfare.see.report"


def whole_page(
    title: str, subtitle: str, tiles: Sequence[tuple[str, str]], said: Markup, sections: Sequence[Section]
) -> str:
    """One HTML file."""
    links = [
        tag("a", section.title, href=f"#{section.key}", class_=None if section.body is not None else "absent",
            title=None if section.body is not None else "Not in this report; the section says how to have it.")
        for section in sections
    ]  # fmt: skip
    below = tag("p", subtitle, class_="subtitle")
    header = tag("header", tag("h1", title), below, figures(tiles) if tiles else None, said)
    theme = tag("button", "Light or dark", type="button", id="theme")
    body = join([
        tag("nav", tag("p", "Wayfare report", class_="brand"), *links, theme, aria_label="Sections"),
        tag("main", header, *(_drawn(number, section) for number, section in enumerate(sections, start=1))),
    ])  # fmt: skip
    script = part(_HERE, "report.js")
    # What a page inside this one runs, both must allow.
    allowed = [inner for section in sections for inner in section.scripts]
    allows = policy(digest(script), *allowed)
    head = join([
        tag("meta", charset="utf-8"), tag("meta", http_equiv="Content-Security-Policy", content=allows),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", one_line(title)), tag("style", Markup(part(_HERE, "report.css"))),
    ])  # fmt: skip
    whole = f"<head>{head}</head>\n<body>{body}<script>{script}</script></body>"
    return f'<!doctype html>\n<html lang="en">\n{whole}\n</html>\n'


def _drawn(number: int, section: Section) -> Markup:
    heading = tag("h2", tag("span", str(number), class_="count"), section.title)
    if section.body is None:
        return tag("section", heading, tag("p", "Not in this report. ", section.missing, class_="missing"),
                   id=section.key, class_="absent")  # fmt: skip
    return tag("section", heading, section.body, id=section.key)
