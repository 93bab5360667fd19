"""New tensors from data (tensor, as_tensor, from_numpy, …) or filled with one value (zeros, full, …)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.api.functions._along import check_tensor
from wayfare.api.functions._nested import array_from
from wayfare.api.functions._new import (
    allocate,
    filled,
    fitting,
    flat_ints,
    like,
    made,
    place_of,
    read_device,
    read_dtype,
    read_number,
    read_size,
)
from wayfare.api.functions._public import add_method, as_dtype_of, named
from wayfare.core.device import Device, address, backend
from wayfare.core.dispatch import apply
from wayfare.core.dlpack import shared, type_name
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DTypeError, OperationError, ShapeError
from wayfare.core.mode import UNUSUAL, called_by_user, executor
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY
from wayfare.core.spec import OF_NUMPY, DType, as_dtype, change_default_dtype, default_dtype, scalar_dtype
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import elements_overlap

__all__ = [
    "tensor", "as_tensor", "asarray", "from_numpy", "from_dlpack", "frombuffer", "scalar_tensor",
    "zeros", "ones", "full", "empty", "empty_strided", "empty_permuted",
    "zeros_like", "ones_like", "full_like", "empty_like",
    "set_default_dtype", "get_default_dtype",
]  # fmt: skip


# DLPack's number of the kind of device.
_CUDA = 2


# -- from data ---------------------------------------------------------------------------------------------


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
) -> Tensor:
    """A new tensor with a copy of `data`: nested lists, numbers, NumPy arrays or tensors.

    Python floats become the default dtype, ints int64, bools bool; arrays and tensors keep theirs.
    """
    if isinstance(data, Tensor):
        copy = apply(REGISTRY["clone"], (data.detach(),))
        copy = as_dtype_of(copy, read_dtype("tensor", dtype, data.dtype))
        return (copy if device is None else copy.to(device)).requires_grad_(requires_grad)
    if data.__class__ not in _PLAIN and hasattr(data, "__cuda_array_interface__"):
        return tensor(_on_device(data), dtype=dtype, device=device, requires_grad=requires_grad)
    return made(array_from(data, dtype, "tensor", copy=True), requires_grad, read_device(device))


# What is on no device: most data.
_PLAIN = (list, tuple, float, int, bool, np.ndarray)


def _on_device(data: Any) -> Tensor:
    """A tensor on the memory of another library's array on a GPU."""
    if hasattr(data, "__dlpack__"):
        return from_dlpack(data)
    _tell_of_sharing("as_tensor")
    try:
        array = backend("cuda").from_interface(data)
    except (RuntimeError, TypeError, ValueError) as error:
        raise OperationError(f"as_tensor: {type(data).__name__} cannot be shared: {error}") from None
    if array.dtype not in OF_NUMPY:
        as_dtype(array.dtype, op="as_tensor")
    return made(_shared(array))


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`data` as a tensor, sharing its memory (and its history) where no conversion is needed."""
    if isinstance(data, Tensor):
        out = as_dtype_of(data, read_dtype("as_tensor", dtype, data.dtype))
        return out if device is None else out.to(device)
    if hasattr(data, "__cuda_array_interface__"):
        return as_tensor(_on_device(data), dtype, device)
    if isinstance(data, np.ndarray):
        _tell_of_sharing("as_tensor")
        data = data.view()  # of memory that is not the new tensor's own
    return made(_shared(array_from(data, dtype, "as_tensor", copy=False)), device=read_device(device))


def asarray(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """`obj` as a tensor; `copy=True` always copies, `copy=False` refuses to, None copies where it must."""
    if copy:
        return tensor(obj, dtype=dtype, device=device, requires_grad=requires_grad)
    if hasattr(obj, "__dlpack__") and not isinstance(obj, (Tensor, np.ndarray)):
        obj = from_dlpack(obj)
    elif isinstance(obj, (bytes, bytearray, memoryview)):
        obj = frombuffer(obj, dtype=dtype or default_dtype())
    out = as_tensor(obj, dtype, device)
    source = obj._array if isinstance(obj, Tensor) else obj
    if copy is False and not _is_on_memory_of(out._array, source):
        raise ArgumentError(f"asarray: copy=False, but {type(obj).__name__} cannot become {out.spec} without a copy")
    if not requires_grad and out.requires_grad:
        return out.detach()
    return out.requires_grad_(requires_grad) if requires_grad else out


def _is_on_memory_of(array: Any, source: Any) -> bool:
    """Does an array show the memory of what it was made from?"""
    if array.__class__ is not np.ndarray:
        return array is source or (array.__class__ is source.__class__ and address(array) == address(source))
    return isinstance(source, np.ndarray) and np.shares_memory(source, array)


def from_numpy(ndarray: Array) -> Tensor:
    """A tensor on the memory of a NumPy array: writing to one shows in the other.

    A read-only array gives a tensor that refuses writes in place, and so does one stretched over several elements.
    """
    if not isinstance(ndarray, np.ndarray):
        raise ArgumentTypeError(f"from_numpy: expected a NumPy array, not {type(ndarray).__name__}",
                                fix="Use wf.tensor(...) for other data.")  # fmt: skip
    if ndarray.dtype not in OF_NUMPY:
        as_dtype(ndarray.dtype, op="from_numpy")
    if not ndarray.dtype.isnative:
        raise DTypeError(f"from_numpy: the array's byte order ({ndarray.dtype.str}) is not this machine's",
                         fix="Use wf.tensor(array), which converts a copy.")  # fmt: skip
    _tell_of_sharing("from_numpy")
    return made(_shared(ndarray.view(np.ndarray)))


def _shared(array: Array) -> Array:
    """An array that others hold too; a read-only view if its elements overlap in memory."""
    if array.__class__ is np.ndarray and 0 in array.strides and elements_overlap(array):
        array = array.view()
        array.flags.writeable = False
    return array


def _tell_of_sharing(name: str) -> None:
    """Tell a recorder that others may write this memory unseen; not for calls from inside the library."""
    if UNUSUAL and called_by_user(2):
        executor().unseen_input(f"it makes a tensor on the memory of something else ({name}); wf.tensor(...) copies")


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor on the memory of any object that speaks DLPack (`torch.Tensor`, `np.ndarray`, …)."""
    _tell_of_sharing("from_dlpack")
    if not hasattr(ext_tensor, "__dlpack__"):
        raise ArgumentTypeError(f"from_dlpack: {type(ext_tensor).__name__} has no __dlpack__ method",
                                fix="Give the tensor itself, not a capsule made from it.")  # fmt: skip
    place = None if device is None else Device(device)
    try:
        if ext_tensor.__dlpack_device__()[0] == _CUDA:
            array = shared(ext_tensor, backend("cuda").from_dlpack)
            array = array.copy() if copy else array
        else:
            array = shared(ext_tensor, lambda tensor: np.from_dlpack(tensor, copy=copy))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise OperationError(f"from_dlpack: {type_name(ext_tensor)} cannot be shared: {error}") from None
    if array.dtype not in OF_NUMPY:
        as_dtype(array.dtype, op="from_dlpack")
    return made(_shared(array), device=place)


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A tensor of one dimension on the memory of a bytes-like object."""
    _tell_of_sharing("frombuffer")
    wanted = as_dtype(dtype, op="frombuffer")
    try:
        array = np.frombuffer(buffer, wanted.numpy, count, offset)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"frombuffer: cannot read {wanted} from offset {offset}: {error}") from None
    return made(array, requires_grad)


def scalar_tensor(
    s: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A 0-dim tensor of one number, of the default dtype unless told otherwise."""
    number = read_number("scalar_tensor", "the value", s)
    return full((), number, dtype=dtype or default_dtype(), device=device, requires_grad=requires_grad)


