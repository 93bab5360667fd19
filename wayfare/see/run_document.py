"""The form of the document that the viewer shows, as a recorded run and a graph both write it.

It has columns, and every text once, so that a hundred thousand values stay small.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from types import CodeType
from typing import Any

from wayfare.core.callsite import Site, locate, source_lines
from wayfare.core.version import __version__

FORMAT, VERSION = "wayfare-run", 1
# What is known of each value.
COLUMNS = (
    "op", "kind", "name", "inputs", "attrs", "shape", "dtype", "site", "call", "example", "saved", "bytes", "out",
    "stats", "grad", "value", "gradvalue",
)  # fmt: skip
# Kinds of values: made by an op, there before and a gradient is wanted for it, there before.
OP, LEAF, INPUT = 0, 1, 2
# Lines of code shown before and after one that was run.
_AROUND = 4


def heading(title: str, created: datetime) -> dict[str, Any]:
    """What every document begins with."""
    return {
        "format": FORMAT, "version": VERSION, "title": title, "wayfare": __version__,
        "created": created.astimezone(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


class Strings:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def all(self) -> list[str]:
        """The texts in the order of their numbers."""
        return list(self._numbers)


class Places:
    """Places in the code by number, and the files they are in."""

    def __init__(self, names: Strings) -> None:
        self.sites: list[list[int]] = []
        self._names = names
        self._by_offset: dict[tuple[CodeType, int], int] = {}
        self._by_line: dict[Site, int] = {}
        # File → its number, and the lines that were run.
        self._files: dict[str, tuple[int, set[int]]] = {}

    def __call__(self, code: CodeType | None, offset: int) -> int:
        """The number of an instruction's line; -1 where there is no code."""
        if code is None:
            return -1
        number = self._by_offset.get((code, offset))
        if number is None:
            number = self._by_offset[code, offset] = self.of(locate(code, offset))
        return number

    def of(self, site: Site | None) -> int:
        """The number of a line; -1 for none."""
        if site is None:
            return -1
        number = self._by_line.get(site)
        if number is None:
            number = self._by_line[site] = len(self.sites)
            file, lines = self._files.setdefault(site.filename, (len(self._files), set()))
            lines.add(site.line)
            self.sites.append([file, site.line, self._names(site.function)])
        return number

    def files(self) -> list[dict[str, Any]]:
        """The files, with the lines that were run and those around them."""
        found = []
        for filename, (_, lines) in self._files.items():
            source = source_lines(filename)
            wanted = sorted({n for line in lines for n in range(line - _AROUND, line + _AROUND + 1)})
            code = {str(n): source[n - 1].rstrip("\n") for n in wanted if 1 <= n <= len(source)}
            found.append({"name": os.path.basename(filename) or filename, "code": code})
        return found
