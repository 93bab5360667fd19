"""Calls of modules as opaque calls: if `forward` only computes, its Python need not run for every example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.batch.analysis.purity import is_pure_module
from wayfare.compiler.captures.guards import Guards
from wayfare.compiler.captures.reach import reach
from wayfare.core.callsite import is_debugged
from wayfare.nn.containers import Sequential


def call_forward(module: Any, *args: Any, **options: Any) -> Any:
    """The function that an opaque call of a module runs."""
    return module.forward(*args, **options)


def opaque_form_of(module: Any) -> Any:
    """(function, OpaqueInfo) for opaque calls of this module; False if its calls cannot be opaque.

    The library's own layers declare it themselves (`nn/one_call.py`).
    """
    forward = type(module).forward
    declared = getattr(forward, "as_one", None)
    # `functools.wraps` copies the declaration to a wrapper, which may do something else.
    if declared is not None and forward.__wrapped__ is declared[0]:
        return declared
    if is_debugged():
        return False  # under a debugger every line must run
    users = type(module) is Sequential or not type(module).__module__.startswith("wayfare.nn.")
    return (call_forward, MODULE_INFO) if users else False


class ModuleInfo:
    """The OpaqueInfo of the user's modules."""

    in_front = -1

    def name_in(self, module: Any) -> str:
        """The name of its class."""
        return type(module).__name__

    def guard(self, module: Any) -> Callable[[], bool] | None:
        """A function that tells whether everything `forward` reads is unchanged; None if it does more than compute."""
        if not is_pure_module(module):
            return None
        seen = reach(module)
        return None if seen.unguardable is not None else Guards(seen).still


MODULE_INFO = ModuleInfo()
