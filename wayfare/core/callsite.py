"""Call sites: the line of the user's code that called the library.

A recorded node keeps only a code object and an instruction offset (two pointers, and no frame, so no locals are
kept alive); file and line are computed when they are needed.
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
    """The absolute path of a file; unchanged if the working directory does not exist any more."""
    try:
        return os.path.abspath(filename)
    except OSError:
        return filename


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# NumPy, copy and contextlib call back into the library: the call site is the line that called them.
_THROUGH = (os.path.dirname(np.__file__) + os.sep, copy.__file__, contextlib.__file__)
# The demo is written as a user would write it, so its lines count as the user's.
_USER_PARTS = (os.path.join(_PACKAGE, "cli", "demo") + os.sep,)


class _Inside(dict[str, bool]):
    """File name → is it part of the library? One dictionary look-up on the hot path."""

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


# The file name of a frame that stands in for the user's: an example of `wf.map` that runs library code only.
NO_LINE = "<wf.map>"


class Site(NamedTuple):
    """A call site: file, line and function."""

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.filename)}:{self.line}"

    @property
    def text(self) -> str:
        """The source text of the line, stripped; empty if there is no source."""
        lines = source_lines(self.filename)
        return lines[self.line - 1].strip() if 1 <= self.line <= len(lines) else ""


def source_lines(filename: str, names: dict[str, Any] | None = None) -> list[str]:
    """The lines of a source file; `names` are the globals of its module, which may have a loader.

    All code compiled by `exec` has the file name `<string>`, and so has the code of `python -c`, whose lines Python
    3.13 knows. The two cannot be distinguished, so no lines are given.
    """
    return [] if filename == "<string>" else linecache.getlines(filename, names)


def user_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame outside the library, starting `depth` frames above this function."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and INSIDE[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def outside_frames() -> int:
    """The `stacklevel` with which a warning of the caller points at the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and INSIDE[frame.f_code.co_filename]:
        frame, level = frame.f_back, level + 1
    return level


# Has this Python `sys.monitoring`? If not, `sys.gettrace()` is enough, and cheaper.
MONITORS = hasattr(sys, "monitoring")
# Which debugger (tool 0) is registered with `sys.monitoring`, which debuggers may use from Python 3.12 on.
_get_tool: Callable[[int], str | None] | None = getattr(getattr(sys, "monitoring", None), "get_tool", None)


def is_debugged() -> bool:
    """Is a debugger active in this thread: a trace function such as pdb's, or one that uses `sys.monitoring`?"""
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
