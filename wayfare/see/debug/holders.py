"""What keeps an object alive: the path from a name that the user knows to the object, as text."""

from __future__ import annotations

import gc
import os
import sys
from collections import deque
from collections.abc import Sequence
from inspect import CO_OPTIMIZED
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

from wayfare.core.callsite import INSIDE, Site
from wayfare.core.node import Node

# How many levels up are searched.
_LEVELS = 8
_FEW = 100
# With this many holders, it is an object of the interpreter, not of the user.
_MANY = 1000
# The names of Python's own modules and of installed packages are not collected: there are hundreds of thousands.
_LIBRARIES = os.path.dirname(os.__file__) + os.sep
# A node leads to its inputs, not to a name: what a graph holds is reported for the tensor at its end.
_DULL = (BuiltinFunctionType, CodeType, FrameType, Node, WrapperDescriptorType, type)


class Holder(NamedTuple):
    """The named thing that keeps something alive, and how it is reached from there."""

    name: str  # `losses`
    kind: str  # list
    place: str  # in train (train.py:20)
    path: str  # losses[3]
    # Is it the framework's own: a constant it keeps, say?
    internal: bool = False

    def __str__(self) -> str:
        inner = f" as {self.path}" if self.path != self.name else ""
        return f"{self.kind} `{self.name}` {self.place}{inner}"


class Names:
    """The names by which objects are known now: locals of every running frame, and globals of every module."""

    def __init__(self) -> None:
        self._locals: dict[int, tuple[str, FrameType]] = {}
        self._modules: dict[int, str] = {}
        self._globals: dict[int, tuple[str, str]] = {}
        for frame in sys._current_frames().values():
            above: FrameType | None = frame
            while above is not None:
                if not INSIDE[above.f_code.co_filename]:
                    self._enter(above)
                above = above.f_back
        for name, module in list(sys.modules.items()):
            if issubclass(type(module), ModuleType):
                self._modules.setdefault(id(module.__dict__), name)
                if not (getattr(module, "__file__", None) or _LIBRARIES).startswith(_LIBRARIES):
                    for key, value in list(module.__dict__.items()):
                        self._globals.setdefault(id(value), (key, name))

    def _enter(self, frame: FrameType) -> None:
        held = frame.f_locals
        if held is frame.f_globals:
            return
        for name, value in held.items():
            # The name in the innermost frame goes before others.
            self._locals.setdefault(id(value), (name, frame))
        # Before Python 3.13 this is a copy that the frame keeps, with values that its names may leave soon. (A debugger
        # that has stopped there writes the copy back.)
        if type(held) is dict and frame.f_code.co_flags & CO_OPTIMIZED and frame.f_trace is None:
            held.clear()

    def of(self, thing: Any) -> Holder | None:
        """The name of an object, if it has one: a local one, or a global one of the user's or of ours."""
        if id(thing) not in self._locals:
            known = self._globals.get(id(thing))
            return None if known is None else _global(known[0], thing, known[1])
        name, frame = self._locals[id(thing)]
        site = Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        return Holder(name, _kind(thing), f"in {site.function} ({site})", name)

    def of_globals(self, names: Any, thing: Any) -> Holder | None:
        """The global name of an object in a dictionary that is a module's."""
        module = self._modules.get(id(names))
        name = None if module is None else next((key for key, value in names.items() if value is thing), None)
        return None if name is None or module is None else _global(str(name), thing, module)


def _global(name: str, thing: Any, module: str) -> Holder:
    internal = INSIDE[getattr(sys.modules[module], "__file__", None) or ""]
    return Holder(name, _kind(thing), f"of the module {module}", name, internal)


# Container → object in it → its key or index: a list of many thousand is searched once, not for each of them.
Places = dict[int, dict[int, Any]]


class _Way(NamedTuple):
    """An object on the way up from things: which they are, and how each is reached from it."""

    thing: Any
    below: dict[int, str]


