"""The allow-list of library functions and classes that compiled functions may use: those that depend on arguments only.

Anything that is neither listed here nor the user's own code makes a function run as plain Python.
"""

from __future__ import annotations

import collections
import datetime
import enum
import functools
import operator
import re
import types
import typing
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.compiler.captures.purity import is_installed_file

# Built-in functions whose results depend on their arguments only, or that only print.
_BUILTINS = frozenset({
    "abs", "all", "any", "ascii", "bin", "callable", "chr", "delattr", "dir", "divmod", "format", "getattr", "hasattr",
    "hex", "isinstance", "issubclass", "iter", "len", "max", "min", "next", "oct", "ord", "pow", "print", "repr",
    "round", "setattr", "sorted", "sum", "vars", "__build_class__",
})  # fmt: skip
# Modules in C with such functions.
_C_MODULES = frozenset({
    "math", "cmath", "_operator", "operator", "itertools", "_functools", "_collections", "_bisect", "_heapq", "_struct",
    "_statistics", "binascii", "_json", "_sre", "_abc", "_string", "zlib", "numpy", "numpy._core._multiarray_umath",
    "numpy.core._multiarray_umath", "numpy.linalg._umath_linalg", "numpy._core.multiarray", "numpy.core.multiarray",
    "_warnings", "_typing",
})  # fmt: skip
# Types whose methods depend on the object and the arguments only. Captured containers are guarded.
_TYPES: tuple[type, ...] = (
    str, bytes, bytearray, int, float, complex, bool, tuple, frozenset, range, slice, list, dict, set, type(None),
    collections.deque, collections.OrderedDict, collections.defaultdict, type({}.keys()), type({}.values()),
    type({}.items()), types.GeneratorType, types.MappingProxyType, np.ndarray, np.generic, np.dtype, re.Pattern,
    re.Match, BaseException, memoryview, types.SimpleNamespace, datetime.date, datetime.time, datetime.timedelta,
    datetime.timezone, operator.itemgetter, functools.partial, types.CellType, types.FunctionType,
)  # fmt: skip
# Methods of these types that read a clock.
_CLOCKS = frozenset({"now", "utcnow", "today", "fromtimestamp", "utcfromtimestamp", "astimezone", "timestamp"})
# Classes in C that may be used.
_CLASSES = frozenset({
    *_TYPES, object, type, super, property, staticmethod, classmethod, enumerate, zip, map, filter, reversed,
    datetime.datetime, types.MethodType, types.BuiltinFunctionType, types.ModuleType, types.CodeType,
    types.GenericAlias, types.UnionType, functools.partial, operator.attrgetter, operator.methodcaller, np.ufunc,
    np.ndarray, enum.EnumType,
})  # fmt: skip
# Modules of the standard library, written in Python, whose functions depend on their arguments only.
_MODULES = frozenset({
    "functools", "collections", "collections.abc", "_collections_abc", "contextlib", "dataclasses", "enum", "typing",
    "types", "abc", "_py_abc", "copy", "copyreg", "operator", "re", "re._compiler", "re._parser", "string", "textwrap",
    "statistics", "fractions", "numbers", "bisect", "heapq", "json", "json.encoder", "json.decoder", "reprlib",
    "keyword", "itertools", "math", "cmath", "sre_compile", "sre_parse", "graphlib", "struct",
    "colorsys", "datetime", "_pydatetime", "numpy", "scipy", "typing_extensions",
})  # fmt: skip
# Functions in these modules that keep state from call to call.
_KEEPING = frozenset({
    "singledispatch.<locals>.wrapper", "singledispatch.<locals>.dispatch", "singledispatchmethod.__get__",
    "singledispatchmethod.__get__.<locals>._method", "cached_property.__get__", "_lru_cache_wrapper.<locals>.wrapper",
})  # fmt: skip
# Functions that only log or warn; what they do inside does not matter.
_TELLING = frozenset({
    "Logger.debug", "Logger.info", "Logger.warning", "Logger.error", "Logger.critical", "Logger.exception",
    "Logger.log", "warn", "warn_explicit", "debug", "info", "warning", "error", "critical", "log",
})  # fmt: skip
# Parts of Wayfare that read files or keep state.
_IMPURE_PARTS = tuple(f"wayfare.{part}." for part in (
    "io", "data", "train", "cli", "exporters", "see.profile", "see.debug", "see.viewer", "see.report",
    "see.tensorboard", "api.testing",
))  # fmt: skip
# But a loaded program depends on its arguments only.
_PURE = frozenset({"wayfare.exporters.bundle.loaded", "wayfare.exporters.bundle.run"})
# Functions that read or set state of the whole process.
_NUMPY_STATE = frozenset({
    "geterr", "seterr", "geterrcall", "seterrcall", "getbufsize", "setbufsize", "get_printoptions", "set_printoptions",
    "errstate.__enter__", "printoptions", "show_config",
})  # fmt: skip
_OWN_STATE = frozenset({
    "initial_seed", "seed", "get_rng_state", "set_rng_state", "Generator.initial_seed", "Generator.seed",
    "Generator.get_state", "Generator.set_state", "get_num_threads", "set_num_threads", "get_num_interop_threads",
    "set_num_interop_threads", "set_printoptions", "fork_rng", "set_default_dtype", "set_default_tensor_type",
    "set_default_device", "use_deterministic_algorithms", "set_float32_matmul_precision", "set_anomaly_enabled",
    "are_deterministic_algorithms_enabled", "get_float32_matmul_precision",
})  # fmt: skip
_NUMPY_IMPURE = ("numpy.random", "numpy.lib.npyio", "numpy.lib._npyio_impl", "numpy.ctypeslib")


