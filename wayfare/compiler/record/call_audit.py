"""The call audit: while a function is recorded, every function that the user's code calls is checked.

`captures/` reads the code of a function before it runs, to find what it depends on. The code alone does not tell which
functions are called in the end: a method of a returned object, a special method, a function in C. So calls are watched
as they happen (`sys.setprofile`). A call of a function whose code was not read, and which is not known to depend on its
arguments only, makes the compiled function run as plain Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, MethodType, NoneType
from typing import Any

from wayfare.compiler.captures.purity import is_user_namespace
from wayfare.compiler.captures.trusted import is_telling, reads_our_state, unknown_call, unknown_code
from wayfare.core.callsite import INSIDE

_OURS, _USERS, _LIBRARY, _SILENT, _STATE = "ours", "user's", "library", "silent", "state"


class CallAudit:
    """Watches the calls of one recording. `reason` names the first unknown function that was called, with the line."""

    def __init__(self, codes: set[CodeType]) -> None:
        self._codes = codes
        self._kinds: dict[CodeType, str] = {}
        self.reason = ""
        self._silent = 0  # depth of calls that only print or log
        self._stack: list[bool] = []  # for each running function: was it called by the user's code?
        self.before = sys.getprofile()  # the profiler that was installed before; it is called as well

    @staticmethod
    def can_start() -> bool:
        """Can calls be watched without disturbing a profiler? One written in C cannot be called from here."""
        return isinstance(sys.getprofile(), (FunctionType, MethodType, NoneType))

    def __enter__(self) -> CallAudit:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self.before)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop watching inside this context."""
        profiler = sys.getprofile()
        sys.setprofile(self.before)
        try:
            yield
        finally:
            sys.setprofile(profiler)

    @property
    def quiet(self) -> bool:
        """Does the running code only print or log?"""
        return self._silent > 0

    def _event(self, frame: FrameType, event: Any, what: Any) -> None:
        if self.before is not None:
            self.before(frame, event, what)
        if event == "call":
            self._stack.append(self._called(frame))
        elif event == "return":
            if self._stack:
                self._stack.pop()
            if self._silent and self._kinds.get(frame.f_code) is _SILENT:
                self._silent -= 1
        elif event == "c_call":
            if what is print:
                self._silent += 1
            elif not self._silent and self._stack and self._stack[-1]:
                self._note(unknown_call(what), frame)
        elif what is print:
            self._silent -= 1

    def _called(self, frame: FrameType) -> bool:
        """A Python function is called; does it count as the user's? So does a library that the user's code calls, but
        not what Wayfare calls."""
        code = frame.f_code
        kind = self._kinds.get(code) or self._kind(frame)
        users = self._stack[-1] if self._stack else True
        if kind is _OURS:
            return False
        if kind is _SILENT:
            self._silent += 1
        elif kind is _STATE:
            self._note(f"calls {code.co_qualname}", frame)
        elif kind is _LIBRARY:
            if users and not self._silent:
                self._note(unknown_code(code, frame.f_globals.get("__name__", "?")), frame)
            return users
        elif "__name__" not in frame.f_globals and not users:
            self._kinds[code] = _OURS  # code that Wayfare generated
        else:
            if code not in self._codes and not self._silent:
                self._note(f"runs {code.co_qualname}, which was not found in its code", frame)
            return True
        return False

    def _kind(self, frame: FrameType) -> str:
        code, namespace = frame.f_code, frame.f_globals
        found = self._kinds[code] = _kind_of(code, namespace)
        return found

    def _note(self, why: str | None, frame: FrameType) -> None:
        if why is None or self.reason:
            return
        while frame.f_back is not None and not is_user_namespace(frame.f_code.co_filename, frame.f_globals):
            frame = frame.f_back
        self.reason = f"it {why} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"


def _kind_of(code: CodeType, namespace: dict[str, Any]) -> str:
    module = str(namespace.get("__name__", "?"))
    filename = code.co_filename
    if filename == "<string>":  # generated code, as in data classes: it belongs to the module of its globals
        filename = str(namespace.get("__file__", filename))
    if is_telling(code, module):
        return _SILENT
    if module.startswith("namedtuple_"):
        return _LIBRARY
    if reads_our_state(code, module):
        return _STATE
    if INSIDE[filename] and module.startswith("wayfare") and unknown_code(code, module) is None:
        return _OURS
    return _USERS if is_user_namespace(filename, namespace) else _LIBRARY
