"""The loop nest that slides a kernel over images, shared by im2col, col2im and depthwise convolution.

An image is (N, C, H, W) or (N, C, W). The other side is called the "matrix": columns of windows, or the output of a
depthwise convolution. Padding, stride and dilation are handled here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Writer, iota, memory_type, vector
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.loop.expr import NUMPY, OF_NUMPY
from wayfare.codegen.routines.routine import Routine, address_of, function, pointer, word
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
        writer, lanes, kind = self.writer, self.lanes, vector(self.lanes, "i64")
        at = writer.let(f"add {kind} {writer.splat(lanes, 'i64', position)}, {iota(lanes)}")
        low = writer.compare("sge", at, writer.splat(lanes, "i64", begin), kind)
        high = writer.compare("slt", at, writer.splat(lanes, "i64", end), kind)
        return writer.let(f"and {vector(lanes, 'i1')} {low}, {high}")

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
            return self.writer.masked_load(self.lanes, self.kind, address, mask)
        return self.writer.gather(self.lanes, self.kind, self.writer.spread(self.lanes, address, step), mask)

    def store(self, value: str, address: str, step: str | None, mask: str) -> None:
        """Store elements under a mask."""
        if step is None:
            self.writer.masked_store(self.lanes, self.kind, value, address, mask)
        else:
            self.writer.scatter(self.lanes, self.kind, value, self.writer.spread(self.lanes, address, step), mask)

    def accumulate(self, row: Row, to: str, add: Callable[[str, str], str]) -> None:
        """to = add(from, to) for the windows of a row that are inside the image. `to` is "image" or "matrix"."""
        with self.writer.loop(row.begin, row.end, self.lanes) as k:
            inside = self.lanes_between(k, row.begin, row.end)
            source, target = (self.image_at(row, k), self.step_of(row)), (self.matrix_at(row, k), None)
            if to == "image":
                source, target = target, source
            more, old = self.load(*source, inside), self.load(*target, inside)
            self.store(add(more, old), *target, inside)


@dataclass(frozen=True, slots=True)
class Steps:
    """Byte strides of an array: between examples, channels, and elements of the kernel."""

    n: int
    c: int
    k: int = 0


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
    rest = [high, wide, *two(slide.kernel, 1), *two(slide.counts, 1), *two(slide.stride, 1)]
    rest += [*two(slide.padding, 0), *two(slide.dilation, 1)]
    threads = thread_pool.threads() if matrix.nbytes >= _PARALLEL_FROM else 1
    starts = (address_of(image), address_of(matrix), 0 if weights is None else address_of(weights))
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


Kinds = dict[tuple[str, bool], Routine]


def routines(name: str, write: Callable[..., str], *given: Any) -> Kinds:
    """Routines by dtype and by whether windows lie side by side: `write(*given, dtype, side_by_side, host)`."""
    return {(d, s): Routine(f"{name}_{d}", write, *given, d, s) for d in ("f32", "f64") for s in (False, True)}


def find(kinds: Kinds, dtype: Any, shape: Sizes, slide: Slide, smallest: int) -> Routine | None:
    """The routine for images of this shape; None for more than two dimensions, or with too few elements of columns."""
    routine = kinds.get((OF_NUMPY.get(dtype, ""), slide.stride[-1] == 1))
    work = shape[0] * shape[1] * math.prod(slide.kernel) * math.prod(slide.counts)
    fits = routine is not None and 0 not in shape and len(slide.kernel) <= 2 and work >= smallest
    return routine if fits and routine is not None and routine.ready else None


def two(sizes: Sizes, filler: int) -> tuple[int, int]:
    """Sizes of one or two dimensions as those of two."""
    return (sizes[0], sizes[1]) if len(sizes) == 2 else (filler, sizes[0])
