"""What is handed to code that is not read: it may keep that, look at it, and call it, and no more."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np

from wayfare.batch.analysis.abstract_values import (
    NOTHING,
    PLAIN,
    Changes,
    Inner,
    Known,
    Method,
    Native,
    OwnMethod,
    Value,
)
from wayfare.batch.analysis.known_pure import is_pure, is_standard_type
from wayfare.batch.analysis.objects import Looking
from wayfare.batch.analysis.purity import in_package, is_ours
from wayfare.core.generator import Generator
from wayfare.nn.module import Module

# Functions of Python's that only look at functions and types, and never call them.
_ONLY_LOOK = (isinstance, issubclass, hasattr, callable, id, len, type, repr, str, bool, hash, int, float, abs, all,
              any, sum, range, round, ord, chr, format, slice)  # fmt: skip
_ONLY_HOLD = (iter, list, tuple, dict, zip, enumerate, reversed, set, frozenset, next)
# Modules whose functions may give back what they are given, or what is in it.
_GIVING_BACK = frozenset({
    "builtins", "itertools", "functools", "_functools", "collections", "_collections", "copy", "heapq", "_heapq",
    "operator", "_operator", "types", "dataclasses", "contextlib", "contextvars",
})  # fmt: skip
_DRAWN_FROM = (Generator, np.random.Generator, np.random.RandomState)


class Handing(Looking):
    """The part of a reading that knows what others do with what they are given."""

    def __init__(self) -> None:
        super().__init__()
        # What is being called by code that is not read.
        self._handing: set[Any] = set()

    def _call(self, ref: Any, args: list[Value], named: dict[str, Value], star: Value | None) -> Value:
        raise NotImplementedError

    def _native(
        self, args: list[Value], named: dict[str, Value], star: Value | None, function: Any = None
    ) -> Value:
        """Code that changes nothing, but may call what it is given; gives what is in it if that is its work."""
        site = self.site
        given = [*args, *named.values(), *([] if star is None else [star])]
        everything = PLAIN
        for value in given:
            self.looked_at(value)
            everything = everything | value | self.item(self.iterator(value, only_look=True))
        if "out" in named and self.is_shared(named["out"]):
            raise Changes("an array from outside is written to")
        for ref in everything.refs:
            if isinstance(ref, Known) and isinstance(ref.value, _DRAWN_FROM):
                raise Changes("random numbers of a generator from outside")
        if any([function is f for f in _ONLY_LOOK]):
            return PLAIN
        result = PLAIN
        if not any([function is f for f in _ONLY_HOLD]):
            for value in given:
                for ref in value.refs:
                    result = result | self._handed(ref, everything)
        if function is not None and getattr(function, "__module__", "") in _GIVING_BACK and everything.refs:
            result = result | everything
        return result | self.container(site, result) if result.refs else result

    def _hand_over(self, args: list[Value], star: Value | None) -> None:
        """Something plain gets arguments: it may keep them, and call them."""
        for value in [*args, *([] if star is None else [star])]:
            self.put_into(PLAIN, value)
            for ref in value.refs:
                self._handed(ref, PLAIN | self.items)

    def _handed(self, ref: Any, star: Value) -> Value:
        """Something is handed to code that is not read, which may call it."""
        if isinstance(ref, OwnMethod):
            own = Value(False, frozenset((ref.owner,)))
            self.put_into(own, star)
            return PLAIN | self.item(own)
        if ref in self._handing or not _is_called(ref):
            return NOTHING
        self._handing.add(ref)
        try:
            return self._call(ref, [], {}, star)
        finally:
            self._handing.discard(ref)

    def _writes_first(self, value: Any, args: list[Value], named: dict[str, Value], star: Value | None) -> Value:
        if not args or self.is_shared(args[0]):
            raise Changes(f"{value.__name__} of an object from outside")
        if value is setattr and len(args) == 3 and isinstance(args[1].constant, str):
            self.put_attribute(args[0], args[1].constant, args[2])
        site = self.site
        self._native(args, named, star)
        for value in args[1:]:
            self.put_into(args[0], value)
        held = self.item(args[0])
        return PLAIN | held | self.container(site, held)

    def entered(self, manager: Value) -> Value:
        """What `with` gives for a manager."""
        result = PLAIN | self.items if manager.plain else NOTHING
        for ref in manager.refs:
            value = ref.value if isinstance(ref, Known) else None
            if value is None or (not is_ours(type(value)) and is_standard_type(type(value))):
                raise Changes("a `with` block of an object from outside")
        if any([not is_ours(type(r.value)) for r in manager.refs]) or manager.plain:
            for name in ("__enter__", "__exit__"):
                found = self.attribute(manager, name)
                result = result | self.call(Value(False, found.refs), [], {}, star=PLAIN)
        return result | PLAIN

    def imported(self, name: str, parts: bool) -> Value:
        """A module that is imported in the function."""
        found = sys.modules.get(name if parts else name.partition(".")[0])
        if found is None or name not in sys.modules:
            raise Changes(f"{name} is imported")
        return self.of(found)

    def _by_any_name(self, owner: Value) -> Value:
        """An attribute whose name is computed."""
        result = PLAIN | self.items if owner.plain else NOTHING
        for ref in owner.refs:
            value = ref.value if isinstance(ref, Known) else None
            if isinstance(value, Module):
                for inner in value.children():
                    result = result | self.of(inner)
            elif isinstance(value, types.ModuleType) and in_package(value.__name__):
                pass
            else:
                raise Changes("an attribute whose name is computed")
        return result | PLAIN


def _is_called(ref: Any) -> bool:
    """Would code that gets it call it, if anything?"""
    if isinstance(ref, Known):
        value = ref.value
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            return not is_ours(value) and not is_pure(value)
        return callable(value)
    return isinstance(ref, (Method, Native, Inner))
