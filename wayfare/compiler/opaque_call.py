"""A compiled function under another executor is its plain function. Guards for calls that automatic batching takes as
one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.compiler.captures.bytecode import facts
from wayfare.compiler.captures.guards import Guards
from wayfare.compiler.captures.reach import reach
from wayfare.core.mode import executor, watcher


class Elsewhere:
    """The part of a compiled function that is called where nothing can be recorded or replayed."""

    _function: Callable[..., Any]
    _is_method: bool

    def _elsewhere(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A call while another executor runs the ops, or an observer watches them."""
        observer = watcher()
        if observer is None:
            return executor().compiled_call(self, self._function, args, options)
        observer.starts(self)
        try:
            return executor().compiled_call(self, self._function, args, options)
        finally:
            observer.ended(self)


def opaque_guard(function: Any) -> Callable[[], bool] | None:
    """A function that checks whether all captures of `function` are unchanged. None if they cannot be guarded, or if
    its code asks by `is` which tensor an argument is: a trace has other tensors."""
    seen = reach(function)
    if seen.unguardable is not None or any([facts(code).identity for code in seen.codes]):
        return None
    return Guards(seen)
