"""What a page is joined from: files that lie beside a module, and the digests by which a page allows only its own."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources

__all__ = ["digest", "one_line", "part", "policy"]


@functools.cache
def part(package: str, name: str) -> str:
    """The text of a file of a package."""
    return (resources.files(package) / name).read_text(encoding="utf-8")


def policy(*scripts: str, styles: str = "'unsafe-inline'") -> str:
    """The security policy of a page: nothing from elsewhere, and no scripts but those with these digests.

    Widths of bars and colours of cells stand in the elements themselves, and so styles may.
    """
    allowed = f" script-src {' '.join(scripts)};" if scripts else ""
    return (f"default-src 'none';{allowed} style-src {styles}; img-src data:; font-src data:; base-uri 'none'; "
            "form-action 'none'")  # fmt: skip


def one_line(text: object) -> str:
    """A title on one line: line breaks become spaces."""
    return " ".join(str(text).split())


def digest(text: str) -> str:
    """A script or a style as a page's security policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
