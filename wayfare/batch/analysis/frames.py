"""Abstract frames: what the names of one function may refer to, over all calls of it."""

from __future__ import annotations

import builtins
import inspect
import types
from typing import Any

from wayfare.batch.analysis.abstract_values import NOTHING, PLAIN, AbstractValue, LocalFunction, SideEffect
from wayfare.compiler.captures.names import content_of

_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class AbstractFrame:
    """One function: the abstract values of its arguments and names, and of its result."""

    def __init__(self, analysis: Any, function: types.FunctionType | LocalFunction) -> None:
        self._analysis = analysis
        self.inner = function if isinstance(function, LocalFunction) else None
        self.function = function
        self.code: types.CodeType = function.code if isinstance(function, LocalFunction) else function.__code__
        self._names: dict[str, AbstractValue] = {}
        self.result = PLAIN if self.code.co_flags & _SUSPENDS else NOTHING
        self.last_round = -1  # the round in which its code was last analysed
        if isinstance(function, LocalFunction):
            self.globals: dict[str, Any] = function.frame.globals
            self._cells: dict[str, Any] = {}
        else:
            self.globals = function.__globals__
            self._cells = dict(zip(self.code.co_freevars, function.__closure__ or (), strict=True))

    def load(self, name: str) -> AbstractValue:
        """A local variable."""
        found = self._names.get(name, NOTHING)
        return PLAIN if found is NOTHING else found

    def store(self, name: str, value: AbstractValue) -> None:
        """A local variable may also have this value."""
        before = self._names.get(name, NOTHING)
        after = before | value
        if not before.covers(after):
            self._analysis.changed = True
        self._names[name] = after

    def load_global(self, name: str) -> AbstractValue:
        """A global or builtin name."""
        if name in self.globals:
            return self._analysis.value_of(self.globals[name])  # type: ignore[no-any-return]
        if hasattr(builtins, name):
            return self._analysis.value_of(getattr(builtins, name))  # type: ignore[no-any-return]
        return PLAIN

    def load_deref(self, name: str) -> AbstractValue:
        """A variable of a closure."""
        if name not in self.code.co_freevars:
            return self.load(name)
        if self.inner is not None:
            return self.inner.frame.load_deref(name)  # type: ignore[no-any-return]
        return self._analysis.value_of(content_of(self._cells[name]))  # type: ignore[no-any-return]

    def store_deref(self, name: str, value: AbstractValue) -> None:
        """A variable of a closure is written."""
        if name not in self.code.co_freevars:
            self.store(name, value)
        elif self.inner is not None:
            self.inner.frame.store_deref(name, value)
        else:
            raise SideEffect(f"the name {name} of the function around {self.code.co_qualname}")

    def returns(self, value: AbstractValue) -> None:
        """It may return this."""
        after = self.result | value
        if not self.result.covers(after):
            self._analysis.changed = True
        self.result = after

    def yields(self, value: AbstractValue) -> None:
        """It may yield this."""
        self.returns(self._analysis.container(("generator", id(self)), value))

    def bind(self, args: list[AbstractValue], named: dict[str, AbstractValue], star: AbstractValue | None) -> None:
        """Add the arguments of one more call; `star` may be the value of any argument that is not given."""
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
                self.store(code.co_varnames[place], self._analysis.container(("more", id(self)), more))
        defaults = self._defaults()
        for name in (*names[min(len(args), count) : count], *names[count:]):
            if name not in named:
                given = defaults if isinstance(defaults, AbstractValue) else defaults.get(name, NOTHING)
                self.store(name, given | (NOTHING if star is None else star))

    def _defaults(self) -> AbstractValue | dict[str, AbstractValue]:
        function = self.function
        if isinstance(function, LocalFunction):
            return function.defaults
        count = self.code.co_argcount
        values = function.__defaults__ or ()
        found = dict(zip(self.code.co_varnames[count - len(values) : count], values, strict=True))
        found.update(function.__kwdefaults__ or {})
        return {name: self._analysis.value_of(value) for name, value in found.items()}
