"""Arrays from the data of a user (nested lists, numbers, arrays and similar), and their dtypes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from wayfare.core.dlpack import array_of
from wayfare.core.errors import MismatchError, OperationError, WrongKindError
from wayfare.core.numpy_math import Array
from wayfare.core.quiet import in_dtype
from wayfare.core.spec import BFLOAT16, OF_NUMPY, DType, as_dtype, bfloat16, bool_, default_dtype, int64, promote
from wayfare.core.tensor import Tensor


def array_from(data: Any, dtype: Any, op: str, *, copy: bool) -> Array:
    """The data of a new tensor as an array, in the given dtype or in that of the data."""
    wanted = None if dtype is None else as_dtype(dtype, op=op)
    if hasattr(data, "__array__") or hasattr(data, "__array_interface__"):  # NumPy's own, and tables, images, …
        array = array_of(data, op)
        found = wanted or OF_NUMPY.get(array.dtype) or as_dtype(array.dtype, op=op)
        return in_dtype(array, found.numpy, copy)
    array = _nested(data, op)
    if array.dtype is BFLOAT16:
        wanted, array = wanted or bfloat16, array.astype(np.float32)
    found = wanted or _dtype_of_nested(data, array, op)
    if array.dtype.kind in "OUSVMc" or (array.dtype.kind == "u" and array.dtype.itemsize == 8):
        raise _unreadable(data, op)
    if found.rank == 1 and array.dtype != found.numpy:
        limits = np.iinfo(found.numpy)
        if array.dtype.kind == "f":  # a fraction will be cut off, and a NaN fits nowhere
            fits = (array > limits.min - 1.0) & (array < limits.max + 1.0)
        else:
            fits = (array >= limits.min) & (array <= limits.max)
        if not fits.all():
            raise OperationError(f"{op}: {array[~fits].flat[0]} does not fit into {found}")
    return in_dtype(array, found.numpy, False)


def _nested(data: Any, op: str) -> Array:
    if not isinstance(data, (list, tuple)):
        if not hasattr(data, "__len__"):
            return np.asarray(data)
        data = data if isinstance(data, (str, bytes, set, dict)) else list(data)
    try:
        return np.array(data)
    except Exception:  # ragged, or with tensors inside that want a gradient
        return _stacked(data, op, ())


def _stacked(data: Any, op: str, place: tuple[int, ...]) -> Array:
    """The array of a nested list, piece by piece; an error names the place where the shape breaks."""
    if isinstance(data, Tensor):
        return data.detach()._read(op)
    if not isinstance(data, (list, tuple)):
        return array_of(data, op)
    parts = [_stacked(part, op, (*place, i)) for i, part in enumerate(data)]
    for i, part in enumerate(parts):
        if part.shape != parts[0].shape:
            at = "".join(f"[{p}]" for p in place)
            raise MismatchError(f"{op}: the nested list is ragged: data{at}[0] has shape {list(parts[0].shape)} "
                                f"and data{at}[{i}] has shape {list(part.shape)}",
                                fix="Make all rows equally long, for instance by padding, or keep their lengths with "
                                "wf.Ragged(rows).")  # fmt: skip
    return np.array(parts) if not parts else np.stack(parts)


def _dtype_of_nested(data: Any, array: Array, op: str) -> DType:
    if array.dtype.kind == "f":
        if not array.size or (array.ndim == 1 and _are_pythons(data)):
            return default_dtype()
        return functools.reduce(promote, _dtypes_in(data), bool_)
    if array.dtype.kind in "OUSVM" or (array.dtype.kind == "u" and array.dtype.itemsize == 8):
        raise _unreadable(data, op)
    return as_dtype(array.dtype, op=op)


def _are_pythons(items: Any) -> bool:
    """Are these all Python numbers? Their sum then is one too, which is the fastest test for a long list."""
    try:
        return type(items[0]) in (float, int) and type(sum(items)) in (float, int)
    except Exception:  # numbers that are too large to add, or no numbers at all
        return False


_OF_PYTHON: dict[type, DType] = {bool: bool_, int: int64}


def _dtypes_in(data: Any) -> set[DType]:
    """The dtypes of what a nested list holds: numbers of NumPy's have their own, those of Python stand for one."""
    found: set[DType] = set()
    items = data if isinstance(data, (list, tuple)) else (data,)
    if _are_pythons(items):
        return {default_dtype() if type(sum(items)) is float else int64}
    for kind in set(map(type, items)):
        if issubclass(kind, (list, tuple)):
            found.update(*[_dtypes_in(part) for part in items if type(part) is kind])
        elif issubclass(kind, np.generic):
            found.add(as_dtype(np.dtype(kind)))
        elif issubclass(kind, (np.ndarray, Tensor)):
            found.update([as_dtype(part.dtype) for part in items if type(part) is kind])
        else:
            found.add(_OF_PYTHON.get(kind) or default_dtype())
    return found


def _unreadable(data: Any, op: str) -> Exception:
    for item in _items(data):
        if isinstance(item, np.generic):
            as_dtype(item.dtype, op=op)
            continue
        if isinstance(item, int) and not isinstance(item, bool) and not -(2**63) <= item < 2**63:
            return MismatchError(f"{op}: {item} does not fit into 64 bits")
        if not isinstance(item, (bool, int, float)):
            return WrongKindError(f"{op}: {type(item).__name__} ({item!r}) is not a number",
                                  fix="A tensor holds numbers and bools only.")  # fmt: skip
    return WrongKindError(f"{op}: cannot make a tensor of {type(data).__name__}")


def _items(data: Any) -> Iterator[Any]:
    """The innermost elements of a nested list."""
    if isinstance(data, (list, tuple)):
        for part in data:
            yield from _items(part)
    elif isinstance(data, (Tensor, np.ndarray)):
        yield from data.flatten().tolist()
    else:
        yield data
