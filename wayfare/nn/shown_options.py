"""`extra_repr` of layers: all options, or those that differ from the default."""

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
    """The options that differ from the default, for `extra_repr`."""
    return [f"{name}={getattr(module, name)}" for name, value in usual.items() if getattr(module, name) != value]
