"""What CuPy has, read from functions.txt, and calls that are checked against it."""

from __future__ import annotations

import inspect
from pathlib import Path

import ml_dtypes
import numpy as np

from tests.gpu.cupy_stand_in import linalg

_KINDS = inspect.Parameter
# ufunc → the characters of its loops; function → its parameters; names of methods and attributes of an array.
UFUNCS: dict[str, list[str]] = {}
FUNCTIONS: dict[str, inspect.Signature] = {}
METHODS: set[str] = set()
# What a real CuPy array refused with NotImplementedError is left out here.
REDUCING = {"reduce": {"add", "multiply"}, "accumulate": {"add", "multiply"}, "reduceat": {"add"}}


def check_atomic(dtype):
    """Refuse the dtypes that CuPy cannot add atomically."""
    if dtype.char not in "iIefdLQ":
        raise TypeError(f"cupyx.scatter_add does not support {dtype}")


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# What is taken for granted for bfloat16, beside ufuncs with a loop for it (E): functions that only move elements. CuPy
# has no tests of the others; its sorts, scans and reductions are compiled for a fixed list of dtypes.
MOVING = {
    "broadcast_to", "concatenate", "copyto", "diagonal", "expand_dims", "flip", "may_share_memory", "moveaxis",
    "permute_dims", "ravel", "repeat", "reshape", "roll", "shape", "size", "squeeze", "stack", "swapaxes", "take",
    "take_along_axis", "transpose", "ndim", "shares_memory", "astype", "copy", "data", "fill", "flatten", "view", "put",
    "empty_like", "zeros_like", "ones_like", "full_like", "tobytes", "tolist", "byteswap", "nbytes",
}  # fmt: skip
# Written with `cupy.where`, which has no loop for it either and takes the one of float32.
_BY_WHERE = {"where", "tril", "triu"}


def in_bfloat16(name, values):
    """NumPy arrays as a function of CuPy would compute with them: bfloat16 as float32 where it has no loop for it.
    Refuses what CuPy refuses."""
    if BFLOAT16 not in [getattr(x, "dtype", None) for x in _flat(values)]:
        return values
    if name in MOVING or (name in UFUNCS and any("E" in loop for loop in UFUNCS[name])):
        return values
    if name not in UFUNCS and name not in _BY_WHERE:
        raise TypeError(f"cupy.{name} does not support bfloat16")
    return _wide(values)


def _flat(values):
    for value in values:
        if value.__class__ in (tuple, list):
            yield from _flat(value)
        else:
            yield value


def _wide(value):
    if value.__class__ in (tuple, list):
        return value.__class__(_wide(v) for v in value)
    return value.astype(np.float32) if getattr(value, "dtype", None) == BFLOAT16 else value


def _signature(words):
    found, kind = [], _KINDS.POSITIONAL_OR_KEYWORD
    for word in words:
        if word.startswith("**"):
            found.append(_KINDS(word[2:], _KINDS.VAR_KEYWORD))
        elif word.startswith("*"):
            if word != "*":
                found.append(_KINDS(word[1:], _KINDS.VAR_POSITIONAL))
            kind = _KINDS.KEYWORD_ONLY
        else:
            default = None if word.endswith("=") else _KINDS.empty
            found.append(_KINDS(word.rstrip("="), kind, default=default))
    return inspect.Signature(found)


def _read():
    for line in (Path(__file__).parent / "functions.txt").read_text(encoding="utf-8").splitlines():
        head, _, rest = line.partition(":")
        kind, _, name = head.partition(" ")
        if kind == "ufunc":
            UFUNCS[name] = rest.split()
        elif kind == "function":
            FUNCTIONS[name] = _signature(rest.split())
        else:
            METHODS.update(rest.split())


_read()


def numpys_own(name):
    """The function of NumPy, or of SciPy, that the name stands for."""
    if name in linalg.OWN:
        return linalg.OWN[name]
    if name.startswith("special."):
        import scipy.special

        return getattr(scipy.special, name[len("special.") :])
    found = np
    for part in name.split("."):
        found = getattr(found, part)
    return found


def check_call(name, args, options):
    """Refuse arguments that CuPy's function has no parameters for."""
    try:
        FUNCTIONS[name].bind(*args, **options)
    except TypeError as error:
        raise TypeError(f"{name}(): {error}") from None


def check_loop(name, inputs):
    """Refuse dtypes that the ufunc of CuPy has no loop for."""
    loops = UFUNCS[name]
    for loop in loops:
        given = loop.partition("->")[0]
        if len(given) == len(inputs) and all(_fits(x, char) for x, char in zip(inputs, given, strict=True)):
            return
    shown = [getattr(x, "dtype", type(x).__name__) for x in inputs]
    raise TypeError(f"Wrong type ({shown}) of arguments for cupy_{name}")


def _fits(value, char):
    if isinstance(value, (bool, int, float)):
        return True
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    loop = BFLOAT16 if char == "E" else np.dtype(char)
    return np.can_cast(dtype, loop, "same_kind" if char in "ef" and dtype.kind in "iub" else "safe")


def calling(name):
    """A function of the stand-in: `cupy.<name>`."""
    from tests.gpu.cupy_stand_in.array import call_function, call_ufunc

    def call(*args, **options):
        return (call_ufunc if name in UFUNCS else call_function)(name, args, options)

    call.__name__ = name
    return call
