"""May a function change Python objects that other examples see: a list, a dictionary, an attribute, a global name?

Such a function must not be left in the middle for another example, where it waits for a value: what it has written
would be read by the other one. This is an abstract interpretation of its bytecode, and of all that it calls, with the
objects that its names stand for now: values are not computed, only told apart by who sees them (escape analysis). What
is made inside the call is its own and may be written. Everything else counts as a change unless it is known to be none:
writes to objects from outside by whatever name, methods and functions that are not known to be pure (`harmless`),
iterators from outside, random numbers of others, code that cannot be read.
"""

from __future__ import annotations

import contextlib
import functools
import types
from typing import Any

import numpy as np

from wayfare.batch.analysis.abstract_values import (
    NOTHING,
    PLAIN,
    UNKNOWN,
    Changes,
    Inner,
    Known,
    Method,
    Native,
    Own,
    OwnMethod,
    Value,
)
from wayfare.batch.analysis.bytecode import Walk
from wayfare.batch.analysis.escapes import Handing
from wayfare.batch.analysis.frames import Frame
from wayfare.batch.analysis.known_pure import (
    changes_first,
    gives_items,
    has_own_method,
    has_plain_base,
    is_data_class,
    is_pure,
    is_pure_method,
    is_standard,
    only_computes_in,
)
from wayfare.batch.analysis.objects import classes_in
from wayfare.batch.analysis.purity import is_ours
from wayfare.core.generator import Generator
from wayfare.nn.module import Module

# Functions that are read, rounds over all of them, and calls in all, at the most.
_FUNCTIONS, _ROUNDS, _CALLS = 400, 25, 20_000
_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
_WRAPPED = contextlib.contextmanager(lambda: iter(())).__code__
_SAVING = frozenset({"save", "manual_seed", "seed", "set_rng_state"})


def changes_python(function: Any, args: tuple[Any, ...] = (), shared: tuple[bool, ...] = ()) -> bool:
    """May it change Python objects that others see, as far as its code and its arguments can be read?

    `shared` says which of the arguments others have as well.
    """
    return why_it_changes(function, args, shared) != ""


def why_it_changes(function: Any, args: tuple[Any, ...] = (), shared: tuple[bool, ...] = ()) -> str:
    """What it may change; "" if it was read to change nothing."""
    try:
        Reader().read(function, args, shared)
    except Changes as found:
        return str(found)
    except Exception as error:  # an object that cannot even be looked at
        return f"it cannot be read: {type(error).__name__}"
    return ""


