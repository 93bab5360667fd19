"""Calls of the user's plain functions, closures and methods inside a map.

The mapped function runs as a copy whose calls pass through `chosen` (`function_copy`). A function that only computes
becomes one opaque call, as a module does. Every other function of the user runs as a copy too, so that its own calls
pass through `chosen` in turn. Everything else is called as it is. In place of a compiled function the plain one is
called, in the same way.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

from wayfare.batch.analysis.known_pure import is_stdlib_code
from wayfare.batch.analysis.purity import is_library_code, only_computes
from wayfare.batch.record.function_copy import copied_code, copy_of
from wayfare.batch.record.module_call import UsersCode, declared_form
from wayfare.compiler.captures.reach import can_be_weak
from wayfare.compiler.function import Compiled
from wayfare.compiler.module import CompiledModule
from wayfare.core.mode import STATE
from wayfare.core.native import in_front_of_calls
from wayfare.core.pytree import flatten, only_tensors
from wayfare.nn.module import Module

# A call of a function with fewer ops gains nothing.
_LEAST_STEPS = 3
# After so many calls in a row that could not be opaque, a function is not tried again in this session.
_MOST_MISSES = 4
# So many functions of one code, or owners of one method, are tried: more are made anew again and again.
_MOST_OWNERS = 64
_MOST_CALLEES = 4096


class FunctionInfo(UsersCode):
    """The OpaqueInfo of a function (`function` is None: the owner is the function) or of a method of the owner."""

    least_steps = _LEAST_STEPS

    def __init__(self, function: types.FunctionType | None = None) -> None:
        self._function = function

    def name_in(self, owner: Any) -> str:
        """The name of the function."""
        return str((self._function or owner).__name__)

    def code_of(self, owner: Any) -> Any:
        """The function, or the method of its owner."""
        return owner if self._function is None else types.MethodType(self._function, owner)

    def only_computes(self, owner: Any) -> bool:
        """Whether the function only computes."""
        return only_computes(self.code_of(owner))

    def suits(self, args: tuple[Any, ...]) -> bool:
        """Whether there are tensors, and no tree of numbers: a function that gets one follows its data."""
        tensors: list[Any] = []
        nested = [part for part in args if part.__class__ is tuple or part.__class__ is list]
        flatten(args, tensors, [])
        return bool(tensors) and all([only_tensors(flatten(part, [], [])) for part in nested])


_OF_FUNCTION = FunctionInfo()
# What is looked at before it is called.
_CALLED = (types.FunctionType, types.MethodType, Compiled, CompiledModule)


def _run(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(*args, **options)


class _KnownCode:
    """What is known of the code of a function."""

    __slots__ = ("_owners", "code", "copied", "count", "is_users")

    def __init__(self, function: types.FunctionType) -> None:
        self.code = function.__code__  # held, so that its id is not reused
        self.is_users = not (is_library_code(function) or is_stdlib_code(self.code))
        self.copied = copied_code(function, chosen) if self.is_users else None
        # The functions with this code, or owners of this method, that were tried as opaque calls and are still alive;
        # and how many were tried.
        self._owners: weakref.WeakSet[Any] = weakref.WeakSet()
        self.count = 0

    def may_try(self, owner: Any) -> bool:
        """Whether calls of this function, or of the method of this owner, may be tried as opaque calls."""
        if owner not in self._owners and self.count < _MOST_OWNERS:
            self._owners.add(owner)
            self.count += 1
        return owner in self._owners


_KNOWN: dict[int, _KnownCode] = {}


def _known(function: types.FunctionType) -> _KnownCode:
    code = function.__code__
    found = _KNOWN.get(id(code))
    if found is None:
        if len(_KNOWN) >= _MOST_CALLEES:
            _KNOWN.clear()
        found = _KNOWN[id(code)] = _KnownCode(function)
    return found


def chosen(called: Any) -> Any:
    """What is to be called in place of `called`: copies of the user's functions call this before each call."""
    if called.__class__ not in _CALLED:
        return called
    mode: Any = STATE.mode
    if mode is None or not mode.executor.batches:
        return called
    return chosen_in(mode.executor, called)


chosen = in_front_of_calls(chosen, "chosen", _CALLED)


def chosen_in(session: Any, called: Any) -> Any:
    """The same in a session, for a function, a method, or a compiled one."""
    return session.callees.get(called) or _choose(session, called, may_be_opaque=True)


def as_copy(called: Any) -> Any:
    """A function of the user, or a method, as a copy whose calls pass through `chosen`."""
    mode: Any = STATE.mode
    if called.__class__ is not types.MethodType and called.__class__ is not types.FunctionType:
        return called
    return _choose(mode.executor, called, may_be_opaque=False) if mode is not None and mode.executor.batches else called


def _plain(called: Any) -> Any:
    """The plain function, method or module of a compiled one; anything else as it is."""
    if isinstance(called, Compiled):
        return called._function
    if isinstance(called, CompiledModule):
        return called._orig_mod
    if called.__class__ is types.MethodType and isinstance(called.__func__, Compiled):
        return types.MethodType(called.__func__._function, called.__self__)
    return called


def _choose(session: Any, called: Any, may_be_opaque: bool) -> Any:
    plain = found = _plain(called)
    owner: Any = None
    function = plain
    if plain.__class__ is types.MethodType:
        owner, function = plain.__self__, plain.__func__
    if function.__class__ is types.FunctionType:
        known = _known(function)
        if known.copied is not None:
            copy = session.copies.get(function)
            if copy is None:
                copy = session.copies[function] = copy_of(function, known.copied)
            found = copy if owner is None else types.MethodType(copy, owner)
        may_own = owner is None or isinstance(owner, Module) or (plain is not called and _is_one_of_its_own(owner))
        if may_be_opaque and known.is_users and may_own and known.may_try(plain if owner is None else owner):
            if owner is None:
                found = _attempt(session, called, found, function, _run, _OF_FUNCTION)
            else:
                found = _attempt(session, called, found, owner, function, FunctionInfo(function))
        elif may_be_opaque and owner is not None and (declared := declared_form(function)) is not None:
            found = _attempt(session, called, found, owner, *declared)
    if may_be_opaque:
        if len(session.callees) >= _MOST_CALLEES:
            session.callees.clear()
        session.callees[called] = found
    return found


def _is_one_of_its_own(owner: Any) -> bool:
    """Whether what is known of an object can be kept on it, and it is equal to no other."""
    cls: Any = type(owner)
    return can_be_weak(owner) and cls.__hash__ is object.__hash__


def _attempt(session: Any, called: Any, copy: Any, owner: Any, function: Any, info: Any) -> Any:
    """A function that makes an opaque call of its arguments, or calls the copy."""
    misses = [0]

    def call(*args: Any, **options: Any) -> Any:
        mode: Any = STATE.mode
        if mode is None or mode.executor is not session:
            return called(*args, **options)  # the session has ended since
        made = session.opaque_call(owner, function, args, options, info)
        if made is not NotImplemented:
            misses[0] = 0
            return made
        misses[0] += 1
        if misses[0] >= _MOST_MISSES:
            session.callees[called] = copy
        return copy(*args, **options)

    return in_front_of_calls(call, "function", (id(owner), function), session, misses)