# -- filled with one value ---------------------------------------------------------------------------------


def zeros(
    *size: Any, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    pin_memory: bool = False, **named: Any,
) -> Tensor:  # fmt: skip
    """A tensor of zeros."""
    return _filled("zeros", np.zeros, size, named, dtype, device, requires_grad)


def ones(
    *size: Any, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    pin_memory: bool = False, **named: Any,
) -> Tensor:  # fmt: skip
    """A tensor of ones."""
    return _filled("ones", np.ones, size, named, dtype, device, requires_grad)


def empty(
    *size: Any, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    pin_memory: bool = False, memory_format: Any = None, **named: Any,
) -> Tensor:  # fmt: skip
    """A tensor with undefined numbers."""
    return _filled("empty", np.empty, size, named, dtype, device, requires_grad)


def _filled(
    op: str, make: Any, size: Sequence[Any], named: dict[str, Any], dtype: Any, device: Any, requires_grad: bool
) -> Tensor:
    extra = set(named) - {"size"}
    if extra:
        raise ArgumentTypeError(f"{op}: unknown argument {extra.pop()!r}")
    shape, place = read_size(op, size, named.get("size")), read_device(device)
    if place is not None:
        return filled(op, shape, read_dtype(op, dtype), make is np.ones, place, requires_grad)
    return made(allocate(op, make, shape, read_dtype(op, dtype)), requires_grad)


