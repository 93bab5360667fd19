"""Purity: does a function, or the `forward` of a module, only compute? Then its calls can be opaque.

A quick scan of the bytecode and of what it names. Whatever is not known to be pure counts as impure: writes to
attributes or items, prints, methods that mutate their object, functions of other libraries.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import itertools
import math
import operator
import types
from typing import Any

from wayfare.compiler.function import Compiled
from wayfare.core.callsite import is_debugged
from wayfare.core.spec import DType
from wayfare.core.tensor import Tensor
from wayfare.nn.module import Module

_FORBIDDEN = frozenset({
    "STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME",
    "DELETE_NAME", "STORE_SLICE", "IMPORT_NAME", "IMPORT_FROM", "YIELD_VALUE", "SEND", "GET_AWAITABLE", "BEFORE_WITH",
    "BEFORE_ASYNC_WITH", "PRINT_EXPR", "LOAD_BUILD_CLASS",
})  # fmt: skip
_MUTATORS = frozenset({
    "append", "extend", "insert", "pop", "popitem", "remove", "clear", "update", "add", "discard", "setdefault", "sort",
    "reverse", "write", "writelines", "send", "throw", "close", "seek", "backward", "register_hook", "retain_grad",
    "train", "eval", "to", "cuda", "cpu", "requires_grad", "grad", "data", "step", "zero_grad", "load_state_dict",
})  # fmt: skip
# Those of them that change tensors; and modes that a `with` block restores.
_TENSOR_MUTATORS = frozenset({"backward", "requires_grad", "grad", "data", "step", "zero_grad", "retain_grad"})
_MODES = frozenset({"no_grad", "enable_grad", "set_grad_enabled", "inference_mode"})
_PURE_BUILTINS = tuple(getattr(builtins, name) for name in (
    "abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "frozenset", "getattr", "hasattr",
    "int", "isinstance", "issubclass", "len", "list", "map", "max", "min", "pow", "range", "repr", "reversed", "round",
    "set", "slice", "sorted", "str", "sum", "super", "tuple", "type", "zip", "ValueError", "TypeError", "RuntimeError",
    "AssertionError",
))  # fmt: skip
_PURE_MODULES = (math, operator, itertools, functools)
_DATA = (int, float, complex, str, bytes, bool, type(None), tuple, list, dict, set, frozenset, Tensor, DType)
# Only this many items of a container are checked: a larger one holds data.
_MOST_ITEMS = 64
# Functions of Wayfare that change some global state, or that must run for each example.
_CHANGES_STATE = frozenset({
    "manual_seed", "seed", "set_rng_state", "set_default_dtype", "set_num_threads", "save", "no_grad", "enable_grad",
    "set_grad_enabled", "inference_mode", "set_printoptions", "map", "batching",
})  # fmt: skip


def only_computes(called: Any) -> bool:
    """Whether calls of a module or a function can be opaque: they only compute, from their arguments, their attributes
    and what their code names."""
    # No `try`: an error inside one must be raised there, so the code must run.
    return not is_debugged() and _is_pure(called, _PurityCheck(forbidden=_FORBIDDEN | {"PUSH_EXC_INFO"}))


def is_pure_function(function: Any) -> bool:
    """Whether a function only computes."""
    return _is_pure(function, _PurityCheck())


def mutates_only_tensors(function: Any) -> bool:
    """Whether a function changes nothing but tensors, their flags and gradients: then it can be restarted."""
    return _is_pure(function, _PurityCheck(tensors_change=True))


def _is_pure(function: Any, check: _PurityCheck) -> bool:
    try:
        return not check.of_value(function)
    except Exception:  # an object whose attributes raise errors
        return False


class _PurityCheck:
    """Scans code and what it names; each method returns True if something in it may be impure."""

    def __init__(self, tensors_change: bool = False, forbidden: frozenset[str] = _FORBIDDEN) -> None:
        self._seen: set[tuple[int, int | None]] = set()
        # True if writes to tensors and mode changes in `with` blocks are allowed.
        self._tensors_change = tensors_change
        self._forbidden = forbidden - {"BEFORE_WITH"} if tensors_change else forbidden

    def of_method(self, function: Any, owner: Any) -> bool:
        """A function, and the object it is a method of (or None)."""
        if isinstance(function, Compiled):
            function = function._function
        if not isinstance(function, types.FunctionType):
            return not is_library_code(function)
        if is_library_code(function):
            return self._changes_state(function.__name__) or (not self._tensors_change and _writes(function.__name__))
        # With the owner: the same code may call other things for another owner.
        if (id(function), id(owner)) in self._seen:
            return False
        self._seen.add((id(function), id(owner)))
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        return self._of_code(function.__code__, function.__globals__, cells, owner)

    def _of_code(self, code: types.CodeType, names: dict[str, Any], cells: dict[str, Any], owner: Any) -> bool:
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            return True
        for step in dis.get_instructions(code):
            if step.opname in self._forbidden or (step.opname == "STORE_DEREF" and step.argval in code.co_freevars):
                return True
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                if step.argval not in names and not hasattr(builtins, step.argval):
                    return True
                if self.of_value(names.get(step.argval, getattr(builtins, step.argval, None))):
                    return True
            elif step.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF") and step.argval in cells:
                if step.argval != "__class__" and self.of_value(cells[step.argval].cell_contents):
                    return True
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR") and self._of_name(step.argval, owner):
                return True
        return any(
            self._of_code(inner, names, cells, owner) for inner in code.co_consts if isinstance(inner, types.CodeType)
        )

    def _of_name(self, name: str, owner: Any) -> bool:
        """An attribute name: assumed to be of the owner or of a tensor."""
        if self._tensors_change and (name in _TENSOR_MUTATORS or _writes(name)):
            return False
        if name in _MUTATORS or self._changes_state(name) or _writes(name):
            return True
        if owner is None:
            return False
        found = inspect.getattr_static(owner, name, None)
        if isinstance(found, property):
            return self.of_method(found.fget, owner)
        if isinstance(found, (staticmethod, classmethod)):
            return self.of_method(found.__func__, owner)
        return self.of_method(found, owner) if isinstance(found, types.FunctionType) else self.of_value(found)

    def _changes_state(self, name: str) -> bool:
        return name in _CHANGES_STATE and not (self._tensors_change and name in _MODES)

    def of_value(self, value: Any) -> bool:
        """Any object that the code names."""
        if isinstance(value, Module):
            # With inner modules: the library's containers call modules of the user.
            return any([self.of_method(type(inner).forward, inner) for inner in value.modules()])
        if isinstance(value, Compiled):
            return self.of_value(value._function)
        if isinstance(value, types.FunctionType):
            return self.of_method(value, None)
        if isinstance(value, types.MethodType):
            return self.of_method(value.__func__, value.__self__)
        if isinstance(value, types.ModuleType):
            return value not in _PURE_MODULES and not is_library_module(value.__name__)
        if isinstance(value, (tuple, list, set, frozenset, dict)):
            if (id(value), None) in self._seen:
                return False
            self._seen.add((id(value), None))
            return self._of_items(value.values() if isinstance(value, dict) else value)
        if isinstance(value, _DATA) or any(value is builtin for builtin in _PURE_BUILTINS):
            return False
        # The library's own objects (fused functions, ...) are pure; other objects are unknown.
        return not is_library_code(value if isinstance(value, type) else type(value))

    def _of_items(self, items: Any) -> bool:
        """The items of a container, which may be called: checks functions, modules and inner containers."""
        for item in itertools.islice(items, _MOST_ITEMS):
            if (callable(item) or isinstance(item, (tuple, list, dict))) and self.of_value(item):
                return True
        return False


def _writes(name: str) -> bool:
    """Whether it is the name of an in-place method."""
    return name.endswith("_") and not name.endswith("__")


def is_library_code(value: Any) -> bool:
    """Whether a function or class belongs to Wayfare."""
    return is_library_module(getattr(value, "__module__", None) or "")


def is_library_module(name: str) -> bool:
    """Whether it is the name of a Python module of Wayfare. The demos count as user code."""
    return (name == "wayfare" or name.startswith("wayfare.")) and not name.startswith("wayfare.cli.demo")
