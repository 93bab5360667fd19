"""`_modules`, `_parameters` and `_buffers` of a module: what it has registered, by name, as PyTorch programs read it.

They are views: what is read is what the module holds now, and what is assigned is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

__all__ = ["BUFFER", "MODULE", "PARAMETER", "TRANSIENT", "Table", "table"]

# What a name of a module may be registered as.
PARAMETER, BUFFER, TRANSIENT, MODULE = "parameter", "buffer", "buffer that is not saved", "module"


class Table(MutableMapping[str, Any]):
    """What a module has registered as one of these kinds."""

    def __init__(self, module: Any, kinds: tuple[str, ...], register: Callable[[str, Any], None]) -> None:
        self._module = module
        self._kinds = kinds
        self._register = register

    def __contains__(self, name: object) -> bool:
        return self._module._names.get(name) in self._kinds

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return self._module.__dict__[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._register(name, value)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        delattr(self._module, name)

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, kind in self._module._names.items() if kind in self._kinds])

    def __len__(self) -> int:
        return sum(kind in self._kinds for kind in self._module._names.values())

    def __repr__(self) -> str:
        return repr(dict(self))


def table(kinds: tuple[str, ...], register: str) -> property:
    """A property of a class that has the method `register`: what is registered as one of these kinds."""
    return property(lambda module: Table(module, kinds, getattr(module, register)))
