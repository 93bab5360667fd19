"""What a page is joined from: files that lie beside a module, and the digests by which a page allows only its own."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources

__all__ = ["digest", "part"]


@functools.cache
def part(package: str, name: str) -> str:
    """The text of a file of a package."""
    return (resources.files(package) / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """A script or a style as a page's security policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
