"""`@one_call`: methods of layers and functions that automatic batching takes as one call, not as the ops inside."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from wayfare.core.mode import STATE, UNUSUAL
from wayfare.core.native import in_front_of_calls
from wayfare.core.structure_epoch import EPOCH
from wayfare.core.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def one_call(method: F) -> F:
    """For methods that depend on their arguments and the layer's own attributes only, and take a batch in front of
    arguments of one dimension."""
    return _as_one(method, _OfLayer(method.__name__, most=1))


def one_call_of_a_cell(steps: Callable[..., tuple[Tensor, ...]]) -> Callable[[F], F]:
    """The same for a recurrent cell, `forward(input, state)`, whose results are the next state.

    `steps(cell, rows, states, sizes)` runs it over many sequences: `rows` are the inputs in order of time, `sizes` how
    many sequences each step has, which never rises. It returns the states after every row.
    """
    return lambda method: _as_one(method, _OfLayer(method.__name__, most=1, steps=steps))


def one_call_of_any_rank(
    only_if: Callable[[Any], bool] = lambda layer: True, fits: Callable[[Any, Any], bool] | None = None
) -> Callable[[F], F]:
    """The same for methods that take a batch in front of arguments of any rank, if `only_if(layer)` holds.

    `fits(layer, array of the first argument)` says quickly that a call cannot fail, if that is an ordinary tensor. If
    integers fit that are at least 0 and less than an attribute of the layer, `fits.below` is the name of that.
    """
    return lambda method: _as_one(method, _OfLayer(method.__name__, most=64, only_if=only_if, fits=fits))


def _opaquely(owner: Any, function: Any, args: tuple[Any, ...], options: dict[str, Any], about: Any) -> Any:
    """A call that automatic batching takes as one; NotImplemented where it just runs."""
    mode = STATE.mode
    if mode is None or mode.plain_calls:
        return NotImplemented
    return mode.executor.opaque_call(owner, function, args, options, about)


_opaquely = in_front_of_calls(_opaquely, "layer")


def _as_one(method: F, about: _OfLayer) -> F:

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        made = _opaquely(self, method, args, options, about) if UNUSUAL else NotImplemented
        return method(self, *args, **options) if made is NotImplemented else made

    # For a call of the layer itself, which passes through here only if it is not taken as one.
    call.as_one = (method, about)  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def one_call_function(function: F) -> F:
    """The same for a function that depends on its arguments only, also if it treats a batch in front in its own way."""
    about = _OfFunction(function.__name__)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        made = _opaquely(function, _run, args, options, about) if UNUSUAL else NotImplemented
        return function(*args, **options) if made is NotImplemented else made

    return call  # type: ignore[return-value]


def _run(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(*args, **options)


class _OfFunction:
    """What automatic batching knows about such a function."""

    in_front = -1

    def __init__(self, name: str) -> None:
        self._name = name

    def name_in(self, function: Any) -> str:
        """The function's own name."""
        return self._name

    def guard(self, function: Any) -> Callable[[], bool]:
        """It depends on its arguments only."""
        return _always


def _always() -> bool:
    return True


_always.by_epoch = True  # type: ignore[attr-defined]


class _OfLayer:
    """What automatic batching knows about such a method."""

    def __init__(
        self, method: str, most: int, only_if: Callable[[Any], bool] = lambda layer: True,
        fits: Callable[[Any, Any], bool] | None = None, steps: Callable[..., tuple[Tensor, ...]] | None = None,
    ) -> None:  # fmt: skip
        self._method = method
        self.fits = fits
        self.steps = steps
        self._only_if = only_if
        self.in_front = most

    def name_in(self, layer: Any) -> str:
        """The layer's name, and the method's if it is not the usual one."""
        name = type(layer).__name__
        return name if self._method == "forward" or self._method.startswith("_") else f"{name}.{self._method}"

    def guard(self, layer: Any) -> Callable[[], bool] | None:
        """A function that says whether the attributes of the layer are still the same."""
        return _snapshot(layer) if self._only_if(layer) else None


def _snapshot(layer: Any) -> Callable[[], bool]:
    """A function that says whether the attributes of the layer are still the same."""
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

    # It need not be asked again in the same epoch.
    holds.by_epoch = True  # type: ignore[attr-defined]
    return holds


def _wanted(attributes: dict[str, Any]) -> list[bool]:
    return [value.requires_grad for value in attributes.values() if isinstance(value, Tensor)]
