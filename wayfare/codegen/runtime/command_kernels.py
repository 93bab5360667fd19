"""Kernels as commands: the argument blocks of a loop over buffer views, split over threads.

Operands that do not fit a nest of three axes are processed in slices, with one block for each; rows that do not fit are
copied to scratch memory first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from wayfare.codegen.llvm.module import SIZES, WORDS_PER_OPERAND, Layout
from wayfare.codegen.loop import layout as layouts
from wayfare.codegen.loop.expr import NUMPY, load
from wayfare.codegen.loop.language import elementwise
from wayfare.codegen.loop.layout import Nest
from wayfare.codegen.routines import transpose
from wayfare.codegen.routines.routine import address_of
from wayfare.codegen.runtime.command import BufferView, Command, Scratch, Shape, Unsuited, operand_addresses
from wayfare.codegen.runtime.kernel import Kernel, build
from wayfare.codegen.runtime.long_rows import Pieces, split_rows
from wayfare.codegen.runtime.work_split import parts_for

Array = np.ndarray[Any, np.dtype[Any]]

# The most slices of a loop with too many axes.
_MOST_SLICES = 4096
# Elements of a piece of an update: tens of microseconds of work, so that threads get equal work.
_PIECE = 16 * 1024
# Copies use an integer dtype of the same width.
_BITS = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}
_WIDE = 16


def kernel_commands(
    kernel: Kernel, shape: Shape, axes: tuple[int, ...] | None, inputs: Sequence[BufferView],
    outputs: Sequence[BufferView], threads: int, scratch: Scratch,
) -> list[Command]:  # fmt: skip
    """The commands of a kernel over `shape`, with rows along `axes`."""
    views = (*inputs, *outputs)
    loop = kernel.loop
    if len(inputs) != len(loop.inputs) or len(outputs) != len(loop.outputs):
        raise Unsuited
    if any(NUMPY[o.dtype] != p.dtype for o, p in zip((*loop.inputs, *loop.outputs), views, strict=True)):
        raise Unsuited
    short = shape if axes is None else tuple(1 if a in axes else n for a, n in enumerate(shape))
    for operand, view in zip(loop.inputs, inputs, strict=True):
        _check_broadcast(view.shape, short if operand.per_row else shape)
    for operand, view in zip(loop.outputs, outputs, strict=True):
        _check_output(view, short if operand.per_row else shape)
    if 0 in shape:
        if all(0 in p.shape for p in outputs):
            return []
        raise Unsuited  # reductions of empty rows
    try:
        return _commands(kernel, shape, axes, inputs, outputs, threads, scratch)
    except layouts.Scattered:
        inputs, copies = _gathered(kernel, shape, inputs, threads, scratch)
        return copies + _commands(kernel, shape, axes, inputs, outputs, threads, scratch)


def _check_broadcast(own: Shape, shape: Shape) -> None:
    """Raise Unsuited for a shape that does not broadcast: native code would read out of bounds."""
    if len(own) > len(shape) or any(n not in (1, m) for n, m in zip(reversed(own), reversed(shape), strict=False)):
        raise Unsuited


def _check_output(view: BufferView, shape: Shape) -> None:
    """Raise Unsuited for another shape, and for overlapping elements."""
    overlapping = 0 not in shape and any(n > 1 and not s for s, n in zip(view.strides, view.shape, strict=True))
    if view.shape != shape or overlapping:
        raise Unsuited


def _commands(
    kernel: Kernel, shape: Shape, axes: tuple[int, ...] | None, inputs: Sequence[BufferView],
    outputs: Sequence[BufferView], threads: int, scratch: Scratch,
) -> list[Command]:  # fmt: skip
    views = (*inputs, *outputs)
    nest, starts = _nest(kernel, shape, axes, views)
    code = kernel.code(nest.layout)
    if code is None:
        raise Unsuited
    parts = parts_for(kernel.work(nest), threads)
    if parts > 1 and len(starts) == 1 and axes is not None:
        pieces = kernel.in_pieces(nest, axes, threads)
        if pieces is not None:
            with suppress(layouts.Scattered):
                return _in_pieces(pieces, shape, axes, inputs, outputs, parts, threads, scratch)
    title = f"{kernel.name} {list(shape)}" + (f" rows along {list(axes)}" if axes is not None else "")
    return [_command(kernel, title, code.rows, (nest, starts), views, threads)]


def _command(
    kernel: Kernel, title: str, called: int, slices: tuple[Nest, list[list[int]]], views: Sequence[BufferView],
    threads: int,
) -> Command:  # fmt: skip
    """The command of all slices of a loop, split over threads."""
    nest, starts = slices
    work = kernel.work(nest) * len(starts)
    parts = parts_for(work, threads)
    blocks = _blocks(kernel.parts(nest, -(-parts // len(starts))), starts)
    return Command("kernel", title, called, blocks, operand_addresses(views, len(blocks)), work,
                   shared=parts > 1 and len(blocks) > 1)  # fmt: skip


def indexed_command(
    kernel: Kernel, title: str, shape: Shape, axes: tuple[int, ...], operands: Sequence[BufferView | Array],
    threads: int, repeats: float,
) -> Command:  # fmt: skip
    """The command of a loop with operands that have axes of their own. Arrays among the operands are constants."""
    nest = kernel.nest(operands, shape, axes)
    code = kernel.code(nest.layout)
    if code is None:
        raise Unsuited
    work = kernel.work(nest) * repeats
    blocks = kernel.parts(nest, parts_for(work, threads))
    addresses, kept = [], []
    for k, operand in enumerate(operands):
        word = SIZES + WORDS_PER_OPERAND * k
        if isinstance(operand, np.ndarray):
            kept.append(operand)
        for number, block in enumerate(blocks):
            block[word] += address_of(operand) if isinstance(operand, np.ndarray) else operand.offset
            if not isinstance(operand, np.ndarray):
                addresses.append((number, word, operand.object))
    return Command("kernel", title, code.rows, blocks, addresses, work, len(blocks) > 1, kept=kept)


def _blocks(parts: list[list[int]], starts: list[list[int]]) -> list[list[int]]:
    """The argument blocks of every slice."""
    made = []
    for start in starts:
        for part in parts:
            block = list(part)
            for k, skip in enumerate(start):
                block[SIZES + WORDS_PER_OPERAND * k] += skip
            made.append(block)
    return made


def _nest(
    kernel: Kernel, shape: Shape, axes: tuple[int, ...] | None, views: Sequence[BufferView]
) -> tuple[Nest, list[list[int]]]:
    """The nest of one slice, and the operands' offsets for every slice; one slice if three axes are enough."""
    sliced: list[int] = []
    last = views[-1]
    while True:
        sizes = tuple(1 if a in sliced else n for a, n in enumerate(shape))
        slices = [p.view(*_slice(p, len(shape), sliced)) for p in views] if sliced else views
        try:
            nest = kernel.nest(slices, sizes, axes)
            break
        except layouts.Scattered:
            free = [a for a, n in enumerate(sizes) if n > 1 and (axes is None or a not in axes)]
            # Slice the shortest axis, but not the one along which the results are contiguous.
            free.sort(key=lambda a: (abs(_stride(last, len(shape), a)) == last.dtype.itemsize, shape[a]))
            count = int(np.prod([shape[a] for a in sliced + free[:1]]))
            if not free or count > _MOST_SLICES:
                raise
            sliced.append(free[0])
    steps = [(p.offset, [_stride(p, len(shape), a) for a in sliced]) for p in views]
    starts = []
    for at in product(*(range(shape[a]) for a in sliced)):
        starts.append([offset + sum(i * s for i, s in zip(at, own, strict=True)) for offset, own in steps])
    return nest, starts


