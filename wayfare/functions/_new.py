"""How new tensors are made: sizes and dtypes as PyTorch reads them, memory, and a new tensor's marks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.backend.cpu import Array
from wayfare.errors import ArgumentError, ArgumentTypeError, OperationError, ShapeError
from wayfare.spec import Device, DType, Shape, as_dtype, default_dtype
from wayfare.state import STATE
from wayfare.tensor import Tensor, wrap


def made(array: Array, requires_grad: bool = False) -> Tensor:
    """A new leaf on an array, marked as the mode in force asks."""
    out = wrap(array)
    mode = STATE.mode
    if mode is not None and mode.inference:
        out._more()["inference"] = True
    return out.requires_grad_() if requires_grad else out


def read_int(op: str, what: str, value: Any) -> int:
    """An int from whatever counts as one (NumPy's integers, 0-dim integer tensors)."""
    try:
        found: int = value.__index__()
        return found
    except AttributeError:
        raise ArgumentTypeError(f"{op}: {what} must be an int, not {type(value).__name__} ({value!r})") from None


def flat_ints(op: str, what: str, values: Sequence[Any]) -> tuple[int, ...]:
    """Ints given one by one or as one sequence: `f(2, 3)`, `f((2, 3))`, `f([2, 3])`."""
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = values[0]
    return tuple(v if v.__class__ is int else read_int(op, what, v) for v in values)


def either(op: str, name: str, values: Sequence[Any], named: dict[str, Any]) -> tuple[int, ...]:
    """Ints given one by one, as one sequence, or by name: `f(2, 3)`, `f((2, 3))`, `f(dims=(2, 3))`."""
    if not named:
        return flat_ints(op, name, values)
    if values or set(named) != {name}:
        wrong = next((key for key in named if key != name), name)
        raise ArgumentTypeError(f"{op}: unexpected argument {wrong!r}; it takes {name} as numbers or as a tuple")
    return flat_ints(op, name, (named[name],))


def read_size(op: str, size: Sequence[Any], named: Any = None) -> Shape:
    """The shape asked for, `f(2, 3)`, `f((2, 3))` or `f(size=(2, 3))`; no size may be negative."""
    if named is not None:
        size = named if isinstance(named, (tuple, list)) else (named,)
    shape = flat_ints(op, "a size", size)
    for number in shape:
        if number < 0:
            raise ShapeError(f"{op}: size {number} in {list(shape)} is negative")
    return shape


def read_dtype(op: str, dtype: Any, otherwise: DType | None = None) -> DType:
    """The dtype asked for, or `otherwise`, or the default."""
    if dtype is None:
        return otherwise or default_dtype()
    return as_dtype(dtype, op=op)


def check_device(device: Any) -> None:
    """Refuse a device this installation does not have."""
    if device is not None:
        Device(device)


def allocate(op: str, make: Callable[..., Array], shape: Shape, dtype: DType, *values: Any) -> Array:
    """`make(shape, *values, dtype)` with NumPy's complaints turned into sentences."""
    try:
        return make(shape, *values, dtype=dtype.numpy)
    except OverflowError:
        shown = ", ".join(map(str, values))
        raise OperationError(f"{op}: {shown} does not fit into {dtype}") from None
    except (MemoryError, ValueError) as error:
        if isinstance(error, ValueError) and len(shape) > 64:
            raise ShapeError(f"{op}: {len(shape)} dimensions are more than the 64 that NumPy has") from None
        raise no_memory(op, shape, dtype) from None


def no_memory(op: str, shape: Shape, dtype: DType) -> OperationError:
    """The error of a tensor that the machine has no room for."""
    amount = math.prod(shape) * dtype.itemsize / 2**30
    return OperationError(f"{op}: no memory for {dtype.short}{list(shape)} ({amount:.1f} GiB)")


def read_number(op: str, what: str, value: Any) -> Any:
    """A Python number from a number or a tensor of one element."""
    if isinstance(value, Tensor):
        if value.ndim != 0:
            raise ArgumentError(f"{op}: {what} must be a number or a 0-dim tensor, not {value.spec}")
        return value.item()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (bool, int, float)):
        return value
    raise ArgumentTypeError(f"{op}: {what} must be a number, not {type(value).__name__}")
