"""Names of what is in a graph: `%3` for a node, the path of a parameter for a leaf whose module is known, else `%a`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wayfare.core.errors import ArgumentTypeError
from wayfare.core.node import Node

_FIX = "Give a module, or a dictionary of modules and tensors by name."


class Names:
    """The names of leaves and nodes, and the modules that leaves belong to."""

    def __init__(self, nodes: Sequence[Node], leaves: Sequence[Any], modules: Any) -> None:
        # id of a leaf → (its path, the path of its module, the kind of module)
        self._known = _known_leaves(modules)
        self._of: dict[Any, str] = {}
        count = 0
        for leaf in leaves:
            if id(leaf) in self._known:
                self._of[leaf] = self._known[id(leaf)][0]
            else:
                self._of[leaf] = f"%{letters(count)}"
                count += 1
        self._of.update((node, f"%{i}") for i, node in enumerate(nodes))

    def __getitem__(self, what: Any) -> str:
        """The name of a node or leaf of the graph; `·` for anything else."""
        return self._of.get(what, "·")

    def path(self, leaf: Any) -> str:
        """The path of a leaf in its module; empty where no module was given for it."""
        return self._known.get(id(leaf), ("", "", ""))[0]

    def module(self, leaf: Any) -> tuple[str, str] | None:
        """(path, kind) of the module that a leaf belongs to."""
        found = self._known.get(id(leaf))
        return None if found is None else found[1:]

    @property
    def has_modules(self) -> bool:
        """Was any module given?"""
        return bool(self._known)


def _known_leaves(modules: Any) -> dict[int, tuple[str, str, str]]:
    if modules is None:
        return {}
    given = modules if isinstance(modules, Mapping) else {"": modules}
    found: dict[int, tuple[str, str, str]] = {}
    for name, thing in given.items():
        if not isinstance(name, str):
            raise ArgumentTypeError(f"graph: a module's name must be a string, not {type(name).__name__}", fix=_FIX)
        if hasattr(thing, "named_modules"):
            for path, module in thing.named_modules():
                whole = _joined(name, path)
                for own, parameter in module.named_parameters(recurse=False):
                    found.setdefault(id(parameter), (_joined(whole, own), whole, type(module).__name__))
        elif hasattr(thing, "requires_grad") and name:
            found.setdefault(id(thing), (name, "", ""))
        else:
            raise ArgumentTypeError(f"graph: expected a module, not {type(thing).__name__}", fix=_FIX)
    return found


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def letters(i: int) -> str:
    """a, b, …, z, aa, ab, …"""
    text = ""
    i += 1
    while i:
        i, rest = divmod(i - 1, 26)
        text = chr(97 + rest) + text
    return text
