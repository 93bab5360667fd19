"""The loop nest that slides a kernel over images, shared by im2col, col2im and depthwise convolution.

An image is (N, C, H, W) or (N, C, W). The other side is called the "matrix": columns of windows, or the output of a
depthwise convolution. Padding, stride and dilation are handled here.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Writer, memory_type, vector
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.llvm.module import DATA_OFFSET
from wayfare.codegen.loop.expr import NUMPY
from wayfare.codegen.routines.routine import Routine, function, pointer, word
from wayfare.codegen.runtime import thread_pool

Array = np.ndarray[Any, np.dtype[Any]]
Sizes = tuple[int, ...]

# Bytes of the matrix from which on several threads are used.
_PARALLEL_FROM = 1024 * 1024
# The largest size or stride: products of two of them, and sums of those, must fit into 64 bits.
_FARTHEST = 1 << 30
_NAMES = ("kernel", "stride", "padding", "dilation", "counts")


@dataclass(frozen=True, slots=True)
class Slide:
    """How a kernel slides over an image: one number for each dimension. `counts` are the numbers of windows."""

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    counts: Sizes

    def __post_init__(self) -> None:
        # Native code divides by strides and computes addresses from these numbers without checks.
        parts = (self.kernel, self.stride, self.padding, self.dilation, self.counts)
        every = [n for part in parts for n in part]
        if (
            len(set(map(len, parts))) != 1 or min((*self.kernel, *self.stride, *self.dilation), default=1) < 1
            or min(every, default=0) < 0 or max(every, default=0) > _FARTHEST
        ):  # fmt: skip
            shown = ", ".join(f"{name} {list(part)}" for name, part in zip(_NAMES, parts, strict=True))
            raise ValueError(f"there are no such windows: {shown}")


def check_fits(fits: bool, what: str) -> None:
    """Raise ValueError for arrays that native code would access out of bounds."""
    if not fits:
        raise ValueError(f"{what} of these shapes do not fit")


@dataclass(slots=True)
class Row:
    """One row of windows, for one element of the kernel."""

    image: str  # address of the element for window 0; may be outside the image
    matrix: str
    begin: str  # the windows begin … end are inside the image, of `count` in all
    end: str
    count: str
    step: str  # bytes from one window's element to the next


class Nest:
    """The loops around rows of windows, and vector loads and stores along them."""

    def __init__(self, host: Machine, dtype: str, side_by_side: bool) -> None:
        self.writer = Writer()
        self.size = NUMPY[dtype].itemsize
        self.kind = memory_type(dtype)
        self.lanes = 4 * host.processor.lanes // self.size
        self.vector = vector(self.lanes, self.kind)
        self.short = f"v{self.lanes}{dtype}"
        self.mask = vector(self.lanes, "i1")
        self.side_by_side = side_by_side

    def write(
        self,
        visit: Callable[[Row], None],
        clear: str = "",
        around: Callable[[str], AbstractContextManager[None]] | None = None,
    ) -> str:
        """The IR of all rows of windows of all planes. `clear`: the side to set to 0 first, "image" or "matrix".

        `around` wraps the rows of one element of the kernel; it gets the address of that element's weight.
        """
        writer = self.writer
        image, matrix = pointer(writer, 0), pointer(writer, 1)
        image_n, image_c, image_h, matrix_n, matrix_c, matrix_k = (word(writer, k) for k in range(2, 8))
        batch, channels, high, wide, kernel_h, kernel_w, rows, self.count = (word(writer, k) for k in range(8, 16))
        step_h, step_w, pad_h, pad_w, apart_h, apart_w = (word(writer, k) for k in range(16, 22))
        weights, weights_n, weights_c = pointer(writer, 22), word(writer, 23), word(writer, 24)
        size = str(self.size)
        row_bytes = writer.mul(self.count, size)
        with writer.loop("0", batch, 1) as n, writer.loop("0", channels, 1) as c:
            own = writer.at(image, (n, image_n), (c, image_c))
            base = writer.at(matrix, (n, matrix_n), (c, matrix_c))
            if clear == "image":
                self._clear(own, writer.mul(high, image_h))
            elif clear == "matrix":
                self._clear(base, writer.mul(rows, row_bytes))
            with writer.loop("0", kernel_h, 1) as i, writer.loop("0", kernel_w, 1) as j:
                number = writer.add(writer.mul(i, kernel_w), j)
                matrix_row = writer.at(base, (number, matrix_k))
                left = writer.sub(writer.mul(j, apart_w), pad_w)
                begin, end = self._inside(left, step_w, wide)
                shift = writer.sub(writer.mul(i, apart_h), pad_h)
                weight = writer.at(weights, (n, weights_n), (c, weights_c), (number, size))
                with around(weight) if around else nullcontext(), writer.loop("0", rows, 1) as r:
                    y = writer.add(writer.mul(r, step_h), shift)
                    there = writer.compare("ult", y, high)
                    visit(
                        Row(
                            writer.at(own, (y, image_h), (left, size)),
                            writer.at(matrix_row, (r, row_bytes)),
                            begin,
                            writer.select(there, end, begin),
                            self.count,
                            size if self.side_by_side else writer.mul(step_w, size),
                        )
                    )
        return function(writer)

    def _clear(self, plane: str, size: str) -> None:
        given = [("ptr", plane), ("i8", "0"), ("i64", size), ("i1", "false")]
        self.writer.intrinsic("llvm.memset.p0.i64", "void", given)

    def _inside(self, left: str, step: str, wide: str) -> tuple[str, str]:
        """The range of windows inside the image, if window 0 is at `left` and each next one `step` further."""
        return self._up(self.writer.sub("0", left), step), self._up(self.writer.sub(wide, left), step)

    def _up(self, distance: str, step: str) -> str:
        """ceil(distance / step), clamped to 0 … count."""
        writer = self.writer
        positive = writer.select(writer.compare("sgt", distance, 0), distance, "0")
        steps = writer.div(writer.add(positive, writer.sub(step, 1)), step)
        return writer.smaller(steps, self.count)

    # -- vectors

    def lanes_between(self, position: str, begin: str, end: str) -> str:
        """The mask of lanes, counted from `position`, that are in begin … end."""
        iota = "<" + ", ".join(f"i64 {lane}" for lane in range(self.lanes)) + ">"
        writer, lanes, kind = self.writer, self.lanes, vector(self.lanes, "i64")
        at = writer.let(f"add {kind} {writer.splat(lanes, 'i64', position)}, {iota}")
        low = writer.compare("sge", at, writer.splat(lanes, "i64", begin), kind)
        high = writer.compare("slt", at, writer.splat(lanes, "i64", end), kind)
        return writer.let(f"and {self.mask} {low}, {high}")

    def image_at(self, row: Row, position: str) -> str:
        """The address in the image of window `position` of a row."""
        return self.writer.at(row.image, (position, row.step))

    def matrix_at(self, row: Row, position: str) -> str:
        """The same in the matrix."""
        return self.writer.at(row.matrix, (position, self.size))

    def step_of(self, row: Row) -> str | None:
        """The step of a row in the image, for `load` and `store`: None if contiguous."""
        return None if self.side_by_side else row.step

    def load(self, address: str, step: str | None, mask: str) -> str:
        """Load elements under a mask, zeros elsewhere; contiguous if `step` is None."""
        if step is None:
            return self.writer.intrinsic(
                f"llvm.masked.load.{self.short}.p0", self.vector,
                [("ptr", address), ("i32", "1"), (self.mask, mask), (self.vector, "zeroinitializer")],
            )  # fmt: skip
        return self.writer.intrinsic(
            f"llvm.masked.gather.{self.short}.v{self.lanes}p0", self.vector,
            [(vector(self.lanes, "ptr"), self._spread(address, step)), ("i32", "1"), (self.mask, mask),
             (self.vector, "zeroinitializer")],
        )  # fmt: skip

    def store(self, value: str, address: str, step: str | None, mask: str) -> None:
        """Store elements under a mask."""
        if step is None:
            name, kind, where = f"llvm.masked.store.{self.short}.p0", "ptr", address
        else:
            name, kind = f"llvm.masked.scatter.{self.short}.v{self.lanes}p0", vector(self.lanes, "ptr")
            where = self._spread(address, step)
        self.writer.intrinsic(name, "void", [(self.vector, value), (kind, where), ("i32", "1"), (self.mask, mask)])

    def _spread(self, address: str, step: str) -> str:
        iota = "<" + ", ".join(f"i64 {lane}" for lane in range(self.lanes)) + ">"
        kind = vector(self.lanes, "i64")
        steps = self.writer.let(f"mul {kind} {self.writer.splat(self.lanes, 'i64', step)}, {iota}")
        return self.writer.elements("i8", address, kind, steps)


@dataclass(frozen=True, slots=True)
class Steps:
    """Byte strides of an array: between examples, channels, and elements of the kernel."""

    n: int
    c: int
    k: int = 0


def address(array: Array) -> int:
    """The address of an array's data, read out of the array object; `kernel.available` has checked the offset."""
    return ctypes.c_int64.from_address(id(array) + DATA_OFFSET).value


