"""One elementwise kernel over many sets of arrays in one native call, such as all parameters of a model.

A set is the arrays of one kernel call. Large sets are split into pieces, so that threads get equal work. What depends
on shapes and strides is computed once; each run only reads the addresses of the arrays, in native code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.llvm.module import SIZES, WORDS_PER_OPERAND, Layout
from wayfare.codegen.loop import layout as layouts
from wayfare.codegen.loop.interpreter import interpret
from wayfare.codegen.math.library import numpy_function
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.kernel import Kernel, available
from wayfare.codegen.runtime.run_list import RUN_LIST
from wayfare.core.errors import LoopError

Array = np.ndarray[Any, np.dtype[Any]]

# Elements of a piece: tens of microseconds of work, so that threads get equal work.
_PIECE = 16 * 1024
# Up to this many elements in all, one thread is used: waking another takes longer.
_ALONE = 16 * 1024


class _Group:
    """The argument blocks of one layout class, which share their machine code."""

    def __init__(self, code: Any, blocks: list[list[int]], entries: list[tuple[int, int, int]], objects: int) -> None:
        self.code = code  # keeps it alive
        self.blocks = np.array(blocks, np.int64)
        first = self.blocks.ctypes.data
        self.table = np.array([(first + 8 * at, number, offset) for at, number, offset in entries], np.int64)
        count, words = self.blocks.shape
        self.several = count > 1
        # The last word says whether to use the thread pool; it is set before each run.
        self.command = (ctypes.c_int64 * 5)(code.rows, first, count, 8 * words, 0)
        self.words = (ctypes.c_int64 * 5)(
            objects, self.table.ctypes.data, len(entries), ctypes.addressof(self.command), 1
        )


@dataclass(frozen=True, slots=True)
class _Form:
    """How to run sets of one layout: the argument blocks of their pieces, and the positions of the address words."""

    layout: Layout
    elements: int
    pieces: list[list[int]]
    starts: list[int]


class Batch:
    """A kernel prepared for sets of arrays of given layouts. Used by one thread at a time.

    Each of `sets` lists indices into `arrays`: the kernel's inputs without the last ones, then its outputs. The last
    inputs are the scalars in `numbers`, which may change from run to run. All arrays of a set have one shape. The first
    `fixed` arrays are the same objects in every run.

    Arrays of different sets do not overlap, and an output is either one of the inputs or overlaps none. If that is not
    so, `alone` runs each set in a call of its own, in order.
    """

    def __init__(
        self, kernel: Kernel, sets: Sequence[Sequence[int]], arrays: Sequence[Array], numbers: Array, *,
        fixed: int = 0, alone: bool = False,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.numbers = numbers
        self._number_arrays = [numbers[i : i + 1].reshape(()) for i in range(len(numbers))]
        self._inputs = len(kernel.loop.inputs) - len(numbers)
        self._fixed = fixed
        self._alone = alone
        # Sets that need more than three axes; all sets if `alone`, or without native code.
        self._one_by_one: list[Sequence[int]] = []
        self._elements = 0
        # The addresses of the array objects that change from run to run.
        self._objects: Any = (ctypes.c_int64 * (len(arrays) - fixed))()
        # By layout: most sets of a large model share a few.
        self._forms: dict[Any, _Form | None] = {}
        found: dict[Layout, tuple[list[list[int]], list[tuple[int, int, int]]]] = {}
        for members in sets:
            self._add(members, arrays, found)
        objects = ctypes.addressof(self._objects)
        self._groups = [_Group(kernel.code(layout), *group, objects) for layout, group in found.items()]

    def run(self, arrays: Sequence[Array]) -> None:
        """Run on arrays of the same shapes, strides and dtypes. The caller has checked that, and keeps them alive."""
        if self._groups:
            self._objects[:] = [id(a) for a in arrays[self._fixed :]]
            threaded = self._elements > _ALONE and thread_pool.threads() > 1
            for group in self._groups:
                group.command[4] = threaded and group.several
                RUN_LIST.run_block(group.words)
        for members in self._one_by_one:
            given = [arrays[k] for k in members]
            inputs, outputs = [*given[: self._inputs], *self._number_arrays], given[self._inputs :]
            if available():
                self.kernel(inputs, outputs)
            else:
                for out, value in zip(outputs, interpret(self.kernel.loop, inputs, numpy_function), strict=True):
                    np.copyto(out, value)

    def _add(self, members: Sequence[int], arrays: Sequence[Array], found: dict[Layout, Any]) -> None:
        """Add the argument blocks of one set."""
        given = [arrays[k] for k in members]
        shape = given[0].shape
        if any(a.shape != shape for a in given):
            raise LoopError(f"{self.kernel.name}: arrays of one set have shapes "
                            f"{' and '.join(sorted({str(list(a.shape)) for a in given}))}")  # fmt: skip
        if 0 in shape:
            return
        if self._alone:
            self._one_by_one.append(members)
            return
        layout = (shape, tuple([a.strides for a in given]), tuple([a.itemsize for a in given]))
        if layout not in self._forms:
            self._forms[layout] = self._form(*layout)
        form = self._forms[layout]
        if form is None:
            self._one_by_one.append(members)
            return
        self._elements += form.elements
        blocks, entries = found.setdefault(form.layout, ([], []))
        addresses = [arrays[k].__array_interface__["data"][0] if k < self._fixed else 0 for k in members]
        for words in form.pieces:
            block = words.copy()
            start = len(blocks) * len(block)
            for at, number, address in zip(form.starts, members, addresses, strict=True):
                if number < self._fixed:
                    block[at] += address
                else:
                    entries.append((start + at, number - self._fixed, block[at]))
            blocks.append(block)

    def _form(self, shape: tuple[int, ...], strides: Sequence[Any], itemsizes: Sequence[int]) -> _Form | None:
        """How to run a set of this layout; None if it needs a call of its own."""
        inputs, numbers = self._inputs, len(self.numbers)
        if any(0 in own for own in strides[inputs:]):
            return None
        try:
            nest = layouts.elementwise_nest(shape, [shape] * len(strides), strides, itemsizes, len(strides) - inputs)
        except layouts.Scattered:
            return None
        kinds = nest.layout.classes
        layout = Layout("along", kinds[:inputs] + "b" * numbers + kinds[inputs:])
        if not RUN_LIST.ready or self.kernel.code(layout) is None:
            return None
        fixed = [word for a in self._number_arrays for word in (a.ctypes.data, 0, 0, 0)]
        middle = SIZES + WORDS_PER_OPERAND * inputs
        pieces = [[*block[:middle], *fixed, *block[middle:]] for block in layouts.pieces(nest, _PIECE)]
        starts = [SIZES + WORDS_PER_OPERAND * (k if k < inputs else k + numbers) for k in range(len(strides))]
        return _Form(layout, nest.elements, pieces, starts)
