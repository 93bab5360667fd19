"""The memory of one device: everything that running groups does differently from device to device.

Every `Row` has a memory, and so has a group, whose rows are alike. A memory gathers rows by address and adds to them,
makes views and copies, and reads numbers for Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wayfare.codegen.routines import addresses as by_address
from wayfare.codegen.runtime import gemm
from wayfare.core import buffer_pool
from wayfare.core.device import BACKENDS, CPU, Backend, Device, address, backend, copied
from wayfare.core.native import NATIVE
from wayfare.core.spec import NARROW_ARRAYS

if TYPE_CHECKING:
    from wayfare.batch.record.call import Row, Value

Array = np.ndarray[Any, np.dtype[Any]]

_ndarray = np.ndarray
_NOTHING = nullcontext()
# Rows of at most this many bytes are joined as bytes.
_SMALL = 1024
# So many addresses travel to a device as arguments of a kernel (`codegen/cuda/kernels/rows.py`), more as a copy.
_AS_ARGUMENTS = 480
# If Python reads a value of a result of at most so many bytes, all of the result is copied, for the other examples.
_READ_WHOLE = 1 << 20


class Memory:
    """The memory of one device. Arrays are those of the device, addresses and choices of rows NumPy's."""

    device: Device
    # Can values be read without waiting for a device?
    is_host = False
    # Can rows be gathered on it?
    has_kernels = True

    def active(self) -> AbstractContextManager[Any]:
        """A `with` block in which its device is the current one."""
        raise NotImplementedError

    def late_errors(self) -> Sequence[Exception]:
        """What will be raised by the next read of a value, if checks on the device say so."""
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A new array with any contents."""
        raise NotImplementedError

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A new array of zeros."""
        raise NotImplementedError

    def moved(self, array: Any) -> Any:
        """An array on this device: itself if it is there."""
        raise NotImplementedError

    def contiguous(self, array: Any) -> Any:
        """The array itself if it is C-contiguous, else a copy."""
        raise NotImplementedError

    def place_rows(self, addresses: Array, start: int, step: int, array: Any) -> None:
        """Enter the addresses of the rows of an array, from `start` on, `step` apart."""
        size = len(array)
        steps = np.arange(size) * (array.strides[0] if size > 1 else 0)
        addresses[start : start + size * step : step] = steps + address(array)

    def gather(self, addresses: Array, row: Row) -> Any:
        """The rows at any addresses as one array."""
        raise NotImplementedError

    def gather_each(self, wanted: Sequence[tuple[Any, Row]]) -> list[Any]:
        """The same for several lists of addresses, which may be of several memories."""
        return [row.memory.gather(addresses, row) for addresses, row in wanted]

    def stack(self, arrays: Sequence[Any], row: Row) -> Any:
        """Arrays of one shape as the rows of one."""
        raise NotImplementedError

    def add(self, addresses: Array, values: Any) -> None:
        """Add each row of an array to the row at an address, in order."""
        raise NotImplementedError

    def part(self, array: Any, row: Row, offset: int) -> Any:
        """A contiguous part of a contiguous array."""
        raise NotImplementedError

    def parts(self, array: Any, row: Row, offset: int) -> Any:
        """The same contiguous part of each row of an array."""
        raise NotImplementedError

    def take(self, array: Any, chosen: Array) -> Any:
        """The chosen rows of an array."""
        raise NotImplementedError

    def spread(self, rows: Any, at: Array, size: int) -> Any:
        """So many rows of zeros, but for these at their numbers."""
        raise NotImplementedError

    def copies(self, arrays: Sequence[Any], row: Row) -> list[Any]:
        """Copies of arrays of one shape, each with memory of its own for whoever writes to it."""
        raise NotImplementedError

    def matmul(self, a: Any, b: Any) -> Any:
        """The product of two matrices."""
        raise NotImplementedError

    def read(self, value: Value, others: Iterable[Value]) -> Array:
        """The numbers of a computed value, for Python; Python will probably read those of others soon."""
        raise NotImplementedError

    def on_host(self, array: Any) -> Array:
        """An array for Python to read."""
        raise NotImplementedError

    def constant(self, array: Array) -> Any:
        """An array of the CPU that an op reads here, and does not write."""
        raise NotImplementedError

    def finite(self, arrays: Sequence[Any]) -> bool:
        """Are all numbers of floating-point arrays finite?"""
        raise NotImplementedError


