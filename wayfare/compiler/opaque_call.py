"""A compiled function under another executor: one opaque call for automatic batching, plain Python otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.compiler.captures.bytecode import facts
from wayfare.compiler.captures.guards import Guards
from wayfare.compiler.captures.reach import reach
from wayfare.core.mode import executor, watcher


class OpaqueCall:
    """What automatic batching asks of a compiled function."""

    _function: Callable[..., Any]
    _name: str
    _is_method: bool

    def _elsewhere(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A call while another executor runs the ops, or an observer watches them."""
        if self._is_method and args:
            made = executor().opaque_call(args[0], self._function, args[1:], options, self)
        else:
            made = executor().opaque_call(self, _call_function, args, options, self)
        if made is not NotImplemented:
            return made
        observer = watcher()
        if observer is None:
            return self._function(*args, **options)
        observer.starts(self)
        try:
            return self._function(*args, **options)
        finally:
            observer.ended(self)

    # For automatic batching: it is unknown whether the function accepts batch dimensions in front of its arguments.
    in_front = -1
    as_written = True

    def name_in(self, owner: Any) -> str:
        """The name under which its calls are counted."""
        return self._name

    def guard(self, owner: Any) -> Callable[[], bool] | None:
        """A function that checks whether all captures are unchanged; None if they cannot be guarded."""
        return opaque_guard(self._function, None if owner is self else (owner,))


def opaque_guard(function: Any, bound_self: Any = None) -> Callable[[], bool] | None:
    """A function that checks whether all captures of `function` are unchanged. None if they cannot be guarded, or if
    its code asks by `is` which tensor an argument is: a trace has other tensors."""
    seen = reach(function, bound_self)
    if seen.unguardable is not None or any([facts(code).identity for code in seen.codes]):
        return None
    return Guards(seen).still


def _call_function(owner: OpaqueCall, *args: Any, **options: Any) -> Any:
    return owner._function(*args, **options)