def _stride(view: BufferView, rank: int, axis: int) -> int:
    """The stride along an axis of the nest; 0 where the operand is broadcast."""
    own = axis - rank + len(view.shape)
    return view.strides[own] if own >= 0 and view.shape[own] != 1 else 0


def _slice(view: BufferView, rank: int, sliced: Sequence[int]) -> tuple[Shape, Shape]:
    gone = {a - rank + len(view.shape) for a in sliced}
    return tuple(1 if a in gone else n for a, n in enumerate(view.shape)), view.strides


def _gathered(
    kernel: Kernel, shape: Shape, inputs: Sequence[BufferView], threads: int, scratch: Scratch
) -> tuple[list[BufferView], list[Command]]:
    """(contiguous inputs in scratch, the commands that copy them there)."""
    made, commands = [], []
    for operand, view in zip(kernel.loop.inputs, inputs, strict=True):
        target = scratch.allocate(view.shape if operand.per_row else shape, view.dtype)
        commands += copy_commands(broadcast(view, target.shape), target, threads)
        made.append(target)
    return made, commands


def broadcast(view: BufferView, shape: Shape) -> BufferView:
    """A view broadcast to a shape."""
    _check_broadcast(view.shape, shape)
    return view.view(shape, tuple(_stride(view, len(shape), axis) for axis in range(len(shape))))


