"""`@one_call`: a method of a layer that automatic batching takes as one call, not as the ops inside it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from wayfare.graph.epoch import EPOCH
from wayfare.state import STATE, UNUSUAL
from wayfare.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def one_call(method: F) -> F:
    """For methods that depend on their arguments and the layer's own attributes only, and take a batch in front of
    arguments of one dimension."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        if UNUSUAL:
            mode = STATE.mode
            whole = None if mode is None else getattr(mode.executor, "whole_call", None)
            if whole is not None:
                made = whole(self, method, args, options, guard=partial(_snapshot, self), in_front=True,
                             name=type(self).__name__ if method.__name__ == "forward" else
                             f"{type(self).__name__}.{method.__name__}")  # fmt: skip
                if made is not NotImplemented:
                    return made
        return method(self, *args, **options)

    return call  # type: ignore[return-value]


def _snapshot(layer: Any) -> Callable[[], bool]:
    """A function that says whether the layer's attributes are those of now."""
    reference = weakref.ref(layer)
    attributes = dict(layer.__dict__)
    wanted = _wanted(attributes)
    epoch = EPOCH[0]

    def holds() -> bool:
        nonlocal epoch
        now = EPOCH[0]
        if now == epoch:
            return True
        held = reference()
        if held is None or held.__dict__.keys() != attributes.keys():
            return False
        if any([held.__dict__[name] is not value for name, value in attributes.items()]):
            return False
        if _wanted(attributes) != wanted:
            return False
        epoch = now
        return True

    return holds


def _wanted(attributes: dict[str, Any]) -> list[bool]:
    return [value._requires_grad for value in attributes.values() if isinstance(value, Tensor)]
