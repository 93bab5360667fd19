"""The views again as copies, under PyTorch's names: `view_copy`, `permute_copy`, …"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from wayfare.api.functions._public import METHODS
from wayfare.api.functions.rearrange import clone
from wayfare.core.tensor import Tensor

__all__ = [
    "alias_copy", "as_strided_copy", "diagonal_copy", "expand_copy", "permute_copy", "split_copy",
    "split_with_sizes_copy", "squeeze_copy", "t_copy", "transpose_copy", "unbind_copy", "unfold_copy",
    "unsqueeze_copy", "view_copy", "detach_copy",
]  # fmt: skip


def _copying(view: str) -> Callable[..., Any]:
    """The function that makes the view and copies it."""
    function = METHODS[view]

    @functools.wraps(function)
    def call(input: Tensor, *args: Any, **options: Any) -> Any:
        out = function(input, *args, **options)
        return tuple(clone(part) for part in out) if isinstance(out, tuple) else clone(out)

    call.__name__ = call.__qualname__ = f"{view}_copy"
    call.__doc__ = f"What `{view}` shows, as a copy in its own memory."
    call.__module__ = __name__
    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call


as_strided_copy = _copying("as_strided")
diagonal_copy = _copying("diagonal")
expand_copy = _copying("expand")
permute_copy = _copying("permute")
split_copy = _copying("split")
split_with_sizes_copy = _copying("split_with_sizes")
squeeze_copy = _copying("squeeze")
t_copy = _copying("t")
transpose_copy = _copying("transpose")
unbind_copy = _copying("unbind")
unfold_copy = _copying("unfold")
unsqueeze_copy = _copying("unsqueeze")
view_copy = _copying("reshape")
view_copy.__name__ = view_copy.__qualname__ = "view_copy"
view_copy.__doc__ = "What `view` shows, as a copy in its own memory."


def alias_copy(input: Tensor) -> Tensor:
    """A copy in its own memory."""
    return clone(input)


def detach_copy(input: Tensor) -> Tensor:
    """A copy in its own memory, cut from the history."""
    return clone(input.detach())