def _in_pieces(
    pieces: Pieces, shape: Shape, axes: tuple[int, ...], inputs: Sequence[BufferView], outs: Sequence[BufferView],
    parts: int, threads: int, scratch: Scratch,
) -> list[Command]:  # fmt: skip
    """Few long rows: threads reduce pieces of them, then a second loop combines the pieces."""
    short = tuple(1 if a in axes else n for a, n in enumerate(shape))
    values: list[BufferView] = []
    commands: list[Command] = []
    given = [inputs[k] for k in pieces.given]
    results = [outs[k] for k in pieces.results]
    for number, piece in enumerate(pieces.stages):
        like = [Scratch().allocate(short, d) for d in piece.reductions]
        known = (*inputs, *values, *(outs[k] for k in piece.reloads), *(outs[k] for k in piece.stores))
        nest = piece.part.nest((*known, *like), shape, axes)
        code = piece.part.code(nest.layout)
        if code is None:
            raise layouts.Scattered("a part cannot be compiled")
        blocks = split_rows(nest, parts)
        tables = [scratch.allocate((len(blocks), *short), d) for d in piece.reductions]
        views = (*known, *tables)
        for row, block in enumerate(blocks):
            for k, view in enumerate(views):
                own = row * like[0].elements * view.dtype.itemsize if k >= len(known) else 0
                block[SIZES + WORDS_PER_OPERAND * k] += view.offset + own
        title = f"{piece.part.name} {list(shape)} in {len(blocks)} pieces"
        commands.append(Command("kernel", title, code.rows, blocks, operand_addresses(views, len(blocks)),
                                piece.part.work(nest), shared=True))  # fmt: skip
        if piece.joined is None:
            continue
        last = number == len(pieces.stages) - 1
        made = results if last else [scratch.allocate(short, d) for d in piece.reductions]
        more = [*given, *values] if last else []
        joined = [p.view((1, *p.shape), (0, *p.strides)) for p in made]
        commands += kernel_commands(
            piece.joined, (len(blocks), *short), (0,), [*tables, *more], joined, threads, scratch
        )
        values += [] if last else made
    if pieces.last is not None:
        commands += kernel_commands(pieces.last, short, None, [*given, *values], results, threads, scratch)
    return commands


# -- copies and updates -------------------------------------------------------------------------------------------


@cache
def _copier(bits: str) -> Kernel:
    return build(elementwise("copy", [bits], load(0, bits)))


