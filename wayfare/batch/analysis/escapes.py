"""Escapes: what code that is not analysed may do with its arguments: keep them, read them and call them."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np

from wayfare.batch.analysis.abstract_values import (
    NOTHING,
    PLAIN,
    AbstractValue,
    LocalFunction,
    LocalMethod,
    MethodRef,
    NativeMethod,
    ObjectRef,
    SideEffect,
)
from wayfare.batch.analysis.known_pure import is_pure, is_stdlib_type
from wayfare.batch.analysis.objects import ObjectModel
from wayfare.batch.analysis.purity import is_library_code, is_library_module
from wayfare.core.generator import Generator
from wayfare.nn.module import Module

# Builtins that never call their arguments.
_ONLY_READ = (isinstance, issubclass, hasattr, callable, id, len, type, repr, str, bool, hash, int, float, abs, all,
              any, sum, range, round, ord, chr, format, slice)  # fmt: skip
_ONLY_HOLD = (iter, list, tuple, dict, zip, enumerate, reversed, set, frozenset, next)
# Modules whose functions may return their arguments, or items of them.
_MAY_RETURN_ARGUMENTS = frozenset({
    "builtins", "itertools", "functools", "_functools", "collections", "_collections", "copy", "heapq", "_heapq",
    "operator", "_operator", "types", "dataclasses", "contextlib", "contextvars",
})  # fmt: skip
_DRAWN_FROM = (Generator, np.random.Generator, np.random.RandomState)


class EscapeModel(ObjectModel):
    """The part of the analysis that models calls of code that is not analysed."""

    def __init__(self) -> None:
        super().__init__()
        # What such code is calling now, to stop recursion.
        self._being_called: set[Any] = set()

    def _call(
        self, ref: Any, args: list[AbstractValue], named: dict[str, AbstractValue], star: AbstractValue | None
    ) -> AbstractValue:
        raise NotImplementedError

    def _call_pure(
        self,
        args: list[AbstractValue],
        named: dict[str, AbstractValue],
        star: AbstractValue | None,
        function: Any = None,
    ) -> AbstractValue:
        """A function without side effects, which may call its arguments; some return the arguments or their items."""
        site = self.site
        given = [*args, *named.values(), *([] if star is None else [star])]
        everything = PLAIN
        for value in given:
            self.read_value(value)
            everything = everything | value | self.item(self.iterator(value, only_read=True))
        if "out" in named and self.is_shared(named["out"]):
            raise SideEffect("an array from outside is written to")
        for ref in everything.refs:
            if isinstance(ref, ObjectRef) and isinstance(ref.value, _DRAWN_FROM):
                raise SideEffect("random numbers of a generator from outside")
        if any([function is f for f in _ONLY_READ]):
            return PLAIN
        result = PLAIN
        if not any([function is f for f in _ONLY_HOLD]):
            for value in given:
                for ref in value.refs:
                    result = result | self._call_escaped(ref, everything)
        if function is not None and getattr(function, "__module__", "") in _MAY_RETURN_ARGUMENTS and everything.refs:
            result = result | everything
        return result | self.container(site, result) if result.refs else result

    def _escape(self, args: list[AbstractValue], star: AbstractValue | None) -> None:
        """A plain object gets arguments: it may keep them and call them."""
        for value in [*args, *([] if star is None else [star])]:
            self.store_item(PLAIN, value)
            for ref in value.refs:
                self._call_escaped(ref, PLAIN | self.items)

    def _call_escaped(self, ref: Any, star: AbstractValue) -> AbstractValue:
        """Code that is not analysed gets an object, and may call it."""
        if isinstance(ref, LocalMethod):
            own = AbstractValue(False, frozenset((ref.owner,)))
            self.store_item(own, star)
            return PLAIN | self.item(own)
        if ref in self._being_called or not _is_called(ref):
            return NOTHING
        self._being_called.add(ref)
        try:
            return self._call(ref, [], {}, star)
        finally:
            self._being_called.discard(ref)

    def _writes_first(
        self, value: Any, args: list[AbstractValue], named: dict[str, AbstractValue], star: AbstractValue | None
    ) -> AbstractValue:
        if not args or self.is_shared(args[0]):
            raise SideEffect(f"{value.__name__} of an object from outside")
        if value is setattr and len(args) == 3 and isinstance(args[1].constant, str):
            self.store_attribute(args[0], args[1].constant, args[2])
        site = self.site
        self._call_pure(args, named, star)
        for value in args[1:]:
            self.store_item(args[0], value)
        held = self.item(args[0])
        return PLAIN | held | self.container(site, held)

    def entered(self, manager: AbstractValue) -> AbstractValue:
        """The value of `with manager as …`."""
        result = PLAIN | self.items if manager.plain else NOTHING
        for ref in manager.refs:
            value = ref.value if isinstance(ref, ObjectRef) else None
            if value is None or (not is_library_code(type(value)) and is_stdlib_type(type(value))):
                raise SideEffect("a `with` block of an object from outside")
        if any([not is_library_code(type(r.value)) for r in manager.refs]) or manager.plain:
            for name in ("__enter__", "__exit__"):
                found = self.attribute(manager, name)
                result = result | self.call(AbstractValue(False, found.refs), [], {}, star=PLAIN)
        return result | PLAIN

    def imported(self, name: str, parts: bool) -> AbstractValue:
        """A module that is imported inside the function."""
        found = sys.modules.get(name if parts else name.partition(".")[0])
        if found is None or name not in sys.modules:
            raise SideEffect(f"{name} is imported")
        return self.value_of(found)

    def _by_any_name(self, owner: AbstractValue) -> AbstractValue:
        """`getattr` with a computed name."""
        result = PLAIN | self.items if owner.plain else NOTHING
        for ref in owner.refs:
            value = ref.value if isinstance(ref, ObjectRef) else None
            if isinstance(value, Module):
                for inner in value.children():
                    result = result | self.value_of(inner)
            elif isinstance(value, types.ModuleType) and is_library_module(value.__name__):
                pass
            else:
                raise SideEffect("an attribute whose name is computed")
        return result | PLAIN


def _is_called(ref: Any) -> bool:
    """Whether code that gets it may call it, with an effect worth analysing."""
    if isinstance(ref, ObjectRef):
        value = ref.value
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            return not is_library_code(value) and not is_pure(value)
        return callable(value)
    return isinstance(ref, (MethodRef, NativeMethod, LocalFunction))
