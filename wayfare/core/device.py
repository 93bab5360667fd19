"""Devices: where arrays live, and everything that the package may ask of one that is not the CPU.

The CPU needs no object: its arrays are NumPy's, and code asks `array.__class__ is ndarray`. Any other device has a
`Backend`, found by the class of its arrays (`BACKENDS`) or by the type of the device (`backend`). Records know nothing
of devices; the backend runs them (`ops/cuda`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np

from wayfare.core.errors import ArgumentTypeError, OperationError

Array = np.ndarray[Any, np.dtype[Any]]
_ndarray = np.ndarray


class Device:
    """Where an array lives: "cpu", "cuda" or "cuda:1". As a `with` block: where new tensors of this thread are made."""

    __slots__ = ("index", "type")
    type: str
    index: int | None

    def __init__(self, type: Any = "cpu", index: int | None = None) -> None:
        if isinstance(type, Device):
            index = type.index if index is None else index
            type = type.type
        if isinstance(type, int) and not isinstance(type, bool):  # as in PyTorch: the number of an accelerator
            type, index = "cuda", type
        name, _, number = str(type).partition(":")
        if number and (not number.isdecimal() or index is not None):
            raise ArgumentTypeError(f"device: {type!r} is no device", fix="Write 'cpu', 'cuda' or 'cuda:0'.")
        if not _is_number(index) or str(type).endswith(":"):
            given = repr(type) if index is None else f"{type!r}, {index!r}"
            raise ArgumentTypeError(f"device: {given} is no device", fix="Write 'cpu', 'cuda' or 'cuda:0'.")
        object.__setattr__(self, "type", name)
        object.__setattr__(self, "index", int(number) if number else index)
        if name != "cpu":
            backend(name).check(self.index)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"device: {name} of a device cannot be changed; make another device")

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type='{self.type}'{index})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __reduce__(self) -> Any:
        return Device, (self.type, self.index)

    def __enter__(self) -> Device:
        _THREAD.before.append(_THREAD.default)
        _THREAD.default = self
        return self

    def __exit__(self, *error: object) -> None:
        _THREAD.default = _THREAD.before.pop()


def _is_number(index: Any) -> bool:
    """May this be the number of a device?"""
    return index is None or (isinstance(index, int) and not isinstance(index, bool) and index >= 0)


CPU: Final = Device("cpu")


class _Thread(threading.local):
    """The device of new tensors in this thread (None: the CPU), and what it was outside of each `with` block."""

    def __init__(self) -> None:
        self.default: Device | None = None
        self.before: list[Device | None] = []


_THREAD = _Thread()


def default_device() -> Device:
    """Where a tensor is made if nobody says where."""
    return _THREAD.default or CPU


def change_default_device(device: Any) -> None:
    """Set where tensors of this thread are made (behind `wf.set_default_device`)."""
    _THREAD.default = None if device is None else Device(device)


class Backend:
    """One type of device: everything that the package may ask of it. Arrays here are the device's own."""

    type: str
    # Is there no second device of this type, so that every array is on the current one?
    alone: bool = False
    # The class of its arrays. Their attributes `shape`, `dtype`, `strides`, `size`, `ndim` and `base` are as NumPy's.
    array: Any
    # Ops by name on its arrays: the `m` of gradient rules in a pass that is not recorded.
    ops: Any
    # Elementary functions by name on its arrays, as `NumpyMath` has them: the `m` of formulas that have no kernel.
    math: Any

    def check(self, index: int | None) -> None:
        """Raise, with what to do, if there is no such device here."""
        raise NotImplementedError

    def device_of(self, array: Any) -> Device:
        """Where an array lives."""
        raise NotImplementedError

    # -- to and from the host

    def from_host(self, array: Array, device: Device) -> Any:
        """A copy of a NumPy array."""
        raise NotImplementedError

    def to_host(self, array: Any) -> Array:
        """A copy as a NumPy array: this waits for the device."""
        raise NotImplementedError

    def to_index(self, array: Any, device: Device) -> Any:
        """The array on another device of this type; itself if it is there."""
        raise NotImplementedError

    def pinned(self, array: Array) -> Array:
        """A copy on the host, in memory that the device reads directly."""
        raise NotImplementedError

    def is_pinned(self, array: Array) -> bool:
        """Is a NumPy array, or what it is a view of, one of `pinned`?"""
        raise NotImplementedError

    def read_by(self, array: Any, stream: Any) -> None:
        """A stream other than the current one reads an array, so its memory must stay until that has been done."""
        raise NotImplementedError

    def zeros(self, shape: Sequence[int], dtype: np.dtype[Any], device: Device) -> Any:
        """A new array of zeros."""
        raise NotImplementedError

    def constant(self, array: Array, device: Device) -> Any:
        """A NumPy array that shows one number, for an operand on the host; equal ones may share memory."""
        raise NotImplementedError

    def number_of(self, array: Any) -> Array | None:
        """What `constant` made this array of; None for any other array."""
        raise NotImplementedError

    def copied(self, array: Any, order: Any) -> Any:
        """A copy on the current device."""
        raise NotImplementedError

    # -- running ops

    def explained(self, name: str, error: BaseException) -> Exception | None:
        """A fault of the device (no memory, no answer) as an error of ours; None for any other error."""
        raise NotImplementedError

    def run(self, op: Any, arrays: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """The forward of a record: an array, or a tuple of them."""
        raise NotImplementedError

    def gradient_as_is(self, op: Any) -> bool:
        """Do the gradient rules of a record take bfloat16 as it is here? (Else they are given float32.)"""
        raise NotImplementedError

    def gradients(self, node: Any, g: Any, kept: tuple[Any, ...], needs: tuple[bool, ...]) -> list[Any] | None:
        """All gradients of a node at once; None: by its rules, with `ops`."""
        raise NotImplementedError

    def ones_like(self, array: Any) -> Any:
        """A new array of ones on the current device."""
        raise NotImplementedError

    def add_up(self, old: Any, new: Any, own: bool) -> Any:
        """The sum of two gradients on the current device: in place if `own` says that the first may be written."""
        raise NotImplementedError

    # -- timing

    def mark(self) -> Any:
        """A point in the work of the current device."""
        raise NotImplementedError

    def has_passed(self, point: Any) -> bool:
        """Has the device passed a point? Nothing waits."""
        raise NotImplementedError

    def seconds_between(self, first: Any, last: Any) -> float:
        """The time between two points; this waits until the device has passed them."""
        raise NotImplementedError

    # -- plans (`ir/target.py`)

    @property
    def has_kernels(self) -> bool:
        """Can loops of the loop language run on it?"""
        raise NotImplementedError

    def active(self, device: Device) -> AbstractContextManager[Any]:
        """A `with` block in which a device is the current one."""
        raise NotImplementedError

    def stream(self) -> int:
        """What identifies the stream in which this thread works now."""
        raise NotImplementedError

    def commands(self) -> Any:
        """A new command list, built like one of `codegen/runtime/commands.py`."""
        raise NotImplementedError

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """Room for an array, on the current device."""
        raise NotImplementedError

    def constant_array(self, array: Array) -> Any:
        """A copy of a NumPy array that is not written, on the current device."""
        raise NotImplementedError

    def update(self, loop: Any, sets: Sequence[Sequence[Any]], numbers: Sequence[float]) -> None:
        """An elementwise loop over many sets of contiguous arrays, in one launch: inputs, then outputs. The last inputs
        of the loop are the numbers."""
        raise NotImplementedError

    def numbers(self, array: Array) -> Any:
        """A few numbers for one run of a plan. Nothing waits for them."""
        raise NotImplementedError

    def view(self, array: Any, shape: Sequence[int], dtype: np.dtype[Any], offset: int, strides: Sequence[int]) -> Any:
        """A view of the memory of an array; offset and strides are in bytes."""
        raise NotImplementedError

    def current(self) -> int:
        """The number of the current device."""
        raise NotImplementedError

    def in_c_order(self, array: Any) -> Any:
        """The array itself if it is C-contiguous, else a copy."""
        raise NotImplementedError

    def gather_at(self, addresses: Array, out: Any) -> None:
        """out[i] = the row at addresses[i], on the current device; the addresses are a NumPy array."""
        raise NotImplementedError

    def add_at(self, addresses: Array, values: Any) -> None:
        """The row at addresses[i] += values[i], in order; addresses may repeat."""
        raise NotImplementedError

    def late_errors(self) -> list[Exception]:
        """What will be raised by the next read of a value, if checks on the device say so."""
        raise NotImplementedError

    def owner_of(self, array: Any) -> int:
        """A number for the block of memory that an array lies in."""
        raise NotImplementedError

    def kernel(self, loop: Any) -> Any:
        """A loop of the loop language as a kernel of the device, called like one of `codegen/runtime/kernel.py`; None
        where there is none, and the device's own functions must do."""
        raise NotImplementedError

    def address(self, array: Any) -> int:
        """Where in the memory of the device an array begins."""
        raise NotImplementedError

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        """The same of many arrays."""
        return [self.address(array) for array in arrays]

    def from_dlpack(self, other: Any) -> Any:
        """An array on the memory of an object of another library."""
        raise NotImplementedError

    def from_interface(self, other: Any) -> Any:
        """The same for an object that speaks no DLPack, but the interface of the device's own kind of arrays."""
        raise NotImplementedError


# The class of arrays → its backend. Empty until a device other than the CPU is asked for.
BACKENDS: Final[dict[type[Any], Backend]] = {}
# The classes of all arrays that a tensor may hold.
ARRAYS: Final[set[type[Any]]] = {_ndarray}
_MAKERS: Final[dict[str, Callable[[], Backend]]] = {}
_BY_TYPE: Final[dict[str, Backend]] = {}


def offer(type: str, make: Callable[[], Backend]) -> None:
    """Register the backend of a type of device: `make` makes it at first use, or raises with what to install."""
    _MAKERS[type] = make


def backend(type: str) -> Backend:
    """The backend of a type of device; it is made, and its library imported, when first asked for."""
    found = _BY_TYPE.get(type)
    if found is None:
        make = _MAKERS.get(type)
        if make is None:
            known = ", ".join(f"'{name}'" for name in ("cpu", *_MAKERS))
            raise OperationError(f"device: {type!r} is no device that Wayfare has", fix=f"They are {known}.")
        found = _BY_TYPE[type] = make()
        BACKENDS[found.array] = found
        ARRAYS.add(found.array)
    return found


def started(type: str) -> Backend | None:
    """The backend of a type of device, if it was asked for."""
    return _BY_TYPE.get(type)


def forget(type: str) -> None:
    """Forget a backend, as if it had never been asked for: for tests with a stand-in for its library."""
    found = _BY_TYPE.pop(type, None)
    if found is not None:
        BACKENDS.pop(found.array, None)
        ARRAYS.discard(found.array)


def device_fault(name: str, error: BaseException) -> Exception | None:
    """A fault of a device as an error of ours; None for any other error."""
    return next((found for b in BACKENDS.values() if (found := b.explained(name, error)) is not None), None)


def is_array(value: Any) -> bool:
    """Is it an array of NumPy, or of a device?"""
    return isinstance(value, _ndarray) or value.__class__ in BACKENDS


def device_of(array: Any) -> Device:
    """Where an array lives."""
    found = BACKENDS.get(array.__class__)
    return CPU if found is None else found.device_of(array)


def moved(array: Any, device: Device) -> Any:
    """The array on this device: itself if it is there, else a copy."""
    source = BACKENDS.get(array.__class__)
    if device.type == "cpu":
        return array if source is None else source.to_host(array)
    target = backend(device.type)
    if source is target:
        return target.to_index(array, device)
    return target.from_host(array if source is None else source.to_host(array), device)


def to_host(array: Any) -> Array:
    """The numbers of an array, for Python to read."""
    source = BACKENDS.get(array.__class__)
    return array if source is None else source.to_host(array)


def as_array(value: Any) -> Any:
    """A result of a function as an array; NumPy makes scalars of 0-dim ones."""
    return value if value.__class__ in BACKENDS else np.asarray(value)


def address(array: Any) -> int:
    """Where in the memory of its device an array begins."""
    found = BACKENDS.get(array.__class__) if BACKENDS else None
    return array.__array_interface__["data"][0] if found is None else found.address(array)


def copied(array: Any, order: Any = "K") -> Any:
    """A copy of an array, or of what NumPy made of a 0-dim one, in memory of its own on the same device."""
    if array.__class__ not in BACKENDS:
        return np.array(array, order=order)
    with active_for(array):
        return BACKENDS[array.__class__].copied(array, order)


_NOTHING_TO_DO: Final = nullcontext()


def active_for(array: Any) -> AbstractContextManager[Any]:
    """A `with` block in which the device of an array is the current one: CuPy makes results, and copies, there."""
    found = BACKENDS.get(array.__class__)
    return _NOTHING_TO_DO if found is None or found.alone else found.active(found.device_of(array))


def zeros_on_device_of(array: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """Zeros on the device of an array."""
    found = BACKENDS.get(array.__class__)
    return np.zeros(shape, dtype) if found is None else found.zeros(shape, dtype, found.device_of(array))


def extent(array: Any) -> tuple[int, int]:
    """The first byte of an array's memory, and the one after its last."""
    start = address(array)
    if array.flags.c_contiguous or array.size == 0:
        return start, start + array.nbytes
    steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    return start + sum([s for s in steps if s < 0]), start + sum([s for s in steps if s > 0]) + array.itemsize


def memory_key(array: Any) -> Any:
    """What kind of memory an array has, for guards: its device, or whether NumPy may write it."""
    return array.flags.writeable if array.__class__ is _ndarray else device_of(array)


def is_writable(array: Any) -> bool:
    """May an array be written? Arrays of other devices know no read-only memory, and elements that share memory must
    not be written one by one."""
    return array.flags.writeable if array.__class__ not in BACKENDS else not _overlaps_itself(array)


def added(old: Any, new: Any, own: bool) -> Any:
    """The sum of two arrays on the current device, of the shape of the first: in place if `own` says that nothing else
    reads that one."""
    there = BACKENDS.get(old.__class__)
    if there is not None and new.__class__ is old.__class__:
        return there.add_up(old, new, own)
    if own and old.__class__ in ARRAYS and is_writable(old):
        return np.add(old, new, out=old)
    return old + new


def _overlaps_itself(array: Any) -> bool:
    return any([step == 0 and size > 1 for step, size in zip(array.strides, array.shape, strict=True)])


def shows_one_number(array: Array) -> bool:
    """Has a NumPy array no dimensions, or is it one number that was expanded?"""
    return array.ndim == 0 or (array.size > 0 and not any(array.strides))


def common_device(name: str, tensors: Sequence[Any]) -> tuple[Backend, Device]:
    """The one device of these tensors, some of which are not on the CPU. Single numbers may stay on the CPU."""
    places = [device_of(t._array) for t in tensors]
    device = next(place for place in places if place.type != "cpu")
    for t, place in zip(tensors, places, strict=True):
        if place != device and (place.type != "cpu" or not shows_one_number(t._array)):
            shown = " and ".join(f"{t.spec} on {p}" for t, p in zip(tensors, places, strict=True))
            raise OperationError(f"{name}: the tensors are on different devices, {shown}",
                                 fix=f"Move one of them, as with .to('{device}') or .cpu().")  # fmt: skip
    return backend(device.type), device
