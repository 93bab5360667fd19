"""Imports of public modules by their public names: `wayfare.linalg` is the module `wayfare.api.linalg`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

__all__ = ["LATER", "PublicModules", "later_name"]

# Names that a package has from a layer above it, loaded when they are asked for: package → name → module. The table is
# in `wayfare/__init__.py`; a name that is its module's own stands for the module itself.
LATER: dict[str, dict[str, str]] = {}


def later_name(package: str, name: str) -> object | None:
    """A name that a package has from above; None if there is none."""
    module = LATER.get(package, {}).get(name)
    if module is None:
        return None
    found = importlib.import_module(module)
    return getattr(found, name, found)



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
        public = fullname[len(self._package) :]
        parts = public.split(".")
        names = [".".join(parts[:count]) for count in (1, 2)]
        name = next((name for name in names if name in self._rooms), None)
        if name is None:
            return None
        real = f"{self._package}{self._rooms[name]}{public[len(name) :]}"
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
