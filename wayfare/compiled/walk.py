"""The walk over everything a function can see: from its code to values, from values to what is inside them."""

from __future__ import annotations

import enum
import functools
import io
import os
import types
from collections import deque
from typing import Any

import numpy as np

from wayfare.compiled.code import COMPARING
from wayfare.compiled.place import CONTENTS, HINT, LEAF, SAME, Path, Place, array_content, is_leaf
from wayfare.compiled.purity import is_user_class, is_user_function, unsteady
from wayfare.nn.hooks import Hooks
from wayfare.nn.module import Module
from wayfare.tensor import Tensor

ELEMENTS = 2000  # captured values outside modules, beyond which looking at them at every call costs too much
ARRAY_BYTES = 1 << 16
_UNROLLED = 8
# Attributes of Wayfare's modules that change only together with others.
_OF_MODULE = frozenset({"_names", "_hooks", "_order"})
# Special methods that run nowhere in a computation.
_BESIDE = frozenset({
    "__repr__", "__str__", "__del__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__",
    "__deepcopy__", "__init_subclass__", "__class_getitem__", "__dir__", "__sizeof__",
})  # fmt: skip
_MAKING = frozenset({"__init__", "__new__", "__post_init__"})


class Unguardable(Exception):
    """The walk met something no guard can vouch for."""


