"""A run document turned into one HTML page that needs nothing else: no network, no other file.

The parts beside this module (template, style, scripts) are joined into the page. The document travels as data in a
script element that never runs, and the page's own policy lets only these very scripts and this very style run.
"""

from __future__ import annotations

import functools
import html
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.see.pages.parts import digest, one_line, part
from wayfare.see.run_document import FORMAT

_HERE = "wayfare.see.viewer"

# In the order in which they stand in the page: later parts use what earlier parts define.
SCRIPTS = (
    "elements.js",
    "document.js",
    "groups.js",
    "folding.js",
    "visible.js",
    "layers.js",
    "layout.js",
    "camera.js",
    "cards.js",
    "drawing.js",
    "details.js",
    "values.js",
    "steps.js",
    "search.js",
    "timeline.js",
    "batching.js",
    "lanes.js",
    "plans.js",
    "source.js",
    "main.js",
)


def page(document: Mapping[str, Any], title: str | None = None) -> str:
    """The page that shows a run document; `title` stands in place of the document's own."""
    if not isinstance(document, Mapping):
        raise ArgumentTypeError(f"view.page: expected a run document (a dict), not {type(document).__name__}")
    if document.get("format") != FORMAT:
        raise ArgumentError(f'view.page: this is not a run document: its "format" is not "{FORMAT}"')
    if title is not None:
        document = {**document, "title": title}
    style, script = part(_HERE, "viewer.css"), _script()
    fields = {
        "title": html.escape(one_line(document.get("title") or "A run")),
        "style": style,
        "script": script,
        "style_digest": digest(style),
        "script_digest": digest(script),
        "document": _as_data(document),
    }
    # One pass, so that nothing inside the document is ever taken for a place to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: fields[found[1]], part(_HERE, "template.html"))


def _as_data(document: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element it stands in, and that every parser of JSON reads."""
    try:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError):
        text = json.dumps(_plain(document), separators=(",", ":"), allow_nan=False)
    # Outside of strings JSON has no "<", so this changes nothing of what is read.
    return text.replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    """The same with null for NaN and infinity, and text for what JSON does not know."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)


@functools.cache
def _script() -> str:
    return "(() => {\n" + '"use strict";\n' + "".join(part(_HERE, name) for name in SCRIPTS) + "})();\n"
