"""Start a debugger in the user's frame: pdb, or what `sys.breakpointhook` says."""

from __future__ import annotations

import bdb
import ctypes
import os
import pdb
import sys
from collections.abc import Iterator, MutableMapping
from types import FrameType, FunctionType
from typing import Any

from wayfare.core.callsite import INSIDE

_PYTHONS_OWN = (os.path.dirname(os.__file__) + os.sep, "<frozen ")


def stop_in(frame: FrameType, here: Any) -> None:
    """Stop in a frame, on its line. PYTHONBREAKPOINT and `sys.breakpointhook` are heeded as by `breakpoint()`."""
    wanted = os.environ.get("PYTHONBREAKPOINT", "") if sys.breakpointhook is sys.__breakpointhook__ else "hook"
    if wanted == "0":
        return
    if wanted in ("", "pdb.set_trace"):
        Debugger(here).stop_in(frame)
    else:
        _by_hook(frame, here)


def _by_hook(frame: FrameType, here: Any) -> None:
    """Call the hook from a frame with the user's file, line and names: a debugger stops in the frame that called it."""
    names = {".hook": sys.breakpointhook, **frame.f_locals, "here": here}  # no name of a user has a dot
    code = _call_first.__code__.replace(
        co_filename=frame.f_code.co_filename, co_firstlineno=frame.f_lineno, co_name=frame.f_code.co_name,
        co_argcount=len(names), co_nlocals=len(names), co_varnames=tuple(names),
    )  # fmt: skip
    print(here, file=sys.stderr)
    FunctionType(code, frame.f_globals)(*names.values())


# On one line, so that its first line is the line that runs.
_call_first: Any = lambda hook: hook()


class Debugger(pdb.Pdb):
    """pdb, started in the middle of a line: its commands count from the frame it was started in."""

    def __init__(self, here: Any) -> None:
        # No signal handler: it would stay after `continue`, and every Ctrl-C would open a prompt.
        super().__init__(nosigint=True)
        self._here = here

    def stop_in(self, frame: FrameType) -> None:
        """Ask for commands in a frame, and prepare what they ask for."""
        tracing = sys.gettrace()
        sys.settrace(None)
        self.reset()
        above: FrameType | None = frame
        while above is not None:
            above.f_trace = self.trace_dispatch
            self.botframe = above
            above = above.f_back
        self.message(str(self._here))
        self.interaction(frame, None)
        if self.quitting:
            raise bdb.BdbQuit
        # `continue` stops at breakpoints only; an earlier trace function goes on.
        goes_on = self.stoplineno == -1 and not self.breaks
        sys.settrace(tracing if goes_on else self.trace_dispatch)

    def stop_here(self, frame: FrameType) -> bool:
        """Steps stop in the user's code only: not in the library, and not in code that the library calls."""
        above: FrameType | None = frame
        while above is not None and above.f_code.co_filename.startswith(_PYTHONS_OWN):
            above = above.f_back
        if above is not None and INSIDE[above.f_code.co_filename]:
            return False
        return super().stop_here(frame)

    def get_stack(self, f: Any, t: Any) -> Any:
        """The frames of the user's code: `up` leads to the line of theirs that called this one."""
        stack, index = super().get_stack(f, t)
        chosen = stack[index]
        shown = [entry for entry in stack if entry is chosen or not INSIDE[entry[0].f_code.co_filename]]
        return shown, shown.index(chosen)

    def do_here(self, arg: str) -> None:
        """here
        Show what is at hand: the op, its inputs and its value.
        """
        if arg:
            self.default(f"here {arg}")
        else:
            self.message(str(self._here))

    def setup(self, f: Any, tb: Any) -> Any:
        """Find the frame's names, and `here` among them."""
        answer = super().setup(f, tb)
        self._add_here()
        return answer

    def _select_frame(self, number: int) -> None:
        super()._select_frame(number)
        self._add_here()

    def _add_here(self) -> None:
        if not isinstance(self.curframe_locals, _Names):
            self.curframe_locals = _Names(self.curframe, self.curframe_locals, self._here)


class _Names(MutableMapping[str, Any]):
    """The local names of a frame, and `here` where it has none of that name. What is assigned goes into the frame."""

    def __init__(self, frame: Any, names: Any, here: Any) -> None:
        self._frame = frame
        self._names = names
        self._here = here

    def __getitem__(self, name: str) -> Any:
        if name == "here" and name not in self._names and name not in self._frame.f_globals:
            return self._here
        return self._names[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._names[name] = value
        self._write_back()

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        self._write_back()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _write_back(self) -> None:
        # Up to Python 3.12 the names of a function's frame are a copy, which a trace function gets written back.
        if sys.version_info < (3, 13):
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self._frame), ctypes.c_int(1))
