"""May the context manager of a `with` block catch an error, or replace it?

The expression of the `with` is found in the bytecode, and evaluated when it is needed. Managers of the library, files
and locks catch nothing; nor do managers of the user whose code has no error handling and returns None. All others may.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import io
import threading
import types
from functools import lru_cache
from typing import Any, NamedTuple

from wayfare.batch.analysis.purity import is_library_code, is_library_module


class Manager(NamedTuple):
    """The expression of a `with`: the instruction that loads its first name, the names, and whether it is called."""

    load: str
    names: tuple[str, ...]
    called: bool


# Any expression other than `name.attribute…` with or without a call.
_OTHER = Manager("", (), False)
_MISSING: Any = object()
_FIRST = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF")
_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Semaphore, threading.Condition)
_CATCH_NOTHING = (contextlib.nullcontext, open, *_LOCKS)


def manager_before(steps: list[dis.Instruction], begin: int) -> Manager:
    """The manager of the `with` block whose body begins at an instruction."""
    at = begin
    while at >= 0 and steps[at].opname != "BEFORE_WITH":
        at -= 1
    end, needed = at, 1
    while at > 0 and needed > 0:
        at -= 1
        step = steps[at]
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            return _OTHER
        arg = step.arg if step.opcode >= dis.HAVE_ARGUMENT else None
        needed -= dis.stack_effect(step.opcode, arg)
    parts = [s for s in steps[at:end] if s.opname not in ("PUSH_NULL", "PRECALL", "CACHE", "EXTENDED_ARG", "NOP")]
    if needed != 0 or not parts or parts[0].opname not in _FIRST:
        return _OTHER
    names = [parts[0].argval]
    rest = parts[1:]
    while rest and rest[0].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        names.append(rest.pop(0).argval)
    called = bool(rest) and rest[-1].opname.startswith("CALL")
    if rest and (not called or any([s.opname in ("LOAD_ATTR", "LOAD_METHOD") or _is_call(s) for s in rest[:-1]])):
        return _OTHER
    return Manager(parts[0].opname, tuple(names), called)


def _is_call(step: dis.Instruction) -> bool:
    return step.opname.startswith("CALL") or step.opname == "BINARY_SUBSCR"


def may_catch(manager: Manager, frame: types.FrameType) -> bool:
    """Whether the manager of a block in this frame may catch an error."""
    if not manager.names:
        return True
    name, *attributes = manager.names
    if manager.load in ("LOAD_GLOBAL", "LOAD_NAME"):
        found = frame.f_globals.get(name, frame.f_builtins.get(name, _MISSING))
    else:
        found = frame.f_locals.get(name, _MISSING)
    for attribute in attributes:
        if isinstance(found, types.ModuleType):
            # Only modules of the library have lazy names (`__getattr__`), which are safe to load.
            found = (
                getattr(found, attribute, _MISSING) if is_library_module(found.__name__) else vars(found).get(attribute)
            )
        else:
            found = inspect.getattr_static(found, attribute, _MISSING)
    if found is _MISSING:
        return True
    return not (_makes_one_that_catches_nothing(found) if manager.called else _catches_nothing(type(found)))


def _makes_one_that_catches_nothing(made_by: Any) -> bool:
    """Whether calling it makes a manager that catches nothing."""
    if any([made_by is made for made in (*_CATCH_NOTHING, threading.Lock, threading.RLock)]):
        return True
    if isinstance(made_by, type):
        return _catches_nothing(made_by)
    if not isinstance(made_by, types.FunctionType):
        return False
    if is_library_code(made_by):
        return True
    wrapped = getattr(made_by, "__wrapped__", None)
    if made_by.__globals__ is not vars(contextlib) or not isinstance(wrapped, types.FunctionType):
        return False
    return not _handles_errors(wrapped.__code__)


def _catches_nothing(made: type) -> bool:
    """Whether managers of this type catch nothing."""
    if is_library_code(made) or issubclass(made, (*_LOCKS, io.IOBase, contextlib.nullcontext)):
        return True
    leave = inspect.getattr_static(made, "__exit__", None)
    if not isinstance(leave, types.FunctionType) or made.__module__ == "contextlib":
        return False
    return _returns_none(leave.__code__) and not _handles_errors(leave.__code__)


@lru_cache(1024)
def _handles_errors(code: types.CodeType) -> bool:
    """Whether code has an `except`, a `return` in a `finally`, a `raise`, or a `with` block."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "NOP")]
    for number, step in enumerate(steps):
        if step.opname in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "RAISE_VARARGS", "WITH_EXCEPT_START", "YIELD_FROM"):
            return True
        if step.opname == "POP_EXCEPT" and steps[number + 1].opname != "RERAISE":
            return True
    return False


@lru_cache(1024)
def _returns_none(code: types.CodeType) -> bool:
    """Whether code returns None everywhere."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "NOP")]
    for number, step in enumerate(steps):
        if step.opname == "RETURN_CONST" and step.argval is not None:
            return False
        if step.opname == "RETURN_VALUE":
            before = steps[number - 1]
            if before.opname != "LOAD_CONST" or before.argval is not None:
                return False
    return True
