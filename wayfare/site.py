"""The user's own line: where in *their* code something happened.

A recorded node keeps only a code object and an instruction offset (two pointers, no frame, so no locals are
kept alive); file and line are worked out when somebody asks.
"""

from __future__ import annotations

import contextlib
import copy
import linecache
import os
import sys
from types import CodeType, FrameType
from typing import NamedTuple

import numpy as np

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# NumPy, copy and with-blocks call back into the engine; the line that called them is the user's.
_THROUGH = (os.path.dirname(np.__file__) + os.sep, copy.__file__, contextlib.__file__)
# The demo is written as a user would write it, so its lines count as the user's.
_USER_PARTS = (_PACKAGE + "demo" + os.sep,)


class _Inside(dict[str, bool]):
    """File name → is it part of the engine? One dictionary look-up on the hot path."""

    def __missing__(self, filename: str) -> bool:
        path = os.path.abspath(filename)
        inside = path.startswith(_PACKAGE) and not path.startswith(_USER_PARTS)
        inside = inside or path.startswith(_THROUGH) or filename.startswith("<wayfare ")
        self[filename] = inside
        return inside


INSIDE = _Inside()


class Site(NamedTuple):
    """A place in the user's code."""

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.filename)}:{self.line}"

    @property
    def text(self) -> str:
        """The source text of the line, stripped; empty when the source is not to be had."""
        return linecache.getline(self.filename, self.line).strip()


def user_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame outside the engine, starting `depth` frames above the caller of this function."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and INSIDE[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def locate(code: CodeType | None, offset: int) -> Site | None:
    """The file and line of an instruction offset in a code object."""
    if code is None:
        return None
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return Site(code.co_filename, line, code.co_name)
    return Site(code.co_filename, code.co_firstlineno, code.co_name)


def current_site() -> Site | None:
    """The user's line that is running now."""
    frame = user_frame(2)
    return None if frame is None else Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
