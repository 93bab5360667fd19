"""What modules and parameters are called, and which call of which module is running."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from wayfare.core.errors import ArgumentTypeError
from wayfare.nn import Module


class Naming:
    """Names of the parts of models, and the calls that were made of them.

    A module without a name, called from outside of all modules, is named after its class.
    """

    def __init__(self, given: Any) -> None:
        # For each module: the number of its root, the path from there, and its class.
        self.modules: list[tuple[int, str, str]] = []
        self.roots: list[str] = []
        # (number of the module, the call around it, how often it was called before)
        self.calls: list[tuple[int, int, int]] = []
        self._numbers: dict[int, tuple[int, Module]] = {}
        self._counts: dict[int, int] = {}
        self._known: dict[int, tuple[Any, int, str]] = {}
        # By example, because examples of a batch take turns: the calls that are running.
        self._running: dict[Any, list[int]] = {}
        self._innermost = -1
        for name, module in _by_name(given).items():
            self._add_root(name, module)

    def _add_root(self, name: str, root: Module) -> None:
        number = len(self.roots)
        self.roots.append(name)
        for path, module in root.named_modules():
            if id(module) not in self._numbers:
                self._numbers[id(module)] = (len(self.modules), module)
                self.modules.append((number, path, type(module).__name__))
        for path, tensor in (*root.named_parameters(), *root.named_buffers()):
            self._known.setdefault(id(tensor), (weakref.ref(tensor), number, path))

    def entered(self, module: Module, example: Any) -> None:
        """A call of a module begins."""
        if id(module) not in self._numbers:
            kind = type(module).__name__
            same = sum(root.partition("#")[0] == kind for root in self.roots)
            self._add_root(f"{kind}#{same + 1}" if same else kind, module)
        number = self._numbers[id(module)][0]
        running = self._running.setdefault(example, [])
        times = self._counts.get(number, 0)
        self._counts[number] = times + 1
        running.append(len(self.calls))
        self.calls.append((number, running[-2] if len(running) > 1 else -1, times))

    def left(self, example: Any) -> None:
        """The call that began last has ended."""
        running = self._running.get(example)
        if running:
            running.pop()
            if not running:
                del self._running[example]

    def running(self, example: Any) -> int:
        """The innermost call that is running; -1 outside of all."""
        running = self._running.get(example)
        self._innermost = running[-1] if running else -1
        return self._innermost

    def here(self) -> str:
        """The path of the module whose call was last found to be running."""
        return self.module_path(self._innermost)

    def of_tensor(self, tensor: Any) -> tuple[int, str] | None:
        """(root, path) of a parameter or buffer."""
        found = self._known.get(id(tensor))
        return None if found is None or found[0]() is not tensor else found[1:]

    def path(self, root: int, path: str) -> str:
        """A path as text. If there is only one model, its name is left out; a variable has no root (-1)."""
        name = self.roots[root] if root >= 0 and len(self.roots) > 1 else ""
        return f"{name}.{path}".strip(".")

    def module_path(self, call: int) -> str:
        """The path of the module of a call; empty outside of all."""
        if call < 0:
            return ""
        root, path, _ = self.modules[self.calls[call][0]]
        return self.path(root, path)

    def let_go(self) -> None:
        """The end: hold no module any longer."""
        self._numbers, self._known, self._running = {}, {}, {}


def _by_name(given: Any) -> dict[str, Module]:
    if given is None:
        return {}
    if isinstance(given, Module):
        return {type(given).__name__: given}
    if isinstance(given, Mapping) and all(isinstance(m, Module) for m in given.values()):
        return {str(name): module for name, module in given.items()}
    if isinstance(given, (list, tuple)) and all(isinstance(m, Module) for m in given):
        return {f"{type(m).__name__}#{i + 1}": m for i, m in enumerate(given)}
    raise ArgumentTypeError(f"record: module is a model, a list of them or a dictionary of them by name, not {given!r}",
                            fix="Pass the model itself: wf.debug.record(module=model).")  # fmt: skip