def full(
    size: Sequence[int], fill_value: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor with `fill_value` everywhere; its dtype follows from the value unless given."""
    if isinstance(fill_value, Tensor) and dtype is None:
        dtype = fill_value.dtype
    value = read_number("full", "fill_value", fill_value)
    wanted = read_dtype("full", dtype, scalar_dtype(value))
    shape, place = read_size("full", (size,)), read_device(device)
    if place is not None:
        return filled("full", shape, wanted, fitting("full", value, wanted), place, requires_grad)
    return made(allocate("full", np.full, shape, wanted, fitting("full", value, wanted)), requires_grad)


def empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of undefined numbers laid out in memory by the given strides (in elements)."""
    place = read_device(device)
    shape, steps = read_size("empty_strided", (size,)), flat_ints("empty_strided", "a stride", (stride,))
    if len(shape) != len(steps):
        raise ShapeError(f"empty_strided: {len(shape)} sizes and {len(steps)} strides")
    if any(step < 0 for step in steps):
        raise ArgumentError(f"empty_strided: a stride in {list(steps)} is negative")
    wanted = read_dtype("empty_strided", dtype)
    span = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
    memory = allocate("empty_strided", np.empty, (span,), wanted)
    if place is not None:
        row = made(memory, device=place)
        return row.as_strided(shape, steps).detach().requires_grad_(requires_grad)
    array = np.lib.stride_tricks.as_strided(memory, shape, [s * wanted.itemsize for s in steps])
    return made(array, requires_grad)


def empty_permuted(
    size: Sequence[int], physical_layout: Sequence[int], *, dtype: Any = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of undefined numbers whose dimensions lie in memory in the order `physical_layout`."""
    shape = read_size("empty_permuted", (size,))
    order = flat_ints("empty_permuted", "a dimension", (physical_layout,))
    if sorted(order) != list(range(len(shape))):
        raise ArgumentError(f"empty_permuted: {list(order)} is not an order of {len(shape)} dimensions")
    wanted = read_dtype("empty_permuted", dtype)
    memory = allocate("empty_permuted", np.empty, tuple(shape[d] for d in order), wanted)
    return made(memory.transpose(np.argsort(order).tolist()), requires_grad, read_device(device))


def zeros_like(
    input: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Zeros of the shape and dtype of `input`."""
    check_tensor("zeros_like", input)
    place = place_of(input, device)
    return like(input, zeros(input.shape, dtype=dtype or input.dtype, device=place, requires_grad=requires_grad))


def ones_like(
    input: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Ones of the shape and dtype of `input`."""
    check_tensor("ones_like", input)
    place = place_of(input, device)
    return like(input, ones(input.shape, dtype=dtype or input.dtype, device=place, requires_grad=requires_grad))


def empty_like(
    input: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Undefined numbers of the shape and dtype of `input`."""
    check_tensor("empty_like", input)
    place = place_of(input, device)
    return like(input, empty(input.shape, dtype=dtype or input.dtype, device=place, requires_grad=requires_grad))


def full_like(
    input: Tensor, fill_value: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """`fill_value` everywhere, in the shape and dtype of `input`."""
    check_tensor("full_like", input)
    place = place_of(input, device)
    out = full(input.shape, fill_value, dtype=dtype or input.dtype, device=place, requires_grad=requires_grad)
    return like(input, out)


# -- methods: a new tensor of this one's dtype -------------------------------------------------------------


def _new_method(name: str, make: Any) -> None:
    def new(self: Tensor, *args: Any, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
        return like(self, make(*args, dtype=dtype or self.dtype, device=place_of(self, device), **options))

    doc = f"Like `wf.{name}`, with the dtype and on the device of this tensor unless told otherwise."
    add_method(f"new_{name}", named(new, f"new_{name}", doc))


for _name, _make in {
    "zeros": zeros, "ones": ones, "empty": empty, "full": full, "empty_strided": empty_strided,
}.items():  # fmt: skip
    _new_method(_name, _make)


def _new_tensor(
    self: Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Like `wf.tensor(data)`, with the dtype and on the device of this tensor unless told otherwise."""
    place = place_of(self, device)
    return like(self, tensor(data, dtype=dtype or self.dtype, device=place, requires_grad=requires_grad))


add_method("new_tensor", _new_tensor)


# -- the default dtype -------------------------------------------------------------------------------------


def set_default_dtype(d: Any) -> None:
    """The floating dtype that Python floats become; float32 at first."""
    dtype = as_dtype(d, op="set_default_dtype")
    executor().changes(None, "it sets the default dtype")
    change_default_dtype(dtype)


def get_default_dtype() -> DType:
    """The floating dtype that Python floats become."""
    return default_dtype()
