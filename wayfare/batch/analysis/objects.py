"""What attributes and items of things are, and what looking at them runs, while code is read and not run."""

from __future__ import annotations

import collections
import functools
import inspect
import sys
import types
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.batch.analysis.abstract_values import (  # fmt: skip
    NOTHING,
    PLAIN,
    UNKNOWN,
    Above,
    Changes,
    Known,
    Method,
    Native,
    Own,
    OwnMethod,
    Value,
    is_data,
)
from wayfare.batch.analysis.known_pure import has_own_method, is_pure
from wayfare.batch.analysis.purity import in_package, is_ours
from wayfare.nn.module import Module

_MISSING: Any = object()
# Things in a container that are looked at, and objects in an example's arguments.
_MOST = 2000
_CONTAINERS = (list, tuple, set, frozenset, dict)
_OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "@": "matmul", "**": "pow",
    "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
_OF_LIBRARIES = sys.stdlib_module_names - {"__main__"} | {"numpy", "scipy"}
# Modules of locks and queues: whoever waits there for another example waits for ever.
_WAITING = frozenset({"_thread", "threading", "queue", "_queue", "multiprocessing", "concurrent", "asyncio"})
_COMPARING = ("__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__ne__")
_SIZES = ("__bool__", "__len__", "__repr__", "__str__", "__format__", "__float__", "__int__", "__index__", "__hash__",
          "__neg__", "__pos__", "__invert__")  # fmt: skip


