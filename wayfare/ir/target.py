"""What plans and fused programs run on: how arrays are made, viewed and copied there, and what runs loops.

`HOST` is the CPU: NumPy's arrays and native command lists. Any other device has a `DeviceTarget` over its `Backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from wayfare.codegen.runtime.commands import Commands
from wayfare.codegen.runtime.gemm import batched_matmul, matmul
from wayfare.codegen.runtime.kernel import Kernel, available
from wayfare.codegen.runtime.repeated import Repeated
from wayfare.core import buffer_pool
from wayfare.core.buffer_pool import owns_memory
from wayfare.core.device import BACKENDS, Backend, Device
from wayfare.core.errors import ShapeError
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op, raw_ops

Shape = tuple[int, ...]
Forward = Callable[..., Any]


class Target:
    """The CPU. Arrays are NumPy's."""

    # The class of arrays that a run takes, and no subclass: native code reads the memory of the array object.
    array: type[Any] = np.ndarray
    # Can a whole tree of plans run by one native call?
    native = True
    # Ops by name on its arrays.
    ops: Any = raw_ops

    # Can loops run as kernels? (Composites ask at every call, so it is the function itself.)
    has_kernels: Callable[[], bool] = staticmethod(available)

    def commands(self) -> Any:
        """A new command list."""
        return Commands()

    def clock(self) -> Clock | None:
        """A clock of the device, started now. None on the CPU, where a call returns when its work is done."""
        return None

    def finish(self, commands: Any, arena: int, results: Sequence[int]) -> None:
        """A command list is complete; `arena` and `results` are numbers of its objects."""
        commands.finish()

    def arena(self, size: int) -> AbstractContextManager[Any]:
        """A `with` block that has so many bytes of memory for one run."""
        return nullcontext(buffer_pool.empty((size,), np.dtype(np.uint8)))

    def maker(self, size: int = buffer_pool.SMALLEST) -> Callable[[Shape, np.dtype[Any]], Any]:
        """The allocator for arrays of this size: the pool does not serve small ones, and asking it takes time."""
        return np.empty if size < buffer_pool.SMALLEST else buffer_pool.empty

    def active(self) -> AbstractContextManager[Any]:
        """A `with` block in which the device is the current one."""
        return _NOTHING

    def constant(self, array: Array) -> Any:
        """An array that is kept for many runs."""
        return array

    def zeros(self, shape: Shape, dtype: np.dtype[Any]) -> Any:
        """A new array of zeros."""
        return np.zeros(shape, dtype)

    def as_array(self, made: Any) -> Any:
        """A result of an op as an array; NumPy makes scalars of 0-dim ones."""
        return made if made.__class__ is np.ndarray else np.asarray(made)

    def numbers(self, values: Any, dtype: np.dtype[Any]) -> Any:
        """The numbers of an update, for one run."""
        return np.array(values, dtype)

    def view(self, array: Any, shape: Shape, dtype: np.dtype[Any], offset: int, strides: Shape) -> Any:
        """A view of the memory of an array; offset and strides are in bytes."""
        if array.flags.c_contiguous:
            return np.ndarray(shape, dtype, array, offset, strides)
        # NumPy accepts only contiguous arrays as a buffer, so others are passed by address.
        address = array.__array_interface__["data"][0] + offset
        return np.asarray(_Window(array, address, shape, strides, dtype))

    def contiguous(self, array: Any) -> Any:
        """The same array with standard strides if it is contiguous, else a contiguous copy."""
        if array.__class__ is np.ndarray and array.flags.c_contiguous:
            return np.ndarray(array.shape, array.dtype, array)
        return np.array(array, order="C")

    def shares_memory(self, a: Any, b: Any) -> bool:
        """May two arrays share memory?"""
        return bool(np.may_share_memory(a, b))

    def own(self, name: str, made: Any, shape: Shape, dtype: np.dtype[Any], given: Sequence[Any]) -> Any:
        """The result of an op as a contiguous array that shares no memory with the inputs."""
        array = made if made.__class__ is np.ndarray else np.asarray(made)
        self._check(name, array, shape, dtype)
        if not array.flags.c_contiguous:
            return array.copy()
        if not array.flags.writeable or any(array is a for a in given):
            return array.copy()
        if not owns_memory(array) and any(np.may_share_memory(array, a) for a in given):
            return array.copy()
        return array

    def _check(self, name: str, array: Any, shape: Shape, dtype: np.dtype[Any]) -> None:
        if array.shape != shape or array.dtype != dtype:
            raise ShapeError(
                f"{name}: {array.dtype}{list(array.shape)} came out where {dtype}{list(shape)} was planned"
            )

    # -- running

    def forward(self, op: Op, dtypes: Sequence[np.dtype[Any]], size: int = 0) -> Forward:
        """The function that runs a record on arrays of up to so many elements, the one that eager mode would use."""
        return op.forward_for(dtypes) if size < op.large_from else op.large

    def run_kernel(self, kernel: Kernel, inputs: list[Any], outputs: list[Any], shape: Shape, axes: Any) -> None:
        """Run a loop over `shape`, with rows along `axes`."""
        kernel.into(inputs, outputs, shape, axes)

    def repeated(self, kernel: Kernel, shape: Shape, axes: Any) -> Callable[[list[Any], list[Any]], list[Any]]:
        """The same as a function of (inputs, outputs) for many runs; it returns the outputs."""
        return Repeated(kernel, shape, axes)

    def keeps_order(self, array: Any) -> bool:
        """Should an elementwise result of this array have its columns contiguous, as the array has?"""
        return bool(array.flags.fnc)

    def matmul(self, a: Any, b: Any, out: Any, add: bool) -> None:
        """`out = a @ b`, or `out += a @ b`."""
        if add:
            out += matmul(a, b)
        elif a.ndim > 2 and a.shape[:-2] == b.shape[:-2]:
            batched_matmul(a, b, out)
        else:
            matmul(a, b, out)

    def copy(self, target: Any, source: Any) -> None:
        """Copy an array into another."""
        np.copyto(target, source)

    def broadcast(self, array: Any, shape: Shape) -> Any:
        """An array broadcast to a shape, without a copy."""
        return np.broadcast_to(array, shape)