class ValueWalk:
    """Visits values and notes, in a fixed order, the places in which they and what they hold were found."""

    def __init__(self, names: set[str], any_attribute: bool) -> None:
        self.places: list[Place] = []
        self.tensors: dict[int, Tensor] = {}
        self.paths: dict[int, Path] = {}
        self.arrays: list[Any] = []
        self.names = set(names)  # attributes that the code names anywhere
        self.any_attribute = any_attribute
        self.reason: str | None = None
        self.site = ""
        self.steps = False  # was an optimiser or a schedule met?
        self.reads_steps = ""  # the line that names numbers such have
        self._met: dict[int, str] = {}
        self._alive: list[Any] = []  # what was met stays alive, so that its id stays its own
        self._known: set[tuple[str, int, Any]] = set()
        self._elements = 0
        self._bytes = 0
        self._members: set[tuple[type, str]] = set()

    # -- places -----------------------------------------------------------------------------------------------------

    def hold(
        self, kind: str, holder: Any, key: Any, value: Any, path: Path, live: bool = True, in_module: bool = False
    ) -> None:
        """Note a place and visit what it holds."""
        if (kind, id(holder), key) in self._known:
            return
        place = self.note(kind, holder, key, value, path, SAME, live, in_module)
        place.how = self.visit(value, path)

    def note(
        self, kind: str, holder: Any, key: Any, value: Any, path: Path, how: str,
        live: bool = True, in_module: bool = False,
    ) -> Place:  # fmt: skip
        """Note a place only."""
        self._known.add((kind, id(holder), key))
        self._alive.append(holder)
        place = Place(kind, holder, key, value, path, live, in_module)
        place.how = how
        self.places.append(place)
        if live and not in_module:
            self._elements += len(value) if kind in ("keys", "elements") else 1
            if self._elements > ELEMENTS:
                self.refuse(f"sees more than {ELEMENTS:,} values from outside (at {path.called()})")
        return place

    def refuse(self, why: str) -> None:
        """Say why there can be no guards, and stop."""
        self.reason = f"it {why}{self.site}"
        raise Unguardable

    def at(self, code: types.CodeType, line: int) -> None:
        """The line of the user's code that leads to what is visited next."""
        self.site = f" ({os.path.basename(code.co_filename)}:{line})"

    # -- values -----------------------------------------------------------------------------------------------------

    def visit(self, value: Any, path: Path) -> str:
        """Go into a value; says how it is to be compared itself."""
        if is_leaf(value):
            if isinstance(value, enum.Enum):
                self.class_members(type(value), path, _MAKING)
            return LEAF
        key = id(value)
        if key in self._met:
            return self._met[key]
        self._alive.append(value)
        if isinstance(value, Tensor):
            self._met[key] = SAME
            self._tensor(value, path)
            return SAME
        self._met[key] = CONTENTS  # for what leads back here
        self._met[key] = how = self._go_into(value, path)
        return how

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
        found = entries or {}
        self.note("keys", found, None, tuple(found), label, LEAF, live=entries is not None, in_module=True)
        for key, entry in list(found.items()):
            self.hold("item", found, key, entry, label, in_module=True)

    def _go_into(self, value: Any, path: Path) -> str:
        if isinstance(value, Module):
            # A compiled module is the one inside it.
            self._module(getattr(value, "_orig_mod", value), path)
            return CONTENTS
        why = unsteady(value)
        if why is not None:
            self.refuse(why)
        for kinds, way in _WAYS:
            if isinstance(value, kinds):
                return getattr(self, way)(value, path)  # type: ignore[no-any-return]
        return self._object(value, path)

    def _fixed(self, value: Any, path: Path) -> str:
        """A value whose parts stay what they are."""
        for kinds, parts in _PARTS:
            for part in parts if isinstance(value, kinds) else ():
                self.hold("attribute", value, part, getattr(value, part), path, live=False)
        return CONTENTS

    def _stream(self, value: Any, path: Path) -> str:
        return SAME  # one that is only written

    def _by_identity(self, value: Any) -> bool:
        """Optimisers and schedules of the library keep numbers that their own steps count on."""
        module = type(value).__module__
        self.steps |= module.startswith("wayfare.optim")
        return module.startswith("wayfare.optim") or module in ("wayfare.functions.generator", "logging")

    def _builtin(self, value: Any, path: Path) -> str:
        owner = value.__self__
        if owner is not None and not isinstance(owner, (types.ModuleType, type)):
            self.visit(owner, path)
        return SAME

    def _proxy(self, value: Any, path: Path) -> str:
        self.refuse(f"reads {path.called()}, a view of a dictionary")
        return SAME

    def python_module(self, module: Any, path: Path) -> str:
        """A Python module that is more than the first word of `module.name`."""
        raise NotImplementedError

    def function(self, function: types.FunctionType, path: Path) -> None:
        """A function of the user's."""
        raise NotImplementedError

    def _function_value(self, function: types.FunctionType, path: Path) -> str:
        if is_user_function(function):
            self.function(function, path)
            return CONTENTS
        # What a decorator of a library wrapped may be the user's.
        for cell in function.__closure__ or ():
            inside = _content(cell)
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

    # -- objects and classes ----------------------------------------------------------------------------------------

    def _wanted(self, name: str) -> bool:
        return self.any_attribute or name in self.names

    def _of_class(self, value: Any, path: Path) -> None:
        """What an instance of a user's class has beside the contents of the kind of container it is."""
        if is_user_class(type(value)):
            self._attributes(value, path)

    def _object(self, value: Any, path: Path) -> str:
        cls: Any = type(value)
        if self._by_identity(value):
            return SAME
        held = getattr(value, "__dict__", None)
        if type(held) is dict and "__wrapped__" in held and not is_user_class(cls):
            self.visit(held["__wrapped__"], path)  # a compiled or fused function, a cached one
            return SAME
        if held is not None or _slots(cls):
            self._attributes(value, path)
            return CONTENTS
        if cls.__basicsize__ > object.__basicsize__ and not callable(value):
            self.refuse(f"reads {path.called()}, a {cls.__name__}, which cannot be compared")
        return SAME

    def _attributes(self, value: Any, path: Path) -> None:
        cls: Any = type(value)
        every = not all(is_user_class(c) or c.__module__ in _BARE for c in cls.__mro__)
        self.note("attribute", value, "__class__", cls, path, SAME)
        held = getattr(value, "__dict__", None)
        if type(held) is dict:
            self.note("attribute", value, "__dict__", held, path, HINT)
            self.note("length", held, None, len(held), path, HINT)
            for name in list(held):
                if every or self._wanted(name):
                    self.hold("item", held, name, held[name], path.attribute(name))
        for name in _slots(cls):
            if (every or self._wanted(name)) and hasattr(value, name):
                self.hold("attribute", value, name, getattr(value, name), path.attribute(name))
        self.class_members(cls, path, _MAKING)

    def _class_value(self, cls: Any, path: Path) -> str:
        self.class_members(cls, path, frozenset())
        return SAME

    def class_members(self, cls: type, path: Path, without: frozenset[str]) -> None:
        """What may be used of a user's class and of those it derives from: special methods, and what is named."""
        for base in cls.__mro__:
            if not is_user_class(base):
                continue
            members: Any = base.__dict__
            label = Path(base.__qualname__.rpartition(">.")[2])
            if (base, "") not in self._members:
                self._members.add((base, ""))
                self.note("length", members, None, len(members), label, HINT)
            for name, member in list(members.items()):
                if (base, name) in self._members or name in without:
                    continue
                if self._used(base, name, member) or _called_from_library(cls, name):
                    self._members.add((base, name))
                    self.hold("item", members, name, member, label.attribute(name))

    def _used(self, cls: type, name: str, member: Any) -> bool:
        special = name.startswith("__") and name.endswith("__")
        if special or issubclass(cls, enum.Enum):  # the members of an enumeration are what they are
            runs = isinstance(member, (types.FunctionType, staticmethod, classmethod, property))
            always = special and name not in COMPARING
            return runs and name not in _BESIDE and (always or self._wanted(name))
        return name == "forward" or self._wanted(name)

    # -- modules ----------------------------------------------------------------------------------------------------

    def _module(self, module: Module, path: Path) -> None:
        cls = type(module)
        every = not all(is_user_class(c) or c is Module or c.__module__ in _BARE for c in cls.__mro__)
        held = module.__dict__
        names = held.get("_names", {})
        self.note("attribute", module, "__class__", cls, path, SAME, in_module=True)
        self.note("length", held, None, len(held), path, HINT, in_module=True)
        self.note("keys", names, None, tuple(names), path, LEAF, in_module=True)
        for name in list(held):
            if name in _OF_MODULE or not (every or name in names or name in _ALWAYS or self._wanted(name)):
                continue
            self.hold("item", held, name, held[name], path.attribute(name), in_module=True)
        self._hooks(module, path)
        self.class_members(cls, path, _MAKING)

    def _hooks(self, module: Module, path: Path) -> None:
        hooks = module.__dict__.get("_hooks")
        self.note("item", module.__dict__, "_hooks", hooks, path.attribute("hooks"), HINT, in_module=True)
        for kind in Hooks.__slots__:
            self._hooks_of(path, f"{kind.replace('_', '-')} hooks of", getattr(hooks, kind, None))


