"""Updates: an elementwise formula, run in place over many sets of arrays in one pass over memory.

    step = Update("sgd", lambda m, p, g, rate: (p - g * rate,), arguments=2, written=(0,), numbers=1)
    step([p1, p2], [g1, g2], [0.1])        # arrays to write (argument by argument), arrays to read, scalars

Scalars such as a learning rate are read at run time, so nothing is recompiled when they change. The preparation for a
set of written arrays is cached until one of them is freed; later calls only compare the layouts of the other arrays.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import FLOATS, NUMPY, OF_NUMPY, Expr, cast, load
from wayfare.codegen.loop.interpreter import interpret
from wayfare.codegen.loop.language import elementwise
from wayfare.codegen.math.library import loop_math, numpy_function
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime.commands import BufferView, Commands
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.core.device import BACKENDS, Backend, active_for, extent
from wayfare.core.errors import DTypeError, OperationError, ShapeError
from wayfare.core.write_clock import History, check_memory, histories, note_writes

Array = np.ndarray[Any, np.dtype[Any]]

# How many lists of arrays are cached for one update. A model has one for each parameter group.
_REMEMBERED = 512


class _Batch:
    """A kernel over many sets of arrays of given layouts, as one command list. Used by one thread at a time.

    Each of `sets` lists indices into `arrays`: the kernel's inputs without the last ones, then its outputs. The last
    inputs are the scalars in `numbers`, which may change from run to run. Sets that overlap, and sets that no list can
    have, run one after the other.
    """

    __slots__ = ("_at_once", "_backend", "_commands", "_kernel", "_sets", "numbers")

    def __init__(
        self, kernel: Kernel, sets: list[list[int]], arrays: Sequence[Array], numbers: Array, overlap: bool
    ) -> None:
        self._kernel, self._sets, self.numbers = kernel, sets, numbers
        views = [BufferView(k, 0, a.shape, a.strides, a.dtype) for k, a in enumerate((*arrays, numbers))]
        self._backend = BACKENDS.get(arrays[0].__class__)
        if self._backend is not None:
            self._at_once = not overlap and all(arrays[k].flags.c_contiguous for members in sets for k in members)
            return
        commands = Commands()
        listed = not overlap and commands.update(kernel, [[views[k] for k in members] for members in sets], views[-1])
        commands.finish()
        self._commands = commands if listed else None

    def run(self, arrays: Sequence[Array]) -> None:
        """Run on arrays of the same shapes, strides and dtypes. The caller has checked that, and keeps them alive."""
        if self._backend is not None:
            self._on_device(self._backend, arrays)
        elif self._commands is not None:
            self._commands.run((*arrays, self.numbers))
        else:
            for members in self._sets:
                _run_set(self._kernel, [arrays[k] for k in members], self.numbers)

    def _on_device(self, backend: Backend, arrays: Sequence[Any]) -> None:
        sets = [[arrays[k] for k in members] for members in self._sets]
        if self._at_once:
            backend.update(self._kernel.loop, sets, self.numbers.tolist())
            return
        kernel, numbers = backend.kernel(self._kernel.loop), backend.numbers(self.numbers)
        for members in sets:
            _run_set(kernel, members, numbers)


def _run_set(kernel: Any, arrays: list[Any], numbers: Any) -> None:
    """Run a kernel on one set: its inputs without the scalars, then its outputs."""
    count = len(kernel.loop.inputs) - len(numbers)
    inputs, outputs = [*arrays[:count], *(numbers[k, ...] for k in range(len(numbers)))], arrays[count:]
    if native.available() or kernel.__class__ is not Kernel:
        kernel(inputs, outputs)
    else:
        for out, value in zip(outputs, interpret(kernel.loop, inputs, numpy_function), strict=True):
            np.copyto(out, value)


class _Bound:
    """An update prepared for given arrays to write, and for the layouts of the others."""

    __slots__ = ("batches", "histories", "watched")

    def __init__(self, batches: list[_Batch], written: list[History], watched: list[weakref.ref[Array]]) -> None:
        self.batches = batches
        self.histories = written
        self.watched = watched  # a weak reference must be kept for its callback to run


class Update:
    """A formula that computes new values for some of its arguments, run over many sets of arrays.

    `formula(m, *arguments, *numbers)` returns the new values of the arguments `written`, in that order.
    """

    def __init__(
        self, name: str, formula: Callable[..., tuple[Any, ...]], arguments: int, written: tuple[int, ...], numbers: int
    ) -> None:
        self.name = name
        self.formula = formula
        self.written = written
        self.read = tuple(k for k in range(arguments) if k not in written)
        self.numbers = numbers
        self._kernels: dict[tuple[str, ...], Kernel] = {}
        self._bound: dict[Any, _Bound] = {}

    def __call__(self, written: list[Array], read: list[Array], numbers: Sequence[float]) -> None:
        """Update all sets in place, and record the writes.

        `written` has the arrays of the first written argument for all sets, then those of the second, and so on.
        `read` has those of the other arguments.
        """
        if not written:
            return
        backend = BACKENDS.get(written[0].__class__) if BACKENDS else None
        if BACKENDS and len({a.__class__ for a in (*written, *read)}) > 1:
            raise OperationError(f"{self.name}: the tensors of one update are on different devices",
                                 fix="Move the model before the optimiser is made.")  # fmt: skip
        if backend is None:
            self._run(written, read, numbers)
            return
        with active_for(written[0]):
            if backend.has_kernels:
                self._run(written, read, numbers)
            else:
                self._by_functions(backend, written, read, numbers)

    def _run(self, written: list[Array], read: list[Array], numbers: Sequence[float]) -> None:
        """The same by kernels, of the current device."""
        key = (tuple(map(id, written)), tuple([(a.shape, a.strides, a.dtype) for a in read]))
        # Taken out of the cache while in use: two threads must not share scalars and addresses.
        bound = self._bound.pop(key, None)
        if bound is None:
            bound = self._bind(key, written, read)
        else:
            for array in written:
                check_memory(array, self.name)
        arrays = written + read
        for batch in bound.batches:
            batch.numbers[:] = numbers
            batch.run(arrays)
        note_writes(bound.histories)
        if len(self._bound) >= _REMEMBERED:
            self._bound.pop(next(iter(self._bound)), None)
        self._bound[key] = bound

    def one(self, arguments: Sequence[Array], outputs: list[Array], numbers: Sequence[float]) -> None:
        """Compute the new values of one set into `outputs`, which may be the arguments themselves.

        Nothing is cached and no write recorded: for arrays that are used once.
        """
        self._check(arguments, [arguments[k] for k in self.written], 1)
        dtypes = tuple(OF_NUMPY[a.dtype] for a in arguments)
        given = np.array(numbers, NUMPY[_computed_in(dtypes)])
        if arguments[0].size:
            kernel: Any = self.kernel(dtypes)
            backend = BACKENDS.get(arguments[0].__class__)
            if backend is not None:
                kernel, given = backend.kernel(kernel.loop), backend.numbers(given)
            _run_set(kernel, [*arguments, *outputs], given)

    def _by_functions(self, backend: Backend, written: list[Any], read: list[Any], numbers: Sequence[float]) -> None:
        """The same by the functions of a device that has no kernels, set by set."""
        arrays = written + read
        count = len(written) // len(self.written)
        self._check(arrays, written, count)
        order = sorted((k, position) for position, k in enumerate((*self.written, *self.read)))
        for i in range(count):
            given = [arrays[position * count + i] for _, position in order]
            wide = [a.astype(NUMPY[_computed_in([OF_NUMPY[a.dtype] for a in given])], copy=False) for a in given]
            for k, value in zip(self.written, self.formula(backend.math, *wide, *numbers), strict=True):
                np.copyto(given[k], value, casting="unsafe")
        note_writes(histories(written))

    def _bind(self, key: Any, written: list[Array], read: list[Array]) -> _Bound:
        arrays = written + read
        count = len(written) // len(self.written)
        self._check(arrays, written, count)
        by_dtypes: dict[tuple[str, ...], list[list[int]]] = {}
        order = sorted((k, position) for position, k in enumerate((*self.written, *self.read)))
        for i in range(count):
            numbers_of_set = [position * count + i for _, position in order]
            dtypes = tuple(OF_NUMPY[arrays[p].dtype] for p in numbers_of_set)
            by_dtypes.setdefault(dtypes, []).append([*numbers_of_set, *(numbers_of_set[k] for k in self.written)])
        # Overlapping sets are updated one after the other.
        overlap = _overlap(arrays, len(written))
        batches = []
        for dtypes, sets in by_dtypes.items():
            room = np.zeros(self.numbers, NUMPY[_computed_in(dtypes)])
            batches.append(_Batch(self.kernel(dtypes), sets, arrays, room, overlap))
        # The callback is a C function: an exception (Ctrl-C) in Python code would be lost there.
        forget: Any = partial(self._bound.pop, key)
        return _Bound(batches, histories(written), [weakref.ref(array, forget) for array in written])

    def _check(self, arrays: Sequence[Array], written: Sequence[Array], count: int) -> None:
        for array in arrays:
            if OF_NUMPY.get(array.dtype) not in FLOATS:
                raise DTypeError(f"{self.name}: cannot update with a tensor of {array.dtype}",
                                 fix="Use a floating-point dtype.")  # fmt: skip
        for i in range(count):
            shapes = {array.shape for array in arrays[i::count]}
            if len(shapes) > 1:
                raise ShapeError(f"{self.name}: the tensors of one set have shapes "
                                 f"{' and '.join(sorted(str(list(s)) for s in shapes))}",
                                 fix="All tensors at one place of the lists must have one shape.")  # fmt: skip
        for array in written:
            check_memory(array, self.name)

    def kernel(self, dtypes: tuple[str, ...]) -> Kernel:
        """The kernel for arguments of these dtypes."""
        found = self._kernels.get(dtypes)
        if found is None:
            wide = _computed_in(dtypes)
            given = [cast(load(k, dtype), wide) for k, dtype in enumerate(dtypes)]
            given += [load(len(dtypes) + k, wide) for k in range(self.numbers)]
            made: tuple[Expr, ...] = self.formula(loop_math, *given)
            kept = [cast(value, dtypes[k]) for value, k in zip(made, self.written, strict=True)]
            found = native.build(elementwise(self.name, [*dtypes, *[wide] * self.numbers], *kept))
            self._kernels[dtypes] = found
        return found


def _computed_in(dtypes: Sequence[str]) -> str:
    return "f64" if "f64" in dtypes else "f32"


def _overlap(arrays: Sequence[Array], written: int) -> bool:
    """Does one of the first `written` arrays overlap any other?"""
    extents = sorted((*extent(a), k < written) for k, a in enumerate(arrays) if a.size)
    seen = seen_written = 0
    for low, high, is_written in extents:
        if low < seen_written or (is_written and low < seen):
            return True
        seen = max(seen, high)
        if is_written:
            seen_written = max(seen_written, high)
    return False