class Reader(Handing):
    """One reading of a function and of all that it calls; raises `Changes`."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = False
        self._round = 0
        self._frames: dict[Any, Frame] = {}
        self._inner: dict[Any, Inner] = {}
        self._calls = 0

    def read(self, function: Any, args: tuple[Any, ...], shared: tuple[bool, ...] = ()) -> None:
        """Go through it until no more is found."""
        self.alive |= classes_in(args)
        flags = shared or (False,) * len(args)
        given = [self.of(a) if flag or callable(a) else PLAIN for a, flag in zip(args, flags, strict=True)]
        for self._round in range(_ROUNDS):
            self.changed = False
            self.call(self.of(function), given, {}, star=PLAIN)
            if not self.changed:
                return
        raise Changes("more than can be read")

    # -- functions

    def inner(self, code: types.CodeType, frame: Frame) -> tuple[Value, Inner]:
        """A function that the code makes."""
        made = self._inner.setdefault((code, id(frame)), Inner(code, frame))
        return Value(False, frozenset((made,))), made

    def _run(self, function: Any, args: list[Value], named: dict[str, Value], star: Value | None) -> Value:
        key = function if isinstance(function, Inner) else id(function)
        frame = self._frames.get(key)
        if frame is None:
            if len(self._frames) >= _FUNCTIONS:
                raise Changes("more functions than can be read")
            frame = self._frames[key] = Frame(self, function)
        frame.bind(args, named, star)
        if frame.read_in != self._round:
            frame.read_in = self._round
            Walk(self, frame).run()
        return frame.result

    def call(
        self, called: Value, args: list[Value], named: dict[str, Value], star: Value | None = None, frame: Any = None
    ) -> Value:
        """What a call gives."""
        result = NOTHING
        if called.plain and not called.refs:
            for name in called.names:
                if not has_own_method(name) and not self.is_field(name):
                    raise Changes(f"the method {name} of an object that is not known")
        if called.plain:
            result = PLAIN
            self._hand_over([*args, *named.values()], star)
            if any(map(gives_items, called.names)):
                result = result | self.items
            if not called.names or not all(map(has_own_method, called.names)):
                for made in list(self.alive):
                    found = self.of_class(made, "__call__")
                    if isinstance(found, types.FunctionType) and not is_ours(found):
                        result = result | self._function(found, [PLAIN, *args], named, star)
        site = self.site
        for ref in called.refs:
            self.site = site
            if isinstance(ref, Known) and ref.value is super and not args:
                result = result | self._super(frame)
            else:
                result = result | self._call(ref, args, named, star)
        return result

    def _super(self, frame: Frame) -> Value:
        if frame is None or "__class__" not in frame.code.co_freevars or not frame.code.co_argcount:
            raise Changes("super() of a class that is not known")
        return self.above(frame.load_deref("__class__"), frame.load(frame.code.co_varnames[0]))

    def _call(self, ref: Any, args: list[Value], named: dict[str, Value], star: Value | None) -> Value:
        self._calls += 1
        if self._calls > _CALLS:
            raise Changes("more calls than can be read")
        if ref is UNKNOWN:
            raise Changes("something that is not known is called")
        if isinstance(ref, Inner):
            return self._run(ref, args, named, star)
        if isinstance(ref, Own):
            return PLAIN  # something of a library's: what it was given was handed over already
        if isinstance(ref, OwnMethod):
            return self._own(ref, args, named, star)
        if isinstance(ref, Method):
            owner = PLAIN if ref.owner is None else Value(False, frozenset((ref.owner,)))
            if is_ours(ref.function):
                return self._of_library(ref.function, ref.owner, args, named, star)
            return self._function(ref.function, [owner, *args], named, star)
        if isinstance(ref, Native):
            if not is_pure_method(ref.owner.value, ref.name):
                raise Changes(f"{type(ref.owner.value).__name__}.{ref.name}")
            return self._native(args, named, star) | self.item(Value(False, frozenset((ref.owner,))))
        return self._object(ref.value, args, named, star)

    def _own(self, ref: OwnMethod, args: list[Value], named: dict[str, Value], star: Value | None) -> Value:
        """A method of a container that the code has made."""
        own = Value(False, frozenset((ref.owner,)))
        for value in [*args, *named.values(), *([] if star is None else [star])]:
            self.put_into(own, value | self.item(self.iterator(value, only_look=True)))
            for part in value.refs:
                self.put_into(own, self._handed(part, PLAIN | self.item(own)))
        return PLAIN | self.item(own) | own if gives_items(ref.name) else PLAIN

    def _object(self, value: Any, args: list[Value], named: dict[str, Value], star: Value | None) -> Value:
        """An object that is known is called."""
        if not callable(value):
            return NOTHING  # an error, or one of the things that a place may hold and does not
        if isinstance(value, types.FunctionType):
            return self._function(value, args, named, star)
        if isinstance(value, types.MethodType):
            return self._call(self.method(value.__func__, self.known(value.__self__)), args, named, star)
        if isinstance(value, functools.partial):
            before = [self.of(a) for a in value.args]
            more = {k: self.of(a) for k, a in value.keywords.items()} | named
            return self.call(self.of(value.func), [*before, *args], more, star)
        if isinstance(value, Module):
            return self._module(value, args, named, star)
        if isinstance(value, type):
            return self._type(value, args, named, star)
        found = self.of_class(type(value), "__call__")
        if isinstance(found, types.FunctionType) and not is_ours(found):
            return self._call(self.method(found, self.known(value)), args, named, star)
        if value is getattr and len(args) > 1 and isinstance(args[1].constant, str):
            return self.attribute(args[0], args[1].constant) | (args[2] if len(args) > 2 else NOTHING)
        if value is getattr and args:
            return self._by_any_name(args[0])
        if changes_first(value):
            return self._writes_first(value, args, named, star)
        owner = getattr(value, "__self__", None)
        if isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)) and owner is not None:
            if not isinstance(owner, (types.ModuleType, type)):
                return self._call(self.native(value.__name__, owner), args, named, star)
            if isinstance(owner, type) and is_pure(owner):
                return self._native(args[1:] if value.__name__ == "__new__" else args, named, star, owner)
        if isinstance(value, _DESCRIPTORS):
            if not args:
                raise Changes(f"{value.__qualname__} of an object that is not known")
            if value.__name__ in ("__init__", "__new__", "__setattr__") and not args[0].refs:
                return self._native(args, named, star)
            return self.call(self.attribute(args[0], value.__name__), args[1:], named, star)
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(value, functools._lru_cache_wrapper) or (is_ours(type(value)) and callable(wrapped)):
            return self.call(self.of(wrapped), args, named, star)
        if is_pure(value) or isinstance(value, np.ufunc):
            return self._native(args, named, star, value)
        if is_ours(value if hasattr(value, "__module__") else type(value)) and not isinstance(value, Generator):
            return self._native(args, named, star)
        raise Changes(f"a call of {getattr(value, '__name__', type(value).__name__)}")

    def _function(self, function: Any, args: list[Value], named: dict[str, Value], star: Value | None) -> Value:
        if not isinstance(function, types.FunctionType):
            return self._object(function, args, named, star)
        if is_ours(function):
            return self._of_library(function, None, args, named, star)
        wrapped = getattr(function, "__wrapped__", None)
        if function.__code__ is _WRAPPED and wrapped is not None:
            self.call(self.of(wrapped), args, named, star)
            return PLAIN | self.items
        if is_pure(function):
            if function.__module__ == "copy":
                self.alive |= {type(r.value) for a in args for r in a.refs if isinstance(r, Known)} - {type(None)}
                self._native(args, named, star)
                return PLAIN | self.container(self.site, self.item(args[0]) if args else PLAIN)
            return self._native(args, named, star, function)
        if function.__globals__.get("__name__") in ("reprlib", "dataclasses") and wrapped is not None:
            return self.call(self.of(wrapped), args, named, star)
        if is_standard(function.__code__) and not is_data_class(function):
            raise Changes(f"{function.__module__}.{function.__qualname__}")
        return self._run(function, args, named, star)

    def _of_library(
        self, function: Any, owner: Known | None, args: list[Value], named: dict[str, Value], star: Value | None
    ) -> Value:
        """A function of Wayfare's, or a method of it."""
        if function.__name__ in _SAVING:
            raise Changes(f"wf.{function.__name__}")
        value = None if owner is None else owner.value
        if owner is not None and not isinstance(value, (Module, type)) and not only_computes_in(type(value)):
            raise Changes(f"{type(value).__name__}.{function.__name__}")
        result = self._native(args, named, star)
        if isinstance(value, Module):
            for inner in value.modules():
                if not is_ours(type(inner)):
                    result = result | self.of(inner)
        return result

    def _module(self, module: Module, args: list[Value], named: dict[str, Value], star: Value | None) -> Value:
        """A module is called: its hooks, its `forward`; the modules in one of the library's are called by it."""
        result = PLAIN
        for inner in module.modules() if is_ours(type(module).forward) else (module,):
            hooks = inner._hooks
            if hooks is not None:
                for entry in (*hooks.forward.values(), *hooks.forward_pre.values()):
                    self.call(self.of(entry[0]), [], {}, star=self.of(inner) | PLAIN)
            forward = inner.__dict__.get("forward", type(inner).forward)
            if not is_ours(forward):
                bound = self.of(forward) if "forward" in inner.__dict__ else self.attribute(self.of(inner), "forward")
                mine = inner is module
                result = result | self.call(bound, args if mine else [], named if mine else {}, star if mine else PLAIN)
        self._native(args, named, star)
        return result

    def _type(self, made: type, args: list[Value], named: dict[str, Value], star: Value | None) -> Value:
        """An object is made."""
        if made is type:
            return self.types_of(args[0]) if args else PLAIN
        if is_ours(made) or is_pure(made):
            return self._native(args, named, star, made)
        if type(made).__module__ == "enum":
            return Value(True, frozenset(self.known(member) for member in made))  # type: ignore[attr-defined]
        if self.of_class(type(made), "__call__") is not type.__call__:
            raise Changes(f"{made.__name__} is made by a class of its own")
        if made not in self.alive:
            self.alive.add(made)
            self.changed = True
        found = False
        for name, first in (("__new__", self.of(made)), ("__init__", PLAIN)):
            function = self.of_class(made, name)
            function = getattr(function, "__func__", function)
            if isinstance(function, types.FunctionType) and not is_ours(function):
                self._function(function, [first, *args], named, star)
                found = True
        if not found:
            kind: Any = made
            plain = kind.__init__ is object.__init__ and kind.__new__ is object.__new__
            if not plain and not issubclass(made, Module) and not has_plain_base(made):
                raise Changes(f"{made.__name__} is not written in Python")
            self._native(args, named, star)
        for value in [*args, *named.values(), *([] if star is None else [star])]:
            if issubclass(made, (tuple, list, dict, set, BaseException)):
                self.put_into(PLAIN, value)
            for name in getattr(made, "_fields", ()):
                self.put_attribute(PLAIN, name, value)
        return PLAIN
