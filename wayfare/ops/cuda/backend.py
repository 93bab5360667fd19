"""`CudaBackend`: arrays of CuPy, and how records run on them.

Elementwise records and reductions become loops, and loops become kernels (`kernel`); where there is no kernel, CuPy's
own functions do. Nothing here waits for the device, but for values that Python reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from wayfare.codegen.cuda.commands import CudaCommands
from wayfare.codegen.cuda.kernel import build
from wayfare.codegen.cuda.kernels.rows import add_at, gather_at
from wayfare.codegen.cuda.kernels.update import update
from wayfare.codegen.cuda.launch import CupyLauncher, Launcher
from wayfare.codegen.cuda.numbers import write_numbers
from wayfare.codegen.cuda.nvrtc import CompileError
from wayfare.codegen.runtime.kernel import refuse
from wayfare.core.device import Array, Backend, Device
from wayfare.core.errors import OperationError
from wayfare.core.op import ByName, Op, joint
from wayfare.core.spec import BFLOAT16
from wayfare.ir.formulas import in_single
from wayfare.ir.fuse.composite import Composite
from wayfare.ir.fuse.elementwise import ElementwiseLoops, LargeGradients
from wayfare.ir.vjp import original, rule_of
from wayfare.ops.cuda import (  # noqa: F401 - they say how records run there
    contraction,
    draws,
    indexing,
    linalg,
    movement,
    recurrence,
    reduction,
    windows,
)
from wayfare.ops.cuda.exchange import Exchange
from wayfare.ops.cuda.faults import Faults, answering, attempt
from wayfare.ops.cuda.forked import refuse_in_children
from wayfare.ops.cuda.functions import functions_of
from wayfare.ops.cuda.late_checks import LateChecks
from wayfare.ops.cuda.library import device_count, found_library
from wayfare.ops.cuda.plans import RememberedPlans
from wayfare.ops.cuda.points import Point
from wayfare.ops.cuda.table import GRADIENTS, OVERRIDES, TAKE_BFLOAT16, way

# Constants that are kept.
_CONSTANTS = 1024


class CudaOps(ByName):
    """Ops by name on arrays of CuPy: nothing is recorded. What rules make with NumPy is copied to the device."""

    differentiable = False

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend

    def _bind(self, op: Op) -> Any:
        backend = self._backend
        forward, array = backend.forward_of(op), backend.array

        def compute(*given: Any, **attrs: Any) -> Any:
            for one in given:
                if one.__class__ is not array:
                    given = tuple([a if a.__class__ is array else backend.operand(a, given) for a in given])
                    break
            return forward(*given, **attrs)

        def call(*given: Any, **attrs: Any) -> Any:
            try:
                return compute(*given, **attrs)
            except backend.faults:
                return attempt(backend, lambda: compute(*given, **attrs), op.name)

        return call


class CudaBackend(RememberedPlans, LateChecks, Exchange, Faults, Backend):
    """CUDA through CuPy."""

    type = "cuda"
    # Makes what kernels are launched with, for the current device. None: there are no kernels, CuPy's functions do.
    new_launcher: Callable[[], Launcher] | None = CupyLauncher

    def __init__(self) -> None:
        super().__init__()
        self.xp = found_library("cupy")
        self.cupyx = found_library("cupyx")
        self.math = functions_of(self.xp, found_library("cupyx.scipy.special"))
        self.array = self.xp.ndarray
        self.count = device_count(self.xp)
        self.alone = self.count == 1
        self.ops = CudaOps(self)
        self.out_of_memory: Any = self.xp.cuda.memory.OutOfMemoryError
        self.device_errors: Any = (self.xp.cuda.runtime.CUDARuntimeError, self.xp.cuda.driver.CUDADriverError)
        self.faults: Any = (self.out_of_memory, *self.device_errors)
        self._forwards: dict[Op, Callable[..., Any]] = {}
        self._gradients: dict[Op, Callable[..., Any]] = {}
        self._launchers: dict[int, Launcher] = {}
        self._constants: dict[Any, Any] = {}
        self._numbers: dict[int, Array] = {}
        self.start_plans()
        refuse_in_children(self)

    def check(self, index: int | None) -> None:
        """Raise, with what to do, if there is no such device here."""
        if index is not None and not 0 <= index < self.count:
            raise OperationError(f"device: there is no 'cuda:{index}', this machine has {self.count} CUDA devices",
                                 fix=f"They are numbered from 0 to {self.count - 1}.")  # fmt: skip

    # -- arrays

    def device_of(self, array: Any) -> Device:
        """Where an array lives."""
        number = array.device.id
        found = _DEVICES.get(number)
        if found is None:
            found = _DEVICES[number] = Device("cuda", number)
        return found

    def on(self, device: Device) -> Any:
        """A `with` block in which new arrays are made on this device."""
        self.check(device.index)
        return self.xp.cuda.Device(device.index)

    def from_host(self, array: Array, device: Device) -> Any:
        """A copy of a NumPy array."""
        # CuPy fills where it is given one number, and takes -0.0 for zero.
        is_number = array.ndim == 0
        with self.on(device):
            made = attempt(self, lambda: self.xp.asarray(array.reshape(1) if is_number else array), "to")
        return made.reshape(()) if is_number else made

    def to_host(self, array: Any) -> Array:
        """A copy as a NumPy array. It waits for the device, so what waited for a value is checked here."""
        if self._waiting or self._flags:
            self.check_now()
        with answering(self, "a copy to the CPU"):
            found: Array = array.get(order="A")
        return found

    def to_index(self, array: Any, device: Device) -> Any:
        """The array on another device of this type; itself if it is there."""
        wanted = self.current() if device.index is None else device.index
        if array.device.id == wanted:
            return array
        with self.on(Device("cuda", wanted)):
            return attempt(self, lambda: self.xp.array(array, order="K"), "to")

    def zeros(self, shape: Sequence[int], dtype: np.dtype[Any], device: Device) -> Any:
        """A new array of zeros."""
        with self.on(device):
            return attempt(self, lambda: self.xp.zeros(tuple(shape), dtype), "zeros")

    def constant(self, array: Array, device: Device) -> Any:
        """An array that shows one number, for an operand on the host; equal ones share memory."""
        if array.ndim:
            number = array.reshape(-1)[:1].reshape(())
            return self.xp.broadcast_to(self.constant(number, device), array.shape)
        key = (device.index, array.dtype.char, array.tobytes())
        found = self._constants.get(key)
        if found is None:
            if len(self._constants) >= _CONSTANTS:
                self._constants.clear()
                self._numbers.clear()
            found = self._constants[key] = self.from_host(array, device)
            self._numbers[id(found)] = array
        return found

    def number_of(self, array: Any) -> Array | None:
        """What `constant` made this array of; None for any other array."""
        return self._numbers.get(id(array))

    def constant_array(self, array: Array) -> Any:
        """An array that a rule made, on the current device."""
        if array.ndim == 0:
            return self.constant(array, Device("cuda", self.current()))
        return self.xp.asarray(array)

    def operand(self, value: Any, others: Sequence[Any]) -> Any:
        """What a rule gave an op beside arrays of CuPy: an array or a scalar of NumPy, or a number of their dtype."""
        if isinstance(value, (np.ndarray, np.generic)):
            return self.constant_array(np.asarray(value))
        dtype = next(x.dtype for x in others if x.__class__ is self.array)
        return self.constant_array(np.asarray(value, dtype))

    def address(self, array: Any) -> int:
        """Where in the memory of the GPU an array begins."""
        return int(array.data.ptr)

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        """The same of many arrays."""
        return [array.data.ptr for array in arrays]

    def in_c_order(self, array: Any) -> Any:
        """The array itself if it is C-contiguous, else a copy: what kernels written by hand take."""
        return self.xp.ascontiguousarray(array)

    def as_strided(self, x: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """A view with other strides, in bytes. Nothing tells that it is a view: use it, or copy it, at once."""
        return self.xp.lib.stride_tricks.as_strided(x, tuple(shape), tuple(strides))

    def current(self) -> int:
        """The number of the current device."""
        return int(self.xp.cuda.runtime.getDevice())

    # -- running ops

    def forward_of(self, op: Op) -> Callable[..., Any]:
        """The function that runs a record on arrays of CuPy."""
        found = self._forwards.get(op)
        if found is None:
            found = self._forward(op)
            if way(op) == "forward":  # a view: nothing to compile
                self._forwards[op] = found
                return found
            if way(op) in ("override", "host") and not self.takes_bfloat16(op):
                found = _widening(op, found)
            found = self._forwards[op] = self._compiling(op, found)
        return found

    def _compiling(self, op: Op, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The forward, or the CPU's from the first time on that a kernel cannot be compiled: with one warning."""

        def call(*arrays: Any, **attrs: Any) -> Any:
            nonlocal forward
            try:
                return forward(*arrays, **attrs)
            except CompileError as error:
                refuse(op.name, error, "the CPU computes it, slower")
                forward = _widening(op, self.on_host(op)) if not op.as_is else self.on_host(op)
                return forward(*arrays, **attrs)

        return call

    def takes_bfloat16(self, op: Op) -> bool:
        """Does the forward of a record take bfloat16 as it is?"""
        return op.as_is or op in TAKE_BFLOAT16

    def _forward(self, op: Op) -> Callable[..., Any]:
        how = way(op)
        if how == "override":
            function = OVERRIDES[op]
            return lambda *arrays, **attrs: function(self, *arrays, **attrs)
        if how == "host":
            return self.on_host(op)
        if how == "forward":
            return op.forward
        if op.family == "elementwise":
            return self._elementwise(op)
        if op.family == "fused":
            return op.forward  # its program is bound to the device
        if isinstance(getattr(op.large, "__self__", None), Composite):
            return op.large  # type: ignore[no-any-return]
        if op.family == "vjp" and self.gradient_as_is(original(op)):
            rule = rule_of(op).as_is
            return lambda *arrays, **attrs: rule(self.ops, *arrays, **attrs)
        if how == "formula":
            formula = in_single(op.formula)  # type: ignore[arg-type]
            return lambda *arrays, **attrs: formula(self.ops, *arrays, **attrs)
        raise OperationError(f"{op.name}: nobody has said how it runs on CUDA",
                             fix="Register a function for it with `on_cuda` (wayfare/ops/cuda/table.py).")  # fmt: skip

    def _elementwise(self, op: Op) -> Callable[..., Any]:
        loops = ElementwiseLoops(op, self.kernel, self.constant_array)
        by_functions = self.math.forward_of(op)
        plans = self.plans_of(op)[0]

        def forward(*arrays: Any, **attrs: Any) -> Any:
            found = loops.find(arrays, attrs)
            if found is None:
                return by_functions(*arrays, **attrs)
            kernel, numbers = found
            return kernel([*arrays, *numbers])[0]

        if plans is None:
            return forward

        def by_plan(*arrays: Any, **attrs: Any) -> Any:
            made = plans.new(arrays, attrs)
            if made is not None:
                return made[0]
            out = forward(*arrays, **attrs)
            found = loops.find(arrays, attrs)
            if found is not None and all([a.__class__ is self.array for a in arrays]):
                kernel, numbers = found
                self.remember(plans, arrays, attrs, kernel, [*arrays, *numbers])
            return out

        return by_plan

    def on_host(self, op: Op) -> Callable[..., Any]:
        """The forward of a record, computed by the CPU."""

        def forward(*arrays: Any, **attrs: Any) -> Any:
            made = op.forward(*[self.to_host(a) for a in arrays], **attrs)
            if isinstance(made, (tuple, list)):
                return tuple([self.xp.asarray(np.asarray(x)) for x in made])
            return self.xp.asarray(np.asarray(made))

        return forward

    def run(self, op: Op, arrays: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """The forward of a record."""
        if not self.alone and arrays and arrays[0].__class__ is self.array and arrays[0].device.id != self.current():
            with arrays[0].device:
                return attempt(self, lambda: self.forward_of(op)(*arrays, **attrs), op.name)
        return attempt(self, lambda: self.forward_of(op)(*arrays, **attrs), op.name)

    def gradient_as_is(self, op: Op) -> bool:
        """Do the gradient rules of a record take bfloat16 as it is? Products do, which are fast in it, and what moves
        rows; rules of reductions count and divide."""
        return op in TAKE_BFLOAT16 and op.family not in ("reduction", "segments")

    def gradients(self, node: Any, g: Any, kept: tuple[Any, ...], needs: tuple[bool, ...]) -> list[Any] | None:
        """All gradients of a node of an elementwise record in one kernel, or by a function of `GRADIENTS`; None: by its
        rules."""
        op = node.op
        if op in GRADIENTS:
            found: Any = attempt(self, lambda: GRADIENTS[op](self, needs, g, *kept, **node.attrs), op.name)
            return found  # type: ignore[no-any-return]
        if self.new_launcher is None or op.family != "elementwise" or op.vjp is None or isinstance(op.vjp, joint):
            return None
        if g.__class__ is tuple:  # frexp
            return None
        found = self._gradients.get(op)
        if found is None:
            plans = self.plans_of(op)[1]

            def ran(needs: Sequence[bool], kept: Any, attrs: Any, arrays: Any, kernel: Any, places: Any) -> None:
                bits = sum([1 << i for i, wanted in enumerate(needs) if wanted])
                self.remember(plans, (bits, arrays[0], *kept), attrs, kernel, arrays, places)

            found = self._gradients[op] = LargeGradients(
                op, self.kernel, self.constant_array, ran=None if plans is None else ran
            )  # fmt: skip
        try:
            made: list[Any] | None = found(g, kept, needs, node.attrs)
        except CompileError as error:
            refuse(f"{op.name} (gradient)", error, "its parts run one by one, slower")
            self._gradients[op] = _no_gradients
            return None
        return made

    def kernel(self, loop: Any) -> Any:
        """A loop of the loop language as a kernel; None: CuPy's own functions must do."""
        return None if self.new_launcher is None else build(loop, self.launcher)

    @property
    def launcher(self) -> Launcher:
        """What kernels of the current device are launched with."""
        number = self.current()
        found = self._launchers.get(number)
        if found is None:
            assert self.new_launcher is not None
            found = self._launchers[number] = self.new_launcher()
        return found

    # -- timing

    def mark(self) -> Any:
        """A point in the current stream of the current device."""
        return Point(self)

    def has_passed(self, point: Any) -> bool:
        """Has the GPU passed a point?"""
        return bool(point.event.done)

    def seconds_between(self, first: Any, last: Any) -> float:
        """The time between two points; this waits until the GPU has passed them."""
        return first.seconds_to(last)  # type: ignore[no-any-return]

    # -- plans

    @property
    def has_kernels(self) -> bool:
        """Can loops of the loop language run on it?"""
        return self.new_launcher is not None

    def active(self, device: Device) -> AbstractContextManager[Any]:
        """A `with` block in which a device is the current one."""
        return nullcontext() if device.index == self.current() else self.on(device)

    def stream(self) -> int:
        """What identifies the current stream."""
        return self.launcher.stream() if self.new_launcher is not None else 0

    def commands(self) -> CudaCommands:
        """A new list of launches."""
        return CudaCommands(self.launcher, self)

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """Room for an array, on the current device."""
        return attempt(self, lambda: self.array(tuple(shape), dtype), "empty")

    def update(self, loop: Any, sets: Sequence[Sequence[Any]], numbers: Sequence[float]) -> None:
        """An elementwise loop over many sets of contiguous arrays, in one launch."""
        attempt(self, lambda: update(self.launcher, loop, sets, numbers), loop.name)

    def numbers(self, array: Array) -> Any:
        """A few numbers for one run of a plan."""
        return write_numbers(self.launcher, array)

    def view(self, array: Any, shape: Sequence[int], dtype: np.dtype[Any], offset: int, strides: Sequence[int]) -> Any:
        """A view of the memory of an array; offset and strides are in bytes."""
        return self.xp.ndarray(tuple(shape), dtype, array.data + offset, tuple(strides))

    def gather_at(self, addresses: Array, out: Any) -> None:
        """out[i] = the row at addresses[i]."""
        attempt(self, lambda: gather_at(self.launcher, addresses, out), "map")

    def add_at(self, addresses: Array, values: Any) -> None:
        """The row at addresses[i] += values[i], in order; addresses may repeat."""
        attempt(self, lambda: add_at(self.launcher, addresses, values), "map")

    def owner_of(self, array: Any) -> int:
        """A number for the block of memory that an array lies in."""
        return array.data.mem.ptr  # type: ignore[no-any-return]

    def synchronize(self, index: int | None = None) -> None:
        """Wait until all that was asked of a device is done."""
        with answering(self, "synchronize"):
            self.xp.cuda.Device(index).synchronize()
        self.free_read()
        self.check_now()


def _widening(op: Op, forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that is given float32 in the place of bfloat16; its results are rounded once."""

    def widening(*arrays: Any, **attrs: Any) -> Any:
        for x in arrays:
            if x.dtype is BFLOAT16:
                return op.in_float32(forward, *arrays, **attrs)
        return forward(*arrays, **attrs)

    return widening


def _no_gradients(*arguments: Any) -> None:
    """There is no kernel for all gradients of a record."""


_DEVICES: dict[int, Device] = {}
