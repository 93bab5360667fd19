"""The results of analysing a mapped function, cached while its names refer to the same objects.

Two functions may have the same code and do different things: `lambda x: step(x)` does what `step` does. So the results
are stored with the objects that the code's names referred to, and computed again if one of those is another object.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterator
from typing import Any

from wayfare.batch.analysis.effects import has_side_effects
from wayfare.batch.analysis.hooks import codes_in, registers_hooks
from wayfare.batch.analysis.purity import is_pure_function
from wayfare.compiler.captures.names import content_of
from wayfare.core.tensor import Tensor


class FunctionAnalysis:
    """What one function does besides computing."""

    __slots__ = ("_referenced", "_side_effects", "registers_hooks", "tried")

    def __init__(self, function: Any) -> None:
        self._referenced = [_weakly(value) for value in referenced(function)]
        # (types of the arguments, whether other examples have the same argument) → whether it has side effects
        self._side_effects: dict[tuple[object, ...], bool] = {}
        self.registers_hooks = registers_hooks(function)
        # True if one example has run alone to its end, or if none needs to.
        self.tried = is_pure_function(function)

    def is_of(self, function: Any) -> bool:
        """Whether this is still valid for the function: its names refer to the same objects."""
        values = list(referenced(function))
        return len(values) == len(self._referenced) and all(map(_is_same, self._referenced, values))

    def has_side_effects(self, function: Any, args: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
        """Whether it changes Python objects that other examples see: then no other example runs while it waits.

        `others` are the arguments of another example.
        """
        shared = tuple([mine is theirs for mine, theirs in zip(args, others, strict=True)])
        key = (*[type(arg) for arg in args], *shared)
        found = self._side_effects.get(key)
        if found is None:
            found = self._side_effects[key] = has_side_effects(function, args, shared)
        return found


def referenced(function: Any) -> Iterator[Any]:
    """The objects that a function's code refers to: defaults, closure variables and globals."""
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from referenced(function.func)
    elif isinstance(function, types.MethodType):
        yield function.__self__
        yield from referenced(function.__func__)
    elif isinstance(function, types.FunctionType):
        yield from function.__defaults__ or ()
        yield from [content_of(cell) for cell in function.__closure__ or ()]
        names = function.__globals__
        yield from [names.get(name) for code in codes_in(function.__code__) for name in code.co_names if name in names]


def _weakly(value: Any) -> Any:
    """A weak reference to an object; for data only its type."""
    if not isinstance(value, Tensor):
        try:
            return weakref.ref(value)
        except TypeError:
            pass
    return type(value)


def _is_same(remembered: Any, value: Any) -> bool:
    return type(value) is remembered or (isinstance(remembered, weakref.ref) and remembered() is value)