def holders_of(things: Sequence[Any], names: Names, ours: set[int]) -> list[Holder | None]:
    """What keeps each of these alive, where it is found. `ours` are the ids of objects that do not count."""
    answers: dict[int, Holder] = {}
    ways: dict[int, _Way] = {}
    for number, thing in enumerate(things):
        ways.setdefault(id(thing), _Way(thing, {})).below[number] = ""
    seen = set(ways)
    # A gradient is held by its parameter, which may be among the things itself: number → (number of that one, path).
    through: dict[int, tuple[int, str]] = {}
    among = {id(thing): number for number, thing in enumerate(things)}
    places: Places = {}
    for _ in range(_LEVELS):
        for way in ways.values():
            holder = names.of(way.thing)
            if holder is not None:
                _answer(answers, holder, way.below)
        open_ways = {key: way for key, way in ways.items() if way.below.keys() - answers.keys()}
        if not open_ways or len(open_ways) > _MANY + len(things):
            break
        ways = {}
        for parent, way in _parents(open_ways, ours | {id(things), id(answers), id(ways), id(open_ways)}):
            named = names.of_globals(parent, way.thing) if isinstance(parent, dict) else None
            if named is not None:
                _answer(answers, named, way.below)
            elif id(parent) in among:
                for number, path in way.below.items():
                    through.setdefault(number, (among[id(parent)], _joined(parent, way.thing, path, places)))
            elif id(parent) not in seen:
                above = ways.setdefault(id(parent), _Way(parent, {})).below
                for number, path in way.below.items():
                    above.setdefault(number, _joined(parent, way.thing, path, places))
        seen |= set(ways)
    for number, (other, path) in through.items():
        if number not in answers and other in answers:
            answers[number] = answers[other]._replace(path=answers[other].path + path)
    return [answers.get(number) for number in range(len(things))]


def _answer(answers: dict[int, Holder], holder: Holder, below: dict[int, str]) -> None:
    for number, path in below.items():
        answers.setdefault(number, holder._replace(path=holder.name + path))


def _parents(wanted: dict[int, _Way], ours: set[int]) -> list[tuple[Any, _Way]]:
    """(object that refers, the wanted one that it refers to) for all there are."""
    found: list[tuple[Any, _Way]] = []
    ids = wanted.keys()
    # For few objects, get_referrers is faster; for many, one pass over what every object refers to.
    few = [way.thing for way in wanted.values()] if len(wanted) <= _FEW else None
    for parent in gc.get_objects() if few is None else gc.get_referrers(*few):
        kind = type(parent)
        if kind in _DULL or kind is _Way or parent is few or id(parent) in ours:
            continue
        found += [(parent, wanted[key]) for key in ids & set(map(id, gc.get_referents(parent)))]
    return [(parent, way) for parent, way in found if parent is not way.thing]


def _joined(parent: Any, thing: Any, path: str, places: Places) -> str:
    """The path from an object's parent, where `path` is the path from the object."""
    if isinstance(thing, dict) and getattr(parent, "__dict__", None) is thing:
        # The dictionary of an instance is written as an attribute.
        key, _, rest = path.partition("]")
        return "." + key.strip("['\"") + rest
    return _step(parent, thing, places) + path


def _step(parent: Any, thing: Any, places: Places) -> str:
    """How an object is reached from one that refers to it, as Python would write it."""
    if isinstance(parent, (dict, list, tuple, deque)):
        if id(parent) not in places:
            pairs = parent.items() if isinstance(parent, dict) else enumerate(parent)
            # If it is there several times, the first place is named.
            places[id(parent)] = {id(value): key for key, value in reversed(list(pairs))}
        found = places[id(parent)]
        return f"[{found[id(thing)]!r}]" if id(thing) in found else "[…]"
    if isinstance(parent, (set, frozenset)):
        return "{…}"
    if isinstance(parent, (CellType, FunctionType, MethodType, GeneratorType)):
        return ""
    for name in _attributes(parent):
        try:
            if object.__getattribute__(parent, name) is thing:
                return f".{name.lstrip('_')}" if name == "_grad" else f".{name}"
        except AttributeError:
            continue
    return ""


def _attributes(thing: Any) -> list[str]:
    names = list(getattr(thing, "__dict__", {}))
    for cls in type(thing).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return names


def _kind(thing: Any) -> str:
    """The kind of a holder: list, closure, Net."""
    if isinstance(thing, FunctionType):
        return "function"
    return type(thing).__name__