class HostMemory(Memory):
    """The memory of the CPU."""

    device = CPU
    is_host = True
    contiguous = staticmethod(np.ascontiguousarray)  # type: ignore[assignment]
    empty = staticmethod(buffer_pool.empty)
    add = staticmethod(by_address.add)
    if NATIVE is not None:
        place_rows = staticmethod(NATIVE.place_rows)

    def matmul(self, a: Array, b: Array) -> Array:
        """The product of two matrices, in their dtype: half precision is computed in float32 and rounded once."""
        if a.dtype in NARROW_ARRAYS:
            return gemm.matmul(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)
        return gemm.matmul(a, b)

    def active(self) -> AbstractContextManager[Any]:
        """A `with` block for groups of the CPU: nothing."""
        return _NOTHING

    def late_errors(self) -> Sequence[Exception]:
        """None: the CPU checks at once."""
        return ()

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A new array of zeros."""
        made = buffer_pool.empty(shape, dtype)
        made.fill(0)
        return made

    def moved(self, array: Any) -> Array:
        """An array on this device: itself if it is there."""
        found = BACKENDS.get(array.__class__)
        return array if found is None else found.to_host(array)

    def gather(self, addresses: Array, row: Row) -> Array:
        """The rows at any addresses as one array."""
        out = buffer_pool.empty((len(addresses), *row.shape), row.dtype)
        if row.bytes:
            by_address.gather(addresses, out)
        return out

    def stack(self, arrays: Sequence[Array], row: Row) -> Array:
        """Arrays of one shape as the rows of one."""
        if 0 < row.bytes <= _SMALL and False not in [a.flags.c_contiguous for a in arrays]:
            return _joined(arrays, row)
        out = buffer_pool.empty((len(arrays), *row.shape), row.dtype)
        if row.shape and row.bytes:
            np.concatenate(arrays, out=out.reshape((-1, *row.shape[1:])))
        else:
            for i, array in enumerate(arrays):
                out[i] = array
        return out

    def stack_copies(self, copies: Sequence[Any], row: Row) -> Array:
        """Stack rows that were copied when they were recorded."""
        if 0 < row.bytes <= _SMALL:
            return _joined([c.data for c in copies], row)
        return self.stack([c._array for c in copies], row)

    def part(self, array: Array, row: Row, offset: int) -> Array:
        """A contiguous part of a contiguous array."""
        if row.bytes == 0:
            return np.empty(row.shape, row.dtype)
        flat = array.reshape(-1).view(np.uint8)[offset : offset + row.bytes]
        return flat.view(row.dtype).reshape(row.shape)

    def parts(self, array: Array, row: Row, offset: int) -> Array:
        """The same contiguous part of each row of an array."""
        # The part of the first row, repeated with the stride of the array.
        start = self.part(array[0, ...], row, offset)
        return np.lib.stride_tricks.as_strided(start, (len(array), *row.shape), (array.strides[0], *row.strides))

    def take(self, array: Array, chosen: Array) -> Array:
        """The chosen rows of an array."""
        return array[chosen]

    def spread(self, rows: Array, at: Array, size: int) -> Array:
        """So many rows of zeros, but for these at their numbers."""
        out = np.zeros((size, *rows.shape[1:]), rows.dtype)
        out[at] = rows
        return out

    def copies(self, arrays: Sequence[Array], row: Row) -> list[Array]:
        """Copies of arrays of one shape, each with memory of its own for whoever writes to it."""
        return [np.array(array) for array in arrays]

    def read(self, value: Value, others: Iterable[Value]) -> Array:
        """The numbers of a computed value, for Python."""
        found: Array = value.call.group.array_of(value)
        return found

    def on_host(self, array: Any) -> Array:
        """An array for Python to read: itself."""
        found: Array = array
        return found

    def constant(self, array: Array) -> Array:
        """An array of the CPU that an op reads here: itself."""
        return array

    def finite(self, arrays: Sequence[Any]) -> bool:
        """Are all numbers of floating-point arrays finite?"""
        # The sum of the squares is finite unless an element is not, or is very large: then each is looked at.
        return all([bool(np.isfinite(np.dot(a.reshape(-1), a.reshape(-1)))) or bool(np.isfinite(a).all())
                    for a in arrays])  # fmt: skip


def _joined(parts: Sequence[Any], row: Row) -> Array:
    """For scalars and short rows joining bytes is many times faster than NumPy's `stack`."""
    return np.frombuffer(bytearray().join(parts), row.dtype).reshape((len(parts), *row.shape))


