"""To another dtype or device, and the few functions of complex numbers that make sense for real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.api.functions._new import made
from wayfare.api.functions._public import method, named, unary
from wayfare.api.functions.rearrange import clone
from wayfare.core.device import BACKENDS, CPU, Device, started
from wayfare.core.device import backend as backend_of
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentTypeError, DTypeError, NoSuchDTypeError, OperationError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import (
    DType,
    as_dtype,
    bfloat16,
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

# Devices of PyTorch; those that Wayfare has not are refused by name.
_DEVICES = frozenset(("cpu", "cuda", "hip", "meta", "mps", "xla", "xpu"))
_TO_OPTIONS = frozenset(("dtype", "device", "copy", "non_blocking", "memory_format", "other"))
_CAST, _TO_DEVICE = REGISTRY["cast"], REGISTRY["to_device"]


def _cast(input: Tensor, dtype: DType, copy: bool = False) -> Tensor:
    if input.dtype is dtype:
        return clone(input) if copy else input
    return apply(_CAST, (input,), {"dtype": dtype})  # type: ignore[no-any-return]


def _is_device(value: Any) -> bool:
    """Is this argument of `to` a device, and no dtype?"""
    return isinstance(value, (Device, int)) or (isinstance(value, str) and value.partition(":")[0] in _DEVICES)


def _moved(input: Tensor, device: Device) -> Tensor:
    """The tensor on a device; itself if it is there."""
    here = input.device
    if here.type == device.type:
        if device.type != "cpu" and device.index is None:  # the current one
            device = Device(device.type, backend_of(device.type).current())
        if device.type == "cpu" or here == device:
            return input
    return apply(_TO_DEVICE, (input,), {"device": str(device), "source": str(here)})  # type: ignore[no-any-return]


@method
def to(input: Tensor, *args: Any, **options: Any) -> Tensor:
    """The tensor with another dtype, on another device, or as another tensor: `x.to(wf.float64)`, `x.to("cuda")`,
    `x.to("cuda", wf.float64)`, `x.to(other)`.

    Gives the tensor itself when nothing changes, unless `copy=True`. The conversion is recorded. `non_blocking` changes
    nothing: a copy to a GPU does not wait for it, and one from it must.
    """
    dtype: Any = options.get("dtype")
    device: Any = options.get("device")
    flags = [a for a in args if isinstance(a, bool)]
    if options and not options.keys() <= _TO_OPTIONS:
        unknown = next(name for name in options if name not in _TO_OPTIONS)
        raise ArgumentTypeError(f"to: there is no argument {unknown!r}", fix="Use dtype=, device= or copy=.")
    for value in args:
        if isinstance(value, Tensor):
            dtype, device = value.dtype, value.device
        elif value is None or isinstance(value, bool):
            continue
        elif _is_device(value):
            device = value
        elif isinstance(dtype, DType) or (dtype is not None and not isinstance(value, DType)):
            raise ArgumentTypeError(f"to: {dtype!r} and {value!r} cannot both be the dtype",
                                    fix="Give a device ('cpu', 'cuda'), a dtype, or both.")  # fmt: skip
        elif isinstance(dtype, str):
            device, dtype = dtype, value  # a name that is no device here: it is refused by that name
        else:
            dtype = value
    if isinstance(options.get("other"), Tensor):
        dtype, device = options["other"].dtype, options["other"].device
    copy = bool(options.get("copy", len(flags) > 1 and flags[1]))
    out = input if device is None else _moved(input, Device(device))
    return _cast(out, input.dtype if dtype is None else _dtype_named(dtype), copy and out is input)


def _dtype_named(dtype: Any) -> DType:
    """The dtype that `to` was given; a text may have been meant as a device."""
    try:
        return as_dtype(dtype, op="to")
    except NoSuchDTypeError as error:
        if isinstance(dtype, str):
            raise NoSuchDTypeError(f"to: {dtype!r} is neither a device nor a dtype that Wayfare has",
                                   fix=f"Its devices are 'cpu' and 'cuda'. {error.fix}") from None  # fmt: skip
        raise


@method
def type(input: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """The tensor with another dtype; without an argument, the name of its type."""
    if dtype is None:
        return f"wayfare.{'' if input.is_cpu else 'cuda.'}{_TYPE_NAMES[input.dtype]}"
    if isinstance(dtype, str):
        where, _, name = dtype.rpartition(".")
        if where.endswith("cuda"):
            input = _moved(input, Device("cuda"))
        found = next((d for d, text in _TYPE_NAMES.items() if text == name), None)
        dtype = found if found is not None else name
    return _cast(input, as_dtype(dtype, op="type"))


_TYPE_NAMES: dict[DType, str] = {
    bool_: "BoolTensor", uint8: "ByteTensor", int8: "CharTensor", int16: "ShortTensor", int32: "IntTensor",
    int64: "LongTensor", float16: "HalfTensor", bfloat16: "BFloat16Tensor", float32: "FloatTensor",
    float64: "DoubleTensor",
}  # fmt: skip


@method
def type_as(input: Tensor, other: Tensor) -> Tensor:
    """The tensor with the dtype of `other`, on its device."""
    return _cast(_moved(input, other.device), other.dtype)


def _converter(name: str, dtype: DType) -> Callable[..., Tensor]:
    def call(input: Tensor, memory_format: Any = None) -> Tensor:
        return _cast(input, dtype)

    return method(name=name)(named(call, name, f"The tensor as {dtype.name}."))


for _name, _dtype in {
    "bool": bool_, "byte": uint8, "char": int8, "short": int16, "int": int32, "long": int64, "half": float16,
    "bfloat16": bfloat16, "float": float32, "double": float64,
}.items():  # fmt: skip
    _converter(_name, _dtype)


@method
def cpu(input: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor on the CPU; itself if it is there."""
    return _moved(input, CPU)


@method
def cuda(input: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
    """The tensor on a GPU; itself if it is there."""
    place = Device("cuda" if device is None else device)
    if place.type != "cuda":
        raise OperationError(f"cuda: '{place}' is no GPU", fix="Use .to(device), or .cpu().")
    return _moved(input, place)


@method
def pin_memory(input: Tensor, device: Any = None) -> Tensor:
    """A copy in memory that a GPU reads directly; the tensor itself if no GPU is in use, or if it is pinned."""
    backend = started("cuda")
    if backend is None or input.device.type != "cpu" or backend.is_pinned(input._array):
        return input
    return made(backend.pinned(input._read("pin_memory()")))


@method
def is_pinned(input: Tensor, device: Any = None) -> bool:
    """Does it lie in memory that a GPU reads directly?"""
    backend = started("cuda")
    return backend is not None and input.device.type == "cpu" and backend.is_pinned(input._array)


@method
def record_stream(input: Tensor, stream: Any) -> None:
    """Say that this stream of a GPU reads the tensor, too: its memory is not used again before the stream is done with
    it."""
    if not hasattr(stream, "cuda_stream"):
        raise ArgumentTypeError(f"record_stream: expected a stream, not {stream.__class__.__name__}",
                                fix="Use wf.cuda.Stream() or wf.cuda.current_stream().")  # fmt: skip
    backend = BACKENDS.get(input._array.__class__)
    if backend is not None:
        backend.read_by(input._array, stream)


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
