"""Kernels: loops that run as machine code on NumPy arrays.

    kernel = build(loop)
    (out,) = kernel([x, y])                 # a loop without rows: the arrays broadcast against each other
    outs = kernel.rows([x, bias], axis=-1)  # a loop over rows that run along an axis
    print(kernel.source, kernel.llvm, kernel.asm)

Code does not depend on sizes. It is made for a layout class at its first use: taken from memory, from the disk cache,
or compiled. Without llvmlite, or if a loop cannot be compiled, there is one warning, and the NumPy interpreter runs the
loop.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from wayfare.codegen.llvm import module as llvm
from wayfare.codegen.llvm.code import Code
from wayfare.codegen.llvm.machine import BUILDING, machine
from wayfare.codegen.llvm.module import Layout
from wayfare.codegen.loop import layout as layouts
from wayfare.codegen.loop.call import PLANS, CallableLoop, check_outputs, no_arrays
from wayfare.codegen.loop.interpreter import interpret, interpret_rows
from wayfare.codegen.loop.language import Loop, exact, expressions, validate
from wayfare.codegen.math.library import KNOWN, numpy_function
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.long_rows import LongRowsPlan, Pieces, can_split_rows, pays
from wayfare.codegen.runtime.work_split import LayoutPlan, parts_for
from wayfare.core import buffer_pool
from wayfare.core.callsite import user_frame
from wayfare.core.config import settings
from wayfare.core.counters import COUNTERS
from wayfare.core.errors import LoopError

Array = np.ndarray[Any, np.dtype[Any]]

# How many kernels are cached by the text of their loops.
_KERNELS = 4096


class Kernel(CallableLoop):
    """A loop, and its machine code for the layouts met so far."""

    def __init__(self, loop: Loop) -> None:
        validate(loop, KNOWN)
        super().__init__(loop)
        # Estimated nanoseconds for one element: memory traffic and vector instructions.
        instructions = sum(25 if e.op in KNOWN else 4 if e.op in ("div", "sqrt") else 1 for e in expressions(loop))
        self._cost = 0.012 * sum(self._itemsizes) + 0.009 * instructions
        self._codes: dict[Layout, Code] = {}
        self._can_split_rows = can_split_rows(loop)
        self._indexed = loop.indexed
        # For loops with stores by index: the operands stored to, and whether the row must stay whole.
        self._stored_at = [self._inputs + s.output for stage in loop.stages for s in stage.stores_at]
        self._whole_rows = len(loop.stages) > 1 or bool(loop.reductions or loop.results) or any(
            e.op == "index" for e in expressions(loop)
        )  # fmt: skip
        self._pieces: Pieces | None = None
        self._broken = False

    # -- inspection

    def _any_code(self) -> Code:
        if not self._codes:
            operands = (*self.loop.inputs, *self.loop.outputs)
            return self._code(Layout("along", "".join("b" if o.per_row else "c" for o in operands)))
        return next(iter(self._codes.values()))

    @property
    def llvm(self) -> str:
        """The LLVM IR for the first layout that was met (for contiguous arrays if there was none)."""
        return str(self._any_code().text())

    @property
    def asm(self) -> str:
        """The assembly for the same layout."""
        return machine().assembly(self.llvm)

    # -- running

    def _rerun(self, plan: LayoutPlan | LongRowsPlan, inputs: Sequence[Array]) -> list[Array] | None:
        """Run a cached plan on arrays of the same layout; None if dtypes or the number of threads have changed."""
        if plan.threads != settings.num_threads:
            return None
        dtypes = self._dtypes
        for array, dtype in zip(inputs, dtypes, strict=False):
            if array.dtype is not dtype or array.__class__ is not np.ndarray:
                return None
        outs = [buffer_pool.empty(shape, dtype) for shape, dtype in zip(plan.made, dtypes[self._inputs :], strict=True)]
        plan.run(*inputs, *outs)
        return outs

    def into(
        self, inputs: Sequence[Array], outputs: list[Array], shape: tuple[int, ...],
        axes: tuple[int, ...] | None = None, repeats: float = 1,
    ) -> list[Array]:  # fmt: skip
        """Run over a `shape` without zeros, without the checks of `kernel(inputs, outputs)` and `rows`: the caller
        knows that the outputs have the right shapes and no forbidden overlaps. `repeats` is about how often the folds
        of the loop repeat their bodies."""
        if not self._try(inputs, outputs, shape, axes, repeats):
            self._interpret(inputs, outputs, axes, shape)
        return outputs

    def plan_of(self, arrays: Sequence[Array], shape: tuple[int, ...], axes: tuple[int, ...] | None) -> Any:
        """The cached plan for arrays of this layout; None if there is none."""
        return self._plans.get(self._key(arrays, shape, axes))

    def _key(self, arrays: Sequence[Array], shape: tuple[int, ...], axes: Any) -> Any:
        # The shape of the nest may not be that of any array with axes of its own.
        return (axes, shape) if self._indexed else axes, tuple([(a.shape, a.strides) for a in arrays])

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return buffer_pool.empty(shape, dtype)

    def _given(self, inputs: Sequence[Array], outputs: Sequence[Array], shapes: Sequence[Any], in_place: bool
               ) -> list[Array]:  # fmt: skip
        """The arrays to write to: those given, or temporaries where a write could destroy unread input."""
        if not all(isinstance(a, np.ndarray) for a in outputs):
            raise no_arrays(self.loop, outputs)
        check_outputs(self.loop, outputs, shapes, self._dtypes[self._inputs :])
        out: list[Array] = []
        for number, (array, shape) in enumerate(zip(outputs, shapes, strict=True)):
            if not array.flags.writeable:
                raise LoopError(f"loop {self.name}: an output is read-only", fix="Give a writable array.")
            # An elementwise loop may write over the element it has read. With rows it may be read again later.
            safe = all(
                not np.may_share_memory(a, array)
                or (in_place and a.shape == shape and a.strides == array.strides and _address(a) == _address(array))
                for a in inputs
            ) and not any(np.may_share_memory(a, array) for k, a in enumerate(outputs) if k != number)
            overlapping = 0 in array.strides and array.size > 1
            out.append(array if safe and not overlapping else np.empty(shape, array.dtype))
        return out

    def _run(self, inputs: Sequence[Array], outs: list[Array], shape: tuple[int, ...], axes: Any) -> bool:
        if 0 not in shape and self._try(inputs, outs, shape, axes):
            return True
        self._interpret(inputs, outs, axes)
        return False

    def _try(
        self, inputs: Sequence[Array], outs: list[Array], shape: tuple[int, ...], axes: Any, repeats: float = 1
    ) -> bool:
        """Run natively; False if that is impossible."""
        # Native code reads array objects directly, so they must be real ndarrays.
        arrays = tuple([a if a.__class__ is np.ndarray else np.asarray(a) for a in (*inputs, *outs)])
        for array, dtype in zip(arrays, self._dtypes, strict=True):
            if array.dtype is not dtype and array.dtype != dtype:
                raise LoopError(f"loop {self.name}: an array of {array.dtype} was given for one of {dtype}")
        key = self._key(arrays, shape, axes)
        plan = self._plans.get(key)
        if plan is None or plan.threads != settings.num_threads:
            made = self._plan(arrays, shape, axes, repeats)
            if made is None:
                return False
            plan, arrays, copied = made
            if not copied:
                if len(self._plans) >= PLANS:
                    self._plans.clear()
                self._plans[key] = plan
        plan.run(*arrays)
        return True

    def _plan(self, arrays: tuple[Array, ...], shape: tuple[int, ...], axes: Any, repeats: float) -> Any:
        if self._broken:
            return None
        copied = False
        try:
            nest = self.nest(arrays, shape, axes)
        except layouts.Scattered:
            if self._indexed:
                return None
            # More than three axes: use contiguous copies.
            arrays = tuple(
                np.ascontiguousarray(np.broadcast_to(a, shape)) if not self._per_row(k) else np.ascontiguousarray(a)
                for k, a in enumerate(arrays[: self._inputs])
            ) + arrays[self._inputs :]
            copied = True
            try:
                nest = self.nest(arrays, shape, axes)
            except layouts.Scattered:
                return None
        code = self.code(nest.layout)
        if code is None:
            return None
        count, work = thread_pool.threads(), self.work(nest) * repeats
        parts = parts_for(work, count)
        pieces = self.in_pieces(nest, axes, count) if parts > 1 else None
        if pieces is not None:
            with suppress(layouts.Scattered):
                return LongRowsPlan(pieces, arrays, shape, axes, parts, count), arrays, copied
        return LayoutPlan(code, self.parts(nest, parts), count, work), arrays, copied

    def work(self, nest: layouts.Nest) -> float:
        """Estimated nanoseconds on one thread."""
        return nest.elements * self._cost

    def parts(self, nest: layouts.Nest, parts: int) -> list[list[int]]:
        """The argument blocks of a nest, split into about `parts` parts."""
        if parts < 2:
            return [nest.words()]
        if self._indexed:
            return layouts.indexed_parts(nest, parts, self._stored_at, self._whole_rows)
        return (layouts.elementwise_parts if self._elementwise else layouts.parts)(nest, parts)

    def in_pieces(self, nest: layouts.Nest, axes: tuple[int, ...] | None, threads: int) -> Pieces | None:
        """The loop split into stages, if its rows are long and too few for the threads; else None."""
        if axes is None or not self._can_split_rows or not pays(nest, threads):
            return None
        if self._pieces is None:
            self._pieces = Pieces(self.loop, build)
        return self._pieces

    def _per_row(self, k: int) -> bool:
        return self.loop.inputs[k].per_row

    def nest(self, arrays: Sequence[Any], shape: tuple[int, ...], axes: Any) -> layouts.Nest:
        """The loop nest for arrays, or for other objects with shape and strides."""
        sizes, strides = [a.shape for a in arrays], [a.strides for a in arrays]
        if axes is None:
            return layouts.elementwise_nest(shape, sizes, strides, self._itemsizes, len(self.loop.outputs))
        return layouts.rows_nest(self.loop, shape, axes, sizes, strides, self._itemsizes)

    def code(self, layout: Layout) -> Code | None:
        """The machine code for a layout class; None, after a warning, if it cannot be compiled."""
        if not self._broken:
            try:
                return self._code(layout)
            except Exception as error:
                self._broken = True
                refuse(self.name, error)
        return None

    def _code(self, layout: Layout) -> Code:
        with BUILDING:
            found = self._codes.get(layout)
            if found is None:
                found = self._codes[layout] = Code(self.loop, layout)
            return found

    def _interpret(self, inputs: Sequence[Array], outs: list[Array], axes: Any, shape: Any = None) -> None:
        """Run the interpreter, where there is no machine code."""
        COUNTERS.kernels_failed += 1
        if axes is None:
            made = interpret(self.loop, inputs, numpy_function)
        else:
            made = interpret_rows(self.loop, inputs, axes, numpy_function, shape, outs)
        for out, array in zip(outs, made, strict=True):
            np.copyto(out, array)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


# -- availability -------------------------------------------------------------------------------------------------

_warned: set[str] = set()
_usable: list[bool] = []


def refuse(name: str, error: BaseException, instead: str = "NumPy does it, slower") -> None:
    """Warn that a loop has no machine code, and what runs instead, once for each name."""
    if name not in _warned:
        _warned.add(name)
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        said = f"{name}: no native kernel ({first}); {instead}"
        frame = user_frame(2)
        if frame is None:
            warnings.warn(said, stacklevel=3)
        else:
            # Attributed to the user's line, so that filters for the package's modules do not hide it.
            module = frame.f_globals.get("__name__", "")
            warnings.warn_explicit(said, UserWarning, frame.f_code.co_filename, frame.f_lineno, module)


def available() -> bool:
    """Can kernels be compiled here? Checked once: llvmlite works, and NumPy's arrays have the expected layout."""
    if not _usable:
        try:
            machine()
            probe = np.arange(3.0)
            there = ctypes.c_int64.from_address(id(probe) + llvm.DATA_OFFSET).value
            if there != _address(probe):
                raise RuntimeError("this NumPy has another layout of array objects")
            _usable.append(True)
        except Exception as error:
            _usable.append(False)
            refuse("wayfare", error)
    return _usable[0]


_kernels: dict[str, Kernel] = {}


def build(loop: Loop) -> Kernel:
    """The kernel of a loop; it is compiled at its first call. Equal loops share one kernel."""
    key = exact(loop)
    found = _kernels.get(key)
    if found is None:
        if len(_kernels) >= _KERNELS:
            _kernels.clear()
        found = _kernels[key] = Kernel(loop)
    return found
