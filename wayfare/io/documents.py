"""Run documents are checked when they are read: plain files only, with the size and the values that a run can have."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from wayfare.core.errors import FileFormatError
from wayfare.io.files import open_for_reading
from wayfare.io.header import strict_json

__all__ = ["read_beginning", "read_document"]

# Bytes of a document, and values in it: a run of a hundred thousand steps has a few million.
_LONGEST, _MOST_VALUES = 1 << 29, 1 << 24


def read_beginning(path: str, count: int, op: str) -> bytes:
    """The first bytes of a file."""
    with open_for_reading(path, op) as file:
        return _some(file, count)


def read_document(path: str, op: str) -> Any:
    """The JSON value in a file; FileFormatError if it is none, or larger than any run."""
    with open_for_reading(path, op) as file:
        if os.fstat(file.fileno()).st_size > _LONGEST:
            raise FileFormatError(f"{op}: {path!r} is longer than {_LONGEST:,} bytes")
        text = _some(file, _LONGEST)
    return strict_json(text, f"the document in {path!r}", _MOST_VALUES)


def _some(file: BinaryIO, count: int) -> bytes:
    """Up to `count` bytes: the system may give them in parts."""
    parts = []
    while count and (part := file.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
