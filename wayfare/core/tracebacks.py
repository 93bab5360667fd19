"""Tracebacks that show the user's frames: those of the library in between are left out when an error is printed.

An error of the library's ends, as its traceback has it, on the user's line (`WayfareError` sees to that when it is
made), so a debugger begins there. Nothing is changed in a traceback that somebody has caught; only what Python prints
of an error that nobody catches is a folded copy. `WAYFARE_TRACEBACK=full` shows every frame.
"""

from __future__ import annotations

import sys
import threading
from opcode import opname
from types import ModuleType, TracebackType
from typing import Any

from wayfare.core.callsite import INSIDE, NO_LINE, is_ours
from wayfare.core.config import settings
from wayfare.core.errors import WayfareError
from wayfare.core.missing_names import near_in

__all__ = ["folded", "install", "is_installed"]


def folded(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """A traceback without the library's frames, and how many those are.

    All frames stay where the last one is the library's own: then it is no error of the user's.
    """
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    files = [entry.tb_frame.f_code.co_filename for entry in entries]
    if not entries or INSIDE[files[-1]] or not any(map(is_ours, files)):
        return (entries[0] if entries else None), 0
    shown = [entry for entry, file in zip(entries, files, strict=True) if not INSIDE[file] and file != NO_LINE]
    left_out = len(entries) - len(shown)
    if len(shown) > 1 and shown[-1].tb_frame is shown[-2].tb_frame:
        shown.pop()  # the line where the error was made: it is the one that called the library
    made: TracebackType | None = None
    for entry in reversed(shown):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made, left_out


def _fold(error: BaseException | None) -> None:
    """Fold an error that is about to be printed, and those it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        trace, left_out = folded(error.__traceback__)
        if left_out:
            error.__traceback__ = trace
            if isinstance(error, WayfareError):
                what = "1 frame" if left_out == 1 else f"{left_out} frames"
                error.add_note(f"({what} inside wayfare left out; WAYFARE_TRACEBACK=full shows all)")
        if isinstance(error, AttributeError):
            _guess(error)
            _say_where_attributes_go(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _guess(error: AttributeError) -> None:
    """Python guesses what was meant, and its bar is low: "ne" for "new". For what is ours, ours is above that."""
    owner = error.obj
    home = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__
    if error.name and home.partition(".")[0] == "wayfare":
        near = near_in(owner, error.name)
        error.name = None  # so that Python does not guess
        if near is not None:
            error.add_note(f"Did you mean {near!r}?")


def _say_where_attributes_go(error: AttributeError) -> None:
    """`p.no_decay = True` fails as Python has it for a class with slots, and Python says no way out."""
    text, trace = str(error), error.__traceback__
    if trace is None or not text.startswith(("'Tensor' object has no attribute", "'LazyTensor' object has no")):
        return
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    if opname[code.co_code[trace.tb_lasti]] == "STORE_ATTR" or "setattr" in code.co_names:
        error.add_note("Tensors and parameters take no attributes of your own. Keep them beside the tensor, which can "
                       "be a key: no_decay = {p}, or scale[p] = 2 in a dictionary.")  # fmt: skip


def install() -> None:
    """Have uncaught errors printed with the user's frames, by whoever prints them now."""
    printing, printing_of_threads = sys.excepthook, threading.excepthook

    def print_folded(kind: Any, error: Any, trace: Any) -> None:
        if settings.traceback != "full":
            _fold(error)
            trace = error.__traceback__
        printing(kind, error, trace)

    def print_folded_of_thread(args: Any) -> None:
        error = args.exc_value
        if settings.traceback != "full" and error is not None:
            _fold(error)
            args = threading.ExceptHookArgs((args.exc_type, error, error.__traceback__, args.thread))
        printing_of_threads(args)

    if not is_installed(printing):
        sys.excepthook = print_folded
    if not is_installed(printing_of_threads):
        threading.excepthook = print_folded_of_thread


def is_installed(hook: Any) -> bool:
    """Is it a hook of ours?"""
    return getattr(hook, "__module__", "") == __name__
