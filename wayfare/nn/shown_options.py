"""What `extra_repr` of a layer shows: its options, or those that are not as usual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def shows(*names: str) -> Callable[[Any], str]:
    """An `extra_repr` that shows these options; "inplace" only where it is set."""

    def extra_repr(self: Any) -> str:
        """The options of the layer."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names if name != "inplace" or self.inplace)

    return extra_repr


def differing(module: Any, **usual: Any) -> list[str]:
    """The options that have another value than the usual one, for `extra_repr`."""
    return [f"{name}={getattr(module, name)}" for name, value in usual.items() if getattr(module, name) != value]
