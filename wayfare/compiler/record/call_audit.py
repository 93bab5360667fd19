"""Who was called while a function was recorded: every call of the user's code is seen, and must be known.

The code of a function is read before it runs, and says what it depends on. What the code alone does not tell is what is
called in the end: a method of an object that came out of a call, a special method, a function in C. So the calls are
looked at as they happen (`sys.setprofile`), and the first that is neither the user's own code that was read, nor known
to depend on nothing but its arguments, makes the function run as plain Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, MethodType, NoneType
from typing import Any

from wayfare.compiler.captures.purity import is_user_namespace
from wayfare.compiler.captures.trusted import is_telling, reads_our_state, strange_call, strange_code
from wayfare.core.callsite import INSIDE

_OURS, _USERS, _LIBRARY, _SILENT, _STATE = "ours", "user's", "library", "silent", "state"


class Witness:
    """Looks at the calls of one recording. `reason` says what was called that is not known, with the line."""

    def __init__(self, codes: set[CodeType]) -> None:
        self._codes = codes
        self._kinds: dict[CodeType, str] = {}
        self.reason = ""
        self._silent = 0  # inside something that only shows or tells
        self._stack: list[bool] = []  # for each function that runs: does it run for the user?
        self.before = sys.getprofile()  # who looked at calls before, and is told as well

    @staticmethod
    def can_look() -> bool:
        """Can calls be looked at without disturbing a profiler? One written in C could not be told of them."""
        return isinstance(sys.getprofile(), (FunctionType, MethodType, NoneType))

    def __enter__(self) -> Witness:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self.before)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Do not look for a while."""
        looking = sys.getprofile()
        sys.setprofile(self.before)
        try:
            yield
        finally:
            sys.setprofile(looking)

    @property
    def quiet(self) -> bool:
        """Is what happens now only shown to people?"""
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
                self._note(strange_call(what), frame)
        elif what is print:
            self._silent -= 1

    def _called(self, frame: FrameType) -> bool:
        """A function in Python is called. Does it run for the user? So does a library that the user calls; what our own
        code calls runs for us."""
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
                self._note(strange_code(code, frame.f_globals.get("__name__", "?")), frame)
            return users
        elif "__name__" not in frame.f_globals and not users:
            self._kinds[code] = _OURS  # text that our own code made code of
        else:
            if code not in self._codes and not self._silent:
                self._note(f"runs {code.co_qualname}, which was not seen to be used", frame)
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
    if filename == "<string>":  # text that was made code, as in data classes: of whom its globals are
        filename = str(namespace.get("__file__", filename))
    if is_telling(code, module):
        return _SILENT
    if module.startswith("namedtuple_"):
        return _LIBRARY
    if reads_our_state(code, module):
        return _STATE
    if INSIDE[filename] and module.startswith("wayfare") and strange_code(code, module) is None:
        return _OURS
    return _USERS if is_user_namespace(filename, namespace) else _LIBRARY
