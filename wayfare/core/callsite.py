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
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np


def whole_path(filename: str) -> str:
    """A file's path from the root; as it is where there is no working directory any more, as under a test's own."""
    try:
        return os.path.abspath(filename)
    except OSError:
        return filename


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# NumPy, copy and with-blocks call back into the engine; the line that called them is the user's.
_THROUGH = (os.path.dirname(np.__file__) + os.sep, copy.__file__, contextlib.__file__)
# The demo is written as a user would write it, so its lines count as the user's.
_USER_PARTS = (os.path.join(_PACKAGE, "cli", "demo") + os.sep,)


class _Inside(dict[str, bool]):
    """File name → is it part of the engine? One dictionary look-up on the hot path."""

    def __missing__(self, filename: str) -> bool:
        path = whole_path(filename)
        inside = path.startswith(_PACKAGE) and not path.startswith(_USER_PARTS)
        inside = inside or path.startswith(_THROUGH) or filename.startswith("<wayfare ")
        self[filename] = inside
        return inside


INSIDE = _Inside()


def is_ours(filename: str) -> bool:
    """Is it a file of the library itself?"""
    return INSIDE[filename] and not os.path.abspath(filename).startswith(_THROUGH)


# The file name of a frame that stands for the user's where there is none: an example of `wf.map` that is all library.
NO_LINE = "<wf.map>"


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
        lines = source_lines(self.filename)
        return lines[self.line - 1].strip() if 1 <= self.line <= len(lines) else ""


def source_lines(filename: str, names: dict[str, Any] | None = None) -> list[str]:
    """The lines of a source file; `names` are the globals of its module, which may know of a loader.

    Every piece of code that `exec` compiled is called `<string>`, and so is the code of `python -c`, whose lines
    Python 3.13 knows. Whose they are cannot be told, so none are given.
    """
    return [] if filename == "<string>" else linecache.getlines(filename, names)


def user_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame outside the engine, starting `depth` frames above the caller of this function."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and INSIDE[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def outside_frames() -> int:
    """The `stacklevel` of a warning of the caller's that points at the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and INSIDE[frame.f_code.co_filename]:
        frame, level = frame.f_back, level + 1
    return level


# Has this Python `sys.monitoring`? Where it has not, a look at `sys.gettrace()` tells all, at less cost.
MONITORS = hasattr(sys, "monitoring")
# Asks `sys.monitoring`, which debuggers may use from Python 3.12 on, who is registered as the debugger (tool 0).
_get_tool: Callable[[int], str | None] | None = getattr(getattr(sys, "monitoring", None), "get_tool", None)


def is_debugged() -> bool:
    """Does somebody follow this thread line by line: a trace function such as pdb's, or a debugger that monitors?"""
    return sys.gettrace() is not None or (_get_tool is not None and _get_tool(0) is not None)


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