def run(
    routine: Routine, image: Array, matrix: Array, steps: Steps, slide: Slide,
    weights: Array | None = None, weight_steps: Steps | None = None,
) -> None:  # fmt: skip
    """Run over all examples and channels of a C-contiguous image, in several threads if there is enough to do."""
    size = image.itemsize
    batch, channels, *sizes = image.shape
    check_fits(len(sizes) == len(slide.kernel), "images and windows")
    high, wide = (1, *sizes)[-2:]
    own = Steps(channels * high * wide * size, high * wide * size)
    third = weight_steps or Steps(0, 0)
    fixed = [own.n, own.c, wide * size, steps.n, steps.c, steps.k]
    rest = [high, wide, *_two(slide.kernel, 1), *_two(slide.counts, 1), *_two(slide.stride, 1)]
    rest += [*_two(slide.padding, 0), *_two(slide.dilation, 1)]
    threads = thread_pool.threads() if matrix.nbytes >= _PARALLEL_FROM else 1
    starts = (address(image), address(matrix), 0 if weights is None else address(weights))
    by_batch = batch >= threads
    total = batch if by_batch else channels
    each = -(-total // threads)
    words: list[int] = []
    parts = range(0, total, each)
    for begin in parts:
        length = min(each, total - begin)
        moved = [s.n if by_batch else s.c for s in (own, steps, third)]
        first, second, last = (start + begin * step for start, step in zip(starts, moved, strict=True))
        counts = [length, channels] if by_batch else [batch, length]
        words += [first, second, *fixed, *counts, *rest, last, third.n, third.c]
    routine.run(words, len(parts))


def usable(routine: Routine | None, slide: Slide, planes: int, smallest: int) -> bool:
    """Is the routine there, are there at most two dimensions, and enough elements of columns?"""
    work = planes * math.prod(slide.kernel) * math.prod(slide.counts)
    return routine is not None and len(slide.kernel) <= 2 and work >= smallest and routine.ready


def _two(sizes: Sizes, filler: int) -> tuple[int, int]:
    return (sizes[0], sizes[1]) if len(sizes) == 2 else (filler, sizes[0])
