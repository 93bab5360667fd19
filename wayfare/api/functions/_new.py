"""How new tensors are made: sizes and dtypes as PyTorch reads them, memory, and a new tensor's marks."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.core.device import CPU, Device, backend, default_device, moved
from wayfare.core.errors import ArgumentError, ArgumentTypeError, MismatchError, OperationError, ShapeError
from wayfare.core.mode import STATE, UNUSUAL, executor
from wayfare.core.numpy_math import Array
from wayfare.core.op_failure import no_memory
from wayfare.core.quiet import quietly
from wayfare.core.spec import DType, Shape, as_dtype, bfloat16, default_dtype, float16, float32, float64
from wayfare.core.tensor import Tensor, wrap

# The largest number of each floating dtype.
_MOST = {float16: 65504.0, bfloat16: 2.0**127 * (2 - 2**-7), float32: 2.0**127 * (2 - 2**-23),
         float64: sys.float_info.max}  # fmt: skip


def made(array: Array, requires_grad: bool = False, device: Any = None) -> Tensor:
    """A new leaf on an array, moved to a device (None: where it is) and marked as the mode in force asks."""
    out = wrap(array if device is None else moved(array, device))
    mode = STATE.mode
    if mode is not None:
        mode.executor.born(out._array)
        if mode.inference:
            out._more()["inference"] = True
    return out if requires_grad is False or requires_grad is None else out.requires_grad_(requires_grad)


def like(t: Tensor, out: Tensor) -> Tensor:
    """A new tensor like `t`: if `t` has one value for each example of a vmap, so has this."""
    return executor().one_for_each(t, out) if UNUSUAL else out


def read_int(op: str, what: str, value: Any) -> int:
    """An int from an int, a NumPy integer or a 0-dim integer tensor."""
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


def read_device(device: Any) -> Device | None:
    """Where a new tensor is to be: what is named, or the default of this thread. None: on the CPU."""
    found = default_device() if device is None else Device(device)
    return None if found is CPU or found.type == "cpu" else found


def place_of(input: Tensor, device: Any) -> Any:
    """Where a new tensor like `input` is to be: what is named (0 is a device), or beside it."""
    return input.device if device is None else device


def filled(op: str, shape: Shape, dtype: DType, value: Any, device: Device, requires_grad: bool) -> Tensor:
    """A new leaf with one value everywhere, made on a device other than the CPU."""
    there = backend(device.type)
    array = there.zeros(shape, dtype.numpy, device)
    if value:
        array.fill(value)
    elif str(value)[0] == "-":  # -0.0, which CuPy would fill in as zero
        array[...] = there.from_host(np.full(1, value, dtype.numpy), device)
    return made(array, requires_grad)


def allocate(op: str, make: Callable[..., Array], shape: Shape, dtype: DType, *values: Any) -> Array:
    """`make(shape, *values, dtype)` with NumPy's complaints turned into sentences."""
    try:
        if values:
            with quietly():  # 1e300 is inf in float32
                return make(shape, *values, dtype=dtype.numpy)
        return make(shape, dtype=dtype.numpy)
    except OverflowError:
        shown = ", ".join(map(str, values))
        raise OperationError(f"{op}: {shown} does not fit into {dtype}") from None
    except (MemoryError, ValueError) as error:
        if isinstance(error, ValueError) and len(shape) > 64:
            raise ShapeError(f"{op}: {len(shape)} dimensions are more than the 64 that NumPy has") from None
        raise no_memory(op, shape, dtype.numpy) from None


def fitting(op: str, value: Any, dtype: DType) -> Any:
    """A number to write into tensors of this dtype; a number that the dtype cannot hold is refused.

    As in PyTorch fractions are cut off, and a negative number goes into unsigned ones as its two's complement; infinity
    and NaN go into floats, but a finite number does not become infinity.
    """
    number = value.item() if isinstance(value, np.generic) else value
    if dtype.rank == 0 or (number.__class__ is not int and number.__class__ is not float):
        return number
    if dtype.rank == 2:
        most = _MOST[dtype]
        if not -most <= number <= most and number == number and abs(number) != math.inf:
            raise MismatchError(f"{op}: {number} does not fit into {dtype}, which ends at {most:g}",
                                fix=f"Write wf.finfo(wf.{dtype.name}).min or .max, or float('-inf'), or convert the "
                                "tensor to a wider dtype.")  # fmt: skip
        return number
    limits = np.iinfo(dtype.numpy)
    if not (limits.min or -limits.max) - 1 < number < limits.max + 1:
        raise MismatchError(f"{op}: {number} does not fit into {dtype}",
                            fix="Convert the tensor to a dtype that holds it, as with .float().")  # fmt: skip
    return int(number) % (limits.max + 1) if limits.min == 0 else int(number)


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
