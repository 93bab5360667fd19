"""The walk over objects: attributes, classes, modules, optimisers, and attributes of functions.

A *missing* attribute matters too: if it is added later, it hides one of the class, or changes `hasattr`. It is guarded
through the names that exist: their number must be the same, and each of them must still exist.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections.abc import Collection
from typing import Any

from wayfare.compiler.captures.bytecode import COMPARING
from wayfare.compiler.captures.dynamic_names import ALL, PAST
from wayfare.compiler.captures.location import CONTENTS, HINT, LEAF, SAME, Path
from wayfare.compiler.captures.names import BARE, called_from_library, is_special, slots_of
from wayfare.compiler.captures.purity import is_installed_file, is_user_class
from wayfare.compiler.captures.trusted import keeps_schedule, known_instance, known_type, takes_steps, tells_itself
from wayfare.compiler.captures.walk_values import MAKING, ValueWalk
from wayfare.core.tensor import Tensor
from wayfare.nn.hooks import Hooks
from wayfare.nn.module import Module

# Attributes of modules that only change together with others.
_OF_MODULE = frozenset({"_names", "_hooks", "_order", "_wayfare_calls"})
# Attributes of functions that do not change what a call does.
_OF_FUNCTION = frozenset({"__wrapped__", "_wayfare_calls"})
_BESIDE = frozenset({
    "__del__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__",
    "__init_subclass__", "__class_getitem__", "__sizeof__",
})  # fmt: skip
_TOLD = frozenset({"__name__", "__qualname__", "__doc__", "__module__", "__annotations__"})
_TEXT = frozenset({"__repr__", "__str__", "__format__"})
_PATCHED = ("forward", "__call__", "step", "zero_grad", "backward")
_ALWAYS = frozenset({"training", "forward"})
# Members of a class that cannot be deleted.
_LASTING = frozenset({"__dict__", "__module__", "__doc__"})
# Attributes that an optimiser reports to the recorder itself, and those that only its own steps use.
_NOTICED = frozenset({"param_groups", "state", "defaults"})
_OF_STEPS = _NOTICED | {"step", "zero_grad", "_before", "_after", "_in_step"}
# Up to this many names are tested one by one; more are compared as a list.
_ONE_BY_ONE = 5


class ObjectWalk(ValueWalk):
    """Adds objects with attributes to the walk over values."""

    def _wanted(self, name: str, value: Any = None) -> bool:
        names = self.names
        return names.any or name in names.read or (name in names.counted and type(value) is not int)

    def same_names(self, held: Any, guarded: Collection[str], path: Path, in_module: bool = False) -> None:
        """Guard the names in a dictionary of attributes. Those in `guarded` have locations of their own already."""
        if self.names.past:  # their order can be read
            self.note("names", held, None, tuple(held), path, LEAF, in_module=in_module)
            return
        others = [name for name in held if name not in guarded]
        if len(others) > _ONE_BY_ONE or not all(type(name) is str for name in others):
            self.note("names", held, None, tuple(held), path, HINT, in_module=in_module)
            return
        self.note("length", held, None, len(held), path, HINT, in_module=in_module)
        for name in others:
            self.note("present", held, name, True, path.attribute(str(name)), HINT, in_module=in_module)

    # -- objects ----------------------------------------------------------------------------------------------------

    def _of_class(self, value: Any, path: Path) -> None:
        """Visit the attributes of a container whose class is the user's."""
        if is_user_class(type(value)):
            self._attributes(value, path)

    def _object(self, value: Any, path: Path) -> str:
        cls: Any = type(value)
        if takes_steps(cls):
            self._steps(value, path)
            return SAME
        if tells_itself(cls):
            return SAME
        held = getattr(value, "__dict__", None)
        if type(held) is dict and "__wrapped__" in held and not is_user_class(cls):
            if cls is _CACHE and not _is_its_own(value):
                self.refuse(f"uses {path.called()}, which caches its results (lru_cache)")
            self.visit(held["__wrapped__"], path)  # a compiled or fused function
            self._named_attributes(value, path)
            return SAME
        if held is not None or slots_of(cls):
            self._attributes(value, path)
            # Without a `__repr__` of its own, its text contains its address.
            return SAME if self.names.formats and cls.__str__ is cls.__repr__ is object.__repr__ else CONTENTS
        names = known_instance(value)
        if names is None:
            self.refuse(f"reads {path.called()}, a {cls.__module__}.{cls.__name__}, which cannot be compared")
        self.names.read.update(names or ())
        self.names.past |= not PAST.isdisjoint(names or ())
        self.names.any |= self.names.past or not ALL.isdisjoint(names or ())
        return SAME

    def _attributes(self, value: Any, path: Path) -> None:
        cls: Any = type(value)
        every = not all(is_user_class(c) or c.__module__ in BARE for c in cls.__mro__)
        self.note("attribute", value, "__class__", cls, path, SAME)
        held = getattr(value, "__dict__", None)
        if type(held) is dict:
            self.holders.append((held, path, False))
            self.note("attribute", value, "__dict__", held, path, HINT)
            wanted = [name for name in held if every or self._wanted(name, held[name])]
            self.same_names(held, wanted, path)
            for name in wanted:
                self.hold("item", held, name, held[name], path.attribute(name))
        for name in slots_of(cls):
            if not (every or self._wanted(name)):
                continue
            if hasattr(value, name):
                self.hold("attribute", value, name, getattr(value, name), path.attribute(name))
            else:
                self.note("unset", value, name, False, path.attribute(name), LEAF)
        self.class_members(cls, path, MAKING)

    # -- classes ----------------------------------------------------------------------------------------------------

    def _class_value(self, cls: Any, path: Path) -> str:
        if not is_user_class(cls) and not known_type(cls):
            self.refuse(f"uses the class {cls.__module__}.{cls.__qualname__}, which Wayfare does not know")
        self.ways_to_all(cls)
        self.class_members(cls, path, frozenset())
        return SAME

    def class_members(self, cls: type, path: Path, without: frozenset[str]) -> None:
        """Visit the members of a class and its bases that may be used: special methods, and names in the code."""
        if is_user_class(type(cls)):
            self.class_members(type(cls), path, frozenset())
        for base in cls.__mro__:
            if not is_user_class(base):
                continue
            members: Any = base.__dict__
            label = Path(base.__qualname__.rpartition(">.")[2])
            used = [name for name, member in list(members.items()) if name not in without
                    and (self._used(base, name, member) or called_from_library(cls, name))]  # fmt: skip
            if (base, "") not in self._members:
                self._members.add((base, ""))
                self.same_names(members, _LASTING.union(used), label)
                self.note("attribute", base, "__mro__", base.__mro__, label, SAME)
                self._told(base, label)
            for name in used:
                if (base, name) not in self._members:
                    self._members.add((base, name))
                    self.hold("item", members, name, members[name], label.attribute(name))

    def _used(self, cls: type, name: str, member: Any) -> bool:
        special = is_special(name)
        if name == "__match_args__":
            return self.names.any
        if special or issubclass(cls, enum.Enum):  # the members of an enumeration are constant
            runs = isinstance(member, (types.FunctionType, staticmethod, classmethod, property))
            always = special and name not in COMPARING and (self.names.formats or name not in _TEXT)
            return runs and name not in _BESIDE and (always or self._wanted(name))
        return name == "forward" or self._wanted(name)

    def _library_class(self, cls: type, path: Path) -> None:
        """Guard the methods of one of our classes that users may replace."""
        if (cls, "library") in self._members:
            return
        self._members.add((cls, "library"))
        for name in _PATCHED:
            # Only a member of the class or its bases, not one of the metaclass.
            if any(name in base.__dict__ for base in cls.__mro__):
                self.note("attribute", cls, name, getattr(cls, name), Path(cls.__qualname__).attribute(name), SAME)

    def _told(self, value: Any, path: Path) -> None:
        """Guard the name, docstring, … of a function or class, if the code reads them."""
        for name in sorted(_TOLD & self.names.read):
            self.hold("attribute", value, name, getattr(value, name, None), path.attribute(name))

    # -- functions --------------------------------------------------------------------------------------------------

    def _function_attributes(self, function: Any, path: Path) -> None:
        """Visit the attributes of a function or a partial: `step.calls`."""
        held = function.__dict__
        self.holders.append((held, path, False))
        self._told(function, path)
        names = self.names
        wanted = [name for name in held if name not in _OF_FUNCTION and self._wanted(name, held[name])]
        # Names of tensor methods are not expected on functions, unless they occur in `hasattr`.
        owners = (types.FunctionType, Tensor, Module)
        missing = names.asked.union(name for name in names.read if not is_special(name)
                                    and not any(hasattr(owner, name) for owner in owners))  # fmt: skip
        if wanted or names.any or not missing <= set(held):
            self.note("attribute", function, "__dict__", held, path, HINT)
            self.same_names(held, wanted, path)
        for name in wanted:
            self.hold("item", held, name, held[name], path.attribute(name))

    def _named_attributes(self, value: Any, path: Path) -> None:
        """The same for a compiled or fused function, which also has attributes of its own."""
        held = vars(value)
        self._told(value, path)
        self.holders.append((held, path, False))
        named = {*self.names.read, *self.names.counted, *(held if self.names.any else ())}
        for name in sorted(name for name in named if name != "__wrapped__" and not name.startswith("_")):
            if name in held:
                if self._wanted(name, held[name]):
                    self.hold("item", held, name, held[name], path.attribute(name))
            elif name in self.names.read and not any(hasattr(owner, name) for owner in (value, Tensor, Module)):
                self.note("absent", held, name, False, path.attribute(name), LEAF)

    # -- modules and optimisers -------------------------------------------------------------------------------------

    def _module(self, module: Module, path: Path) -> None:
        cls = type(module)
        every = not all(is_user_class(c) or c is Module or c.__module__ in BARE for c in cls.__mro__)
        held = module.__dict__
        self.holders.append((held, path, True))
        self._library_class(cls, path)
        names = held.get("_names", {})
        wanted = [name for name in held if name not in _OF_MODULE
                  and (every or name in names or name in _ALWAYS or self._wanted(name, held[name]))]  # fmt: skip
        self.note("attribute", module, "__class__", cls, path, SAME, in_module=True)
        self.same_names(held, _OF_MODULE.union(wanted), path, in_module=True)
        self.note("keys", names, None, tuple(names), path, LEAF, in_module=True)
        for name in wanted:
            self.hold("item", held, name, held[name], path.attribute(name), in_module=True)
        self._hooks(module, path)
        self.class_members(cls, path, MAKING)

    def _hooks(self, module: Module, path: Path) -> None:
        hooks = module.__dict__.get("_hooks")
        self.note("item", module.__dict__, "_hooks", hooks, path.attribute("hooks"), HINT, in_module=True)
        for kind in Hooks.__slots__:
            self._hooks_of(path, f"{kind.replace('_', '-')} hooks of", getattr(hooks, kind, None))

    def _steps(self, value: Any, path: Path) -> None:
        """Visit an optimiser or a schedule: its steps report what they depend on, and it notices when its numbers are
        read."""
        held = object.__getattribute__(value, "__dict__")
        if self.names.past:
            self.refuse(f"may read all attributes of {path.called()}, whose numbers change with every step")
        for name in ("_before", "_after"):  # hooks of its step; some run only once
            hooks, label = held.get(name, {}), path.attribute(f"hooks{name}")
            staying = tuple([key for key, hook in hooks.items() if not getattr(hook, "once", False)])
            self.note("keys", hooks, None, tuple(hooks), label, HINT)
            self.note("hooks", hooks, None, staying, label, LEAF, live=False)
        # A schedule notices every read of an attribute.
        readable = not keeps_schedule(type(value))
        wanted = [name for name in held if name in ("step", "zero_grad")
                  or (readable and name not in _OF_STEPS and self._wanted(name, held[name]))]  # fmt: skip
        self.same_names(held, _NOTICED.union(wanted), path)
        for name in wanted:
            self.hold("item", held, name, held[name], path.attribute(name))
        self._library_class(type(value), path)
        for base in type(value).__mro__ if readable else ():
            if is_user_class(base):
                self._class_numbers(base)
        for group in held.get("param_groups", ()):
            for t in group["params"]:
                self.visit(t, path.attribute("param_groups"))

    def _class_numbers(self, base: type) -> None:
        """Visit the members of a user's optimiser class that the code names, except its steps."""
        members: Any = base.__dict__
        label = Path(base.__qualname__.rpartition(">.")[2])
        wanted = [name for name in members if not is_special(name) and name not in _PATCHED and self._wanted(name)]
        if (base, "numbers") not in self._members:
            self._members.add((base, "numbers"))
            self.same_names(members, _LASTING.union(wanted), label)
        for name in wanted:
            self.hold("item", members, name, members[name], label.attribute(name))


_CACHE: Any = type(functools.lru_cache(lambda: None))


def _is_its_own(cached: Any) -> bool:
    """Is it a cached function of a library, at module level? Then it is trusted."""
    module = sys.modules.get(cached.__module__)
    filename = getattr(module, "__file__", None) or ""
    return is_installed_file(filename) == "library" and module.__dict__.get(cached.__name__) is cached
