"""What the names of one function stand for while its code is read, over all calls of it."""

from __future__ import annotations

import builtins
import inspect
import types
from typing import Any

from wayfare.batch.abstract import NOTHING, PLAIN, Changes, Inner, Value
from wayfare.compiler.captures.names import content_of

_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Frame:
    """One function: what its arguments and names have stood for so far, and what it may give back."""

    def __init__(self, reader: Any, function: types.FunctionType | Inner) -> None:
        self._reader = reader
        self.inner = function if isinstance(function, Inner) else None
        self.function = function
        self.code: types.CodeType = function.code if isinstance(function, Inner) else function.__code__
        self._names: dict[str, Value] = {}
        self.result = PLAIN if self.code.co_flags & _SUSPENDS else NOTHING
        self.read_in = -1  # the round in which its code was read last
        if isinstance(function, Inner):
            self.globals: dict[str, Any] = function.frame.globals
            self._cells: dict[str, Any] = {}
        else:
            self.globals = function.__globals__
            self._cells = dict(zip(self.code.co_freevars, function.__closure__ or (), strict=True))

    def load(self, name: str) -> Value:
        """A name of its own."""
        found = self._names.get(name, NOTHING)
        return PLAIN if found is NOTHING else found

    def store(self, name: str, value: Value) -> None:
        """A name of its own may stand for this too."""
        before = self._names.get(name, NOTHING)
        after = before | value
        if not before.covers(after):
            self._reader.changed = True
        self._names[name] = after

    def load_global(self, name: str) -> Value:
        """A global name, or one of Python's own."""
        if name in self.globals:
            return self._reader.of(self.globals[name])  # type: ignore[no-any-return]
        if hasattr(builtins, name):
            return self._reader.of(getattr(builtins, name))  # type: ignore[no-any-return]
        return PLAIN

    def load_deref(self, name: str) -> Value:
        """A name that functions have in common."""
        if name not in self.code.co_freevars:
            return self.load(name)
        if self.inner is not None:
            return self.inner.frame.load_deref(name)  # type: ignore[no-any-return]
        return self._reader.of(content_of(self._cells[name]))  # type: ignore[no-any-return]

    def store_deref(self, name: str, value: Value) -> None:
        """Such a name is written."""
        if name not in self.code.co_freevars:
            self.store(name, value)
        elif self.inner is not None:
            self.inner.frame.store_deref(name, value)
        else:
            raise Changes(f"the name {name} of the function around {self.code.co_qualname}")

    def returns(self, value: Value) -> None:
        """It may give this back."""
        after = self.result | value
        if not self.result.covers(after):
            self._reader.changed = True
        self.result = after

    def yields(self, value: Value) -> None:
        """It may hand this to whoever goes through it."""
        self.returns(self._reader.container(("generator", id(self)), value))

    def bind(self, args: list[Value], named: dict[str, Value], star: Value | None) -> None:
        """The arguments of one more call; `star` may stand for any that are not told."""
        code = self.code
        count = code.co_argcount
        names = code.co_varnames[: count + code.co_kwonlyargcount]
        for name, value in zip(names[:count], args, strict=False):
            self.store(name, value)
        for name, value in named.items():
            if name in names:
                self.store(name, value)
        more = star or PLAIN
        for value in [*args[count:], *[v for k, v in named.items() if k not in names]]:
            more = more | value
        for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS):
            if code.co_flags & flag:  # what `*args` and `**options` hold
                place = len(names) + (flag == inspect.CO_VARKEYWORDS and bool(code.co_flags & inspect.CO_VARARGS))
                self.store(code.co_varnames[place], self._reader.container(("more", id(self)), more))
        defaults = self._defaults()
        for name in (*names[min(len(args), count) : count], *names[count:]):
            if name not in named:
                given = defaults if isinstance(defaults, Value) else defaults.get(name, NOTHING)
                self.store(name, given | (NOTHING if star is None else star))

    def _defaults(self) -> Value | dict[str, Value]:
        function = self.function
        if isinstance(function, Inner):
            return function.defaults
        count = self.code.co_argcount
        values = function.__defaults__ or ()
        found = dict(zip(self.code.co_varnames[count - len(values) : count], values, strict=True))
        found.update(function.__kwdefaults__ or {})
        return {name: self._reader.of(value) for name, value in found.items()}