def copy_commands(source: BufferView, target: BufferView, threads: int) -> list[Command]:
    """Copy one view to another of the same shape and dtype."""
    if source.dtype != target.dtype or source.shape != target.shape or source.dtype.hasobject:
        raise Unsuited
    size = source.dtype.itemsize
    source, target = (_as_bits(p, size) for p in (source, target))
    if 0 in target.shape:
        return []
    size = target.dtype.itemsize
    kernel, views = _copier(_BITS[size]), (source, target)
    _check_output(target, source.shape)
    nest, starts = _nest(kernel, target.shape, None, views)
    transposing = transpose.transposed_nest(nest, size)
    called = transpose.address(size) if transposing is not None else 0
    if transposing is not None and called:
        return [_command(kernel, f"transpose {list(target.shape)}", called, (transposing, starts), views, threads)]
    code = kernel.code(nest.layout)
    if code is None:
        raise Unsuited
    return [_command(kernel, f"copy {list(target.shape)}", code.rows, (nest, starts), views, threads)]


def fill_commands(value: BufferView, target: BufferView, threads: int) -> list[Command]:
    """Write one value to all elements of a view."""
    return copy_commands(broadcast(value, target.shape), target, threads)


def _as_bits(view: BufferView, size: int) -> BufferView:
    if size in _BITS:
        return BufferView(view.object, view.offset, view.shape, view.strides, NUMPY[_BITS[size]])
    if size == _WIDE:
        return BufferView(view.object, view.offset, (*view.shape, 2), (*view.strides, 8), NUMPY["i64"])
    raise Unsuited


def update_commands(
    kernel: Kernel, sets: Sequence[Sequence[BufferView]], numbers: BufferView, threads: int
) -> list[Command]:
    """An elementwise kernel over many sets of views (inputs, then outputs), split into pieces for all threads.

    The kernel's last inputs are the scalars in `numbers`.
    """
    count = numbers.elements
    own = len(kernel.loop.inputs) - count
    step = numbers.strides[0] if numbers.shape else 0
    given = [numbers.view((), (), step * i) for i in range(count)]
    found: dict[Layout, Command] = {}
    # Sets of one layout (the parameters of equal layers) have equal blocks but for the addresses.
    known: dict[Any, tuple[Command, list[list[int]], float] | None] = {}
    for views in sets:
        operands = (*views[:own], *given, *views[own:])
        key = tuple([(view.shape, view.strides, view.dtype, view.offset) for view in views])
        if key not in known:
            known[key] = _set_blocks(kernel, operands, (own, count), found)
        made = known[key]
        if made is None:
            continue
        command, blocks, work = made
        command.addresses += operand_addresses(operands, len(blocks), len(command.blocks))
        command.blocks += [[*block] for block in blocks]
        command.work += work
    total = sum(c.work for c in found.values())
    for command in found.values():
        command.shared = parts_for(total, threads) > 1 and len(command.blocks) > 1
        command.title = f"{kernel.name} over {len(sets)} sets"
    return list(found.values())


def _set_blocks(
    kernel: Kernel, operands: Sequence[BufferView], numbers: tuple[int, int], found: dict[Layout, Command]
) -> tuple[Command, list[list[int]], float] | None:
    """The command for a set of operands, its argument blocks without addresses, and its work; None if it is empty."""
    first, count = numbers
    kinds = (*kernel.loop.inputs, *kernel.loop.outputs)
    shape = operands[0].shape
    own = (*operands[:first], *operands[first + count :])
    if any([p.shape != shape for p in own]):
        raise Unsuited
    if any([NUMPY[o.dtype] != p.dtype for o, p in zip(kinds, operands, strict=True)]):
        raise Unsuited
    for view in operands[first + count :]:
        _check_output(view, shape)
    if 0 in shape:
        return None
    nest, starts = _nest(kernel, shape, None, operands)
    # The scalars always have class "b", so that sets of one element use the same code.
    classes = nest.layout.classes
    layout = Layout(nest.layout.mode, classes[:first] + "b" * count + classes[first + count :])
    code = kernel.code(layout)
    if code is None:
        raise Unsuited
    command = found.setdefault(layout, Command("kernel", "", code.rows, [], [], 0.0))
    return command, _blocks(layouts.pieces(nest, _PIECE), starts), kernel.work(nest) * len(starts)
