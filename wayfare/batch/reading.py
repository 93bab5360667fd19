"""What reading the code of a mapped function has shown, for as long as the function names the same things.

Two functions may have the same code and do different things: `lambda x: step(x)` does what `step` does. So what was
read is kept with what the code's names stood for, and is read again where one of them stands for something else.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterator
from typing import Any

from wayfare.batch.effects import changes_python
from wayfare.batch.hooks import codes_in, puts_hooks
from wayfare.batch.pure import changes_nothing
from wayfare.compiler.captures.names import content_of
from wayfare.core.tensor import Tensor


class Reading:
    """What one function does beside computing."""

    __slots__ = ("_changes_python", "_named", "puts_hooks", "tried")

    def __init__(self, function: Any) -> None:
        self._named = [_remembered(value) for value in _named(function)]
        # For arguments of these types; which of them other examples have as well.
        self._changes_python: dict[tuple[object, ...], bool] = {}
        self.puts_hooks = puts_hooks(function)
        # Has an example run to its end by itself, or need none do so?
        self.tried = changes_nothing(function)

    def is_of(self, function: Any) -> bool:
        """Does the function name what was read?"""
        values = list(_named(function))
        return len(values) == len(self._named) and all(map(_is_the_same, self._named, values))

    def changes_python(self, function: Any, args: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
        """Does it change Python objects that other examples see? Then it is not left where it waits for a value.

        `others` are the arguments of another example.
        """
        shared = tuple([mine is theirs for mine, theirs in zip(args, others, strict=True)])
        kinds = (*[type(arg) for arg in args], *shared)
        found = self._changes_python.get(kinds)
        if found is None:
            found = self._changes_python[kinds] = changes_python(function, args, shared)
        return found


def _named(function: Any) -> Iterator[Any]:
    """What the names in a function's code stand for, as far as it is not made by the code itself."""
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _named(function.func)
    elif isinstance(function, types.MethodType):
        yield function.__self__
        yield from _named(function.__func__)
    elif isinstance(function, types.FunctionType):
        yield from function.__defaults__ or ()
        yield from [content_of(cell) for cell in function.__closure__ or ()]
        names = function.__globals__
        yield from [names.get(name) for code in codes_in(function.__code__) for name in code.co_names if name in names]


def _remembered(value: Any) -> Any:
    """Functions, modules and objects weakly; of data the type is enough."""
    if not isinstance(value, Tensor):
        try:
            return weakref.ref(value)
        except TypeError:
            pass
    return type(value)


def _is_the_same(remembered: Any, value: Any) -> bool:
    return type(value) is remembered or (isinstance(remembered, weakref.ref) and remembered() is value)
