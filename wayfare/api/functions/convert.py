"""From one dtype to another, and the few functions of complex numbers that make sense for real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from wayfare.api.functions._public import method, named, unary
from wayfare.api.functions.rearrange import clone
from wayfare.core.dispatch import apply
from wayfare.core.errors import DTypeError, OperationError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import (
    Device,
    DType,
    as_dtype,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from wayfare.core.tensor import Tensor

__all__ = ["angle", "conj", "conj_physical", "imag", "is_conj", "is_neg", "real", "resolve_conj", "resolve_neg"]

_CAST = REGISTRY["cast"]


def _cast(input: Tensor, dtype: DType, copy: bool = False) -> Tensor:
    if input.dtype is dtype:
        return clone(input) if copy else input
    return apply(_CAST, (input,), {"dtype": dtype})  # type: ignore[no-any-return]


def _is_device(value: Any) -> bool:
    kinds = ("cpu", "cuda", "mps", "meta")
    return isinstance(value, Device) or (isinstance(value, str) and value.split(":")[0] in kinds)


@method
def to(input: Tensor, *args: Any, **options: Any) -> Tensor:
    """The tensor with another dtype, or another's dtype: `x.to(wf.float64)`, `x.to("cpu")`, `x.to(other)`.

    Gives the tensor itself when nothing changes, unless `copy=True`. The conversion is recorded.
    """
    dtype: Any = options.get("dtype")
    device: Any = options.get("device")
    flags = [a for a in args if isinstance(a, bool)]
    for value in args:
        if isinstance(value, Tensor):
            dtype = value.dtype
        elif _is_device(value):
            device = value
        elif value is not None and not isinstance(value, bool):
            dtype = value
    if device is not None:
        Device(device)
    copy = bool(options.get("copy", len(flags) > 1 and flags[1]))
    return _cast(input, input.dtype if dtype is None else as_dtype(dtype, op="to"), copy)


@method
def type(input: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """The tensor with another dtype; without an argument, the name of its type."""
    if dtype is None:
        return f"wayfare.{_TYPE_NAMES[input.dtype]}"
    if isinstance(dtype, str):
        name = dtype.rpartition(".")[2]
        found = next((d for d, text in _TYPE_NAMES.items() if text == name), None)
        dtype = found if found is not None else name
    return _cast(input, as_dtype(dtype, op="type"))


_TYPE_NAMES: dict[DType, str] = {
    bool_: "BoolTensor", uint8: "ByteTensor", int8: "CharTensor", int16: "ShortTensor", int32: "IntTensor",
    int64: "LongTensor", float16: "HalfTensor", float32: "FloatTensor", float64: "DoubleTensor",
}  # fmt: skip


@method
def type_as(input: Tensor, other: Tensor) -> Tensor:
    """The tensor with the dtype of `other`."""
    return _cast(input, other.dtype)


def _converter(name: str, dtype: DType) -> Callable[..., Tensor]:
    def call(input: Tensor, memory_format: Any = None) -> Tensor:
        return _cast(input, dtype)

    return method(name=name)(named(call, name, f"The tensor as {dtype.name}."))


for _name, _dtype in {
    "bool": bool_, "byte": uint8, "char": int8, "short": int16, "int": int32, "long": int64, "half": float16,
    "float": float32, "double": float64,
}.items():  # fmt: skip
    _converter(_name, _dtype)


@method
def cpu(input: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor on the CPU, where it is already."""
    return input


@method
def cuda(input: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> NoReturn:
    """An error: this version computes on the CPU."""
    raise OperationError("cuda: there is no GPU support yet", fix="Leave .cuda() out.")


@method
def pin_memory(input: Tensor, device: Any = None) -> Tensor:
    """The tensor itself: without a GPU there is nothing to pin its memory for."""
    return input


@method
def is_pinned(input: Tensor, device: Any = None) -> bool:
    """False: without a GPU there is nothing to pin memory for."""
    return False


def _itself(name: str, doc: str, inplace: bool = False) -> Callable[[Tensor], Tensor]:
    """A function of complex numbers that changes nothing in real ones."""

    def call(input: Tensor) -> Tensor:
        return input

    return method(name=name, inplace=inplace)(named(call, name, doc))


real = _itself("real", "The tensor itself: there are no complex numbers.")
conj = _itself("conj", "The tensor itself: a real number is its own conjugate.")
conj_physical = _itself("conj_physical", "The tensor itself: a real number is its own conjugate.", inplace=True)
resolve_conj = _itself("resolve_conj", "The tensor itself.")
resolve_neg = _itself("resolve_neg", "The tensor itself.")


def imag(input: Tensor) -> Tensor:
    """An error: real tensors have no imaginary part."""
    raise DTypeError(f"imag: {input.spec} has no imaginary part, it is real", fix="Use wf.zeros_like for zeros.")


@method
def is_conj(input: Tensor) -> bool:
    """Always False."""
    return False


@method
def is_neg(input: Tensor) -> bool:
    """Always False."""
    return False


angle = unary(REGISTRY["angle"], "pi for negative elements, NaN for NaN, 0 for the rest.", inplace=False)
