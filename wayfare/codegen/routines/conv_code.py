"""The IR of direct convolution: register tiles of the output, with an inner loop over the taps of the kernel.

An image is copied to scratch as (channel, kernel column, line, window): one copy for each column of the kernel, so that
the windows of all rows are contiguous. A tap (channel, row and column of the kernel) is then a fixed offset in scratch,
read from a table, so the loops do not depend on kernel size, padding or dilation. With a stride in the first dimension,
lines of different phase are stored as if they were further columns. Masks from a table clear what is outside the image.

    output    for each tile of (output channels × vectors of windows): over all taps, window vector × weight
    weight    for each tile of (output channels × taps): over all windows, gradient vector × window vector
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from wayfare.codegen.llvm.builder import vector
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.llvm.vector import VectorCode
from wayfare.codegen.routines.routine import function

# The first argument words of both routines; addresses are marked with a star.
_COMMON = (
    "*image", "*output", "*offsets", "*masks", "*shifts", "*scratch",
    "images", "channels", "made", "columns", "taps",
    "image_n", "image_c", "output_n", "output_c",
    "band", "rows", "row_windows", "lines_each", "lines_more", "line_vectors", "line_step", "line_bytes",
    "plane_bytes", "mask_step", "groups", "group_image", "group_output", "group_weight",
)  # fmt: skip
OUTPUT_WORDS = (
    *_COMMON, "*weight", "*packed", "weight_o", "weight_c", "weight_i", "weight_j", "kernel_h", "kernel_w", "*bias",
    "group_bias",
)  # fmt: skip
WEIGHT_WORDS = (*_COMMON, "*sums", "*steps", "*gradients", "gradient_bytes", "group", "chunk", "image_room")

# (output channels, possible numbers of vectors) of a tile, for 32 vector registers and for 16.
_TILES_OF_32 = ((8, (3, 2, 1)), (4, (6, 2, 1)), (1, (8, 4, 1)))
_TILES_OF_16 = ((4, (3, 1)), (1, (8, 4, 1)))
# How many products are summed in a register; longer sums are split into such blocks for precision, as in BLAS.
_TAPS = 288
# (output channels, taps) of a tile of the weight's gradient.
_WEIGHT_TILES_OF_32 = ((4, 1), (6, 3, 1))
_WEIGHT_TILES_OF_16 = ((3, 1), (3, 1))


class _Code(VectorCode):
    """What both routines share: copying an image to scratch."""

    def __init__(self, host: Machine, dtype: str, step: int, names: tuple[str, ...]) -> None:
        super().__init__(host, dtype, names)
        self.step = step  # from one window of a row to the next, in elements

    @contextmanager
    def each_group(self, *names: str) -> Iterator[None]:
        """A loop over groups of channels, in which these address words point to the group."""
        w = self.words
        with self.writer.loop("0", w.groups, 1) as group:
            for name in names:
                step = getattr(w, "group_weight" if name == "sums" else f"group_{name}")
                setattr(w, name, self.at(getattr(w, name), group, step))
            yield

    def copy_image(self, image: str, scratch: str, first: str, count: str) -> None:
        """Copy to scratch the lines of an image that `count` rows of windows need, starting at row `first`."""
        w, wide = self.words, self.lanes * self.size
        lines = self.add(self.mul(count, w.lines_each), w.lines_more)
        begun = self.mul(first, w.line_vectors)
        with self.writer.loop("0", w.channels, 1) as c, self.writer.loop("0", w.columns, 1) as j:
            shift = self.writer.load("i64", self.at(w.shifts, j, 8))
            source = self.at(self.at(self.at(image, c, w.image_c), shift), first, w.line_step)
            target = self.at(scratch, self.add(self.mul(c, w.columns), j), w.plane_bytes)
            entry = self.add(self.mul(j, w.mask_step), begun)
            with self.writer.loop("0", lines, 1) as line:
                own = self.add(entry, self.mul(line, w.line_vectors))
                of_line, to_line = self.at(source, line, w.line_step), self.at(target, line, w.line_bytes)
                with self.writer.loop("0", w.line_vectors, 1) as v:
                    entries = self.at(w.masks, self.add(own, v), 2 * self.step)
                    address = self.at(of_line, v, wide * self.step)
                    parts = [
                        self.load(self.at(address, str(k * wide)), self.lanes, self.listed_mask(entries, k))
                        for k in range(self.step)
                    ]
                    # What is written past the end of a line is overwritten by the next line.
                    self.store(self.first_of_steps(parts), self.at(to_line, v, wide), self.lanes)

    def listed_mask(self, entries: str, number: int) -> str:
        """Read a mask from the table."""
        bits = self.writer.load("i16", self.at(entries, str(2 * number)))
        if self.lanes < 16:
            bits = self.let(f"trunc i16 {bits} to i{self.lanes}")
        return self.let(f"bitcast i{self.lanes} {bits} to {vector(self.lanes, 'i1')}")

    def first_of_steps(self, parts: list[str]) -> str:
        """Every second element of two vectors (stride 2), or the single vector (stride 1)."""
        if len(parts) == 1:
            return parts[0]
        return self.pick(parts[0], parts[1], range(0, 2 * self.lanes, 2))


def write_output(dtype: str, step: int, host: Machine) -> str:
    """The IR of the forward convolution of some images, for some output channels."""
    code = _Code(host, dtype, step, OUTPUT_WORDS)
    w, let, writer, size, lanes = code.words, code.let, code.writer, code.size, code.lanes
    wide, half = lanes * size, lanes // 2
    tiles = _TILES_OF_32 if code.many else _TILES_OF_16
    blocks, vectors_of = tuple(block for block, _ in tiles), dict(tiles)
    channel_weights = code.mul(w.taps, size)

    def pack(o: str, block: int) -> None:
        """Copy weights into the order in which a tile reads them."""
        target = writer.variable("ptr", code.at(w.packed, o, channel_weights))
        own = code.at(w.weight, o, w.weight_o)
        with (
            writer.loop("0", w.channels, 1) as c, writer.loop("0", w.kernel_h, 1) as i,
            writer.loop("0", w.kernel_w, 1) as j,
        ):  # fmt: skip
            tap = code.at(code.at(code.at(own, c, w.weight_c), i, w.weight_i), j, w.weight_j)
            for k in range(block):
                number = writer.load(code.kind, code.at(tap, str(k), w.weight_o))
                writer.store(code.kind, number, code.at(target.get(), str(k * size)))
            target.set(code.at(target.get(), str(block * size)))

    def tile(o: str, windows: str, output: str, block: int, vectors: int, lanes: int, mask: str = "") -> None:
        packed, bias = code.at(w.packed, o, channel_weights), code.at(w.bias, o, size)
        kind = vector(lanes, code.kind)
        with writer.loop("0", w.taps, _TAPS) as begin:
            sums = [code.zeros(vectors, lanes) for _ in range(block)]
            with writer.loop(begin, code.smaller(w.taps, code.add(begin, str(_TAPS))), 1) as tap:
                address = code.at(windows, writer.load("i64", code.at(w.offsets, tap, 8)))
                seen = [code.load(code.at(address, str(v * lanes * size)), lanes) for v in range(vectors)]
                weights = code.at(packed, tap, block * size)
                for k in range(block):
                    everywhere = code.in_every_lane(code.at(weights, str(k * size)), lanes)
                    for v in range(vectors):
                        code.multiply_add(lanes, seen[v], everywhere, sums[k][v])
            # The first block of taps adds to the bias, later blocks to the sum so far.
            later = writer.splat(lanes, "i1", writer.compare("sgt", begin, 0))
            later = let(f"and {vector(lanes, 'i1')} {later}, {mask}") if mask else later
            for k in range(block):
                row = code.at(output, str(k), w.output_c)
                before = code.in_every_lane(code.at(bias, str(k * size)), lanes)
                for v in range(vectors):
                    address = code.at(row, str(v * lanes * size))
                    total = writer.float_add(kind, sums[k][v].get(), code.load(address, lanes, later, before))
                    code.store(total, address, lanes, mask)

    def all_windows(output: str, count: str, o: str, block: int) -> None:
        """A band of the output, for a block of its channels."""
        full = code.div(count, lanes)
        rest = code.sub(count, code.mul(full, lanes))
        own = code.at(output, o, w.output_c)
        code.in_steps(
            full, vectors_of[block],
            lambda v, n: tile(o, code.at(w.scratch, v, wide), code.at(own, v, wide), block, n, lanes),
        )  # fmt: skip
        last, to_last = code.at(w.scratch, full, wide), code.at(own, full, wide)
        with code.only_if("sgt", rest, half):
            tile(o, last, to_last, block, 1, lanes, code.first_lanes(lanes, rest))
        # For a short rest, half a vector takes half the time.
        few = writer.select(writer.compare("sgt", rest, half), "0", rest)
        with code.only_if("sgt", few, 0):
            tile(o, last, to_last, block, 1, half, code.first_lanes(half, few))

    with code.each_group("image", "output", "weight", "bias"):
        code.in_steps(w.made, blocks, pack)
        with writer.loop("0", w.images, 1) as n:
            image, output = code.at(w.image, n, w.image_n), code.at(w.output, n, w.output_n)
            bands = code.div(code.sub(code.add(w.rows, w.band), "1"), w.band)
            with writer.loop("0", bands, 1) as b:
                first = code.mul(b, w.band)
                count = code.smaller(w.band, code.sub(w.rows, first))
                code.copy_image(image, w.scratch, first, count)
                windows, begun = code.mul(count, w.row_windows), code.at(output, code.mul(first, w.row_windows), size)
                code.in_steps(w.made, blocks, lambda o, block: all_windows(begun, windows, o, block))
    return function(writer)


def write_weight(dtype: str, step: int, host: Machine) -> str:
    """The IR of the gradient of the weight: sums over some images, for some output channels, added to `sums`."""
    code = _Code(host, dtype, step, WEIGHT_WORDS)
    w, writer, size, lanes = code.words, code.writer, code.size, code.lanes
    wide = lanes * size
    blocks, tap_blocks = _WEIGHT_TILES_OF_32 if code.many else _WEIGHT_TILES_OF_16

    def tile(part: _Part, o: str, tap: str, block: int, taps: int) -> None:
        totals = code.zeros(block * taps, lanes)
        own = code.at(part.gradients, o, part.gradient_bytes)
        entry = code.at(w.offsets, tap, 8)
        addresses = [code.at(w.scratch, writer.load("i64", code.at(entry, str(8 * t)))) for t in range(taps)]

        def visit(number: str, further: str, mask: str) -> None:
            gradient = code.at(own, number, wide)
            given = [code.load(code.at(gradient, str(k), part.gradient_bytes), lanes, mask) for k in range(block)]
            seen = [code.load(code.at(address, further), lanes, mask) for address in addresses]
            for k in range(block):
                for t in range(taps):
                    code.multiply_add(lanes, given[k], seen[t], totals[k * taps + t])

        with writer.loop(part.begin, part.end, 1) as v:
            visit(v, writer.load("i64", code.at(w.steps, v, 8)), "")
        with writer.loop("0", part.rests, 1) as n:
            visit(code.add(part.end, n), code.add(code.mul(n, w.image_room), part.rest_at), part.mask)
        row = code.at(code.at(w.sums, o, code.mul(w.taps, size)), tap, size)
        _add_rows(code, [t.get() for t in totals], row, block, taps)

    def gather_gradients(gradients: str, images: str, full: str, rests: str, mask: str) -> None:
        """Copy the gradients of a group of images: all full vectors of a channel, then the rests."""
        with writer.loop("0", w.made, 1) as o, writer.loop("0", images, 1) as n:
            source = code.at(code.at(gradients, n, w.output_n), o, w.output_c)
            target = code.at(w.gradients, o, w.gradient_bytes)
            first = code.at(target, code.mul(n, full), wide)
            with writer.loop("0", full, 1) as v:
                code.store(code.load(code.at(source, v, wide), lanes), code.at(first, v, wide), lanes)
            with writer.loop("0", rests, 1):
                value = code.load(code.at(source, full, wide), lanes, mask)
                code.store(value, code.at(target, code.add(code.mul(images, full), n), wide), lanes)

    groups = code.div(code.sub(code.add(w.images, w.group), "1"), w.group)
    bands = code.div(code.sub(code.add(w.rows, w.band), "1"), w.band)
    several = writer.compare("sgt", w.group, 1)
    with (
        code.each_group("image", "output", "sums"), writer.loop("0", groups, 1) as number,
        writer.loop("0", bands, 1) as b,
    ):  # fmt: skip
        before = code.mul(number, w.group)
        images = code.smaller(w.group, code.sub(w.images, before))
        first = code.mul(b, w.band)
        count = code.smaller(w.band, code.sub(w.rows, first))
        image, gradients = code.at(w.image, before, w.image_n), code.at(w.output, before, w.output_n)
        gradients = code.at(gradients, code.mul(first, w.row_windows), size)
        with writer.loop("0", images, 1) as n:
            code.copy_image(code.at(image, n, w.image_n), code.at(w.scratch, n, w.image_room), first, count)
        windows = code.mul(count, w.row_windows)
        full = code.div(windows, lanes)
        rest = code.sub(windows, code.mul(full, lanes))
        mask = code.first_lanes(lanes, rest)
        any_rest = code.as_count(writer.compare("sgt", rest, 0))
        with writer.loop("0", code.as_count(several), 1):
            gather_gradients(gradients, images, full, any_rest, mask)
        used = writer.select(several, w.gradients, gradients, "ptr")
        room = writer.select(several, w.gradient_bytes, w.output_c)
        every = code.mul(images, full)
        chunks = code.div(code.sub(code.add(every, w.chunk), "1"), w.chunk)
        # At least one chunk, even if there are only rests.
        chunks = writer.select(writer.compare("eq", chunks, 0), "1", chunks)
        with writer.loop("0", chunks, 1) as c:
            begin = code.mul(c, w.chunk)
            end = code.smaller(code.add(begin, w.chunk), every)
            last = code.as_count(writer.compare("eq", end, every))
            rests = code.mul(code.mul(last, any_rest), images)
            part = _Part(used, room, begin, end, rests, code.mul(full, wide), mask)
            code.in_steps(
                w.made, blocks,
                lambda o, block: code.in_steps(
                    w.taps, tap_blocks, lambda tap, taps: tile(part, o, tap, block, taps)
                ),
            )  # fmt: skip
    return function(writer)


class _Part(NamedTuple):
    """A range of full vectors of windows, and the masked rest of each image."""

    gradients: str
    gradient_bytes: str
    begin: str
    end: str
    rests: str
    rest_at: str
    mask: str


def _add_rows(code: _Code, totals: list[str], target: str, rows: int, columns: int) -> None:
    """Add the horizontal sums of the vectors to a matrix in memory."""
    for r, row in enumerate(code.rows_of_sums(totals, rows, columns)):
        address = code.at(target, str(r), code.mul(code.words.taps, code.size))
        old = code.load(address, columns)
        code.store(code.writer.float_add(vector(columns, code.kind), old, row), address, columns)
