"""Questions about tensors and dtypes, and how tensors are printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.api.functions._public import add_method, common_dtype, method, operand
from wayfare.core.config import settings
from wayfare.core.device import BACKENDS, address
from wayfare.core.errors import ArgumentError, ArgumentTypeError, NoSuchDimensionError
from wayfare.core.spec import DType, Size, as_dtype, default_dtype, limits_of, normal_dim, promote
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import owner_of
from wayfare.ops.movement.windows import memory_of

__all__ = [
    "is_tensor", "typename", "numel", "is_floating_point", "is_complex", "is_same_size", "is_nonzero",
    "finfo", "iinfo", "can_cast", "promote_types", "result_type", "set_printoptions",
]  # fmt: skip


def is_tensor(obj: Any) -> bool:
    """Is it a Tensor?"""
    return isinstance(obj, Tensor)


def typename(obj: Any) -> str:
    """The name of its type, with the package: `wayfare.FloatTensor` of a tensor, `int` of a number."""
    if isinstance(obj, Tensor):
        return str(obj.type())
    owner = obj if hasattr(obj, "__qualname__") else type(obj)
    package = getattr(owner, "__module__", None) or "builtins"
    return owner.__qualname__ if package == "builtins" else f"{package}.{owner.__qualname__}"


@method
def numel(input: Tensor) -> int:
    """The number of elements."""
    return input.shape.numel()


add_method("nelement", numel)


@method
def is_floating_point(input: Tensor) -> bool:
    """Does it hold floating-point numbers?"""
    return input.dtype.is_floating_point


@method
def is_complex(input: Tensor) -> bool:
    """Always False: complex numbers are out of scope."""
    return False


@method
def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Do both have the same shape?"""
    return tuple(input.shape) == tuple(other.shape)


@method
def is_nonzero(input: Tensor) -> bool:
    """The truth of a tensor of one element."""
    return bool(input)


# -- methods only ------------------------------------------------------------------------------------------


def _size(self: Tensor, dim: int | None = None) -> Size | int:
    """The shape, or the size of one dimension."""
    if dim is None:
        return self.shape
    _needs_dims(self, "size")
    return self.shape[normal_dim("size", dim, self.ndim)]


def _needs_dims(self: Tensor, op: str) -> None:
    if self.ndim == 0:
        raise NoSuchDimensionError(f"{op}: a 0-dim tensor has no dimensions")


def _dim(self: Tensor) -> int:
    """The number of dimensions."""
    return self.ndim


def _element_size(self: Tensor) -> int:
    """Bytes of one element."""
    return self.dtype.itemsize


def _is_signed(self: Tensor) -> bool:
    """Can its dtype hold a negative number?"""
    return self.dtype.is_signed


def _laid_out(self: Tensor, how: str) -> Any:
    """The array, for a look at how it lies in memory and not at its numbers, which are not copied from a GPU."""
    return self._read(how) if not BACKENDS or self.is_cpu else self._array


def _stride(self: Tensor, dim: int | None = None) -> tuple[int, ...] | int:
    """How many elements apart in memory neighbours along each dimension (or along `dim`) are."""
    array = _laid_out(self, "stride()")
    steps = tuple(s // array.itemsize for s in array.strides)
    return steps if dim is None else steps[normal_dim("stride", dim, self.ndim)]


def _storage_offset(self: Tensor) -> int:
    """Where in the memory it shares its first element is, counted in elements."""
    array = _laid_out(self, "storage_offset()")
    if array.__class__ in BACKENDS:
        return int((address(array) - address(owner_of(array))) // array.itemsize)
    found = memory_of(array)
    return 0 if found is None else found[1]


def _is_contiguous(self: Tensor, memory_format: Any = None) -> bool:
    """Do its rows lie one after the other in memory?"""
    return bool(_laid_out(self, "is_contiguous()").flags.c_contiguous)


def _data_ptr(self: Tensor) -> int:
    """The address of its first element."""
    return address(_laid_out(self, "data_ptr()"))


_METHODS: dict[str, Callable[..., Any]] = {
    "size": _size, "dim": _dim, "ndimension": _dim, "element_size": _element_size, "is_signed": _is_signed,
    "stride": _stride, "storage_offset": _storage_offset, "is_contiguous": _is_contiguous,
    "data_ptr": _data_ptr,
}  # fmt: skip
for _name, _function in _METHODS.items():
    add_method(_name, _function)


# -- dtypes ------------------------------------------------------------------------------------------------


class finfo:
    """The limits of a floating-point dtype."""

    __slots__ = ("bits", "dtype", "eps", "max", "min", "resolution", "smallest_normal", "tiny")

    def __init__(self, type: Any = None) -> None:
        kind = default_dtype() if type is None else as_dtype(type, op="finfo")
        if not kind.is_floating_point:
            raise ArgumentTypeError(f"finfo: {kind} is not a floating-point dtype", fix="Use wf.iinfo for integers.")
        limits = limits_of(kind)
        self.dtype = kind.name
        self.bits = int(limits.bits)
        self.eps, self.max, self.min = float(limits.eps), float(limits.max), float(limits.min)
        self.tiny = self.smallest_normal = float(limits.tiny)
        self.resolution = 10.0 ** -int(limits.precision)

    def __repr__(self) -> str:
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}, "
            f"smallest_normal={self.smallest_normal:g}, tiny={self.tiny:g}, dtype={self.dtype})"
        )


class iinfo:
    """The limits of an integer dtype."""

    __slots__ = ("bits", "dtype", "max", "min")

    def __init__(self, type: Any) -> None:
        kind = as_dtype(type, op="iinfo")
        if kind.rank != 1:
            raise ArgumentTypeError(f"iinfo: {kind} is not an integer dtype", fix="Use wf.finfo for floats.")
        limits = np.iinfo(kind.numpy)
        self.dtype = kind.name
        self.bits, self.min, self.max = int(limits.bits), int(limits.min), int(limits.max)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


def can_cast(from_: Any, to: Any) -> bool:
    """May one dtype be written into another? Never a float into an integer, nor an integer into a bool."""
    source, target = as_dtype(from_, op="can_cast"), as_dtype(to, op="can_cast")
    # A signed integer does not go into an unsigned one.
    return source.rank <= target.rank and not (source.rank == 1 and source.is_signed and target.name == "uint8")


def promote_types(type1: Any, type2: Any) -> DType:
    """The smallest dtype that holds both."""
    return promote(as_dtype(type1, op="promote_types"), as_dtype(type2, op="promote_types"))


def result_type(tensor1: Any, tensor2: Any) -> DType:
    """The dtype of an arithmetic result of two tensors or numbers."""
    return common_dtype("result_type", [operand(v, "result_type") for v in (tensor1, tensor2)])


# -- printing ----------------------------------------------------------------------------------------------

_PROFILES: dict[str, dict[str, Any]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": 2**62, "edgeitems": 3, "linewidth": 80},
}


def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None,
    linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """How tensors are printed: digits, when to abbreviate, how wide; or a profile: default, short, full."""
    changes: dict[str, Any] = {}
    if profile is not None:
        if profile not in _PROFILES:
            raise ArgumentError(f"set_printoptions: profile must be one of {', '.join(_PROFILES)}, not {profile!r}")
        changes.update(_PROFILES[profile])
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    changes.update({name: value for name, value in given.items() if value is not None})
    for name, value in changes.items():
        setattr(settings.printing, name, min(int(min(value, 2**62)), 2**62))
    settings.printing.sci_mode = sci_mode
