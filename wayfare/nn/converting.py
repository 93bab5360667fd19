"""What `module.to(...)` is asked for: its arguments may come in any order and by any name."""

from __future__ import annotations

from typing import Any

from wayfare.core.errors import ArgumentTypeError
from wayfare.core.spec import DType
from wayfare.core.tensor import Tensor


def target_of(args: tuple[Any, ...], options: dict[str, Any]) -> tuple[DType | None, Any]:
    """The dtype (floating-point, or None) and the device that are named."""
    dtype, device = options.pop("dtype", None), options.pop("device", None)
    options.pop("non_blocking", None)
    for value in args:
        if isinstance(value, DType):
            dtype = value
        elif isinstance(value, Tensor):
            dtype, device = value.dtype, value.device
        elif not isinstance(value, bool):
            device = value
    if options:
        raise ArgumentTypeError(f"to: there is no argument {next(iter(options))!r}", fix="Use dtype= or device=.")
    if dtype is not None and not (isinstance(dtype, DType) and dtype.is_floating_point):
        raise ArgumentTypeError(f"to: a module is converted to floating-point dtypes only, not {dtype}")
    return dtype, device