class Looking:
    """The part of a reading that knows objects; the rest of it knows calls."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._made: dict[Any, Any] = {}
        # What plain containers may hold, and attributes of plain objects by their names.
        self.items = NOTHING
        self._fields: dict[str, Value] = {}
        # Classes of the user's that plain objects may be of.
        self.alive: set[type] = set()
        self.changed = False
        # Where the code is that is being read.
        self.site: Any = None

    def call(self, called: Value, args: list[Value], named: dict[str, Value], star: Value | None = None) -> Value:
        """What a call gives."""
        raise NotImplementedError

    # -- references

    def known(self, value: Any) -> Known:
        """The one reference to an object."""
        return self._known.setdefault(id(value), Known(value))

    def of(self, value: Any) -> Value:
        """An object that is there already."""
        return PLAIN if is_data(value) else Value(False, frozenset((self.known(value),)))

    def method(self, function: Any, owner: Known | None) -> Method:
        """The one reference to a function with its owner."""
        made = self._made.setdefault((Method, id(function), owner), Method(function, owner))
        return made  # type: ignore[no-any-return]

    def native(self, name: str, owner: Any) -> Native:
        """The one reference to a method of an object whose type is not written in Python."""
        known = self.known(owner)
        return self._made.setdefault((Native, name, known), Native(name, known))  # type: ignore[no-any-return]

    def container(self, site: Any, items: Value) -> Value:
        """What is made at a place of the code, and holds such things."""
        made: Own = self._made.setdefault((Own, site), Own())
        self._put(made, items)
        return Value(False, frozenset((made,)))

    def _put(self, own: Own, value: Value) -> None:
        if not own.items.covers(value):
            own.items = own.items | value
            self.changed = True

    def above(self, type_: Value, owner: Value) -> Value:
        """What `super()` gives."""
        refs: set[Any] = set()
        for ref in type_.refs:
            for one in (*([None] if owner.plain else []), *owner.refs):
                if isinstance(one, Known) and isinstance(one.value, type):
                    raise Changes("super() in a method of a class")
                refs.add(self._made.setdefault((Above, ref.value, one), Above(ref.value, one)))
        return Value(False, frozenset(refs))

    def is_shared(self, value: Value) -> bool:
        """May it be an object that others see?"""
        return any([isinstance(ref, (Known, Native)) for ref in value.refs])

    def is_field(self, name: str) -> bool:
        """Has an attribute of that name been written to something plain?"""
        return name in self._fields

    def types_of(self, value: Value) -> Value:
        """What `type(...)` gives."""
        found = PLAIN
        if value.plain:
            found = Value(True, frozenset(map(self.known, self.alive)))
        for ref in value.refs:
            if isinstance(ref, Known):
                found = found | self.of(type(ref.value))
        return found

    # -- attributes

    def attribute(self, owner: Value, name: str) -> Value:
        """What an attribute of something may be."""
        result = NOTHING
        if owner.plain:
            if name == "__class__":
                return self.types_of(owner)
            result = Value(True, names=frozenset((name,)))
            result = result | self._fields.get(name, NOTHING)
            for made in list(self.alive):
                found = self.of_class(made, name)
                if found is not _MISSING:
                    result = result | self._bound(found, None, made, name)
        for ref in owner.refs:
            result = result | self._attribute(ref, name)
        return result

    def of_class(self, made: type, name: str) -> Any:
        """What a class has under a name, as it stands there."""
        for base in made.__mro__:
            if name in base.__dict__:
                return base.__dict__[name]
        return _MISSING

    def _attribute(self, ref: Any, name: str) -> Value:
        if ref is UNKNOWN:
            return Value(False, frozenset((UNKNOWN,)))
        if isinstance(ref, Above):
            return self._above(ref, name)
        if isinstance(ref, Own):
            if not has_own_method(name):
                return PLAIN
            made = self._made.setdefault((OwnMethod, name, ref), OwnMethod(name, ref))
            return Value(False, frozenset((made,)))
        if not isinstance(ref, Known):
            return PLAIN
        value = ref.value
        if isinstance(value, types.ModuleType):
            found = vars(value).get(name, _MISSING)
            if found is _MISSING and (in_package(value.__name__) or value.__name__.startswith("numpy")):
                found = getattr(value, name, _MISSING)
            return PLAIN if found is _MISSING else self.of(found)
        if isinstance(value, type):
            return self._of_type(value, name)
        if name == "__class__":
            return self.of(type(value))
        if name == "__dict__":
            return Value(False, frozenset((UNKNOWN,)))
        if isinstance(self.of_class(type(value), "__getattribute__"), types.FunctionType):
            raise Changes(f"{type(value).__name__} runs code for every attribute")
        found = self.of_class(type(value), name)
        if found is _MISSING or not hasattr(type(found), "__set__"):
            own = inspect.getattr_static(value, "__dict__", None)
            own = getattr(value, "__dict__", {}) if own is not None else {}
            if name in own:
                return self.of(own[name])
        if found is not _MISSING:
            return self._bound(found, ref, type(value), name)
        if isinstance(value, Module):
            found = getattr(value, name, _MISSING)
            return PLAIN if found is _MISSING else self.of(found)
        asked = self.of_class(type(value), "__getattr__")
        if isinstance(asked, types.FunctionType):
            return self.call(Value(False, frozenset((self.method(asked, ref),))), [PLAIN], {})
        return PLAIN if asked is _MISSING else Value(False, frozenset((UNKNOWN,)))

    def _of_type(self, made: type, name: str) -> Value:
        if type(made).__module__ == "enum" and name in made.__members__:  # type: ignore[attr-defined]
            return self.of(made.__members__[name])  # type: ignore[attr-defined]
        found = self.of_class(made, name)
        if found is _MISSING:
            return Value(True, names=frozenset((name,)))
        if isinstance(found, classmethod):
            return Value(False, frozenset((self.method(found.__func__, self.known(made)),)))
        if isinstance(found, types.ClassMethodDescriptorType):
            return PLAIN
        return self.of(found.__func__ if isinstance(found, staticmethod) else found)

    def _bound(self, found: Any, owner: Known | None, made: type, name: str) -> Value:
        """What a class has under a name, as an attribute of one of its objects (None: of a plain one)."""
        if isinstance(found, types.FunctionType):
            return Value(False, frozenset((self.method(found, owner),)))
        if isinstance(found, classmethod):
            return Value(False, frozenset((self.method(found.__func__, self.known(made)),)))
        if isinstance(found, staticmethod):
            return self.of(found.__func__)
        if isinstance(found, (property, functools.cached_property)):
            getter = found.fget if isinstance(found, property) else found.func
            if not isinstance(getter, types.FunctionType) or is_ours(getter):
                return PLAIN
            return self.call(Value(False, frozenset((self.method(getter, owner),))), [], {})
        if isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)):
            return Value(True, names=frozenset((name,))) if owner is None else Value(
                False, frozenset((self.native(name, owner.value),)))  # fmt: skip
        if isinstance(found, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            return PLAIN if owner is None else self.of(getattr(owner.value, name, None))
        if type(found).__name__ == "_tuplegetter":
            return PLAIN | self.items if owner is None else self.of(getattr(owner.value, name, None))
        if hasattr(type(found), "__get__") and not is_ours(type(found)) and not callable(found):
            raise Changes(f"the attribute {name} runs code that is not known")
        return self.of(found)

    def _above(self, ref: Above, name: str) -> Value:
        owner = ref.owner
        owners = {m for m in self.alive if issubclass(m, ref.type)} if owner is None else {type(owner.value)}
        result = NOTHING
        for made in owners or {ref.type}:
            after = made.__mro__[made.__mro__.index(ref.type) + 1 :]
            found = next((base.__dict__[name] for base in after if name in base.__dict__), _MISSING)
            if found is not _MISSING:
                result = result | self._bound(found, ref.owner, made, name)
        return result | (PLAIN if result is NOTHING else NOTHING)

    def put_attribute(self, owner: Value, name: str, value: Value) -> None:
        """An attribute is written."""
        if self.is_shared(owner):
            raise Changes(f"the attribute {name} of an object from outside")
        for made in self.alive:
            found = self.of_class(made, name)
            if isinstance(inspect.getattr_static(type(found), "__set__", None), types.FunctionType):
                raise Changes(f"the attribute {name} runs code when it is written")
            setter = found.fset if isinstance(found, property) else self.of_class(made, "__setattr__")
            if isinstance(setter, types.FunctionType) and not is_ours(setter):
                self.call(Value(False, frozenset((self.method(setter, None),))), [], {}, star=value | PLAIN)
        before = self._fields.get(name, NOTHING)
        after = before | Value(value.plain, value.refs)
        if not before.covers(after):
            self.changed = True
        self._fields[name] = after

    # -- items

    def put_into(self, owner: Value, value: Value, parts: bool = False) -> None:
        """Something is put into a container (`parts`: what it holds)."""
        if self.is_shared(owner):
            raise Changes("an item of an object from outside")
        if parts:
            value = self.item(self.iterator(value))
        if owner.plain and self.alive:
            self._run_methods(PLAIN, ("__setitem__", "__delitem__"), value)
        for ref in owner.refs:
            if isinstance(ref, Own):
                self._put(ref, value)
        if owner.plain and value.refs and not self.items.covers(Value(False, value.refs)):
            self.items = self.items | Value(False, value.refs)
            self.changed = True

    def item(self, owner: Value) -> Value:
        """What a container may hold."""
        result = PLAIN | self.items if owner.plain else NOTHING
        for ref in owner.refs:
            if ref is UNKNOWN:
                result = result | Value(True, frozenset((UNKNOWN,)))
            elif isinstance(ref, Known):
                result = result | self._items(ref.value)
            elif isinstance(ref, Own):
                result = result | ref.items
        return result | (PLAIN if result is NOTHING else NOTHING)

    def _items(self, value: Any) -> Value:
        if isinstance(value, Module):
            parts: Iterable[Any] = list(value.children())
        elif isinstance(value, dict):
            parts = [*dict.keys(value), *dict.values(value)]
        elif isinstance(value, (*_CONTAINERS, collections.deque)):
            parts = list(iter_of(value))
        else:
            return PLAIN
        if len(parts) > _MOST and all(map(is_data, parts)):  # type: ignore[arg-type]
            return PLAIN
        refs = {self.known(part) for part in parts if not is_data(part)}
        if len(refs) > _MOST:
            return Value(True, frozenset((UNKNOWN,)))
        return Value(True, frozenset(refs))

    def subscript(self, owner: Value, key: Value, what: str = "") -> Value:
        """`owner[key]`, or what `in` looks through."""
        names = ("__contains__", "__iter__") if what else ("__getitem__", "__missing__")
        result = self._run_methods(owner, names, PLAIN)
        for ref in owner.refs:
            value = ref.value if isinstance(ref, Known) else None
            if isinstance(value, collections.defaultdict) and value.default_factory is not None and not what:
                raise Changes("a defaultdict from outside, which grows when it is read")
            if what:
                self.iterator(Value(False, frozenset((ref,))), only_look=True)
        if not owner.refs:
            return result | self.item(owner)
        # It may be a part of it as well: a container with the same things in it.
        found = self.item(owner)
        return result | found | self.container(self.site, found)

    def iterator(self, owner: Value, only_look: bool = False) -> Value:
        """What a loop over something goes through; `only_look`: if it is one at all."""
        for ref in owner.refs:
            value = ref.value if isinstance(ref, Known) else None
            if ref is UNKNOWN and not only_look:
                raise Changes("a loop over something that is not known")
            if ref is not UNKNOWN and hasattr(type(value), "__next__"):
                raise Changes("an iterator from outside goes on")
        result = self._run_methods(owner, ("__iter__", "__next__"), PLAIN)
        return owner | result if result is not NOTHING else owner

    def looked_at(self, value: Value) -> None:
        """Is it true, how long is it, how is it written?"""
        self._run_methods(value, _SIZES, PLAIN)

    def operator(self, left: Value, right: Value, sign: str) -> Value:
        """`left + right` and so on."""
        site = self.site
        stem = _OPERATORS.get(sign.removesuffix("="))
        if stem is None:
            names: tuple[str, ...] = _COMPARING
        else:
            names = (f"__{stem}__", f"__r{stem}__", f"__i{stem}__")
            if sign.endswith("="):
                for ref in left.refs:
                    if isinstance(ref, Known) and self.of_class(type(ref.value), names[2]) is not _MISSING:
                        raise Changes(f"{sign} of an object from outside")
        result = self._run_methods(left, names, right) | self._run_methods(right, names, left)
        if stem is None:
            return PLAIN
        if not left.refs and not right.refs:
            return result | PLAIN
        return result | PLAIN | self.container(site, self.item(left) | self.item(right) | left | right)

    def _run_methods(self, owner: Value, names: tuple[str, ...], argument: Value) -> Value:
        """Operators and the like that classes of the user's define."""
        result = NOTHING
        for ref in owner.refs:
            if isinstance(ref, Known) and ref is not UNKNOWN and not is_data(ref.value):
                result = result | self._run_of(type(ref.value), ref, names, argument)
        if owner.plain:
            for made in list(self.alive):
                result = result | self._run_of(made, None, names, argument)
        return result

    def _run_of(self, made: type, owner: Known | None, names: tuple[str, ...], argument: Value) -> Value:
        result = NOTHING
        for name in names:
            found = self.of_class(made, name)
            if isinstance(found, types.FunctionType) and not is_ours(found) and not is_pure(found):
                method = Value(False, frozenset((self.method(found, owner),)))
                result = result | self.call(method, [], {}, star=argument)
        return result