# Values with parts that are fixed when they are made.
_PARTS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (types.MethodType, ("__self__", "__func__")),
    (functools.partial, ("func", "args", "keywords")),
    (property, ("fget", "fset")),
    ((staticmethod, classmethod), ("__func__",)),
    (functools.cached_property, ("func",)),
)
# How each kind of value is gone into; the first that fits.
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
    (types.BuiltinFunctionType, "_builtin"),
    (types.MappingProxyType, "_proxy"),
    (io.IOBase, "_stream"),
)
_ALWAYS = frozenset({"training", "forward"})
_BARE = frozenset({"builtins", "typing", "abc", "collections.abc", "enum"})


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _called_from_library(cls: type, name: str) -> bool:
    """Does it take the place of something of a library's class, which may call it? (`backward` of a Function.)"""
    return not name.startswith("__") and any(
        name in base.__dict__ for base in cls.__mro__
        if base is not Module and base.__module__ not in _BARE and not is_user_class(base)
    )  # fmt: skip


@functools.lru_cache(1024)
def _slots(cls: Any) -> tuple[str, ...]:
    """Names of the slots that instances have."""
    found = [
        name for base in cls.__mro__ for name, member in base.__dict__.items()
        if isinstance(member, types.MemberDescriptorType)
    ]  # fmt: skip
    return tuple(found)
