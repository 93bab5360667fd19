"""Functions, types and methods of the standard library and NumPy that are known to have no side effects.

Whatever is not listed here counts as having side effects.
"""

from __future__ import annotations

import array
import bisect
import builtins
import collections
import contextlib
import contextvars
import datetime
import decimal
import fractions
import heapq
import operator
import os
import random
import re
import struct
import sys
import sysconfig
import threading
import types
from typing import Any

import numpy as np

from wayfare.core.tensor import Tensor
from wayfare.nn.module import Module

_PURE_BUILTINS = frozenset({
    "abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr", "complex", "dict", "divmod",
    "enumerate", "filter", "float", "format", "frozenset", "hasattr", "hash", "hex", "id", "int", "isinstance",
    "issubclass", "iter", "len", "list", "map", "max", "memoryview", "min", "next", "object", "oct", "ord", "pow",
    "range", "repr", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "zip", "property",
})  # fmt: skip
_PURE_MODULES = frozenset({
    "math", "cmath", "operator", "_operator", "itertools", "functools", "_functools", "collections", "_collections",
    "collections.abc", "_collections_abc", "copy", "re", "_sre", "string", "statistics", "fractions", "decimal",
    "_decimal", "numbers", "textwrap", "bisect", "_bisect", "heapq", "_heapq", "dataclasses", "typing", "enum", "types",
    "datetime", "struct", "_struct", "unicodedata", "abc", "_abc", "keyword", "difflib", "ast", "_ast", "contextvars",
    "_contextvars", "time", "array", "copyreg", "json", "json.decoder", "json.encoder", "_json",
})  # fmt: skip
# Functions of those modules that write to their arguments, or call any method of them.
_IMPURE_IN_MODULES = (struct.pack_into, operator.methodcaller)
_PURE_OBJECTS = (
    contextlib.suppress, contextlib.nullcontext, contextlib.ExitStack, np.random.default_rng, np.random.Generator,
    np.random.RandomState, np.random.SeedSequence, random.Random, threading.Lock, threading.RLock,
)  # fmt: skip
_IMPURE_IN_NUMPY = frozenset({
    "copyto", "put", "place", "putmask", "put_along_axis", "fill_diagonal", "save", "savez", "savez_compressed",
    "savetxt", "load", "loadtxt", "fromfile", "memmap", "seterr", "setbufsize", "set_printoptions", "errstate",
    "printoptions", "seterrcall", "nditer", "shuffle",
})  # fmt: skip
# Functions that mutate their first argument and nothing else.
_MUTATE_FIRST = (
    heapq.heappush, heapq.heappop, heapq.heapify, heapq.heappushpop, heapq.heapreplace, bisect.insort,
    bisect.insort_left, bisect.insort_right, setattr, delattr, operator.setitem, operator.delitem, operator.iadd,
    operator.iand, operator.iconcat, operator.ifloordiv, operator.ilshift, operator.imatmul, operator.imod,
    operator.imul, operator.ior, operator.ipow, operator.irshift, operator.isub, operator.itruediv, operator.ixor, next,
)  # fmt: skip
# Types implemented in C whose objects are changed only by methods that are not in the lists of pure methods below.
_NATIVE_TYPES = (
    list, dict, set, frozenset, tuple, str, bytes, bytearray, int, float, complex, collections.deque, np.ndarray,
    np.generic, np.dtype, np.ufunc, re.Pattern, re.Match, types.MappingProxyType, array.array, memoryview, range,
    decimal.Decimal, fractions.Fraction, datetime.date, datetime.time, datetime.timedelta, contextvars.ContextVar, type,
    types.GenericAlias, contextvars.Token,
)  # fmt: skip
_PURE_METHODS = frozenset({
    "get", "keys", "values", "items", "index", "count", "copy", "union", "intersection", "difference",
    "symmetric_difference", "issubset", "issuperset", "isdisjoint", "most_common", "elements", "total", "match",
    "search", "fullmatch", "findall", "finditer", "split", "sub", "subn", "reduce", "accumulate", "outer", "mro",
    # of arrays
    "sum", "mean", "min", "max", "argmax", "argmin", "std", "var", "any", "all", "astype", "reshape", "transpose",
    "ravel", "flatten", "tolist", "item", "dot", "take", "cumsum", "cumprod", "nonzero", "round", "clip", "prod",
    "squeeze", "swapaxes", "repeat", "searchsorted", "argsort", "tobytes", "diagonal", "trace", "conj", "view",
})  # fmt: skip
_PURE_SPECIAL_METHODS = frozenset({
    "__contains__", "__getitem__", "__len__", "__iter__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
    "__hash__", "__repr__", "__str__", "__bool__", "__add__", "__mul__", "__sub__", "__or__", "__and__", "__reversed__",
    "__init_subclass__", "__sizeof__", "__format__", "__dir__", "__new__", "__init__", "__call__", "__reduce_ex__",
})  # fmt: skip
_CONTEXTVAR_METHODS = frozenset({"get", "set", "reset"})
# Methods of these types may be called on an object that only one example can see.
_TYPES_OF_ONE_EXAMPLE = (
    Tensor, Module, list, dict, set, frozenset, tuple, str, bytes, bytearray, int, float, complex, collections.deque,
    collections.Counter, collections.OrderedDict, collections.defaultdict, np.ndarray, np.generic, np.random.Generator,
    range, slice, re.Match, re.Pattern, types.GeneratorType, fractions.Fraction, decimal.Decimal, datetime.datetime,
    datetime.timedelta, Exception, contextlib.ExitStack, contextvars.Token,
)  # fmt: skip
_METHODS_OF_ONE_EXAMPLE: frozenset[str] = frozenset().union(*map(dir, _TYPES_OF_ONE_EXAMPLE)) | {
    "sample",
    "rsample",
    "log_prob",
    "entropy",
    "cdf",
    "icdf",
    "perplexity",
    "enumerate_support",
    "_replace",
    "_asdict",
    "_make",
    "manual_seed",
    "random",
    "choice",
    "shuffle",
    "randint",
    "uniform",
    "gauss",
}
_RETURN_ITEMS = frozenset({
    "pop", "popleft", "popitem", "get", "setdefault", "values", "items", "keys", "copy", "send", "__next__",
    "__getitem__", "elements", "most_common", "union", "difference", "intersection", "symmetric_difference",
    "__iter__", "result",
})  # fmt: skip
_STDLIB_FOLDERS = tuple({os.path.abspath(sysconfig.get_paths()[key]) + os.sep for key in ("stdlib", "platstdlib")})