# The descriptor type of named tuple fields.
_FIELD: Any = type(vars(collections.namedtuple("_Field", "x"))["x"])


def known_type(cls: type) -> bool:
    """May a class that is not the user's be used? Classes in Python may: the call audit sees their methods run."""
    if cls in _CLASSES or issubclass(cls, (BaseException, np.generic, enum.Enum)):
        return True
    if cls.__module__ == "itertools":
        return True
    return any(name in base.__dict__ for base in cls.__mro__ for name in ("__slots__", "__dict__", "__weakref__"))


@lru_cache(1024)
def takes_steps(cls: type) -> bool:
    """Is it an optimiser or a learning rate schedule, of Wayfare or derived from one?"""
    return any(base.__module__.startswith("wayfare.optim") for base in cls.__mro__)


def keeps_schedule(cls: type) -> bool:
    """Is it a learning rate schedule? It notices itself when its attributes are read."""
    return any((base.__module__, base.__name__) == ("wayfare.optim.lr_scheduler.base", "LRScheduler")
               for base in cls.__mro__)  # fmt: skip


# Modules whose objects tell the recorder themselves when they are used: what they hold need not be guarded.
_TELLING_MODULES = frozenset({
    "wayfare.core.generator", "wayfare.distributed.buckets", "wayfare.distributed.process_group",
})  # fmt: skip


def tells_itself(cls: type) -> bool:
    """Does an object of this class say itself when it is used?"""
    return cls.__module__ in _TELLING_MODULES


def known_instance(value: Any) -> tuple[str, ...] | None:
    """The attributes that an object in C reads when it is used; None if that is not known."""
    kind = type(value)
    if kind in (operator.attrgetter, operator.methodcaller):
        found = value.__reduce__()[1]
        words = found if kind is operator.attrgetter else found[:1]
        return tuple(part for word in words if isinstance(word, str) for part in word.split("."))
    if isinstance(value, (np.ufunc, operator.itemgetter, re.Match, types.NotImplementedType, types.EllipsisType,
                          typing.TypeVar)):  # fmt: skip
        return ()
    if isinstance(value, type) or kind in (types.GenericAlias, types.UnionType, object):
        return ()
    return () if kind.__module__ in ("wayfare.core.op", "typing") or kind is _FIELD else None


def unknown_call(function: Any) -> str | None:
    """Why a function in C is not trusted, in words; None if it is."""
    name = getattr(function, "__name__", "?")
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        if isinstance(function, types.BuiltinFunctionType):
            module = getattr(function, "__module__", None) or ""
            if module == "builtins":
                return None if name in _BUILTINS else f"calls {name}()"
            return None if module in _C_MODULES else f"calls {module}.{name}"
        kind = getattr(function, "__objclass__", type(function))  # a method of a type, taken from the type
    else:
        kind = owner if isinstance(owner, type) else type(owner)
    if name in _CLOCKS:
        return f"calls {kind.__name__}.{name}"
    if issubclass(kind, _TYPES) or kind in (object, type) or issubclass(kind, type):
        return None
    if kind.__module__ in ("itertools", "builtins", "_operator", "functools") and kind is not type(_LRU):
        return None
    if kind.__flags__ & (1 << 9) and any(issubclass(kind, base) for base in _TYPES):
        return None
    return f"calls {kind.__module__}.{kind.__name__}.{name}"


_LRU = lru_cache(lambda: None)


def unknown_code(code: types.CodeType, module: str) -> str | None:
    """Why a Python function of a library is not trusted, in words; None if it is."""
    where = is_installed_file(code.co_filename)
    name = code.co_qualname
    if module == "wayfare" or module.startswith("wayfare."):
        impure = f"{module}.".startswith(_IMPURE_PARTS) and module not in _PURE
        return f"calls {module}.{name}" if impure else None
    if module.startswith("numpy") or module.startswith("scipy"):
        impure = module.startswith(_NUMPY_IMPURE) or name in _NUMPY_STATE
        return f"calls {module}.{name}" if impure else None
    if code.co_filename.startswith(("<frozen importlib", "<__array_function__", "<string>")):
        return None  # an import of a loaded module; functions that libraries generate
    if where is not None and (module in _MODULES or module.partition(".")[0] in ("numpy", "scipy")):
        return f"calls {module}.{name}" if name in _KEEPING else None
    return f"calls {module}.{name}, which is not known to depend on its arguments only"


def reads_our_state(code: types.CodeType, module: str) -> bool:
    """Is it a function of Wayfare that reads or sets state of the whole process?"""
    return code.co_qualname in _OWN_STATE and module.startswith("wayfare.")


def is_telling(code: types.CodeType, module: str) -> bool:
    """Does a function only log or warn? Then the calls inside it do not matter."""
    return module in ("logging", "warnings") and code.co_qualname in _TELLING
