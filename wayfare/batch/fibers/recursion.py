"""Deep recursion: a larger stack for very deep trees, and an explanation of a recursion that did not end.

Python stops a recursion at 1000 levels because each level may need space on the C stack, whose size Python does not
know. Here the size is found out: on Linux the stack of the main thread can grow up to its limit, as long as no other
mapping is in the way. So the limit is raised, and as many levels are allowed as fit if each takes the most space that
was ever measured. Greenlets run on the stack of their thread, so this holds for them too.

Python 3.12 and 3.13 count calls that go through C separately (a call of a module, `map()`, an operator), and that limit
cannot be raised: a recursion through modules ends after about 3,300 levels on 3.13, and after about 500 on 3.12. Plain
functions and methods (`self.forward(...)`) do not count there.
"""

from __future__ import annotations

import ctypes
import enum
import sys
import threading
import types
from typing import Any

from wayfare.core.callsite import INSIDE
from wayfare.core.tensor import Tensor

if sys.platform == "linux":
    import resource

__all__ = ["explain_recursion", "room_for_recursion"]

# Enough for a chain of 10,000 nodes, each visited through a dozen calls. An endless recursion gets there in less than a
# second.
LEVELS = 150_000
# Bytes of the C stack for each level. Measured on Python 3.11 to 3.13: none for a plain call, 400 to 700 for a call
# through a module, map() or an operator, 1500 for a function that NumPy calls, 2500 for the key of sorted(), the most.
_LEVEL_BYTES = 6 * 1024
# Bytes reserved for the innermost call, such as a matrix product.
_RESERVE = 1024 * 1024
_NO_LIMIT = 1 << 62


class _Room:
    """What is known about the stack of a thread."""

    __slots__ = ("before", "blocks", "can_grow", "known", "levels", "raised", "seen", "size")

    def __init__(self) -> None:
        self.blocks = 0  # how many `room_for_recursion` blocks it is in
        self.levels = 0  # how many levels fit on its stack now
        self.seen: Any = None  # the stack limits that `levels` and `raised` were computed for
        self.raised: Any = None  # the raised limits; None if there is nothing to raise
        self.known = False  # True if the following are set
        self.size = 0  # bytes of its stack at the start; 0 if unknown
        self.can_grow = 0  # bytes it can grow to with a raised limit; 0 if it cannot grow
        self.before: Any = None  # the stack limit before it was raised


class _Here(threading.local):
    """The stack of this thread."""

    def __init__(self) -> None:
        self.room = _Room()


