"""Calls of modules as opaque calls: if `forward` only computes, its Python need not run for every example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.batch.analysis.purity import only_computes
from wayfare.compiler.opaque_call import opaque_guard
from wayfare.core.callsite import is_debugged
from wayfare.nn.containers import Sequential


def call_forward(module: Any, *args: Any, **options: Any) -> Any:
    """The function that an opaque call of a module runs."""
    return module.forward(*args, **options)


def declared_form(method: Any) -> Any:
    """(function, OpaqueInfo) for opaque calls of a method of the library's own layers, which declares it itself
    (`nn/one_call.py`); None if it does not."""
    declared = getattr(method, "as_one", None)
    # `functools.wraps` copies the declaration to a wrapper, which may do something else.
    return declared if declared is not None and method.__wrapped__ is declared[0] else None


def opaque_form_of(module: Any) -> Any:
    """(function, OpaqueInfo) for opaque calls of this module; False if its calls cannot be opaque."""
    declared = declared_form(type(module).forward)
    if declared is not None:
        return declared
    if is_debugged():
        return False  # under a debugger every line must run
    users = type(module) is Sequential or not type(module).__module__.startswith("wayfare.nn.")
    return (call_forward, MODULE_INFO) if users else False


class UsersCode:
    """The OpaqueInfo of code that the user wrote, and that is found to only compute."""

    in_front = -1
    # With fewer ops its calls are not opaque.
    least_steps = 0

    def code_of(self, owner: Any) -> Any:
        """What is called."""
        return owner

    def only_computes(self, owner: Any) -> bool:
        """Whether a call does nothing but compute."""
        raise NotImplementedError

    def suits(self, args: tuple[Any, ...]) -> bool:
        """Whether a call with such arguments may be opaque."""
        return True

    def guard(self, owner: Any) -> Callable[[], bool] | None:
        """A function that tells whether everything the code reads is unchanged; None if it does more than compute."""
        return opaque_guard(self.code_of(owner)) if self.only_computes(owner) else None


class ModuleInfo(UsersCode):
    """The OpaqueInfo of the user's modules."""

    def name_in(self, module: Any) -> str:
        """The name of its class."""
        return type(module).__name__

    def only_computes(self, module: Any) -> bool:
        """Whether `forward` does nothing but compute."""
        return only_computes(module)


MODULE_INFO = ModuleInfo()
