"""The object model of the analysis: what attributes, items and operators of abstract values give, and which methods of
the user they run."""

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
    AbstractValue,
    LocalContainer,
    LocalMethod,
    MethodRef,
    NativeMethod,
    ObjectRef,
    SideEffect,
    SuperRef,
    is_data,
)
from wayfare.batch.analysis.known_pure import is_known_method, is_pure
from wayfare.batch.analysis.purity import is_library_code, is_library_module
from wayfare.nn.module import Module

_MISSING: Any = object()
# Limits: items of a container, and objects in an example's arguments.
_MOST = 2000
_CONTAINERS = (list, tuple, set, frozenset, dict)
_OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "@": "matmul", "**": "pow",
    "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
_OF_LIBRARIES = sys.stdlib_module_names - {"__main__"} | {"numpy", "scipy"}
# Modules of locks and queues: an example that waits there for another example would wait for ever.
_WAITING = frozenset({"_thread", "threading", "queue", "_queue", "multiprocessing", "concurrent", "asyncio"})
_COMPARING = ("__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__ne__")
_SIZES = ("__bool__", "__len__", "__repr__", "__str__", "__format__", "__float__", "__int__", "__index__", "__hash__",
          "__neg__", "__pos__", "__invert__")  # fmt: skip


class ObjectModel:
    """The part of the analysis that knows objects; `EffectAnalysis` adds calls."""

    def __init__(self) -> None:
        self._known: dict[int, ObjectRef] = {}
        self._made: dict[Any, Any] = {}
        # What plain containers may hold; and the attributes of plain objects, by name.
        self.items = NOTHING
        self._fields: dict[str, AbstractValue] = {}
        # Classes of the user that plain objects may have.
        self.live_classes: set[type] = set()
        self.changed = False
        # The instruction that is being analysed: (frame, offset).
        self.site: Any = None

    def call(
        self,
        called: AbstractValue,
        args: list[AbstractValue],
        named: dict[str, AbstractValue],
        star: AbstractValue | None = None,
    ) -> AbstractValue:
        """What a call may return."""
        raise NotImplementedError

    # -- references

    def ref_to(self, value: Any) -> ObjectRef:
        """The reference to an object (one for each object)."""
        return self._known.setdefault(id(value), ObjectRef(value))

    def value_of(self, value: Any) -> AbstractValue:
        """The abstract value of an existing object."""
        return PLAIN if is_data(value) else AbstractValue(False, frozenset((self.ref_to(value),)))

    def method(self, function: Any, owner: ObjectRef | None) -> MethodRef:
        """The reference to a function bound to its owner (one for each pair)."""
        made = self._made.setdefault((MethodRef, id(function), owner), MethodRef(function, owner))
        return made  # type: ignore[no-any-return]

    def native(self, name: str, owner: Any) -> NativeMethod:
        """The reference to a method of an object whose type is implemented in C."""
        ref = self.ref_to(owner)
        return self._made.setdefault((NativeMethod, name, ref), NativeMethod(name, ref))  # type: ignore[no-any-return]

    def container(self, site: Any, items: AbstractValue) -> AbstractValue:
        """A container that is made at an instruction, and may hold `items`."""
        made: LocalContainer = self._made.setdefault((LocalContainer, site), LocalContainer())
        self._put(made, items)
        return AbstractValue(False, frozenset((made,)))

    def _put(self, own: LocalContainer, value: AbstractValue) -> None:
        if not own.items.covers(value):
            own.items = own.items | value
            self.changed = True

    def super_of(self, type_: AbstractValue, owner: AbstractValue) -> AbstractValue:
        """What `super()` returns."""
        refs: set[Any] = set()
        for ref in type_.refs:
            for one in (*([None] if owner.plain else []), *owner.refs):
                if isinstance(one, ObjectRef) and isinstance(one.value, type):
                    raise SideEffect("super() in a method of a class")
                refs.add(self._made.setdefault((SuperRef, ref.value, one), SuperRef(ref.value, one)))
        return AbstractValue(False, frozenset(refs))

    def is_shared(self, value: AbstractValue) -> bool:
        """Whether it may be an object that others see."""
        return any([isinstance(ref, (ObjectRef, NativeMethod)) for ref in value.refs])

    def is_field(self, name: str) -> bool:
        """Whether an attribute of that name was written to a plain object."""
        return name in self._fields

    def types_of(self, value: AbstractValue) -> AbstractValue:
        """What `type(...)` returns."""
        found = PLAIN
        if value.plain:
            found = AbstractValue(True, frozenset(map(self.ref_to, self.live_classes)))
        for ref in value.refs:
            if isinstance(ref, ObjectRef):
                found = found | self.value_of(type(ref.value))
        return found

    # -- attributes

    def attribute(self, owner: AbstractValue, name: str) -> AbstractValue:
        """What an attribute may be."""
        result = NOTHING
        if owner.plain:
            if name == "__class__":
                return self.types_of(owner)
            result = AbstractValue(True, names=frozenset((name,)))
            result = result | self._fields.get(name, NOTHING)
            for made in list(self.live_classes):
                found = self.class_attribute(made, name)
                if found is not _MISSING:
                    result = result | self._bound(found, None, made, name)
        for ref in owner.refs:
            result = result | self._attribute(ref, name)
        return result

    def class_attribute(self, made: type, name: str) -> Any:
        """The attribute of a class, not bound."""
        for base in made.__mro__:
            if name in base.__dict__:
                return base.__dict__[name]
        return _MISSING

    def _attribute(self, ref: Any, name: str) -> AbstractValue:
        if ref is UNKNOWN:
            return AbstractValue(False, frozenset((UNKNOWN,)))
        if isinstance(ref, SuperRef):
            return self._super_attribute(ref, name)
        if isinstance(ref, LocalContainer):
            if not is_known_method(name):
                return PLAIN
            made = self._made.setdefault((LocalMethod, name, ref), LocalMethod(name, ref))
            return AbstractValue(False, frozenset((made,)))
        if not isinstance(ref, ObjectRef):
            return PLAIN
        value = ref.value
        if isinstance(value, types.ModuleType):
            found = vars(value).get(name, _MISSING)
            if found is _MISSING and (is_library_module(value.__name__) or value.__name__.startswith("numpy")):
                found = getattr(value, name, _MISSING)
            return PLAIN if found is _MISSING else self.value_of(found)
        if isinstance(value, type):
            return self._of_type(value, name)
        if name == "__class__":
            return self.value_of(type(value))
        if name == "__dict__":
            return AbstractValue(False, frozenset((UNKNOWN,)))
        if isinstance(self.class_attribute(type(value), "__getattribute__"), types.FunctionType):
            raise SideEffect(f"{type(value).__name__} runs code for every attribute")
        found = self.class_attribute(type(value), name)
        if found is _MISSING or not hasattr(type(found), "__set__"):
            own = inspect.getattr_static(value, "__dict__", None)
            own = getattr(value, "__dict__", {}) if own is not None else {}
            if name in own:
                return self.value_of(own[name])
        if found is not _MISSING:
            return self._bound(found, ref, type(value), name)
        if isinstance(value, Module):
            found = getattr(value, name, _MISSING)
            return PLAIN if found is _MISSING else self.value_of(found)
        asked = self.class_attribute(type(value), "__getattr__")
        if isinstance(asked, types.FunctionType):
            return self.call(AbstractValue(False, frozenset((self.method(asked, ref),))), [PLAIN], {})
        return PLAIN if asked is _MISSING else AbstractValue(False, frozenset((UNKNOWN,)))

    def _of_type(self, made: type, name: str) -> AbstractValue:
        if type(made).__module__ == "enum" and name in made.__members__:  # type: ignore[attr-defined]
            return self.value_of(made.__members__[name])  # type: ignore[attr-defined]
        found = self.class_attribute(made, name)
        if found is _MISSING:
            return AbstractValue(True, names=frozenset((name,)))
        if isinstance(found, classmethod):
            return AbstractValue(False, frozenset((self.method(found.__func__, self.ref_to(made)),)))
        if isinstance(found, types.ClassMethodDescriptorType):
            return PLAIN
        return self.value_of(found.__func__ if isinstance(found, staticmethod) else found)

    def _bound(self, found: Any, owner: ObjectRef | None, made: type, name: str) -> AbstractValue:
        """A class attribute, bound to one of its objects (None: to a plain one)."""
        if isinstance(found, types.FunctionType):
            return AbstractValue(False, frozenset((self.method(found, owner),)))
        if isinstance(found, classmethod):
            return AbstractValue(False, frozenset((self.method(found.__func__, self.ref_to(made)),)))
        if isinstance(found, staticmethod):
            return self.value_of(found.__func__)
        if isinstance(found, (property, functools.cached_property)):
            getter = found.fget if isinstance(found, property) else found.func
            if not isinstance(getter, types.FunctionType) or is_library_code(getter):
                return PLAIN
            return self.call(AbstractValue(False, frozenset((self.method(getter, owner),))), [], {})
        if isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)):
            return AbstractValue(True, names=frozenset((name,))) if owner is None else AbstractValue(
                False, frozenset((self.native(name, owner.value),)))  # fmt: skip
        if isinstance(found, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            return PLAIN if owner is None else self.value_of(getattr(owner.value, name, None))
        if type(found).__name__ == "_tuplegetter":
            return PLAIN | self.items if owner is None else self.value_of(getattr(owner.value, name, None))
        if hasattr(type(found), "__get__") and not is_library_code(type(found)) and not callable(found):
            raise SideEffect(f"the attribute {name} runs code that is not known")
        return self.value_of(found)

    def _super_attribute(self, ref: SuperRef, name: str) -> AbstractValue:
        owner = ref.owner
        owners = {m for m in self.live_classes if issubclass(m, ref.type)} if owner is None else {type(owner.value)}
        result = NOTHING
        for made in owners or {ref.type}:
            after = made.__mro__[made.__mro__.index(ref.type) + 1 :]
            found = next((base.__dict__[name] for base in after if name in base.__dict__), _MISSING)
            if found is not _MISSING:
                result = result | self._bound(found, ref.owner, made, name)
        return result | (PLAIN if result is NOTHING else NOTHING)

    def store_attribute(self, owner: AbstractValue, name: str, value: AbstractValue) -> None:
        """An attribute is written."""
        if self.is_shared(owner):
            raise SideEffect(f"the attribute {name} of an object from outside")
        for made in self.live_classes:
            found = self.class_attribute(made, name)
            if isinstance(inspect.getattr_static(type(found), "__set__", None), types.FunctionType):
                raise SideEffect(f"the attribute {name} runs code when it is written")
            setter = found.fset if isinstance(found, property) else self.class_attribute(made, "__setattr__")
            if isinstance(setter, types.FunctionType) and not is_library_code(setter):
                self.call(AbstractValue(False, frozenset((self.method(setter, None),))), [], {}, star=value | PLAIN)
        before = self._fields.get(name, NOTHING)
        after = before | AbstractValue(value.plain, value.refs)
        if not before.covers(after):
            self.changed = True
        self._fields[name] = after

    # -- items

    def store_item(self, owner: AbstractValue, value: AbstractValue, parts: bool = False) -> None:
        """Something is put into a container (`parts`: its items are)."""
        if self.is_shared(owner):
            raise SideEffect("an item of an object from outside")
        if parts:
            value = self.item(self.iterator(value))
        if owner.plain and self.live_classes:
            self._run_methods(PLAIN, ("__setitem__", "__delitem__"), value)
        for ref in owner.refs:
            if isinstance(ref, LocalContainer):
                self._put(ref, value)
        if owner.plain and value.refs and not self.items.covers(AbstractValue(False, value.refs)):
            self.items = self.items | AbstractValue(False, value.refs)
            self.changed = True

    def item(self, owner: AbstractValue) -> AbstractValue:
        """What a container may hold."""
        result = PLAIN | self.items if owner.plain else NOTHING
        for ref in owner.refs:
            if ref is UNKNOWN:
                result = result | AbstractValue(True, frozenset((UNKNOWN,)))
            elif isinstance(ref, ObjectRef):
                result = result | self._items(ref.value)
            elif isinstance(ref, LocalContainer):
                result = result | ref.items
        return result | (PLAIN if result is NOTHING else NOTHING)

    def _items(self, value: Any) -> AbstractValue:
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
        refs = {self.ref_to(part) for part in parts if not is_data(part)}
        if len(refs) > _MOST:
            return AbstractValue(True, frozenset((UNKNOWN,)))
        return AbstractValue(True, frozenset(refs))

    def subscript(self, owner: AbstractValue, key: AbstractValue, what: str = "") -> AbstractValue:
        """`owner[key]`, or (with `what`) `key in owner`."""
        names = ("__contains__", "__iter__") if what else ("__getitem__", "__missing__")
        result = self._run_methods(owner, names, PLAIN)
        for ref in owner.refs:
            value = ref.value if isinstance(ref, ObjectRef) else None
            if isinstance(value, collections.defaultdict) and value.default_factory is not None and not what:
                raise SideEffect("a defaultdict from outside, which grows when it is read")
            if what:
                self.iterator(AbstractValue(False, frozenset((ref,))), only_read=True)
        if not owner.refs:
            return result | self.item(owner)
        # It may be a slice: a container with the same items.
        found = self.item(owner)
        return result | found | self.container(self.site, found)

    def iterator(self, owner: AbstractValue, only_read: bool = False) -> AbstractValue:
        """What a loop over something iterates over; with `only_read` it need not be iterable."""
        for ref in owner.refs:
            value = ref.value if isinstance(ref, ObjectRef) else None
            if ref is UNKNOWN and not only_read:
                raise SideEffect("a loop over something that is not known")
            if ref is not UNKNOWN and hasattr(type(value), "__next__"):
                raise SideEffect("an iterator from outside goes on")
        result = self._run_methods(owner, ("__iter__", "__next__"), PLAIN)
        return owner | result if result is not NOTHING else owner

    def read_value(self, value: AbstractValue) -> None:
        """Its truth value, length, text or number is read: run such methods of the user."""
        self._run_methods(value, _SIZES, PLAIN)

    def operator(self, left: AbstractValue, right: AbstractValue, sign: str) -> AbstractValue:
        """`left + right` and so on."""
        site = self.site
        stem = _OPERATORS.get(sign.removesuffix("="))
        if stem is None:
            names: tuple[str, ...] = _COMPARING
        else:
            names = (f"__{stem}__", f"__r{stem}__", f"__i{stem}__")
            if sign.endswith("="):
                for ref in left.refs:
                    if isinstance(ref, ObjectRef) and self.class_attribute(type(ref.value), names[2]) is not _MISSING:
                        raise SideEffect(f"{sign} of an object from outside")
        result = self._run_methods(left, names, right) | self._run_methods(right, names, left)
        if stem is None:
            return PLAIN
        if not left.refs and not right.refs:
            return result | PLAIN
        return result | PLAIN | self.container(site, self.item(left) | self.item(right) | left | right)

    def _run_methods(self, owner: AbstractValue, names: tuple[str, ...], argument: AbstractValue) -> AbstractValue:
        """Run special methods that classes of the user define."""
        result = NOTHING
        for ref in owner.refs:
            if isinstance(ref, ObjectRef) and ref is not UNKNOWN and not is_data(ref.value):
                result = result | self._run_of(type(ref.value), ref, names, argument)
        if owner.plain:
            for made in list(self.live_classes):
                result = result | self._run_of(made, None, names, argument)
        return result

    def _run_of(
        self, made: type, owner: ObjectRef | None, names: tuple[str, ...], argument: AbstractValue
    ) -> AbstractValue:
        result = NOTHING
        for name in names:
            found = self.class_attribute(made, name)
            if isinstance(found, types.FunctionType) and not is_library_code(found) and not is_pure(found):
                method = AbstractValue(False, frozenset((self.method(found, owner),)))
                result = result | self.call(method, [], {}, star=argument)
        return result


def iter_of(value: Any) -> Iterable[Any]:
    """The items of a builtin container, without running the `__iter__` of a subclass."""
    cls = next(cls for cls in (list, tuple, set, frozenset, dict, collections.deque) if isinstance(value, cls))
    return cls.__iter__(value)


def classes_in(args: tuple[Any, ...]) -> set[type]:
    """The classes of the user among the objects in an example's arguments."""
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
            raise SideEffect(f"a {made.__name__} in an example's arguments")
        if top not in _OF_LIBRARIES and not is_library_code(made):
            found.add(made)
            waiting += vars(value).values() if inspect.getattr_static(value, "__dict__", None) is not None else ()
            for base in made.__mro__:
                slots = base.__dict__.get("__slots__", ())
                waiting += [getattr(value, n, None) for n in ((slots,) if isinstance(slots, str) else slots)]
    return found
