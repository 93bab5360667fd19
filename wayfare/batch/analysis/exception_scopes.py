"""Where in the user's code a call is made: inside a `try`, or in the middle of `total += …`.

What can fail inside a `try` must fail there, not when its group runs. Python keeps a table with each piece of code that
says which instructions a handler stands behind; it is read, once for each piece of code. A `with` block counts too,
unless its manager is known to catch nothing (`managers`).

Where a name, an attribute or an item that others may see is read, and written at the end of the same statement, no
other example may run in between: what it adds would be lost.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from wayfare.batch.analysis.context_managers import Manager, manager_before, may_catch
from wayfare.core.callsite import INSIDE

# The code below every frame of an example.
EXAMPLE_CODES: set[CodeType] = set()

# (first instruction, end, managers) in bytes, in some code; managers are those of `with` blocks it hangs on, if any.
Ranges = tuple[tuple[int, int, tuple[Manager, ...]], ...]
_TRY_RANGES: dict[CodeType, Ranges] = {}
_UPDATE_RANGES: dict[CodeType, Ranges] = {}
_MOST = 4096


def in_try(frame: FrameType | None) -> bool:
    """May an error in this frame, or in those above it in the same example, be caught?"""
    return _is_within(frame, _TRY_RANGES, _try_ranges)


def in_update(frame: FrameType | None) -> bool:
    """Is this frame, or one above it in the same example, between reading something and writing it back?"""
    return _is_within(frame, _UPDATE_RANGES, _update_ranges)


def _is_within(frame: FrameType | None, known: dict[CodeType, Ranges], find: Callable[[CodeType], Ranges]) -> bool:
    while frame is not None:
        code = frame.f_code
        if code in EXAMPLE_CODES:
            return False
        ranges = known.get(code)
        if ranges is None:
            if len(known) >= _MOST:
                known.clear()
            ranges = known[code] = () if INSIDE[code.co_filename] else find(code)
        if ranges:
            at = frame.f_lasti
            for start, end, managers in ranges:
                if start <= at < end and (not managers or any([may_catch(m, frame) for m in managers])):
                    return True
        frame = frame.f_back
    return False


def _try_ranges(code: CodeType) -> Ranges:
    """Where in this code an error may be caught."""
    if not code.co_exceptiontable:
        return ()
    steps = list(dis.get_instructions(code))
    at = {step.offset: number for number, step in enumerate(steps)}
    entries: Any = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    found: list[tuple[int, int, tuple[Manager, ...]]] = []
    for entry in entries:
        managers: list[Manager] = []
        around: Any = entry
        for _ in entries:
            # A handler that catches nothing hands the error to the one that it stands inside of.
            handler = at.get(around.target)
            if handler is not None and steps[handler].opname == "PUSH_EXC_INFO":
                if steps[handler + 1].opname != "WITH_EXCEPT_START":
                    found.append((entry.start, entry.end, ()))
                    break
                begin = min([e.start for e in entries if e.target == around.target])
                managers.append(manager_before(steps, at[begin]))
            around = next((e for e in entries if e.start <= around.target < e.end), None)
            if around is None:
                break
        else:
            around = None
        if around is None and managers:
            found.append((entry.start, entry.end, tuple(managers)))
    return tuple(found)


# How something is written that others may see, and how the same thing is read.
_READS = {
    "STORE_DEREF": ("LOAD_DEREF",), "STORE_GLOBAL": ("LOAD_GLOBAL",), "STORE_NAME": ("LOAD_NAME",),
    "STORE_ATTR": ("LOAD_ATTR",), "STORE_SUBSCR": ("BINARY_SUBSCR",), "STORE_SLICE": ("BINARY_SLICE",),
}  # fmt: skip
# Methods that read an item.
_READ_METHODS = frozenset({"get", "setdefault", "pop"})
# What ends a statement.
_END_STATEMENT = frozenset({"STORE_FAST", "POP_TOP", "RETURN_VALUE", "RETURN_CONST", "RESUME", *_READS})


def _update_ranges(code: CodeType) -> Ranges:
    """Where in this code something that others may see was read, and is written at the end of the statement."""
    found = []
    steps = list(dis.get_instructions(code))
    begin = 0
    for number, step in enumerate(steps):
        if step.opname not in _END_STATEMENT:
            continue
        for read in _READS.get(step.opname, ()):
            for before in steps[begin:number]:
                item = step.opname in ("STORE_SUBSCR", "STORE_SLICE")
                asked = item and before.opname in ("LOAD_METHOD", "LOAD_ATTR") and before.argval in _READ_METHODS
                if asked or (before.opname == read and (item or before.argval == step.argval)):
                    found.append((before.offset, step.offset, ()))
                    break
        begin = number + 1
    return tuple(found)