class DeviceMemory(Memory):
    """The memory of another device. Nothing here waits for it but `read`."""

    def __init__(self, backend: Backend, device: Device) -> None:
        self._backend = backend
        self.device = device
        self.has_kernels = backend.has_kernels

    def active(self) -> AbstractContextManager[Any]:
        """A `with` block in which its device is the current one."""
        return self._backend.active(self.device)

    def late_errors(self) -> Sequence[Exception]:
        """What will be raised by the next read of a value, if checks on the device say so."""
        return self._backend.late_errors()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A new array with any contents."""
        with self.active():
            return self._backend.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A new array of zeros."""
        return self._backend.zeros(shape, dtype, self.device)

    def moved(self, array: Any) -> Any:
        """An array on this device: itself if it is there. Nothing waits for a copy of the host's."""
        if array.__class__ is _ndarray:
            return self._backend.from_host(array, self.device)
        return self._backend.to_index(array, self.device)

    def contiguous(self, array: Any) -> Any:
        """The array itself if it is C-contiguous, else a copy."""
        return self._backend.in_c_order(array)

    def gather(self, addresses: Array, row: Row) -> Any:
        """The rows at any addresses as one array: one launch."""
        out = self.empty((len(addresses), *row.shape), row.dtype)
        if row.bytes:
            with self.active():
                self._backend.gather_at(addresses, out)
        return out

    def gather_each(self, wanted: Sequence[tuple[Any, Row]]) -> list[Any]:
        """The same for several lists of addresses: one launch for those of one row that travel in the same way."""
        together: dict[tuple[Row, bool], list[int]] = {}
        for i, (addresses, row) in enumerate(wanted):
            together.setdefault((row, len(addresses) * len(wanted) <= _AS_ARGUMENTS), []).append(i)
        found: list[Any] = [None] * len(wanted)
        for (row, few), numbers in together.items():
            lists = [wanted[i][0] for i in numbers]
            apart = not few and min([len(one) for one in lists]) <= _AS_ARGUMENTS
            if len(lists) == 1 or apart or not row.bytes:
                for i, one in zip(numbers, lists, strict=True):
                    found[i] = row.memory.gather(one, row)
                continue
            whole = row.memory.gather(np.concatenate(lists), row)
            start = 0
            for i, one in zip(numbers, lists, strict=True):
                found[i] = whole[start : start + len(one)]
                start += len(one)
        return found

    def stack(self, arrays: Sequence[Any], row: Row) -> Any:
        """Arrays of one shape as the rows of one: one launch, if they are contiguous."""
        backend = self._backend
        arrays = [a if a.flags.c_contiguous else backend.in_c_order(a) for a in arrays]
        return self.gather(np.array(backend.addresses(arrays), np.int64), row)

    def add(self, addresses: Array, values: Any) -> None:
        """Add each row of an array to the row at an address, in order: one launch."""
        with self.active():
            self._backend.add_at(addresses, self._backend.in_c_order(values))

    def part(self, array: Any, row: Row, offset: int) -> Any:
        """A contiguous part of a contiguous array."""
        if row.bytes == 0:
            return self.empty(row.shape, row.dtype)
        return self._backend.view(array, row.shape, row.dtype, offset, row.strides)

    def parts(self, array: Any, row: Row, offset: int) -> Any:
        """The same contiguous part of each row of an array."""
        strides = (array.strides[0], *row.strides)
        return self._backend.view(array, (len(array), *row.shape), row.dtype, offset, strides)

    def take(self, array: Any, chosen: Array) -> Any:
        """The chosen rows of an array: one launch."""
        array = self._backend.in_c_order(array)
        out = self.empty((len(chosen), *array.shape[1:]), array.dtype)
        if out.size:
            with self.active():
                self._backend.gather_at(address(array) + chosen.astype(np.int64) * array.strides[0], out)
        return out

    def spread(self, rows: Any, at: Array, size: int) -> Any:
        """So many rows of zeros, but for these at their numbers."""
        out = self.zeros((size, *rows.shape[1:]), rows.dtype)
        if out.size:
            self.add(address(out) + at.astype(np.int64) * out.strides[0], rows)
        return out

    def copies(self, arrays: Sequence[Any], row: Row) -> list[Any]:
        """Copies of arrays of one shape, made by one launch. They lie in one block, but none is a view of another."""
        if len(arrays) == 1 or not row.bytes:
            with self.active():
                return [copied(array) for array in arrays]
        whole = self.stack(arrays, row)
        size = row.bytes
        return [self._backend.view(whole, row.shape, row.dtype, i * size, row.strides) for i in range(len(arrays))]

    def matmul(self, a: Any, b: Any) -> Any:
        """The product of two matrices."""
        return self._backend.ops.matmul(a, b)

    def on_host(self, array: Any) -> Array:
        """A copy for Python to read."""
        return self._backend.to_host(array)

    def constant(self, array: Array) -> Any:
        """An array of the CPU that an op reads here: a copy; numbers are copied once."""
        with self.active():
            return self._backend.constant_array(array)

    def finite(self, arrays: Sequence[Any]) -> bool:
        """Are all numbers of floating-point arrays finite? They are read in one copy."""
        ops, flags = self._backend.ops, []
        with self.active():
            for array in arrays:
                flags.append(ops.all(ops.isfinite(array), dim=tuple(range(array.ndim)), keepdim=False))
            return not flags or bool(self.on_host(np.concatenate([flag.reshape(1) for flag in flags])).all())

    def read(self, value: Value, others: Iterable[Value]) -> Array:
        """The numbers of a computed value, for Python. What is read for one example is read for all: results that hold
        this value and others come in one copy, and stay with their groups."""
        group, number = value.call.group, value.number
        found = group.on_host.get(number)
        if found is None:
            results = {(id(group), number): (group, number)}
            for other in others:
                holder = other.call.group
                computed = holder is not None and holder.number >= 0  # a call that failed has no results
                if computed and other.row.memory is self and other.number not in holder.on_host:
                    results[id(holder), other.number] = holder, other.number
            chosen = [pair for pair in results.values() if 0 < pair[0].arrays[pair[1]].nbytes <= _READ_WHOLE]
            if (group, number) not in chosen:
                return self._backend.to_host(group.array_of(value))
            self._fetch(chosen)
            found = group.on_host[number]
        array = found[group.index_of(value.call), ...]
        return HOST.part(array, value.row, value.offset) if value.is_part else array

    def _fetch(self, results: Sequence[tuple[Any, int]]) -> None:
        """Copy results of groups to the host, all at once."""
        arrays = [self._backend.in_c_order(group.arrays[number]) for group, number in results]
        if len(arrays) == 1:
            copy = self._backend.to_host(arrays[0])
        else:
            copy = self._backend.to_host(np.concatenate([a.reshape(-1).view(np.uint8) for a in arrays]))
        start = 0
        for (group, number), array in zip(results, arrays, strict=True):
            end = start + array.nbytes
            own = copy if len(arrays) == 1 else copy[start:end].view(array.dtype).reshape(array.shape)
            group.on_host[number] = own
            start = end


HOST: Final = HostMemory()
_OF_DEVICES: dict[tuple[Backend, int | None], DeviceMemory] = {}


def memory_of(array: Any) -> Memory:
    """The memory that an array lies in."""
    if array.__class__ is _ndarray:
        return HOST
    found = BACKENDS.get(array.__class__)
    return HOST if found is None else _of(found, found.device_of(array))


def memory_at(device: Device) -> Memory:
    """The memory of a device; without a number, of the current one."""
    if device.type == "cpu":
        return HOST
    found = backend(device.type)
    return _of(found, device if device.index is not None else Device(device.type, found.current()))


def _of(backend: Backend, device: Device) -> Memory:
    key = (backend, device.index)  # not the device itself, whose hash takes Python
    made = _OF_DEVICES.get(key)
    if made is None:
        made = _OF_DEVICES[key] = DeviceMemory(backend, device)
    return made
