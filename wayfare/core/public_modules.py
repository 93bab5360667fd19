"""Imports of public modules by their public names: `wayfare.linalg` is the module `wayfare.api.linalg`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

__all__ = ["PublicModules"]


class PublicModules(MetaPathFinder):
    """Finds public modules by their public names. Both names give one module object.

    It must come before Python's own finders, which would take the folders of type stubs (`wayfare/utils/`) for
    packages.
    """

    def __init__(self, package: str, rooms: Mapping[str, str]) -> None:
        self._package = f"{package}."
        self._rooms = rooms

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(self._package):
            return None
        name, dot, inner = fullname[len(self._package) :].partition(".")
        if name not in self._rooms:
            return None
        real = f"{self._package}{self._rooms[name]}{dot}{inner}"
        return None if find_spec(real) is None else ModuleSpec(fullname, _SameModule(real))


class _SameModule(Loader):
    """Loads the real module for its public name, without changing it."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has replaced it by the spec of the public name
