"""Functions without a short polynomial: those of SciPy and of the C library, called for each element in f64.

SciPy's functions come from its C interface, `scipy.special.cython_special`. They have one more argument, an int that
Cython uses to skip a dispatch. These functions never read it, so it is not passed.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

from wayfare.codegen.loop.expr import Expr, apply, call, cast, const
from wayfare.codegen.math.parts import Rule
from wayfare.core.errors import LoopError

# Name in formulas → name in scipy.special; all are functions of doubles.
_SCIPY = {
    name: name for name in (
        "erfinv", "ndtri", "i0", "i0e", "i1", "i1e", "j0", "j1", "y0", "y1", "k0", "k0e", "k1", "k1e", "gammainc",
        "gammaincc",
    )
} | {"lgamma": "gammaln", "digamma": "psi"}  # fmt: skip
_C_LIBRARY = {"fmod": "fmod", "pow": "power", "sin": "sin", "cos": "cos", "tan": "tan"}
# Keeps SciPy's symbols apart from y0, j1, lgamma… of the C library.
_PREFIX = "scipy_"


def _rule(symbol: str) -> Rule:
    def rule(*args: Expr) -> Expr:
        return cast(call(symbol, *args), args[0].dtype)

    return rule


RULES: dict[str, Rule] = {name: _rule(_PREFIX + name) for name in _SCIPY}


def _lgamma(x: Expr) -> Expr:
    # lgamma(-inf) is inf, but SciPy gives -inf. All floats this large are integers, which are poles: clamping is exact.
    return _rule(_PREFIX + "lgamma")(apply("maximum", x, const(-3e38, x.dtype)))


RULES["lgamma"] = _lgamma


@cache
def symbol_address(symbol: str) -> int:
    """The address of the function that a call names."""
    name = symbol.removeprefix(_PREFIX)
    if symbol.startswith(_PREFIX) and name in _SCIPY:
        return _in_scipy(_SCIPY[name])
    if symbol in _C_LIBRARY:
        # Imported late: it takes a tenth of the package's import time, and few programs need it.
        find: Callable[[str], str | None] = importlib.import_module("ctypes.util").find_library
        library = ctypes.CDLL(find("m") or find("msvcrt"))
        return int(ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0)
    raise LoopError(f"there is no library function {symbol!r}")


def _in_scipy(name: str) -> int:
    """The address in the capsule with a double signature; a function for several dtypes has several capsules."""
    capsules: dict[str, Any] = importlib.import_module("scipy.special.cython_special").__pyx_capi__
    signature = ctypes.pythonapi.PyCapsule_GetName
    signature.restype, signature.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    for spelling in (name, *(f"__pyx_fuse_{i}{name}" for i in range(3))):
        kind: bytes = signature(capsules[spelling]) if spelling in capsules else b""
        if kind.startswith((b"double (double,", b"double (double)")):
            return int(pointer(capsules[spelling], kind))
    raise LoopError(f"this SciPy has no C function {name!r} of doubles")


def numpy_form(symbol: str) -> Callable[..., Any]:
    """The NumPy form of the function that a call names."""
    if symbol.startswith(_PREFIX):
        module, name = "scipy.special", _SCIPY[symbol.removeprefix(_PREFIX)]
    else:
        module, name = "numpy", _C_LIBRARY[symbol]
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