def iter_of(value: Any) -> Iterable[Any]:
    """The items of a container, whatever a class derived from it makes of loops."""
    kind = next(kind for kind in (list, tuple, set, frozenset, dict, collections.deque) if isinstance(value, kind))
    return kind.__iter__(value)


def classes_in(args: tuple[Any, ...]) -> set[type]:
    """Classes of the user's that the objects in an example's arguments are of."""
    found: set[type] = set()
    seen: set[int] = set()
    waiting: list[Any] = list(args)
    while waiting and len(seen) < _MOST:
        value = waiting.pop()
        if id(value) in seen or is_data(value) or isinstance(value, (type, types.FunctionType, np.ndarray)):
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            waiting += [*dict.keys(value), *dict.values(value)]
        elif isinstance(value, _CONTAINERS):
            waiting += iter_of(value)
        made = type(value)
        top = made.__module__.partition(".")[0]
        if top in _WAITING:
            raise Changes(f"a {made.__name__} in an example's arguments")
        if top not in _OF_LIBRARIES and not is_ours(made):
            found.add(made)
            waiting += vars(value).values() if inspect.getattr_static(value, "__dict__", None) is not None else ()
            for base in made.__mro__:
                slots = base.__dict__.get("__slots__", ())
                waiting += [getattr(value, n, None) for n in ((slots,) if isinstance(slots, str) else slots)]
    return found

