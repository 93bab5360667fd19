"""Whether a line of the user's code is inside a `try`, or in the middle of an update such as `total += …`.

A call that can fail inside a `try` must fail there, not when its group runs. The exception table of each code object
tells which instructions are inside a `try`. A `with` block counts too, unless its manager is known to catch nothing
(`context_managers`).

If a statement reads a name, an attribute or an item that others can see, and writes it back at its end, no other
example may run in between: its update would be lost.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from wayfare.batch.analysis.context_managers import Manager, manager_before, may_catch
from wayfare.core.callsite import INSIDE
from wayfare.core.native import NATIVE

# (start, end, managers): instruction offsets; if there are managers, the range counts only if one of them may catch.
Ranges = tuple[tuple[int, int, tuple[Manager, ...]], ...]
# id of a code object → (its ranges, the code object). (Its hash is computed anew each time, of all that is in it.)
_Known = dict[int, tuple[Ranges, CodeType]]
_TRY_RANGES: _Known = {}
_UPDATE_RANGES: _Known = {}
_MOST = 4096
# The code objects at the bottom of an example's stack, whose "ranges" are `_BOTTOM`: the search ends there.
_EXAMPLE_CODES: list[CodeType] = []
_BOTTOM: Ranges = ((0, 0, ()),)


def ends_search(code: CodeType) -> None:
    """Frames of this code are at the bottom of an example's stack."""
    _EXAMPLE_CODES.append(code)
    _TRY_RANGES.clear()
    _UPDATE_RANGES.clear()


def in_try(frame: FrameType | None) -> bool:
    """Whether an error in this frame may be caught, in it or in one of its callers inside the example."""
    return _is_within(frame, _TRY_RANGES, _try_ranges)


def in_update(frame: FrameType | None) -> bool:
    """Whether this frame, or a caller inside the example, is between reading something and writing it back."""
    return _is_within(frame, _UPDATE_RANGES, _update_ranges)


def _is_within(frame: FrameType | None, known: _Known, find: Callable[[CodeType], Ranges]) -> bool:
    if NATIVE is not None and frame is not None:
        answer = NATIVE.is_within(frame, known, _BOTTOM)
        if answer is not None:
            return answer  # type: ignore[no-any-return]
    while frame is not None:
        code = frame.f_code
        found = known.get(id(code))
        if found is None:
            if len(known) >= _MOST or not known:
                known.clear()
                known.update({id(last): (_BOTTOM, last) for last in _EXAMPLE_CODES})
                continue
            found = known[id(code)] = () if INSIDE[code.co_filename] else find(code), code
        ranges = found[0]
        if ranges:
            if ranges is _BOTTOM:
                return False
            at = frame.f_lasti
            for start, end, managers in ranges:
                if start <= at < end and (not managers or any([may_catch(m, frame) for m in managers])):
                    return True
        frame = frame.f_back
    return False


def _try_ranges(code: CodeType) -> Ranges:
    """The ranges of this code in which an error may be caught."""
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
            # A manager that catches nothing passes the error on to the next outer handler.
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


# Instructions that write something others may see, and the instructions that read the same thing.
_READS = {
    "STORE_DEREF": ("LOAD_DEREF",), "STORE_GLOBAL": ("LOAD_GLOBAL",), "STORE_NAME": ("LOAD_NAME",),
    "STORE_ATTR": ("LOAD_ATTR",), "STORE_SUBSCR": ("BINARY_SUBSCR",), "STORE_SLICE": ("BINARY_SLICE",),
}  # fmt: skip
# Methods that read an item of a container.
_READ_METHODS = frozenset({"get", "setdefault", "pop"})
# Instructions that end a statement.
_END_STATEMENT = frozenset({"STORE_FAST", "POP_TOP", "RETURN_VALUE", "RETURN_CONST", "RESUME", *_READS})


def _update_ranges(code: CodeType) -> Ranges:
    """The ranges of this code between a read and a write of the same thing in one statement."""
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
