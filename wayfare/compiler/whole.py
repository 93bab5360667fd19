"""A compiled function while others run the ops: one call for automatic batching, plain Python for everybody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.compiler.guards import Guards
from wayfare.compiler.reach import reach
from wayfare.core.mode import executor, watcher


class WholeCall:
    """What automatic batching asks of a compiled function."""

    _function: Callable[..., Any]
    _name: str
    _is_method: bool

    def _elsewhere(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A call while somebody else runs the ops, or watches them."""
        if self._is_method and args:
            made = executor().whole_call(args[0], self._function, args[1:], options, self)
        else:
            made = executor().whole_call(self, _call_function, args, options, self)
        if made is not NotImplemented:
            return made
        looking = watcher()
        if looking is None:
            return self._function(*args, **options)
        looking.starts(self)
        try:
            return self._function(*args, **options)
        finally:
            looking.ended(self)

    # As one call of automatic batching: nothing is known of batches in front of its arguments.
    in_front = -1

    def name_in(self, owner: Any) -> str:
        """What its calls are called."""
        return self._name

    def guard(self, owner: Any) -> Callable[[], bool] | None:
        """A function that says whether all is as it is now; None where no guard can tell."""
        seen = reach(self._function, None if owner is self else (owner,))
        return None if seen.unguardable is not None else Guards(seen).still


def _call_function(owner: WholeCall, *args: Any, **options: Any) -> Any:
    return owner._function(*args, **options)
