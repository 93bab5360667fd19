"""The walk goes into objects: their attributes, their classes, modules, optimisers, and what was assigned to functions.

What is *not* there matters as much as what is: an attribute that comes may hide one of the class, or answer `hasattr`.
A name that was read and not found is guarded by the names that are there: as many as before, and each of them still.
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
from wayfare.compiler.captures.trusted import keeps_schedule, known_instance, known_type, takes_steps
from wayfare.compiler.captures.walk_values import MAKING, ValueWalk
from wayfare.core.tensor import Tensor
from wayfare.nn.hooks import Hooks
from wayfare.nn.module import Module

# Attributes of Wayfare's modules that change only together with others.
_OF_MODULE = frozenset({"_names", "_hooks", "_order", "_wayfare_calls"})
_BESIDE = frozenset({
    "__del__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__",
    "__init_subclass__", "__class_getitem__", "__sizeof__",
})  # fmt: skip
_TOLD = frozenset({"__name__", "__qualname__", "__doc__", "__module__", "__annotations__"})
_TEXT = frozenset({"__repr__", "__str__", "__format__"})
_PATCHED = ("forward", "__call__", "step", "zero_grad", "backward")
_ALWAYS = frozenset({"training", "forward"})
# What Python does not let anybody delete from a class.
_LASTING = frozenset({"__dict__", "__module__", "__doc__"})
# What an optimiser tells a recorder of itself, and what only its own steps use.
_NOTICED = frozenset({"param_groups", "state", "defaults"})
_OF_STEPS = _NOTICED | {"step", "zero_grad", "_before", "_after", "_in_step"}
# So many names are looked for one by one; more are compared as a list.
_ONE_BY_ONE = 5


class ObjectWalk(ValueWalk):
    """Adds what has attributes to the walk over values."""

    def _wanted(self, name: str, value: Any = None) -> bool:
        names = self.names
        return names.any or name in names.read or (name in names.counted and type(value) is not int)

    def same_names(self, held: Any, guarded: Collection[str], path: Path, in_module: bool = False) -> None:
        """Guard the names in a dictionary of attributes. Those in `guarded` have places of their own already."""
        if self.names.past:  # their order can be seen
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
        """What an instance of a user's class has beside the contents of the kind of container it is."""
        if is_user_class(type(value)):
            self._attributes(value, path)

    def _object(self, value: Any, path: Path) -> str:
        cls: Any = type(value)
        if takes_steps(cls):
            self._steps(value, path)
            return SAME
        if cls.__module__ == "wayfare.core.generator":
            return SAME
        held = getattr(value, "__dict__", None)
        if type(held) is dict and "__wrapped__" in held and not is_user_class(cls):
            if cls is _CACHE and not _is_its_own(value):
                self.refuse(f"uses {path.called()}, which keeps what it has returned (lru_cache)")
            self.visit(held["__wrapped__"], path)  # a compiled or fused function
            self._named_attributes(value, path)
            return SAME
        if held is not None or slots_of(cls):
            self._attributes(value, path)
            # What has no text of its own shows its address.
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
        """What may be used of a user's class and of those it derives from: special methods, and what is named."""
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
        if special or issubclass(cls, enum.Enum):  # the members of an enumeration are what they are
            runs = isinstance(member, (types.FunctionType, staticmethod, classmethod, property))
            always = special and name not in COMPARING and (self.names.formats or name not in _TEXT)
            return runs and name not in _BESIDE and (always or self._wanted(name))
        return name == "forward" or self._wanted(name)

    def _library_class(self, cls: type, path: Path) -> None:
        """The methods of a class of ours that somebody may replace, and what it derives from."""
        if (cls, "library") in self._members:
            return
        self._members.add((cls, "library"))
        for name in _PATCHED:
            # Found in the class or in what it derives from, and no method of the class of classes.
            if any(name in base.__dict__ for base in cls.__mro__):
                self.note("attribute", cls, name, getattr(cls, name), Path(cls.__qualname__).attribute(name), SAME)

    def _told(self, value: Any, path: Path) -> None:
        """What a function or a class tells of itself, if code asks."""
        for name in sorted(_TOLD & self.names.read):
            self.hold("attribute", value, name, getattr(value, name, None), path.attribute(name))

    # -- functions --------------------------------------------------------------------------------------------------

    def _function_attributes(self, function: Any, path: Path) -> None:
        """What was assigned to a function or a partial: `step.calls`."""
        held = function.__dict__
        self.holders.append((held, path, False))
        self._told(function, path)
        names = self.names
        wanted = [name for name in held if name != "__wrapped__" and self._wanted(name, held[name])]
        # Nobody takes the methods of tensors from a function, unless it is asked whether it has them.
        owners = (types.FunctionType, Tensor, Module)
        missing = names.asked.union(name for name in names.read if not is_special(name)
                                    and not any(hasattr(owner, name) for owner in owners))  # fmt: skip
        if wanted or names.any or not missing <= set(held):
            self.note("attribute", function, "__dict__", held, path, HINT)
            self.same_names(held, wanted, path)
        for name in wanted:
            self.hold("item", held, name, held[name], path.attribute(name))

    def _named_attributes(self, value: Any, path: Path) -> None:
        """The same for a compiled or fused function, which has attributes of its own beside those."""
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
        """An optimiser or a schedule: its own steps say what they count on; who reads its numbers is noticed then."""
        held = object.__getattribute__(value, "__dict__")
        if self.names.past:
            self.refuse(f"may read all attributes of {path.called()}, whose numbers change with every step")
        for name in ("_before", "_after"):  # hooks for its step; some are gone after the first
            hooks, label = held.get(name, {}), path.attribute(f"hooks{name}")
            staying = tuple([key for key, hook in hooks.items() if not getattr(hook, "once", False)])
            self.note("keys", hooks, None, tuple(hooks), label, HINT)
            self.note("hooks", hooks, None, staying, label, LEAF, live=False)
        # Every attribute of a schedule that is read is noticed.
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
        """What is named of a user's class of optimisers. Its steps are the optimiser's own affair."""
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
    """Is it a library's own function with a cache, which the library answers for?"""
    module = sys.modules.get(cached.__module__)
    filename = getattr(module, "__file__", None) or ""
    return is_installed_file(filename) == "library" and module.__dict__.get(cached.__name__) is cached
