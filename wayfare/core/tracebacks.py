"""Tracebacks without the library's frames, for errors that are printed.

The traceback of a `WayfareError` ends on the user's line, so a debugger stops there. Tracebacks of caught errors are
not changed; only the traceback that Python prints for an uncaught error leaves out frames. `WAYFARE_TRACEBACK=full`
shows every frame.
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
    """A traceback without the library's frames, and how many were left out.

    If the last frame is the library's own, it is probably not the user's error: all frames are kept.
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
        shown.pop()  # the user's line is there twice: where it called the library, and where the error was made
    made: TracebackType | None = None
    for entry in reversed(shown):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made, left_out


def _fold(error: BaseException | None) -> None:
    """Shorten the traceback of an error that is about to be printed, and those of its causes."""
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
    """For objects of Wayfare, suggest a similar name by our own rule: Python's suggests too easily ("ne" for "new")."""
    owner = error.obj
    home = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__
    if error.name and home.partition(".")[0] == "wayfare":
        near = near_in(owner, error.name)
        error.name = None  # so that Python adds no suggestion
        if near is not None:
            error.add_note(f"Did you mean {near!r}?")


def _say_where_attributes_go(error: AttributeError) -> None:
    """Advice for `p.no_decay = True`, which fails because Tensor has slots."""
    text, trace = str(error), error.__traceback__
    if trace is None or not text.startswith("'Tensor' object has no attribute"):
        return
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    if opname[code.co_code[trace.tb_lasti]] == "STORE_ATTR" or "setattr" in code.co_names:
        error.add_note("Tensors and parameters take no attributes of your own. Keep them beside the tensor, which can "
                       "be a key: no_decay = {p}, or scale[p] = 2 in a dictionary.")  # fmt: skip


def install() -> None:
    """Shorten the tracebacks of uncaught errors; they are printed by the hooks that were installed before."""
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
    """Is this one of our hooks?"""
    return getattr(hook, "__module__", "") == __name__
