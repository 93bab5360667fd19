"""The native module (wayfare/native), if this installation has one: the cost of a small op, in C.

It is optional. Everything it does is also written in Python: each native function holds the Python function that it
replaces, and calls it in unusual cases. `WAYFARE_NATIVE=0` runs the Python ones, `WAYFARE_NATIVE=path` loads another
build.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, TypeVar

from wayfare.core.version import __version__

F = TypeVar("F", bound=Callable[..., Any])


def _load() -> tuple[Any, str]:
    """The module or None, and a sentence about it for `wayfare doctor`."""
    wanted = os.environ.get("WAYFARE_NATIVE", "")
    if wanted == "0":
        return None, "switched off by WAYFARE_NATIVE=0"
    try:
        if wanted in ("", "1"):
            found: Any = importlib.import_module("wayfare.core._native")
        else:
            spec: Any = spec_from_file_location("wayfare.core._native", wanted)
            found = module_from_spec(spec)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError):
            return None, "not built: no C compiler or no Python headers were found"
        return None, f"does not load: {error}"
    if found.version != __version__:
        return None, f"built for Wayfare {found.version}: install again"
    return found, "in use"


NATIVE, STATE_OF_NATIVE = _load()


def in_front_of(function: F, arity: int) -> F:
    """`apply1`, `apply2` or `apply3` with the native one in front."""
    return function if NATIVE is None else NATIVE.Apply(function, arity)


def in_front_of_calls(function: F, what: str, *more: Any) -> F:
    """A function that `wf.map` calls for every recorded call, with the native one in front (`native/calls.h`)."""
    return function if NATIVE is None else NATIVE.CallFront(function, what, *more)


def as_op(
    function: F, op: Any, arity: int, *, floats_only: bool, numbers: bool = False, reverse: bool = False,
    number_first: bool = False,
) -> F:  # fmt: skip
    """Say that a method or operator is one op on its operands, if they are tensors of one dtype (or `numbers`)."""
    if NATIVE is not None:
        function.native = NATIVE.Method(  # type: ignore[attr-defined]
            function, op, arity, floats_only, numbers, reverse, number_first
        )
    return function


def as_view(function: F) -> F:
    """Say that a method is one view op, which its arguments and the layout of the tensor decide."""
    if NATIVE is not None:
        function.native = NATIVE.ViewMethod(function)  # type: ignore[attr-defined]
    return function


def method_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """What Tensor has as its method: the native form of a function, if there is one."""
    return getattr(function, "native", function)