class _Limits:
    """The recursion limit, which all threads share: the maximum over all threads that are in a block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._levels: list[int] = []
        self._before = 0
        self._set = 0

    def enter(self, levels: int) -> None:
        """A thread enters a block, and has space for this many levels."""
        with self._lock:
            now = sys.getrecursionlimit()
            if not self._levels:
                self._before = now
            self._levels.append(levels)
            if levels > now:
                sys.setrecursionlimit(levels)
                self._set = levels

    def leave(self, levels: int) -> None:
        """A thread leaves its block."""
        with self._lock:
            self._levels.remove(levels)
            # If somebody else has set the limit meanwhile, it stays.
            if self._set and sys.getrecursionlimit() == self._set:
                rest = max([self._before, *self._levels])
                try:
                    sys.setrecursionlimit(rest)
                except RecursionError:  # the stack is deeper than that now: the next thread to leave will do it
                    return
                self._set = rest if self._levels else 0


_HERE = _Here()
_LIMITS = _Limits()


class room_for_recursion:
    """`with room_for_recursion():` — Python functions may call themselves very deeply, and the process does not crash.

    In the main thread on Linux there is room for 150,000 levels, elsewhere for what the thread's stack holds (make it
    larger with `threading.stack_size`). A recursion without end still ends in a RecursionError. Blocks may be nested,
    also in greenlets that take turns.
    """

    __slots__ = ()

    def __enter__(self) -> room_for_recursion:
        here = _HERE.room
        if not here.blocks:
            _open(here)
        here.blocks += 1
        return self

    def __exit__(self, *error: object) -> None:
        here = _HERE.room
        here.blocks -= 1
        if not here.blocks:
            _close(here)


def _open(here: _Room) -> None:
    if not here.known:
        here.known = True
        here.size, here.can_grow = _stack()
        here.levels = _levels_in(here.size)
    if here.can_grow and (here.raised is None or not _raise_limit(here)):
        now = resource.getrlimit(resource.RLIMIT_STACK)
        if now != here.seen or here.raised is not None:
            _plan(here, now)
            if here.raised is not None and not _raise_limit(here):
                here.raised, here.levels = None, _levels_in(now[0])
    _LIMITS.enter(here.levels)


def _raise_limit(here: _Room) -> bool:
    """Raise the limit of the stack. False if that is not possible, or if the limit was not the planned one."""
    try:
        # One call of the system: it sets the limit, and says what it was.
        before = resource.prlimit(0, resource.RLIMIT_STACK, here.raised)
        if before == here.seen:
            here.before = before
            return True
        resource.setrlimit(resource.RLIMIT_STACK, before)
    except (OSError, ValueError):
        pass
    return False


def _plan(here: _Room, now: tuple[int, int]) -> None:
    """Compute the raised stack limits for the present ones."""
    soft, hard = (_NO_LIMIT if n == resource.RLIM_INFINITY else n for n in now)
    size = min(max(soft, LEVELS * _LEVEL_BYTES + _RESERVE), hard, here.can_grow)
    here.seen = now
    here.raised = (size, now[1]) if size > soft else None
    here.levels = _levels_in(size)


def _levels_in(size: int) -> int:
    """How many levels fit on a stack of this size."""
    return min(max(size - _RESERVE, 0) // _LEVEL_BYTES, LEVELS)


def _close(here: _Room) -> None:
    _LIMITS.leave(here.levels)
    if here.before is not None:
        # The stack does not shrink.
        resource.setrlimit(resource.RLIMIT_STACK, here.before)
        here.before = None


# -- the size of the stack ---------------------------------------------------------------------------------------------


def _stack() -> tuple[int, int]:
    """The size of this thread's stack, and the size it can grow to; 0 for what is unknown."""
    if sys.platform != "linux":
        return 0, 0
    try:
        begin, size = _bounds()
        gap = _gap_below(begin + size - 1)
        if not gap:
            return size, 0
        with open("/proc/sys/vm/overcommit_memory") as file:
            strict = file.read().strip() == "2"
        # With strict overcommit the kernel may refuse to grow the stack, and the process would crash.
        limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        return (size, 0) if strict or limited else (size, gap // 2)
    except (OSError, AttributeError, ValueError):
        return 0, 0


def _bounds() -> tuple[int, int]:
    """The lowest address of this thread's stack, and its size."""
    library = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(512)
    begin, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.pthread_self.restype = ctypes.c_void_p
    if library.pthread_getattr_np(ctypes.c_void_p(library.pthread_self()), attributes):
        raise OSError("the stack of this thread was not found")
    library.pthread_attr_getstack(attributes, ctypes.byref(begin), ctypes.byref(size))
    library.pthread_attr_destroy(attributes)
    return begin.value or 0, size.value


def _gap_below(top: int) -> int:
    """The bytes from the end of the main stack down to the next mapping below it; 0 if `top`, the last byte of some
    thread's stack, is not in the main stack."""
    end_below = 0
    with open("/proc/self/maps") as file:
        for line in file:
            begin, end = (int(part, 16) for part in line.split(None, 1)[0].split("-"))
            if line.rstrip().endswith("[stack]"):
                return end - end_below if begin <= top < end else 0
            end_below = end
    return 0


# -- why a recursion did not end ---------------------------------------------------------------------------------------

# How many calls are compared, from the innermost on: a longer cycle is not found.
_LOOKED_AT = 20_000
# Types that are no part of a structure: unrelated calls share such objects.
_ATOMS = (
    int, float, complex, str, bytes, type, type(None), enum.Enum, types.FunctionType, types.BuiltinFunctionType,
    types.MethodType, types.ModuleType, range, slice,
)  # fmt: skip
# Types of which a call often makes a new object for the next call.
_CARRIED = (list, tuple, dict, set, frozenset, Tensor)


def explain_recursion(error: RecursionError) -> str | None:
    """Why a recursion did not end: a cyclic structure, or just a deep one. None if no function calls itself, or if the
    error is not Python's own.

    Compares the identity of the arguments in the frames; no code of the objects runs.
    """
    if "recursion depth exceeded" not in str(error) and "overflow" not in str(error):
        return None
    frames: dict[types.CodeType, list[types.FrameType]] = {}
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        known = frames.get(frame.f_code)
        if known is None:
            frames[frame.f_code] = [frame]
        else:
            known.append(frame)
        trace = trace.tb_next
    recursive = [code for code, found in frames.items() if len(found) > 2 and _has_a_name(code)]
    if not recursive:
        return None
    # Prefer the user's functions, and among those the one that is called most often.
    code = max(recursive, key=lambda code: (not INSIDE[code.co_filename], len(frames[code])))
    calls = frames[code]
    name = code.co_qualname.rpartition("<locals>.")[2] + "()"
    found = _argument_that_returns(code, calls)
    if found is None:
        why = (f"{name} had called itself {len(calls):,} times: the structure is deeper than that, or the recursion "
               "has no end")  # fmt: skip
        if sys.version_info >= (3, 12) and sum(map(len, frames.values())) < sys.getrecursionlimit() // 2:
            why += (". Python allows few calls that go through C: call a plain function or .forward() rather than a "
                    "module, map() or an operator")  # fmt: skip
        return why
    type_name, steps = found
    after = "1 step" if steps == 1 else f"{steps:,} steps"
    return (f"{name} was called again with the very same {type_name} while still working on it: the structure is "
            f"cyclic (it comes back to itself after {after})")  # fmt: skip


def _has_a_name(code: types.CodeType) -> bool:
    return not code.co_name.startswith("<") or code.co_name == "<lambda>"


def _argument_that_returns(code: types.CodeType, calls: list[types.FrameType]) -> tuple[str, int] | None:
    """The type name of an argument that an unfinished earlier call got too, and how many calls ago that was."""
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    calls = calls[-_LOOKED_AT:]
    held = [frame.f_locals for frame in calls]
    constant: str | None = None
    returning: tuple[str, int] | None = None
    for name in names:
        values = [own.get(name) for own in held]
        cls = type(values[-1])
        if issubclass(cls, _ATOMS):
            continue
        steps = _steps_back([id(value) for value in values])
        if steps == 1:
            # An argument that all calls share (the model, a table) proves nothing, unless no argument changes.
            constant = cls.__name__
        elif steps:
            returning = returning or (cls.__name__, steps)
        elif not issubclass(cls, _CARRIED):
            return None  # a new object in each call: not cyclic
    if returning is None and constant is not None and not _changes(names, held):
        return constant, 1
    return returning


def _steps_back(identities: list[int]) -> int:
    """How many calls ago the object of the innermost call came last, if the calls repeat with that period; else 0."""
    last = len(identities) - 1
    for steps in range(1, last):
        if identities[last - steps] == identities[last]:
            whole = min(steps, last - steps + 1)
            one, other = identities[last - whole + 1 :], identities[last - whole + 1 - steps : last + 1 - steps]
            return steps if one == other else 0
    return 0


def _changes(names: tuple[str, ...], held: list[Any]) -> bool:
    """Whether some argument is not the same object in the two innermost calls."""
    return any(held[-1].get(name) is not held[-2].get(name) for name in names)
