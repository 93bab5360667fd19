"""Side effects: may a function change Python objects that other examples see (a list, an attribute, a global name)?

While such a function waits for a value, no other example may run: it would see what was written. The analysis is an
abstract interpretation of the function's bytecode and of all it calls, with the objects that its names refer to now.
Values are not computed, only classified by who can see them (escape analysis). What is made inside the call may be
written. Everything else counts as a side effect unless it is known to be none: writes to objects from outside, methods
and functions that are not known to be pure (`known_pure`), iterators and generators from outside, unreadable code.
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
    AbstractValue,
    LocalContainer,
    LocalFunction,
    LocalMethod,
    MethodRef,
    NativeMethod,
    ObjectRef,
    SideEffect,
)
from wayfare.batch.analysis.bytecode import BytecodeWalk
from wayfare.batch.analysis.escapes import EscapeModel
from wayfare.batch.analysis.frames import AbstractFrame
from wayfare.batch.analysis.known_pure import (
    extends_builtin,
    has_pure_methods,
    is_generated_code,
    is_known_method,
    is_pure,
    is_pure_method,
    is_stdlib_code,
    mutates_first,
    returns_items,
)
from wayfare.batch.analysis.objects import classes_in
from wayfare.batch.analysis.purity import is_library_code
from wayfare.core.generator import Generator
from wayfare.nn.module import Module

# Limits: analysed functions, rounds over all of them, and calls in total.
_FUNCTIONS, _ROUNDS, _CALLS = 400, 25, 20_000
_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
_WRAPPED = contextlib.contextmanager(lambda: iter(())).__code__
_SAVING = frozenset({"save", "manual_seed", "seed", "set_rng_state"})


def has_side_effects(function: Any, args: tuple[Any, ...] = (), shared: tuple[bool, ...] = ()) -> bool:
    """Whether it may change Python objects that others see.

    `shared` tells which of the arguments other examples have as well.
    """
    return explain_side_effects(function, args, shared) != ""


def explain_side_effects(function: Any, args: tuple[Any, ...] = (), shared: tuple[bool, ...] = ()) -> str:
    """What it may change; "" if it has no side effects."""
    try:
        EffectAnalysis().analyse(function, args, shared)
    except SideEffect as found:
        return str(found)
    except Exception as error:  # an object whose attributes raise errors
        return f"it cannot be read: {type(error).__name__}"
    return ""


class EffectAnalysis(EscapeModel):
    """The analysis of a function and of all that it calls; raises SideEffect."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = False
        self._round = 0
        self._frames: dict[Any, AbstractFrame] = {}
        self._inner: dict[Any, LocalFunction] = {}
        self._calls = 0

    def analyse(self, function: Any, args: tuple[Any, ...], shared: tuple[bool, ...] = ()) -> None:
        """Analyse it in rounds, until nothing new is found."""
        self.live_classes |= classes_in(args)
        flags = shared or (False,) * len(args)
        given = [self.value_of(a) if flag or callable(a) else PLAIN for a, flag in zip(args, flags, strict=True)]
        for self._round in range(_ROUNDS):
            self.changed = False
            self.call(self.value_of(function), given, {}, star=PLAIN)
            if not self.changed:
                return
        raise SideEffect("more than can be read")

    # -- functions

    def inner(self, code: types.CodeType, frame: AbstractFrame) -> tuple[AbstractValue, LocalFunction]:
        """A function that is defined inside the analysed code."""
        made = self._inner.setdefault((code, id(frame)), LocalFunction(code, frame))
        return AbstractValue(False, frozenset((made,))), made

    def _run(
        self, function: Any, args: list[AbstractValue], named: dict[str, AbstractValue], star: AbstractValue | None
    ) -> AbstractValue:
        key = function if isinstance(function, LocalFunction) else id(function)
        frame = self._frames.get(key)
        if frame is None:
            if len(self._frames) >= _FUNCTIONS:
                raise SideEffect("more functions than can be read")
            frame = self._frames[key] = AbstractFrame(self, function)
        frame.bind(args, named, star)
        if frame.last_round != self._round:
            frame.last_round = self._round
            BytecodeWalk(self, frame).run()
        return frame.result

    def call(
        self,
        called: AbstractValue,
        args: list[AbstractValue],
        named: dict[str, AbstractValue],
        star: AbstractValue | None = None,
        frame: Any = None,
    ) -> AbstractValue:
        """What a call may return."""
        result = NOTHING
        if called.plain and not called.refs:
            for name in called.names:
                if not is_known_method(name) and not self.is_field(name):
                    raise SideEffect(f"the method {name} of an object that is not known")
        if called.plain:
            result = PLAIN
            self._escape([*args, *named.values()], star)
            if any(map(returns_items, called.names)):
                result = result | self.items
            if not called.names or not all(map(is_known_method, called.names)):
                for made in list(self.live_classes):
                    found = self.class_attribute(made, "__call__")
                    if isinstance(found, types.FunctionType) and not is_library_code(found):
                        result = result | self._call_function(found, [PLAIN, *args], named, star)
        site = self.site
        for ref in called.refs:
            self.site = site
            if isinstance(ref, ObjectRef) and ref.value is super and not args:
                result = result | self._call_super(frame)
            else:
                result = result | self._call(ref, args, named, star)
        return result

    def _call_super(self, frame: AbstractFrame) -> AbstractValue:
        if frame is None or "__class__" not in frame.code.co_freevars or not frame.code.co_argcount:
            raise SideEffect("super() of a class that is not known")
        return self.super_of(frame.load_deref("__class__"), frame.load(frame.code.co_varnames[0]))

    def _call(
        self, ref: Any, args: list[AbstractValue], named: dict[str, AbstractValue], star: AbstractValue | None
    ) -> AbstractValue:
        self._calls += 1
        if self._calls > _CALLS:
            raise SideEffect("more calls than can be read")
        if ref is UNKNOWN:
            raise SideEffect("something that is not known is called")
        if isinstance(ref, LocalFunction):
            return self._run(ref, args, named, star)
        if isinstance(ref, LocalContainer):
            return PLAIN  # an object of a library: its arguments were handled when it was made
        if isinstance(ref, LocalMethod):
            return self._call_local_method(ref, args, named, star)
        if isinstance(ref, MethodRef):
            owner = PLAIN if ref.owner is None else AbstractValue(False, frozenset((ref.owner,)))
            if is_library_code(ref.function):
                return self._call_library(ref.function, ref.owner, args, named, star)
            return self._call_function(ref.function, [owner, *args], named, star)
        if isinstance(ref, NativeMethod):
            if not is_pure_method(ref.owner.value, ref.name):
                raise SideEffect(f"{type(ref.owner.value).__name__}.{ref.name}")
            return self._call_pure(args, named, star) | self.item(AbstractValue(False, frozenset((ref.owner,))))
        return self._call_object(ref.value, args, named, star)

    def _call_local_method(
        self, ref: LocalMethod, args: list[AbstractValue], named: dict[str, AbstractValue], star: AbstractValue | None
    ) -> AbstractValue:
        """A method of a container that the code made is called."""
        own = AbstractValue(False, frozenset((ref.owner,)))
        for value in [*args, *named.values(), *([] if star is None else [star])]:
            self.store_item(own, value | self.item(self.iterator(value, only_read=True)))
            for part in value.refs:
                self.store_item(own, self._call_escaped(part, PLAIN | self.item(own)))
        return PLAIN | self.item(own) | own if returns_items(ref.name) else PLAIN

    def _call_object(
        self, value: Any, args: list[AbstractValue], named: dict[str, AbstractValue], star: AbstractValue | None
    ) -> AbstractValue:
        """A referenced object is called."""
        if not callable(value):
            return NOTHING  # an error, or a possibility that never occurs
        if isinstance(value, types.FunctionType):
            return self._call_function(value, args, named, star)
        if isinstance(value, types.MethodType):
            return self._call(self.method(value.__func__, self.ref_to(value.__self__)), args, named, star)
        if isinstance(value, functools.partial):
            before = [self.value_of(a) for a in value.args]
            more = {k: self.value_of(a) for k, a in value.keywords.items()} | named
            return self.call(self.value_of(value.func), [*before, *args], more, star)
        if isinstance(value, Module):
            return self._call_module(value, args, named, star)
        if isinstance(value, type):
            return self._construct(value, args, named, star)
        found = self.class_attribute(type(value), "__call__")
        if isinstance(found, types.FunctionType) and not is_library_code(found):
            return self._call(self.method(found, self.ref_to(value)), args, named, star)
        if value is getattr and len(args) > 1 and isinstance(args[1].constant, str):
            return self.attribute(args[0], args[1].constant) | (args[2] if len(args) > 2 else NOTHING)
        if value is getattr and args:
            return self._by_any_name(args[0])
        if mutates_first(value):
            return self._writes_first(value, args, named, star)
        owner = getattr(value, "__self__", None)
        if isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)) and owner is not None:
            if not isinstance(owner, (types.ModuleType, type)):
                return self._call(self.native(value.__name__, owner), args, named, star)
            if isinstance(owner, type) and is_pure(owner):
                return self._call_pure(args[1:] if value.__name__ == "__new__" else args, named, star, owner)
        if isinstance(value, _DESCRIPTORS):
            if not args:
                raise SideEffect(f"{value.__qualname__} of an object that is not known")
            if value.__name__ in ("__init__", "__new__", "__setattr__") and not args[0].refs:
                return self._call_pure(args, named, star)
            return self.call(self.attribute(args[0], value.__name__), args[1:], named, star)
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(value, functools._lru_cache_wrapper) or (is_library_code(type(value)) and callable(wrapped)):
            return self.call(self.value_of(wrapped), args, named, star)
        if is_pure(value) or isinstance(value, np.ufunc):
            return self._call_pure(args, named, star, value)
        if is_library_code(value if hasattr(value, "__module__") else type(value)) and not isinstance(value, Generator):
            return self._call_pure(args, named, star)
        raise SideEffect(f"a call of {getattr(value, '__name__', type(value).__name__)}")

    def _call_function(
        self, function: Any, args: list[AbstractValue], named: dict[str, AbstractValue], star: AbstractValue | None
    ) -> AbstractValue:
        if not isinstance(function, types.FunctionType):
            return self._call_object(function, args, named, star)
        if is_library_code(function):
            return self._call_library(function, None, args, named, star)
        wrapped = getattr(function, "__wrapped__", None)
        if function.__code__ is _WRAPPED and wrapped is not None:
            self.call(self.value_of(wrapped), args, named, star)
            return PLAIN | self.items
        if is_pure(function):
            if function.__module__ == "copy":
                self.live_classes |= {type(r.value) for a in args for r in a.refs if isinstance(r, ObjectRef)} - {
                    type(None)
                }
                self._call_pure(args, named, star)
                return PLAIN | self.container(self.site, self.item(args[0]) if args else PLAIN)
            return self._call_pure(args, named, star, function)
        if function.__globals__.get("__name__") in ("reprlib", "dataclasses") and wrapped is not None:
            return self.call(self.value_of(wrapped), args, named, star)
        if is_stdlib_code(function.__code__) and not is_generated_code(function):
            raise SideEffect(f"{function.__module__}.{function.__qualname__}")
        return self._run(function, args, named, star)

    def _call_library(
        self,
        function: Any,
        owner: ObjectRef | None,
        args: list[AbstractValue],
        named: dict[str, AbstractValue],
        star: AbstractValue | None,
    ) -> AbstractValue:
        """A function or method of Wayfare is called."""
        if function.__name__ in _SAVING:
            raise SideEffect(f"wf.{function.__name__}")
        value = None if owner is None else owner.value
        if owner is not None and not isinstance(value, (Module, type)) and not has_pure_methods(type(value)):
            raise SideEffect(f"{type(value).__name__}.{function.__name__}")
        result = self._call_pure(args, named, star)
        if isinstance(value, Module):
            for inner in value.modules():
                if not is_library_code(type(inner)):
                    result = result | self.value_of(inner)
        return result

    def _call_module(
        self, module: Module, args: list[AbstractValue], named: dict[str, AbstractValue], star: AbstractValue | None
    ) -> AbstractValue:
        """A module is called: its hooks and its `forward`. A library module also calls the modules inside it."""
        result = PLAIN
        for inner in module.modules() if is_library_code(type(module).forward) else (module,):
            hooks = inner._hooks
            if hooks is not None:
                for entry in (*hooks.forward.values(), *hooks.forward_pre.values()):
                    self.call(self.value_of(entry[0]), [], {}, star=self.value_of(inner) | PLAIN)
            forward = inner.__dict__.get("forward", type(inner).forward)
            if not is_library_code(forward):
                bound = (
                    self.value_of(forward)
                    if "forward" in inner.__dict__
                    else self.attribute(self.value_of(inner), "forward")
                )
                mine = inner is module
                result = result | self.call(bound, args if mine else [], named if mine else {}, star if mine else PLAIN)
        self._call_pure(args, named, star)
        return result

    def _construct(
        self, made: type, args: list[AbstractValue], named: dict[str, AbstractValue], star: AbstractValue | None
    ) -> AbstractValue:
        """A class is called: an object is made."""
        if made is type:
            return self.types_of(args[0]) if args else PLAIN
        if is_library_code(made) or is_pure(made):
            return self._call_pure(args, named, star, made)
        if type(made).__module__ == "enum":
            return AbstractValue(True, frozenset(self.ref_to(member) for member in made))  # type: ignore[attr-defined]
        if self.class_attribute(type(made), "__call__") is not type.__call__:
            raise SideEffect(f"{made.__name__} is made by a class of its own")
        if made not in self.live_classes:
            self.live_classes.add(made)
            self.changed = True
        found = False
        for name, first in (("__new__", self.value_of(made)), ("__init__", PLAIN)):
            function = self.class_attribute(made, name)
            function = getattr(function, "__func__", function)
            if isinstance(function, types.FunctionType) and not is_library_code(function):
                self._call_function(function, [first, *args], named, star)
                found = True
        if not found:
            cls: Any = made
            plain = cls.__init__ is object.__init__ and cls.__new__ is object.__new__
            if not plain and not issubclass(made, Module) and not extends_builtin(made):
                raise SideEffect(f"{made.__name__} is not written in Python")
            self._call_pure(args, named, star)
        for value in [*args, *named.values(), *([] if star is None else [star])]:
            if issubclass(made, (tuple, list, dict, set, BaseException)):
                self.store_item(PLAIN, value)
            for name in getattr(made, "_fields", ()):
                self.store_attribute(PLAIN, name, value)
        return PLAIN
