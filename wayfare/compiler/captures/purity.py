"""Which code is the user's, and which values cannot be guarded: clocks, random numbers, files, iterators, …"""

from __future__ import annotations

import collections.abc
import contextvars
import io
import os
import pathlib
import random
import sys
import sysconfig
import threading
import types
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.core.callsite import whole_path

_PACKAGE = str(pathlib.Path(os.path.abspath(__file__)).parents[2]) + os.sep
_DEMO = os.path.join(_PACKAGE, "cli", "demo") + os.sep  # written as a user would write it
_PATHS = sysconfig.get_paths()
_INSTALLED = tuple({os.path.abspath(_PATHS[key]) + os.sep for key in ("purelib", "platlib")})
_STANDARD = tuple({os.path.abspath(_PATHS[key]) + os.sep for key in ("stdlib", "platstdlib")})
_NUMERIC = tuple(os.path.dirname(os.path.abspath(np.__file__)).removesuffix("numpy") + name + os.sep
                 for name in ("numpy", "scipy"))  # fmt: skip

_KNOWN = frozenset({"numpy", "scipy", "wayfare", "llvmlite", "greenlet"})
# Modules whose functions return something else at each call, or read what cannot be guarded.
_IMPURE_MODULES = frozenset({
    "time", "random", "_random", "secrets", "uuid", "inspect", "os", "posix", "nt", "genericpath", "io", "_io",
    "tempfile", "shutil", "glob", "socket", "subprocess", "urllib.request", "gc", "traceback", "contextvars",
})  # fmt: skip
_IMPURE_BUILTINS = frozenset({"open", "input", "eval", "exec", "globals", "locals", "__import__", "breakpoint"})
_IMPURE_NAMES = frozenset({
    ("sys", "_getframe"), ("sys", "exc_info"), ("sys", "getrefcount"), ("sys", "_current_frames"),
    ("threading", "get_ident"), ("threading", "current_thread"), ("threading", "active_count"),
    ("_thread", "get_ident"), ("_thread", "get_native_id"),
    ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today"),
})  # fmt: skip
_IMPURE_TYPES = (
    random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator, threading.local,
    contextvars.ContextVar, type(os.environ), types.FrameType, types.CoroutineType, types.AsyncGeneratorType,
)  # fmt: skip


@lru_cache(4096)
def is_installed_file(filename: str) -> str | None:
    """"library" for the standard library, NumPy, SciPy and Wayfare, "package" for other installed code, else None."""
    if filename.startswith(("<frozen", "<wayfare ", "<__array_function__")):
        return "library"
    path = whole_path(filename)
    if path.startswith(_PACKAGE):
        return None if path.startswith(_DEMO) else "library"
    if path.startswith(_NUMERIC):
        return "library"
    if path.startswith(_INSTALLED):
        return "package"
    return "library" if path.startswith(_STANDARD) else None


def is_user_namespace(filename: str, namespace: dict[str, Any]) -> bool:
    """Is code from this file the user's? So are installed packages that use Wayfare."""
    kind = is_installed_file(filename)
    return kind is None or (kind == "package" and _uses_wayfare(namespace))


# Modules of installed packages: how many names each had, and whether it uses Wayfare.
_SEEN: dict[str, tuple[int, bool]] = {}


def _uses_wayfare(namespace: dict[str, Any]) -> bool:
    module = str(namespace.get("__name__"))
    names, found = _SEEN.get(module, (-1, False))
    if names != len(namespace):
        found = _names_wayfare(namespace)
        _SEEN[module] = len(namespace), found
    return found


def _names_wayfare(namespace: dict[str, Any]) -> bool:
    for value in list(namespace.values()):
        origin = value.__name__ if type(value) is types.ModuleType else getattr(value, "__module__", None)
        if isinstance(origin, str) and origin.partition(".")[0] == "wayfare":
            return True
    return False


def is_user_function(function: types.FunctionType) -> bool:
    """Is a function the user's own? Then its code is read."""
    return is_user_namespace(function.__code__.co_filename, function.__globals__)


def is_user_module(module: types.ModuleType) -> bool:
    """Is a Python module the user's own?"""
    if module.__name__ == "__main__":
        return True
    filename = module.__dict__.get("__file__")
    if filename is None:  # created at run time, or written in C
        return not (_is_built_in(module.__name__) or module.__name__.partition(".")[0] in _KNOWN)
    return isinstance(filename, str) and filename.endswith(".py") and is_user_namespace(filename, module.__dict__)


def is_user_class(cls: type) -> bool:
    """Is a class the user's own?"""
    if not cls.__flags__ & (1 << 9):  # not a heap type: written in C
        return False
    module = sys.modules.get(cls.__module__)
    if module is None:
        return True
    return is_user_module(module) or (not hasattr(module, "__file__") and not _is_built_in(module.__name__))


def _is_built_in(name: str) -> bool:
    return name in sys.builtin_module_names or name in sys.stdlib_module_names


def impure(value: Any) -> str | None:
    """Why a value may change without an assignment, in words; None if it does not."""
    kind = type(value)
    if kind is types.ModuleType:
        name = value.__name__
        whole = name in _IMPURE_MODULES and name not in ("os", "io")
        return f"uses the module {name}" if whole or name.startswith("numpy.random") else None
    if isinstance(value, _IMPURE_TYPES):
        return f"uses a {kind.__module__}.{kind.__qualname__}"
    if isinstance(value, io.IOBase):
        return None if value in (sys.stdout, sys.stderr) or _only_written(value) else "reads a file"
    if isinstance(value, collections.abc.Iterator) and not is_user_class(kind):
        return f"continues an iterator ({kind.__name__}) from outside"
    if isinstance(value, type) or "function" in kind.__name__.lower() or "method" in kind.__name__:
        return _impure_callable(value)
    return None


def _impure_callable(value: Any) -> str | None:
    module = getattr(value, "__module__", None)
    name = getattr(value, "__name__", "")
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType):
        if isinstance(owner, _IMPURE_TYPES):
            return f"draws from {type(owner).__module__}.{name}"
        holder = owner.__name__ if isinstance(owner, type) else type(owner).__name__
        return f"calls {holder}.{name}" if (holder, name) in _IMPURE_NAMES else None
    if not isinstance(module, str):
        return None
    if module == "builtins":
        return f"calls {name}" if name in _IMPURE_BUILTINS else None
    if isinstance(value, type) and module in ("os", "io", "_io", "inspect", "traceback"):
        return None
    if (module, name) == ("uuid", "UUID") or not _is_impure_origin(module, name):
        return None
    return f"calls {module}.{name}"


def _is_impure_origin(module: str, name: str) -> bool:
    return module in _IMPURE_MODULES or module.startswith("numpy.random") or (module, name) in _IMPURE_NAMES


def _only_written(stream: Any) -> bool:
    try:
        return not stream.readable()
    except (ValueError, OSError):
        return False
