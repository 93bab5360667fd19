"""The walk over captured values: from a value to everything inside it."""

from __future__ import annotations

import builtins
import enum
import functools
import io
import os
import types
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.compiler.captures.dynamic_names import FORMATTING, fields, ways_of
from wayfare.compiler.captures.location import CONTENTS, HINT, LEAF, SAME, Location, Path, array_content, is_leaf
from wayfare.compiler.captures.names import Names, content_of
from wayfare.compiler.captures.purity import impure, is_user_function
from wayfare.core.op import Op
from wayfare.core.tensor import Tensor
from wayfare.nn.module import Module

ELEMENTS = 2000  # the most captured values outside modules: testing more at every call is too slow
ARRAY_BYTES = 1 << 16
_UNROLLED = 8
MAKING = frozenset({"__init__", "__new__", "__post_init__"})


class Unguardable(Exception):
    """The walk found something that cannot be guarded."""


class ValueWalk:
    """Visits values and notes, in a fixed order, the locations of each value and of everything inside it."""

    def __init__(self, names: Names, states: frozenset[tuple[int, Any]] = frozenset()) -> None:
        self.locations: list[Location] = []
        self.tensors: dict[int, Tensor] = {}
        self.paths: dict[int, Path] = {}
        self.arrays: list[Any] = []
        self.names = names.copy()
        self.states = states  # (id of the holder, key) of states, which every call reads and assigns
        # Attribute dictionaries that were visited; of a module?
        self.holders: list[tuple[dict[str, Any], Path, bool]] = []
        self.assigned: list[tuple[Any, Any, Path]] = []  # globals and cells that code assigns: (holder, key, path)
        self.codes: set[types.CodeType] = set()  # the user's code objects that were read
        self.reason: str | None = None
        self.site = ""
        self._weak: set[int] = set()  # ids of objects that must not be kept alive
        self._met: dict[int, str] = {}
        self._alive: list[Any] = []  # keeps visited objects alive, so that their ids stay valid
        self._known: set[tuple[str, int, Any]] = set()
        self._elements = 0
        self._bytes = 0
        self._members: set[tuple[type, str]] = set()
        self._whole: set[tuple[Any, bool]] = set()  # Python modules in which everything is guarded

    # -- locations -----------------------------------------------------------------------------------------------------

    def hold(
        self, kind: str, holder: Any, key: Any, value: Any, path: Path, live: bool = True, in_module: bool = False
    ) -> None:
        """Note a location and visit its value."""
        if (kind, id(holder), key) in self._known:
            return
        if self.states and (id(holder), key) in self.states:
            self.note("state", holder, key, None, path, SAME, live=False)
            return
        location = self.note(kind, holder, key, value, path, SAME, live, in_module)
        location.how = self.visit(value, path)

    def note(
        self, kind: str, holder: Any, key: Any, value: Any, path: Path, how: str,
        live: bool = True, in_module: bool = False,
    ) -> Location:  # fmt: skip
        """Note a location."""
        self._known.add((kind, id(holder), key))
        if id(holder) in self._weak and kind == "attribute":
            kind, holder = "weak", weakref.ref(holder)
        self._alive.append(holder)
        location = Location(kind, holder, key, value, path, live, in_module)
        location.how = how
        self.locations.append(location)
        if live and not in_module:
            self._elements += len(value) if kind in ("keys", "elements") else 1
            if self._elements > ELEMENTS:
                self.refuse(f"captures more than {ELEMENTS:,} values (at {path.called()})")
        return location

    def refuse(self, why: str) -> None:
        """Stop the walk: there can be no guards, because …"""
        self.reason = f"it {why}{self.site}"
        raise Unguardable

    def at(self, code: types.CodeType, line: int) -> None:
        """Set the line of the user's code that leads to the next values."""
        self.site = f" ({os.path.basename(code.co_filename)}:{line})"

    # -- values -----------------------------------------------------------------------------------------------------

    def visit(self, value: Any, path: Path) -> str:
        """Visit a value; returns how it is compared itself."""
        if is_leaf(value):
            if isinstance(value, enum.Enum):
                self.class_members(type(value), path, MAKING)
                if ("item", id(value.__dict__), "_value_") not in self._known and "_value_" in value.__dict__:
                    self.note("item", value.__dict__, "_value_", value._value_, path.attribute("value"), SAME)
            return LEAF
        key = id(value)
        if key in self._met:
            return self._met[key]
        if key not in self._weak:
            self._alive.append(value)
        if isinstance(value, Tensor):
            self._met[key] = SAME
            self._tensor(value, path)
            return SAME
        self._met[key] = CONTENTS  # in case the walk comes back here
        self._met[key] = how = self._go_into(value, path)
        return how

    def tensor_methods(self) -> None:
        """Guard the methods and operators of tensors that the code uses: users may replace them."""
        members: Any = Tensor.__dict__
        for name in sorted(self.names.read):
            if name in members and callable(members[name]):
                self.note("item", members, name, members[name], Path("Tensor").attribute(name), SAME)

    def _tensor(self, tensor: Tensor, path: Path) -> None:
        self.tensors[id(tensor)] = tensor
        self.paths[id(tensor)] = path
        extras = tensor._extras
        self.note("attribute", tensor, "_extras", extras, path, HINT, in_module=True)
        if extras is not None:
            self.note("keys", extras, None, tuple(extras), path, HINT, in_module=True)
        for kind in ("hooks", "post_hooks"):
            self._hooks_of(path, f"{kind.replace('_', '-')} of", (extras or {}).get(kind))

    def _hooks_of(self, path: Path, kind: str, entries: dict[int, Any] | None) -> None:
        label = Path(str(path), kind)
        found = {} if entries is None else entries
        self.note("keys", found, None, tuple(found), label, LEAF, live=entries is not None, in_module=True)
        for key, entry in list(found.items()):
            self.hold("item", found, key, entry, label, in_module=True)

    def _go_into(self, value: Any, path: Path) -> str:
        if isinstance(value, Module):
            # Of a compiled module, the wrapped one.
            self._module(getattr(value, "_orig_mod", value), path)
            return CONTENTS
        why = impure(value)
        if why is not None:
            self.refuse(why)
        for kinds, way in _WAYS:
            if isinstance(value, kinds):
                return getattr(self, way)(value, path)  # type: ignore[no-any-return]
        return self._object(value, path)

    def _fixed(self, value: Any, path: Path) -> str:
        """A value with fixed parts, such as a method or a partial."""
        for kinds, parts in _PARTS:
            for part in parts if isinstance(value, kinds) else ():
                self.hold("attribute", value, part, getattr(value, part), path, live=kinds is functools.partial)
        if type(value) is functools.partial:
            self._function_attributes(value, path)
        else:
            self._of_class(value, path)
        return CONTENTS

    def _builtin(self, value: Any, path: Path) -> str:
        """A function in C, or a bound method: its object may be read."""
        owner = getattr(value, "__self__", None)  # a stream may have none
        anything = self.ways_to_all(value)
        if isinstance(owner, str) and value.__name__ in FORMATTING:
            found = fields(owner)
            self.names.read |= found or set()
            self.names.any |= found is None
            self.names.formats = True
        bound = anything or isinstance(value, types.MethodWrapperType)  # also `cfg.__dir__` of a Python module
        if owner is not None and owner is not builtins and (bound or not isinstance(owner, (types.ModuleType, type))):
            self.visit(owner, path)
        return SAME

    def ways_to_all(self, value: Any) -> bool:
        """Note whether a library function may read any attribute of its arguments."""
        anything, past = ways_of(value)
        self.names.any |= anything
        self.names.past |= past
        return anything

    def _descriptor(self, value: Any, path: Path) -> str:
        """A descriptor: `object.__getattribute__`, `str.format`, `C.k.__get__`."""
        self.ways_to_all(value)
        if isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            self.names.read.add(value.__name__)
        self.names.any |= value.__name__ in FORMATTING
        return SAME

    def _proxy(self, value: Any, path: Path) -> str:
        self.refuse(f"reads {path.called()}, a view of a dictionary")
        return SAME

    python_module: Callable[[Any, Path], str]  # visits a Python module
    function: Callable[[types.FunctionType, Path], None]  # visits a function of the user's
    class_members: Callable[[type, Path, frozenset[str]], None]
    _module: Callable[[Module, Path], None]
    _object: Callable[[Any, Path], str]
    _of_class: Callable[[Any, Path], None]  # visits the attributes of a container whose class is the user's
    _function_attributes: Callable[[Any, Path], None]

    def _function_value(self, function: types.FunctionType, path: Path) -> str:
        if is_user_function(function):
            self.function(function, path)
            self._function_attributes(function, path)
            return CONTENTS
        self.ways_to_all(function)
        # A function that a library decorator wraps may be the user's.
        for cell in function.__closure__ or ():
            inside = content_of(cell)
            if isinstance(inside, types.FunctionType) and not is_user_function(inside):
                self.visit(inside, path)
            elif isinstance(inside, (types.FunctionType, types.MethodType, functools.partial)):
                self.hold("attribute", cell, "cell_contents", inside, path)
        wrapped = function.__dict__.get("__wrapped__")
        if wrapped is not None:
            self.visit(wrapped, path)
        return SAME

    # -- containers -------------------------------------------------------------------------------------------------

    def _sequence(self, value: Any, path: Path) -> str:
        if len(value) > _UNROLLED and all(is_leaf(v) or isinstance(v, Tensor) for v in value):
            self.note("elements", value, None, tuple(value), path, LEAF)
            for number, inside in enumerate(value):
                if isinstance(inside, Tensor):
                    self.visit(inside, path.entry(number))
        else:
            self.note("length", value, None, len(value), path, LEAF)
            for number, inside in enumerate(value):
                self.hold("item", value, number, inside, path.entry(number))
        self._of_class(value, path)
        return CONTENTS

    def _tuple(self, value: Any, path: Path) -> str:
        for number, inside in enumerate(value):
            self.hold("item", value, number, inside, path.entry(number), live=False)
        self._of_class(value, path)
        return CONTENTS

    def _dictionary(self, value: Any, path: Path) -> str:
        self.note("keys", value, None, tuple(value), path, LEAF)
        for key, inside in list(value.items()):
            self.visit(key, path)
            self.hold("item", value, key, inside, path.entry(key))
        factory = getattr(value, "default_factory", None)
        if factory is not None:
            self.visit(factory, path)
        self._of_class(value, path)
        return CONTENTS

    def _set(self, value: Any, path: Path) -> str:
        self.note("elements", value, None, tuple(value), path, LEAF)
        for inside in value:
            self.visit(inside, path)
        self._of_class(value, path)
        return CONTENTS

    def _array(self, value: Any, path: Path) -> str:
        self.arrays.append(value)
        self.paths[id(value)] = path
        if value.dtype.hasobject:
            self.refuse(f"reads {path.called()}, an array of Python objects")
        self._bytes += value.nbytes
        if self._bytes > ARRAY_BYTES:
            self.refuse(f"reads {path.called()}, an array too large to be compared at each call; make it a tensor")
        self.note("array", value, None, array_content(value), path, LEAF)
        return SAME


# Values with parts that are fixed when they are made.
_PARTS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (types.MethodType, ("__self__", "__func__")),
    (functools.partial, ("func", "args", "keywords")),
    (property, ("fget", "fset")),
    ((staticmethod, classmethod), ("__func__",)),
    (functools.cached_property, ("func",)),
)
# The method that visits each type of value; the first match counts.
_WAYS: tuple[tuple[Any, str], ...] = (
    (types.ModuleType, "python_module"),
    (type, "_class_value"),
    ((list, deque), "_sequence"),
    (tuple, "_tuple"),
    (dict, "_dictionary"),
    ((set, frozenset), "_set"),
    (np.ndarray, "_array"),
    (types.FunctionType, "_function_value"),
    *((kinds, "_fixed") for kinds, _ in _PARTS),
    ((types.BuiltinFunctionType, types.MethodWrapperType), "_builtin"),
    ((types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
      types.GetSetDescriptorType, types.MemberDescriptorType), "_descriptor"),
    (types.MappingProxyType, "_proxy"),
    ((io.IOBase, Op), "_builtin"),  # an op record is constant, apart from its caches
)  # fmt: skip