class _Window:
    """Memory at an address, as NumPy takes it; keeps its owner alive."""

    def __init__(self, owner: Array, address: int, shape: Any, strides: Any, dtype: np.dtype[Any]) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "shape": shape, "strides": strides, "typestr": dtype.str,
        }  # fmt: skip


HOST = Target()
_NOTHING = nullcontext()
# The smallest arena of a device, and by how much it grows at least: a graph is made again when it has moved.
_LEAST, _STEP = 1 << 16, 1 << 26


class Clock:
    """The time that a device takes for the work between the start and `stop`. Nothing waits for it."""

    def __init__(self, backend: Backend, active: Callable[[], AbstractContextManager[Any]]) -> None:
        self._backend, self._active = backend, active
        self._first = self._last = self._mark()

    def _mark(self) -> Any:
        with self._active():
            return self._backend.mark()

    def stop(self) -> None:
        """End the measured work."""
        self._last = self._mark()

    def seconds(self) -> float | None:
        """The time; None while the device is still computing."""
        if not self._backend.has_passed(self._last):
            return None
        return self._backend.seconds_between(self._first, self._last)


class DeviceTarget(Target):
    """A device that is not the CPU."""

    native = False

    def __init__(self, backend: Backend, device: Device) -> None:
        self._backend, self._device = backend, device
        self.array, self.ops = backend.array, backend.ops
        self.has_kernels = lambda: backend.has_kernels
        # Arenas that no run uses now, by stream.
        self._arenas: dict[int, list[Any]] = {}

    def active(self) -> AbstractContextManager[Any]:
        """A `with` block in which the device is the current one."""
        return self._backend.active(self._device)

    def commands(self) -> Any:
        """A list of launches."""
        return self._backend.commands()

    def clock(self) -> Clock | None:
        """The device's clock."""
        return Clock(self._backend, self.active)

    def finish(self, commands: Any, arena: int, results: Sequence[int]) -> None:
        """The arena keeps its address from run to run; results are new arrays."""
        commands.finish((arena,), results)

    @contextmanager
    def arena(self, size: int) -> Iterator[Any]:
        """The memory that the last run in this stream had, so that a graph finds it at the same address. Plans run one
        after the other, and no value outlives a run. A run of another thread meanwhile has its own memory."""
        free = self._arenas.setdefault(self._backend.stream(), [])
        found = free.pop() if free else None
        if found is None or found.nbytes < size:
            before = 0 if found is None else found.nbytes
            found = None  # free before the larger one is asked for
            found = self._backend.empty((max(size, min(2 * before, before + _STEP), _LEAST),), np.dtype(np.uint8))
        try:
            yield found
        finally:
            free.append(found)

    def release(self) -> None:
        """Give back the memory that is kept from run to run."""
        self._arenas.clear()

    def maker(self, size: int = 0) -> Callable[[Shape, np.dtype[Any]], Any]:
        """The allocator of the device."""
        return self._backend.empty

    def constant(self, array: Array) -> Any:
        """A copy on the device."""
        return array if array.__class__ is self.array else self._backend.constant_array(np.array(array, order="C"))

    def zeros(self, shape: Shape, dtype: np.dtype[Any]) -> Any:
        """A new array of zeros."""
        return self._backend.zeros(shape, dtype, self._device)

    def as_array(self, made: Any) -> Any:
        """A result of an op as an array of the device."""
        return made if made.__class__ is self.array else self.constant(np.asarray(made))

    def numbers(self, values: Any, dtype: np.dtype[Any]) -> Any:
        """The numbers of an update stay on the host: a list of launches sends them."""
        return [float(value) for value in values]

    def view(self, array: Any, shape: Shape, dtype: np.dtype[Any], offset: int, strides: Shape) -> Any:
        """A view of the memory of an array."""
        return self._backend.view(array, shape, dtype, offset, strides)

    def contiguous(self, array: Any) -> Any:
        """The array itself if it is contiguous, else a contiguous copy."""
        if array.__class__ is not self.array:
            return self.constant(array)
        return array if array.flags.c_contiguous else array.copy("C")

    def shares_memory(self, a: Any, b: Any) -> bool:
        """May two arrays share memory?"""
        return a is b or self._backend.owner_of(a) == self._backend.owner_of(b)

    def own(self, name: str, made: Any, shape: Shape, dtype: np.dtype[Any], given: Sequence[Any]) -> Any:
        """The result of an op as a contiguous array that shares no memory with the inputs."""
        array = self.as_array(made)
        self._check(name, array, shape, dtype)
        if not array.flags.c_contiguous or any(self.shares_memory(array, a) for a in given):
            return array.copy("C")
        return array

    def forward(self, op: Op, dtypes: Sequence[np.dtype[Any]], size: int = 0) -> Forward:
        """The function of the backend."""
        return lambda *arrays, **attrs: self._backend.run(op, arrays, attrs)

    def run_kernel(self, kernel: Kernel, inputs: list[Any], outputs: list[Any], shape: Shape, axes: Any) -> None:
        """Launch a loop."""
        self._launched(self._backend.kernel(kernel.loop), inputs, outputs, shape, axes)

    def _launched(self, kernel: Any, inputs: list[Any], outputs: list[Any], shape: Shape, axes: Any) -> list[Any]:
        if 0 not in shape:
            # Outputs overlap nothing that is read later, so they are not checked. (The check would refuse neighbouring
            # columns.)
            return kernel.into(inputs, outputs, shape, axes)  # type: ignore[no-any-return]
        return outputs if axes is None else kernel.rows(inputs, axes, outputs)

    def repeated(self, kernel: Kernel, shape: Shape, axes: Any) -> Callable[[list[Any], list[Any]], list[Any]]:
        """The same as a function of (inputs, outputs), which do not overlap where that matters."""
        found: Any = None

        def run(inputs: list[Any], outputs: list[Any]) -> list[Any]:
            nonlocal found
            if found is None:  # made at the first run, when its device is the current one
                found = self._backend.kernel(kernel.loop)
            return self._launched(found, inputs, outputs, shape, axes)

        return run

    def keeps_order(self, array: Any) -> bool:
        """No: results are made in C order."""
        return False

    def matmul(self, a: Any, b: Any, out: Any, add: bool) -> None:
        """By the backend's own product."""
        made = self._backend.ops.matmul(a, b)
        out[...] = out + made if add else made

    def copy(self, target: Any, source: Any) -> None:
        """Copy an array into another."""
        target[...] = source

    def broadcast(self, array: Any, shape: Shape) -> Any:
        """An array broadcast to a shape, without a copy."""
        missing = (0,) * (len(shape) - array.ndim)
        strides = [0 if n == 1 else s for n, s in zip(array.shape, array.strides, strict=True)]
        return self._backend.view(array, shape, array.dtype, 0, (*missing, *strides))


_TARGETS: dict[tuple[Backend, Device], DeviceTarget] = {}


def release_arenas() -> None:
    """Give back the memory that devices keep for plans."""
    for target in _TARGETS.values():
        target.release()


def target_of(samples: Sequence[Any]) -> Target:
    """What a plan for these arrays runs on: the device that some of them are on, else the CPU."""
    if not BACKENDS:
        return HOST
    there = next((a for a in samples if a.__class__ in BACKENDS), None)
    if there is None:
        return HOST
    backend = BACKENDS[there.__class__]
    key = (backend, backend.device_of(there))
    found = _TARGETS.get(key)
    if found is None:
        found = _TARGETS[key] = DeviceTarget(*key)
    return found
