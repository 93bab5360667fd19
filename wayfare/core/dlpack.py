"""Memory shared with other libraries by DLPack. NumPy does it, but for bfloat16, which it has no code for.

A bfloat16 array goes out, and comes in, as the uint16 of its bits; then the code of its dtype is changed in the
capsule, which is a C struct (dlpack.h).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.core.errors import OperationError
from wayfare.core.numpy_math import Array
from wayfare.core.spec import BFLOAT16

_UINT, _BFLOAT = 1, 4
# The byte of the dtype's code in the struct, for each name of a capsule: a DLTensor has a pointer, two ints for the
# device and one for the rank before it. A versioned struct has 32 bytes more in front.
_CODE_AT = {b"dltensor": 20, b"dltensor_versioned": 52}

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _dtype_of(capsule: Any) -> Any:
    """The code and the number of bits of a capsule's dtype, as bytes that can be written."""
    name = _name_of(capsule)
    return (ctypes.c_uint8 * 2).from_address(_pointer_of(capsule, name) + _CODE_AT[name])


def export(array: Any, **options: Any) -> Any:
    """The capsule of an array."""
    if array.dtype is not BFLOAT16:
        return array.__dlpack__(**options)
    capsule = array.view(np.uint16).__dlpack__(**options)
    _dtype_of(capsule)[0] = _BFLOAT
    return capsule


def of_device(tensor: Any, name: str) -> Any:
    """The array of a tensor on a GPU, for another library."""
    if tensor.requires_grad:
        raise OperationError(f"{name}: this tensor requires grad, and another library would lose its gradient",
                             fix="Use .detach().")  # fmt: skip
    return tensor._array


class _Bits:
    """A bfloat16 tensor of another library, as the uint16 of its bits."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self.found = False

    def __dlpack__(self, **options: Any) -> Any:
        try:
            capsule = self._tensor.__dlpack__(**options)
        except TypeError:  # one that knows no options yet
            if set(options.values()) - {None}:
                raise
            capsule = self._tensor.__dlpack__()
        dtype = _dtype_of(capsule)
        if tuple(dtype) == (_BFLOAT, 16):
            dtype[0] = _UINT
            self.found = True
        return capsule

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


def shared(tensor: Any, read: Callable[[Any], Any]) -> Any:
    """The array on the memory of any object with DLPack's methods, as a library reads it; its errors for those that do
    not share it."""
    bits = _Bits(tensor)
    array = read(bits)
    return array.view(BFLOAT16) if bits.found else array


def array_of(value: Any, op: str) -> Array:
    """The array of an object that says it has one. Where its library has no array for the dtype (PyTorch has none for
    bfloat16), its memory comes by DLPack."""
    try:
        return np.asarray(value)
    except (TypeError, RuntimeError, BufferError) as error:
        if not hasattr(value, "__dlpack__"):
            raise
        reason = str(error)
    try:
        return shared(value, np.from_dlpack)  # type: ignore[no-any-return]
    except (BufferError, RuntimeError, TypeError, ValueError):
        raise OperationError(f"{op}: the numbers of a {type_name(value)} cannot be read: {reason}") from None


def type_name(value: Any) -> str:
    """The name of an object's type; with the library for a tensor of another one."""
    kind = type(value)
    return f"{kind.__module__.split('.')[0]}.{kind.__name__}" if kind.__name__ == "Tensor" else kind.__name__


def without_history(value: Any) -> Any:
    """A tensor of any library as one that wants no gradient; other values as they are."""
    return value.detach() if hasattr(value, "detach") else value