def is_stdlib_code(code: types.CodeType) -> bool:
    """Whether it is code of the standard library."""
    name = code.co_filename
    return name.startswith("<frozen") or (name.startswith(_STDLIB_FOLDERS) and "site-packages" not in name)


def is_pure(function: Any) -> bool:
    """Whether a function or type of the standard library or NumPy is known to have no side effects."""
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__name__", "")
    if module == "builtins":
        exception = isinstance(function, type) and issubclass(function, BaseException)
        return exception or (name in _PURE_BUILTINS and getattr(builtins, name) is function)
    if isinstance(function, np.ufunc):
        return True
    if module.partition(".")[0] in ("numpy", "scipy") and not module.startswith("numpy.random"):
        return name not in _IMPURE_IN_NUMPY
    if any([function is other or type(function) is other for other in _IMPURE_IN_MODULES]):
        return False
    return module in _PURE_MODULES or any([function is known for known in _PURE_OBJECTS])


def mutates_first(function: Any) -> bool:
    """Whether it mutates its first argument and nothing else."""
    return any([function is other for other in _MUTATE_FIRST])


def is_pure_method(owner: Any, name: str) -> bool:
    """Whether a method of an object whose type is implemented in C is known to have no side effects."""
    if isinstance(owner, contextvars.ContextVar):
        return name in _CONTEXTVAR_METHODS  # each example has its own context
    if isinstance(owner, (str, bytes, int, float, complex, tuple, frozenset)):
        return True
    if isinstance(owner, collections.defaultdict) and name == "__getitem__":
        return False
    return isinstance(owner, _NATIVE_TYPES) and (name in _PURE_METHODS or name in _PURE_SPECIAL_METHODS)


def is_known_method(name: str) -> bool:
    """Whether it is the name of a method of tensors, modules or builtin containers."""
    return name in _METHODS_OF_ONE_EXAMPLE


def returns_items(name: str) -> bool:
    """Whether a method of that name may return items of its object."""
    return name in _RETURN_ITEMS


def is_generated_code(function: Any) -> bool:
    """Whether it is a function that `dataclass` or `namedtuple` generated."""
    return str(function.__code__.co_filename).startswith("<")


def is_stdlib_type(made: type) -> bool:
    """Whether it is a type of the standard library."""
    return made.__module__.partition(".")[0] in sys.stdlib_module_names


def extends_builtin(made: type) -> bool:
    """Whether it is a subclass of a builtin container, number or exception."""
    return issubclass(made, (tuple, list, dict, set, str, int, float, BaseException))


def has_pure_methods(made: type) -> bool:
    """Whether the methods of this Wayfare class have no side effects."""
    return made.__module__.startswith(("wayfare.distributions", "wayfare.ragged", "wayfare.compiler", "wayfare.ir"))
