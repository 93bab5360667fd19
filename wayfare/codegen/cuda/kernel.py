"""Kernels on a GPU: loops called on device arrays, as `codegen.runtime.kernel` calls them on NumPy arrays.

    kernel = build(loop, launcher)
    (out,) = kernel([x, y])                 # a loop without rows: the arrays broadcast against each other
    outs = kernel.rows([x, bias], axis=-1)  # a loop over rows that run along an axis
    print(kernel.source, kernel.text)

Text does not depend on sizes. It is written and compiled for a layout at its first use. The launches for arrays of
given shapes and strides are cached: a later call fills in addresses and launches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from wayfare.codegen.cuda import layout as layouts
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.cuda.layout import Arrangement, Launch, Layout
from wayfare.codegen.cuda.nest import check_known, fields, kernel_name, text
from wayfare.codegen.loop.call import PLANS, CallableLoop, broadcast, check_outputs, row_axes, row_shapes
from wayfare.codegen.loop.expr import NUMPY
from wayfare.codegen.loop.language import Loop, exact, validate
from wayfare.codegen.math.library import KNOWN
from wayfare.core.counters import COUNTERS
from wayfare.core.errors import LoopError
from wayfare.core.native import NATIVE

if NATIVE is not None:
    NATIVE.set_up_launches(COUNTERS)

# How many kernels are cached for one launcher.
_KERNELS = 4096
# Reductions that have no value for an empty row.
_NOT_EMPTY = frozenset({"max", "min", "argmax", "argmin"})
# Tables of partial results begin at multiples of this.
_TABLE_STEP = 16


class _Step:
    """One launch of a plan, ready but for the addresses."""

    __slots__ = ("block", "function", "grid", "kind", "tables", "words")

    def __init__(self, loop: Loop, launch: Launch, function: Any) -> None:
        self.function, self.grid, self.block = function, launch.grid, launch.block
        operands = len(loop.inputs) + len(loop.outputs)
        names = fields(loop, launch.layout)
        self.tables = slice(operands, operands + sum(name.startswith("table") for name in names))
        words = [0] * operands + [0 if name.startswith("table") else launch.values[name] for name in names]
        self.kind = ctypes.c_int64 * len(words)
        self.words = self.kind(*words)


class LaunchPlan:
    """How to run a loop on arrays of given shapes and strides.

    `made` are the shapes of new outputs. `masks` has the bits that must be zero in the addresses, where elements are
    loaded in groups; arrays that lie otherwise have a plan of their own, without groups. `native` launches the same in
    C, where that can be done.
    """

    __slots__ = ("_launcher", "_loop", "_made", "_offsets", "_operands", "_steps", "masks", "native", "workspace")

    def __init__(self, loop: Loop, arranged: Arrangement, launcher: Launcher, functions: Sequence[Any]) -> None:
        self._launcher, self._loop = launcher, loop
        self._operands = len(loop.inputs) + len(loop.outputs)
        self._steps = [_Step(loop, launch, f) for launch, f in zip(arranged.launches, functions, strict=True)]
        self._made: tuple[tuple[int, ...], ...] = ()
        grouped = any(launch.layout.vector > 1 for launch in arranged.launches)
        self.masks = tuple(a - 1 for a in arranged.alignment) if grouped else ()
        self._offsets: list[int] = []
        self.workspace = 0
        for size in arranged.tables:
            self._offsets.append(self.workspace)
            self.workspace += -(-size // _TABLE_STEP) * _TABLE_STEP
        self.native = self._in_c()

    def _in_c(self) -> Any:
        loop, driver = self._loop, self._launcher.driver
        if driver is None:
            return None
        dtypes = tuple([NUMPY[o.dtype] for o in (*loop.inputs, *loop.outputs)])
        steps = tuple([(s.function, s.grid, s.block, tuple(s.words), s.tables.start) for s in self._steps])
        try:
            return NATIVE.Plan(
                driver, steps, len(loop.inputs), dtypes, self.masks, tuple(self._offsets), self.workspace
            )  # fmt: skip
        except ValueError:  # more words than it has room for
            return None

    def native_for(self, shapes: tuple[tuple[int, ...], ...]) -> Any:
        """The same in C, for outputs of the same elements in other shapes; None where there is none."""
        made = self._in_c()
        if made is not None:
            made.made = shapes
        return made

    @property
    def made(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of new outputs."""
        return self._made

    @made.setter
    def made(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        self._made = shapes
        if self.native is not None:
            self.native.made = shapes

    def fits(self, pointers: Sequence[int]) -> bool:
        """Are these addresses aligned as the plan needs it?"""
        masks = self.masks
        return not masks or not any([pointer & mask for pointer, mask in zip(pointers, masks, strict=True)])

    def run(self, pointers: Sequence[int], workspace: int | None = None) -> None:
        """Launch on operands at these addresses. `workspace` is the address of `self.workspace` bytes of memory, for
        callers that keep such; None: memory is allocated."""
        if self.native is not None:
            self.native.run(pointers, workspace)
            return
        COUNTERS.kernels_run += 1
        COUNTERS.device_calls += 1
        launcher, operands = self._launcher, self._operands
        memory: Any = None
        tables: list[int] = []
        if self.workspace:
            if workspace is None:
                # Free again when the call ends: a later kernel in the stream that gets it waits for this one.
                memory = launcher.empty((self.workspace,), np.dtype(np.uint8))
                workspace = launcher.pointer(memory)
            tables = [workspace + offset for offset in self._offsets]
        for step in self._steps:
            # A copy: another thread may run the same plan.
            words: Any = step.kind.from_buffer_copy(step.words)
            words[:operands] = pointers
            if tables:
                words[step.tables] = tables
            launcher.launch(step.function, step.grid, step.block, 0, words)


class CudaKernel(CallableLoop):
    """A loop, and its plans for the layouts met so far."""

    def __init__(self, loop: Loop, launcher: Launcher) -> None:
        validate(loop, KNOWN)
        check_known(loop)
        super().__init__(loop)
        self.launcher = launcher
        self._texts: dict[Layout, str] = {}

    # -- inspection

    @property
    def text(self) -> str:
        """The CUDA C for the layouts met so far."""
        return "\n".join(self._texts.values())

    def texts(self, inputs: Sequence[Any], axis: int | tuple[int, ...] | None = None,
              outputs: Sequence[Any] | None = None) -> list[str]:  # fmt: skip
        """The texts of the kernels that a call on arrays like these may need. Nothing is compiled."""
        shape = broadcast(self.loop, inputs)
        axes = None if axis is None else row_axes(self.loop, axis, len(shape))
        shapes = [shape] * len(self.loop.outputs) if axes is None else row_shapes(self.loop, inputs, shape, axes)[1]
        made = [[_contiguous(s, size) for s, size in zip(shapes, self._itemsizes[self._inputs :], strict=True)]]
        if outputs is not None:
            made.append([a.strides for a in outputs])
        elif all(a.flags.f_contiguous for a in inputs):
            made.append([s[::-1] for s in (_contiguous(shape[::-1], n) for n in self._itemsizes[self._inputs :])])
        found: dict[str, None] = {}
        for own in made:
            strides, sizes = [*(a.strides for a in inputs), *own], [*(a.shape for a in inputs), *shapes]
            for aligned in (True, False):
                for launch in self._arranged(shape, axes, sizes, strides, aligned).launches:
                    found[self._text(launch.layout)] = None
        return list(found)

    # -- running

    def into(
        self, inputs: Sequence[Any], outputs: list[Any], shape: tuple[int, ...], axes: tuple[int, ...] | None = None
    ) -> list[Any]:
        """Run over a `shape` without zeros, without the checks of `kernel(inputs, outputs)` and `rows`: the caller
        knows that the outputs have the right shapes and no forbidden overlaps."""
        self._run(inputs, outputs, shape, axes)
        return outputs

    def plan_of(self, arrays: Sequence[Any], shape: tuple[int, ...], axes: tuple[int, ...] | None) -> LaunchPlan:
        """The plan for these inputs and outputs, for callers that keep it and launch it themselves."""
        return self._plan_at([self.launcher.pointer(a) for a in arrays], arrays, shape, axes)

    def _plan_at(self, pointers: Sequence[int], arrays: Sequence[Any], shape: tuple[int, ...], axes: Any) -> LaunchPlan:
        sizes, strides = tuple([a.shape for a in arrays]), tuple([a.strides for a in arrays])
        plan = self.plan(sizes, strides, shape, axes, True)
        return plan if plan.fits(pointers) else self.plan(sizes, strides, shape, axes, False)

    def _rerun(self, plan: LaunchPlan, inputs: Sequence[Any]) -> list[Any] | None:
        """Run a cached plan on arrays of the same layout; None if dtypes or alignment differ."""
        if plan.native is not None:
            return plan.native.new(inputs)  # type: ignore[no-any-return]
        pointer, dtypes = self.launcher.pointer, self._dtypes
        pointers = []
        for array, dtype in zip(inputs, dtypes, strict=False):
            if array.dtype is not dtype and array.dtype != dtype:
                return None
            pointers.append(pointer(array))
        empty = self.launcher.empty
        outs = [empty(shape, dtype) for shape, dtype in zip(plan.made, dtypes[self._inputs :], strict=True)]
        pointers += [pointer(a) for a in outs]
        if not plan.fits(pointers):
            return None
        plan.run(pointers)
        return outs

    def _run(self, inputs: Sequence[Any], outs: Sequence[Any], shape: tuple[int, ...], axes: Any) -> bool:
        if 0 in shape and any(f.kind in _NOT_EMPTY for f in self.loop.reductions):
            raise LoopError(f"loop {self.name}: an empty row has no largest or smallest value")
        arrays = (*inputs, *outs)
        for array, dtype in zip(arrays, self._dtypes, strict=True):
            if array.dtype is not dtype and array.dtype != dtype:
                raise LoopError(f"loop {self.name}: an array of {array.dtype} was given for one of {dtype}")
        pointer = self.launcher.pointer
        pointers = [pointer(a) for a in arrays]
        self._plan_at(pointers, arrays, shape, axes).run(pointers)
        return True

    def plan(
        self, sizes: tuple[Any, ...], strides: tuple[Any, ...], shape: tuple[int, ...], axes: Any, aligned: bool
    ) -> LaunchPlan:
        """How to run on operands of these shapes and strides, over `shape`, with rows along `axes`. An `aligned` plan
        may need addresses that its `masks` allow."""
        key = (axes, shape, sizes, strides, aligned)
        plan = self._plans.get(key)
        if plan is None:
            arranged = self._arranged(shape, axes, sizes, strides, aligned)
            functions = []
            for launch in arranged.launches:
                functions.append(
                    self.launcher.compile(self._text(launch.layout))[kernel_name(self.loop, launch.layout)]
                )
            if len(self._plans) >= PLANS:
                self._plans.clear()
            plan = self._plans[key] = LaunchPlan(self.loop, arranged, self.launcher, functions)
        return plan

    def _arranged(self, shape: tuple[int, ...], axes: Any, sizes: Any, strides: Any, aligned: bool) -> Arrangement:
        limits = self.launcher.limits
        if axes is None or (self._elementwise and 0 not in shape):
            return layouts.elements(self.loop, shape, sizes, strides, self._itemsizes, limits, aligned)
        return layouts.rows(self.loop, shape, axes, sizes, strides, self._itemsizes, limits, aligned)

    def _text(self, layout: Layout) -> str:
        found = self._texts.get(layout)
        if found is None:
            found = self._texts[layout] = text(self.loop, layout)
        return found

    # -- outputs

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        return self.launcher.empty(shape, dtype)

    def _given(self, inputs: Sequence[Any], outputs: Sequence[Any], shapes: Sequence[Any], in_place: bool) -> list[Any]:
        """The arrays to write to: those given, or temporaries where a write could destroy unread input."""
        check_outputs(self.loop, outputs, shapes, self._dtypes[self._inputs :])
        pointer = self.launcher.pointer
        read, written = [_reach(a, pointer(a)) for a in inputs], [_reach(a, pointer(a)) for a in outputs]
        out = []
        for number, array in enumerate(outputs):
            # An elementwise loop may write over the element it has read. With rows it may be read again later.
            safe = all(
                not _overlap(reach, written[number])
                or (in_place and a.shape == array.shape and a.strides == array.strides and pointer(a) == pointer(array))
                for a, reach in zip(inputs, read, strict=True)
            ) and not any(_overlap(other, written[number]) for k, other in enumerate(written) if k != number)
            overlapping = 0 in array.strides and array.size > 1
            out.append(array if safe and not overlapping else self.launcher.empty(array.shape, array.dtype))
        return out


# By the loop itself, and by its text for loops that are equal.
_kernels: WeakKeyDictionary[Any, dict[Loop | str, CudaKernel]] = WeakKeyDictionary()


def build(loop: Loop, launcher: Launcher) -> CudaKernel:
    """The kernel of a loop on a launcher's device. Equal loops share one kernel."""
    known = _kernels.setdefault(launcher, {})
    found = known.get(loop)
    if found is None:
        if len(known) >= _KERNELS:
            known.clear()
        key = exact(loop)
        found = known[loop] = known[key] = known.get(key) or CudaKernel(loop, launcher)
    return found


def _contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The byte strides of an array in C order."""
    strides, step = [], itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _reach(array: Any, address: int) -> tuple[int, int]:
    """The first byte of an array's memory, and the one after its last."""
    if array.size == 0:
        return address, address
    steps = [stride * (size - 1) for size, stride in zip(array.shape, array.strides, strict=True)]
    return address + sum(s for s in steps if s < 0), address + sum(s for s in steps if s > 0) + array.itemsize


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]
