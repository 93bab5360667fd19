"""Guards of public functions: an error that names the wrong argument in place of Python's own message.

Only the names of the package (`wf.floor`) are guarded. Methods always have their tensor, and a guard around them would
make every small call some 5 % slower, so a wrong keyword (`x.sum(axis=1)`) gets Python's own sentence there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from wayfare.core.errors import ArgumentTypeError, WayfareError
from wayfare.core.tensor import Tensor

# Other libraries' names for our arguments.
_OUR_NAMES = {"axis": "dim", "axes": "dim", "keepdims": "keepdim", "x": "input", "a": "input"}


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; if it fails because an argument is not a tensor, the error says so."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except (AttributeError, TypeError) as error:
            if isinstance(error, WayfareError):
                raise
            better = _explained(function, args, options)
            if better is None:
                raise
            raise better from None

    return call


def is_ragged(value: Any) -> bool:
    """Is it rows of different lengths, packed? `wf.Ragged` lies above, so it is known by its parts."""
    return isinstance(getattr(value, "values", None), Tensor) and isinstance(getattr(value, "offsets", None), Tensor)


def tensor_advice(value: Any, usual: str = "Make a tensor of it with wf.tensor(...).") -> str:
    """The advice for an argument that should have been a tensor."""
    if is_ragged(value):
        return "It has rows of different lengths: use r.map_values(f), or give r.values."
    return usual


def _explained(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> WayfareError | None:
    """The sentence for a call that Python could not make, or that was given something else than a tensor."""
    signature = inspect.signature(function)
    name = function.__name__
    unknown = next((key for key in options if key not in signature.parameters), None)
    if unknown is not None and not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        ours = _OUR_NAMES.get(unknown)
        fix = f"Use {ours}=." if ours in signature.parameters else f"Its arguments are {signature}."
        return ArgumentTypeError(f"{name}: there is no argument {unknown!r}", fix=fix)
    try:
        given = signature.bind(*args, **options).arguments
    except TypeError as error:
        return ArgumentTypeError(f"{name}: {error}", fix=f"Its arguments are {signature}.")
    for key, value in given.items():
        if signature.parameters[key].annotation in ("Tensor", Tensor) and not isinstance(value, Tensor):
            return ArgumentTypeError(f"{name}: {key} must be a Tensor, not {type(value).__name__}",
                                     fix=tensor_advice(value, "Make one with wf.tensor(...)."))  # fmt: skip
    return None
