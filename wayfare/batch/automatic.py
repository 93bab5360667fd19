"""Modules of the user's as one call: where `forward` only computes, its Python need not run for every example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.batch.pure import only_computes
from wayfare.compiler.captures.guards import Guards
from wayfare.compiler.captures.reach import reach
from wayfare.core.callsite import is_debugged
from wayfare.nn.containers import Sequential


def forward_of(module: Any, *args: Any, **options: Any) -> Any:
    """What a call of the module comes to."""
    return module.forward(*args, **options)


def as_whole(module: Any) -> Any:
    """What a call of such a module is as one call: (function, what is to know of it); False where there is none.

    The library's own layers say themselves whether they are one call.
    """
    forward = type(module).forward
    told = getattr(forward, "as_one", None)
    # `functools.wraps` hands on what is told of the function it wraps: that is not what the wrapper does.
    if told is not None and forward.__wrapped__ is told[0]:
        return told
    if is_debugged():
        return False  # Somebody steps through the code and wants to see it run.
    users = type(module) is Sequential or not type(module).__module__.startswith("wayfare.nn.")
    return (forward_of, OF_MODULE) if users else False


class OfModule:
    """What automatic batching needs to know of a user's module."""

    in_front = -1

    def name_in(self, module: Any) -> str:
        """The name of its class."""
        return type(module).__name__

    def guard(self, module: Any) -> Callable[[], bool] | None:
        """A function that says whether all is as it is now; None where the module does more than compute."""
        if not only_computes(module):
            return None
        seen = reach(module)
        return None if seen.unguardable is not None else Guards(seen).still


OF_MODULE = OfModule()
