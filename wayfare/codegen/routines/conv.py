"""Direct convolution (without im2col) and its two gradients, in native code.

The weight is (C out, C in, *kernel) with one or two spatial dimensions; `conv_code.py` has the algorithm. All three
functions return None where im2col and BLAS are faster or the only way. The limits were measured, see
docs/design/codegen.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from wayfare.codegen.llvm.machine import machine
from wayfare.codegen.loop.expr import OF_NUMPY
from wayfare.codegen.routines.conv_code import write_output, write_weight
from wayfare.codegen.routines.routine import Routine, address_of
from wayfare.codegen.routines.windows import Sizes, Slide, check_fits, in_2d
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.command import BufferView, Command, Scratch, Unsuited
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[int, int]

# Multiplications from which on direct convolution is used, and several threads.
CONV_FROM = 1 << 11
_PARALLEL_FROM = 1 << 20
# With a stride, the gradient of the input is several convolutions: the fewest multiplications of each, and channels.
_PHASE_FROM = 1 << 17
_PHASE_CHANNELS = 3
# The largest stride. Along a row only 1 and 2 are supported.
_STRIDE = 4
# Bytes of scratch memory. For the output: what fits into the L2 cache together with the weights. For the gradient of
# the weight longer sums matter more.
_SCRATCH = 384 * 1024
_WEIGHT_SCRATCH = 4 * 1024 * 1024
# How many elements a vector load may read past the last plane.
_BEYOND = 128
# Vectors of windows that are summed in registers before they are stored: gradients of four channels fit into L1.
_CHUNK = 80

_BYTES = np.dtype(np.uint8)
# Nanoseconds of one multiplication, and of the overhead for each image.
_COST, _CALL = 0.02, 200.0


def _routines(name: str, write: Callable[..., str]) -> dict[tuple[str, int], Routine]:
    """Routines by (dtype, stride along a row)."""
    return {(d, s): Routine(f"{name}_{d}_{s}", write, d, s) for d in ("f32", "f64") for s in (1, 2)}


_OUTPUT = _routines("direct", write_output)
_WEIGHT = _routines("direct_weight", write_weight)


@dataclass(frozen=True, slots=True)
class _Step:
    """How a kernel slides over images, in two dimensions. `before` is the padding; negative if windows begin inside."""

    sizes: Pair
    counts: Pair
    kernel: Pair
    stride: Pair
    before: Pair
    apart: Pair

    @classmethod
    def of(cls, sizes: Sizes, counts: Sizes, slide: Slide) -> _Step:
        """The step of a convolution with one or two spatial dimensions."""
        return cls(
            in_2d(sizes, 1), in_2d(counts, 1), in_2d(slide.kernel, 1), in_2d(slide.stride, 1), in_2d(slide.padding, 0),
            in_2d(slide.dilation, 1),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Plan:
    """What depends on sizes only: tables, and the argument words after the addresses."""

    offsets: Array  # byte offset of each tap (channel, kernel row, kernel column) in scratch
    masks: Array  # which lanes are inside the image, as bits: (plane, line, vector of the line)
    shifts: Array  # byte offset of the first window's element in the image, for each plane of a channel
    words: tuple[int, ...]  # the argument words from "columns" on
    room: int  # bytes of scratch for one image
    tables: tuple[int, int, int]  # the addresses of the three tables

    @property
    def image(self) -> int:
        """Bytes of an image."""
        return self.words[2]

    @property
    def output(self) -> Pair:
        """Bytes of the output of an image, and of one of its channels."""
        return self.words[4], self.words[5]


@lru_cache(256)
def _plan(channels: int, made: int, groups: int, step: _Step, size: int, lanes: int, most: int) -> _Plan:
    """The plan for `channels` input and `made` output channels of each group."""
    (high, wide), (rows, across), (kernel_h, kernel_w) = step.sizes, step.counts, step.kernel
    starts = [i * step.apart[0] for i in range(kernel_h)]
    phases = sorted({start % step.stride[0] for start in starts})
    more = starts[-1] // step.stride[0]
    columns = kernel_w * len(phases)
    band = min(rows, max(most // (channels * columns * across * size) - more, -(-4 * lanes // across)))
    # If a row of windows is as long as a row of the image, all lines are copied as one; the mask clears the edges.
    flat = across == wide and band == rows and step.stride == (1, 1)
    line = (rows + more) * across if flat else across
    vectors = -(-line // lanes)
    plane = ((band + more) * across * size + 63) // 64 * 64 + 64
    plane += 64 * (plane % 4096 == 0)  # planes 4 KB apart would map to the same cache sets
    x0, y0 = np.arange(kernel_w) * step.apart[1] - step.before[1], np.array(phases) - step.before[0]
    shifts = np.ravel((x0[:, None] + y0 * wide) * size).astype(np.int64)
    y = (y0[:, None] + np.arange(rows + more) * step.stride[0])[None, :, :, None]
    x = (x0[:, None] + np.arange(across) * step.stride[1])[:, None, None, :]
    wanted = np.zeros((columns, (rows + more) * across // line, vectors * lanes, step.stride[1]), bool)
    inside = (y >= 0) & (y < high) & (x >= 0) & (x < wide)
    wanted[:, :, :line, 0] = inside.reshape(*wanted.shape[:2], line)
    masks = np.ascontiguousarray(wanted.reshape(*wanted.shape[:2], -1, lanes) @ (1 << np.arange(lanes)), np.uint16)
    down = step.stride[0]
    positions = [phases.index(start % down) * plane + start // down * across * size for start in starts]
    offsets = (
        np.arange(channels)[:, None, None] * (columns * plane) + np.array(positions)[:, None]
        + np.arange(kernel_w) * (len(phases) * plane)
    ).astype(np.int64).ravel()  # fmt: skip
    image, output = high * wide * size, rows * across * size
    words = (
        columns, len(offsets), groups * channels * image, image, groups * made * output, output, band, rows, across,
        *((0, 1) if flat else (1, more)), vectors, step.stride[0] * wide * size, across * size, plane,
        masks[0].size // step.stride[1], groups, channels * image, made * output,
    )  # fmt: skip
    room = -(-(channels * columns * plane + _BEYOND * size) // 64) * 64
    return _Plan(offsets, masks, shifts, words, room, (address_of(offsets), address_of(masks), address_of(shifts)))


@lru_cache(256)
def _vector_offsets(images: int, vectors: int, size: int, room: int) -> Array:
    """Byte offsets in scratch of each full vector of windows, for each image of a group."""
    return np.ravel(np.arange(images)[:, None] * room + np.arange(vectors) * size).astype(np.int64)


def _alike(a: Array, b: Array, slide: Slide) -> bool:
    """Do both have one dtype, and the rank of the windows?"""
    return a.dtype == b.dtype and a.ndim == b.ndim == len(slide.kernel) + 2


def _split(batch: int, made: int, threads: int) -> tuple[bool, list[Pair]]:
    """(split by image, or by output channel?, [(first, count) of each part])."""
    by_image = batch >= threads
    total = batch if by_image else made
    each = -(-total // threads)
    return by_image, [(first, min(each, total - first)) for first in range(0, total, each)]


def _threads(work: int, most: int) -> int:
    """How many threads to use for so many multiplications."""
    return most if work >= _PARALLEL_FROM else 1


def _find(kinds: dict[tuple[str, int], Routine], dtype: Any, slide: Slide, step: int, work: int) -> Routine | None:
    """The routine for a convolution; None if it is not supported or too small."""
    routine = kinds.get((OF_NUMPY.get(dtype, ""), step))
    fits = len(slide.kernel) <= 2 and max(slide.stride) <= _STRIDE and max(slide.kernel) > 1
    return routine if routine is not None and fits and work >= max(CONV_FROM, 1) and routine.ready else None


def forward(x: Array, weight: Array, bias: Array | None, slide: Slide, groups: int = 1) -> Array | None:
    """The convolution of (N, C, *sizes), plus the bias: (N, C out, *counts)."""
    shape = (x.shape[0], weight.shape[0], *slide.counts)
    work = math.prod(shape) * math.prod(weight.shape[1:])
    routine = _find(_OUTPUT, x.dtype, slide, slide.stride[-1], work)
    if routine is None:
        return None
    check_fits(_alike(x, weight, slide) and x.shape[1] == weight.shape[1] * groups and not weight.shape[0] % groups
               and weight.shape[2:] == slide.kernel and (bias is None or bias.shape == weight.shape[:1]),
               "images and weights")  # fmt: skip
    step = _Step.of(x.shape[2:], slide.counts, slide)
    weight = np.ascontiguousarray(weight)
    by_group = weight.strides[0] * (weight.shape[0] // groups)
    return _convolve(routine, np.ascontiguousarray(x), weight, bias, shape, step, work, groups, by_group)


def by_input(g: Array, weight: Array, shape: Sizes, slide: Slide, groups: int = 1) -> Array | None:
    """The gradient of the input (of this shape) from that of the output: a convolution with the flipped kernel.

    With a stride s there are s × s convolutions, each with every s-th element of the kernel, for every s-th element
    of the input.
    """
    steps = math.prod(slide.stride)
    work = math.prod(shape) * (weight.shape[0] // groups) * math.prod(slide.kernel) // steps
    routine = _find(_OUTPUT, g.dtype, slide, 1, work)
    if routine is None or (steps > 1 and (work // steps < _PHASE_FROM or shape[1] < _PHASE_CHANNELS)):
        return None
    check_fits(_alike(g, weight, slide) and weight.shape[2:] == slide.kernel and not weight.shape[0] % groups
               and g.shape[1] == weight.shape[0] and shape[:2] == (g.shape[0], weight.shape[1] * groups)
               and len(shape) == g.ndim, "gradients and weights")  # fmt: skip
    full_step = _Step.of(shape[2:], g.shape[2:], slide)
    g, flipped = np.ascontiguousarray(g), np.ascontiguousarray(weight).swapaxes(0, 1)
    flipped, full = flipped.reshape(*flipped.shape[:2], *full_step.kernel), (*shape[:2], *full_step.sizes)
    by_group = flipped.strides[1] * (weight.shape[0] // groups)
    if steps == 1:
        return _by_phase(routine, g, flipped, full_step, (0, 0), work, groups, by_group).reshape(shape)
    out = buffer_pool.empty(full, g.dtype)
    for first in product(range(full_step.stride[0]), range(full_step.stride[1])):
        if all(f < n for f, n in zip(first, full_step.sizes, strict=True)):
            down, right = (slice(f, None, s) for f, s in zip(first, full_step.stride, strict=True))
            out[:, :, down, right] = _by_phase(routine, g, flipped, full_step, first, work // steps, groups, by_group)
    return out.reshape(shape)


def _by_phase(
    routine: Routine, g: Array, weight: Array, full_step: _Step, first: Pair, work: int, groups: int, by_group: int
) -> Array:
    """The gradient of every `stride`-th element of the input from `first` on. The weight is (C in, C out, H, W)."""
    counts, kernel, before, apart, taken = [], [], [], [], []
    sides = (full_step.sizes, full_step.kernel, full_step.stride, full_step.before, full_step.apart)
    for f, n, k, s, p, d in zip(first, *sides, strict=True):
        # Kernel element i connects window (f + p - i d) / s + t with element f + s t, if that is an integer.
        used = [i for i in range(k) if (f + p - i * d) % s == 0]
        if not used:
            return np.zeros((), g.dtype)
        counts.append(-(-(n - f) // s))
        kernel.append(len(used))
        before.append((used[-1] * d - f - p) // s)
        apart.append(d // math.gcd(d, s))
        taken.append(slice(used[-1], used[0] - 1 if used[0] else None, -(s // math.gcd(d, s))))
    step = _Step(in_2d(g.shape[2:], 1), in_2d(tuple(counts), 1), in_2d(tuple(kernel), 1), (1, 1),
                 in_2d(tuple(before), 0), in_2d(tuple(apart), 1))  # fmt: skip
    shape = (g.shape[0], groups * weight.shape[0], *counts)
    return _convolve(routine, g, weight[:, :, taken[0], taken[1]], None, shape, step, work, groups, by_group)


def _convolve(
    routine: Routine, x: Array, weight: Array, bias: Array | None, shape: Sizes, step: _Step, work: int, groups: int,
    by_group: int,
) -> Array:  # fmt: skip
    """Convolve (N, C, *sizes) into an output of this shape. The weight (C out, C, *kernel) may have any strides.

    The weights of the next group begin `by_group` bytes later.
    """
    size = x.itemsize
    of = _Convolution(x.shape, shape, step, size, groups, weight.strides, by_group)
    out = buffer_pool.empty(shape, x.dtype)
    parts = _split(shape[0], of.made, _threads(work, thread_pool.threads()))
    scratch = buffer_pool.empty((of.room * len(parts[1]) + 64,), _BYTES)
    bias = np.zeros(shape[1], x.dtype) if bias is None else np.ascontiguousarray(bias)
    addresses = [address_of(array) for array in (x, out, weight, bias)]
    blocks = of.blocks(parts, addresses, -(-address_of(scratch) // 64) * 64)
    routine.run([word for block in blocks for word in block], len(blocks))
    return out


class _Convolution:
    """The argument blocks of a convolution of given sizes."""

    def __init__(
        self, shape: Sizes, made: Sizes, step: _Step, size: int, groups: int, strides: Sizes, by_group: int
    ) -> None:
        self.batch, self.channels, self.made, self.size = shape[0], shape[1] // groups, made[1] // groups, size
        lanes = 4 * machine().processor.lanes // size
        self.plan = _plan(self.channels, self.made, groups, step, size, lanes, _SCRATCH)
        self._of_weight = (*strides[:2], *in_2d(strides[2:], 0), *step.kernel)
        self._by_group = by_group
        # Bytes of scratch for one part.
        self.room = self.plan.room + -(-self.made * len(self.plan.offsets) * size // 64) * 64

    def blocks(self, parts: tuple[bool, list[Pair]], addresses: Sequence[int], scratch_at: int) -> list[list[int]]:
        """One block for each part. `addresses` are those of image, output, weight and bias; `scratch_at` is scratch."""
        start, output, weights, biases = addresses
        plan, size, (by_image, ranges) = self.plan, self.size, parts
        found = []
        for begin, count in ranges:
            first, target, own, counts = (
                (begin * plan.image, begin * plan.output[0], 0, (count, self.channels, self.made)) if by_image
                else (0, begin * plan.output[1], begin, (self.batch, self.channels, count))
            )  # fmt: skip
            found.append([
                start + first, output + target, *plan.tables, scratch_at, *counts, *plan.words, self._by_group,
                weights + own * self._of_weight[0], scratch_at + plan.room, *self._of_weight, biases + own * size,
                self.made * size,
            ])  # fmt: skip
            scratch_at += self.room
        return found

    @property
    def address_words(self) -> tuple[int, ...]:
        """Which words of a block are addresses: image, output, weight, bias, scratch, and packed weights in scratch."""
        weights = 9 + len(self.plan.words) + 1
        return 0, 1, weights, weights + 2 + len(self._of_weight), 5, weights + 1


def convolution_commands(
    x: BufferView, weight: BufferView, bias: BufferView | None, out: BufferView, slide: Slide, groups: int,
    threads: int, scratch: Scratch,
) -> list[Command]:  # fmt: skip
    """`forward` as a command. All views but the weight are C-contiguous. Raises Unsuited where that returns None."""
    work = math.prod(out.shape) * math.prod(weight.shape[1:])
    routine = _find(_OUTPUT, x.dtype, slide, slide.stride[-1], work)
    if routine is None:
        raise Unsuited
    size = x.dtype.itemsize
    step = _Step.of(x.shape[2:], slide.counts, slide)
    by_group = weight.strides[0] * (weight.shape[0] // groups)
    of = _Convolution(x.shape, out.shape, step, size, groups, weight.strides, by_group)
    parts = _split(x.shape[0], of.made, _threads(work, threads))
    room = scratch.allocate((of.room * len(parts[1]),), _BYTES)
    nothing = np.zeros(out.shape[1], x.dtype)
    biases = bias.offset if bias is not None else address_of(nothing)
    blocks = of.blocks(parts, (x.offset, out.offset, weight.offset, biases), room.offset)
    objects = (x.object, out.object, weight.object, None if bias is None else bias.object, room.object, room.object)
    addresses = [(block, at, number) for block in range(len(blocks))
                 for at, number in zip(of.address_words, objects, strict=True) if number is not None]  # fmt: skip
    title = f"convolution {list(out.shape)} of {list(weight.shape)}"
    nanoseconds = work * _COST + _CALL * x.shape[0]
    return [Command("kernel", title, routine.address, blocks, addresses, nanoseconds, len(blocks) > 1,
                    kept=(of.plan, nothing))]  # fmt: skip


def by_weight(x: Array, g: Array, slide: Slide, groups: int = 1) -> Array | None:
    """The gradient of the weight, (C out, C in / groups, *kernel)."""
    work = g.size * (x.shape[1] // groups) * math.prod(slide.kernel)
    routine = _find(_WEIGHT, x.dtype, slide, slide.stride[-1], work)
    if routine is None:
        return None
    check_fits(_alike(x, g, slide) and x.shape[0] == g.shape[0] and g.shape[2:] == slide.counts
               and not x.shape[1] % groups and not g.shape[1] % groups, "images and gradients")  # fmt: skip
    x, g = np.ascontiguousarray(x), np.ascontiguousarray(g)
    batch, channels, made, size = x.shape[0], x.shape[1] // groups, g.shape[1] // groups, x.itemsize
    lanes = 4 * machine().processor.lanes // size
    plan = _plan(channels, made, groups, _Step.of(x.shape[2:], g.shape[2:], slide), size, lanes, _WEIGHT_SCRATCH)
    by_image, parts = _split(batch, made, _threads(work, thread_pool.threads()))
    windows = math.prod(slide.counts)
    vectors = -(-windows // lanes)
    group = max(1, min(_CHUNK // vectors, _WEIGHT_SCRATCH // plan.room, batch))
    # One more cache line, so that the channels do not map to the same cache sets.
    gradient_bytes = group * vectors * lanes * size + 64
    each = group * plan.room + (made * gradient_bytes if group > 1 else 0)
    positions = _vector_offsets(group, windows // lanes, lanes * size, plan.room)
    scratch = buffer_pool.empty((each * len(parts) + 64,), _BYTES)
    scratch_at = -(-address_of(scratch) // 64) * 64
    # Split by image, each part has its own sums; split by output channel, its own rows of one array.
    sums = np.zeros((len(parts) if by_image else 1, g.shape[1], channels, *slide.kernel), x.dtype)
    start, gradients, target, listed = (address_of(array) for array in (x, g, sums, positions))
    words: list[int] = []
    for number, (begin, count) in enumerate(parts):
        first, gradient, own, counts = (
            (begin * plan.image, begin * plan.output[0], number * sums.strides[0], (count, channels, made)) if by_image
            else (0, begin * plan.output[1], begin * sums.strides[1], (batch, channels, count))
        )  # fmt: skip
        words += [
            start + first, gradients + gradient, *plan.tables, scratch_at, *counts, *plan.words, made * sums.strides[1],
            target + own, listed,
            scratch_at + group * plan.room, gradient_bytes, group, _CHUNK, plan.room,
        ]  # fmt: skip
        scratch_at += each
    routine.run(words, len(parts))
    return sums[0] if len(sums) == 1 else np.asarray(np.add.reduce(sums, axis=0))
