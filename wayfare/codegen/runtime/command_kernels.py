"""Kernels as commands: the argument blocks of a loop over places, cut for the threads as a direct call would be.

Operands that three axes cannot walk are taken slice by slice, a block for each; rows that lie scattered are copied to
scratch memory first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import product

import numpy as np

from wayfare.codegen.llvm.module import SIZES, WORDS_PER_OPERAND, Layout
from wayfare.codegen.loop import layout as layouts
from wayfare.codegen.loop.expr import NUMPY, load
from wayfare.codegen.loop.language import elementwise
from wayfare.codegen.loop.layout import Nest
from wayfare.codegen.routines import transpose
from wayfare.codegen.runtime.command import Command, Place, Scratch, Shape, Unsuited, operand_addresses
from wayfare.codegen.runtime.kernel import Kernel, build
from wayfare.codegen.runtime.long_rows import Pieces, cut_rows
from wayfare.codegen.runtime.work_split import shares_of

# Slices of a loop that has too many axes; more than this is better done otherwise.
_MOST_SLICES = 4096
# Elements of a piece of an update: tens of microseconds of work, and many pieces to share.
_PIECE = 16 * 1024
# Copies move bits, whatever they mean.
_BITS = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}
_WIDE = 16


def kernel_commands(
    kernel: Kernel, shape: Shape, axes: tuple[int, ...] | None, inputs: Sequence[Place], outputs: Sequence[Place],
    threads: int, scratch: Scratch,
) -> list[Command]:  # fmt: skip
    """The commands of a kernel over `shape`, whose rows run along `axes`."""
    places = (*inputs, *outputs)
    loop = kernel.loop
    if len(inputs) != len(loop.inputs) or len(outputs) != len(loop.outputs):
        raise Unsuited
    if any(NUMPY[o.dtype] != p.dtype for o, p in zip((*loop.inputs, *loop.outputs), places, strict=True)):
        raise Unsuited
    short = shape if axes is None else tuple(1 if a in axes else n for a, n in enumerate(shape))
    for operand, place in zip(loop.inputs, inputs, strict=True):
        _check_stretch(place.shape, short if operand.per_row else shape)
    for operand, place in zip(loop.outputs, outputs, strict=True):
        _check_output(place, short if operand.per_row else shape)
    if 0 in shape:
        if all(0 in p.shape for p in outputs):
            return []
        raise Unsuited  # the folds of nothing
    try:
        return _commands(kernel, shape, axes, inputs, outputs, threads, scratch)
    except layouts.Scattered:
        inputs, copies = _gathered(kernel, shape, inputs, threads, scratch)
        return copies + _commands(kernel, shape, axes, inputs, outputs, threads, scratch)


def _check_stretch(own: Shape, shape: Shape) -> None:
    """Refuse what does not broadcast to a shape: native code would read what is not there."""
    if len(own) > len(shape) or any(n not in (1, m) for n, m in zip(reversed(own), reversed(shape), strict=False)):
        raise Unsuited


def _check_output(place: Place, shape: Shape) -> None:
    """Refuse another shape, and elements that lie on each other."""
    folded = 0 not in shape and any(n > 1 and not s for s, n in zip(place.strides, place.shape, strict=True))
    if place.shape != shape or folded:
        raise Unsuited


def _commands(
    kernel: Kernel, shape: Shape, axes: tuple[int, ...] | None, inputs: Sequence[Place], outputs: Sequence[Place],
    threads: int, scratch: Scratch,
) -> list[Command]:  # fmt: skip
    places = (*inputs, *outputs)
    nest, starts = _nest(kernel, shape, axes, places)
    code = kernel.code(nest.layout)
    if code is None:
        raise Unsuited
    shares = shares_of(kernel.work(nest), threads)
    if shares > 1 and len(starts) == 1 and axes is not None:
        pieces = kernel.in_pieces(nest, axes, threads)
        if pieces is not None:
            with suppress(layouts.Scattered):
                return _in_pieces(pieces, shape, axes, inputs, outputs, shares, threads, scratch)
    title = f"{kernel.name} {list(shape)}" + (f" rows along {list(axes)}" if axes is not None else "")
    return [_command(kernel, title, code.rows, (nest, starts), places, threads)]


def _command(
    kernel: Kernel, title: str, called: int, slices: tuple[Nest, list[list[int]]], places: Sequence[Place], threads: int
) -> Command:
    """All slices of a loop, cut for so many threads."""
    nest, starts = slices
    work = kernel.work(nest) * len(starts)
    shares = shares_of(work, threads)
    blocks = _blocks(kernel.parts(nest, -(-shares // len(starts))), starts)
    return Command("kernel", title, called, blocks, operand_addresses(places, len(blocks)), work,
                   shared=shares > 1 and len(blocks) > 1)  # fmt: skip


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
    kernel: Kernel, shape: Shape, axes: tuple[int, ...] | None, places: Sequence[Place]
) -> tuple[Nest, list[list[int]]]:
    """The nest of one slice, and where the operands of every slice begin; one slice, where three axes will do."""
    cut: list[int] = []
    last = places[-1]
    while True:
        sizes = tuple(1 if a in cut else n for a, n in enumerate(shape))
        slices = [p.seen(*_slice(p, len(shape), cut)) for p in places]
        try:
            nest = kernel.nest(slices, sizes, axes)
            break
        except layouts.Scattered:
            free = [a for a, n in enumerate(sizes) if n > 1 and (axes is None or a not in axes)]
            # The axis along which the results lie side by side stays whole; of the others the shortest goes.
            free.sort(key=lambda a: (abs(_stride(last, len(shape), a)) == last.dtype.itemsize, shape[a]))
            count = int(np.prod([shape[a] for a in cut + free[:1]]))
            if not free or count > _MOST_SLICES:
                raise
            cut.append(free[0])
    steps = [(p.offset, [_stride(p, len(shape), a) for a in cut]) for p in places]
    starts = []
    for at in product(*(range(shape[a]) for a in cut)):
        starts.append([offset + sum(i * s for i, s in zip(at, own, strict=True)) for offset, own in steps])
    return nest, starts


def _stride(place: Place, rank: int, axis: int) -> int:
    """The stride along an axis of the nest, 0 where the operand is stretched."""
    own = axis - rank + len(place.shape)
    return place.strides[own] if own >= 0 and place.shape[own] != 1 else 0


def _slice(place: Place, rank: int, cut: Sequence[int]) -> tuple[Shape, Shape]:
    gone = {a - rank + len(place.shape) for a in cut}
    return tuple(1 if a in gone else n for a, n in enumerate(place.shape)), place.strides


def _gathered(
    kernel: Kernel, shape: Shape, inputs: Sequence[Place], threads: int, scratch: Scratch
) -> tuple[list[Place], list[Command]]:
    """Inputs that lie side by side, and the copies that make them so."""
    made, commands = [], []
    for operand, place in zip(kernel.loop.inputs, inputs, strict=True):
        target = scratch.place(place.shape if operand.per_row else shape, place.dtype)
        commands += copy_commands(stretched(place, target.shape), target, threads)
        made.append(target)
    return made, commands


def stretched(place: Place, shape: Shape) -> Place:
    """A place broadcast to a shape."""
    _check_stretch(place.shape, shape)
    return place.seen(shape, tuple(_stride(place, len(shape), axis) for axis in range(len(shape))))


def _in_pieces(
    pieces: Pieces, shape: Shape, axes: tuple[int, ...], inputs: Sequence[Place], outs: Sequence[Place], shares: int,
    threads: int, scratch: Scratch,
) -> list[Command]:  # fmt: skip
    """Few long rows: pieces of them by several threads, then what folds the pieces together."""
    short = tuple(1 if a in axes else n for a, n in enumerate(shape))
    values: list[Place] = []
    commands: list[Command] = []
    given = [inputs[k] for k in pieces.given]
    results = [outs[k] for k in pieces.results]
    for number, piece in enumerate(pieces.stages):
        like = [Scratch().place(short, d) for d in piece.folds]
        known = (*inputs, *values, *(outs[k] for k in piece.reloads), *(outs[k] for k in piece.stores))
        nest = piece.part.nest((*known, *like), shape, axes)
        code = piece.part.code(nest.layout)
        if code is None:
            raise layouts.Scattered("a part cannot be compiled")
        blocks = cut_rows(nest, shares)
        tables = [scratch.place((len(blocks), *short), d) for d in piece.folds]
        places = (*known, *tables)
        for row, block in enumerate(blocks):
            for k, place in enumerate(places):
                own = row * like[0].elements * place.dtype.itemsize if k >= len(known) else 0
                block[SIZES + WORDS_PER_OPERAND * k] += place.offset + own
        title = f"{piece.part.name} {list(shape)} in {len(blocks)} pieces"
        commands.append(Command("kernel", title, code.rows, blocks, operand_addresses(places, len(blocks)),
                                piece.part.work(nest), shared=True))  # fmt: skip
        if piece.joined is None:
            continue
        last = number == len(pieces.stages) - 1
        fresh = results if last else [scratch.place(short, d) for d in piece.folds]
        more = [*given, *values] if last else []
        joined = [p.seen((1, *p.shape), (0, *p.strides)) for p in fresh]
        commands += kernel_commands(
            piece.joined, (len(blocks), *short), (0,), [*tables, *more], joined, threads, scratch
        )
        values += [] if last else fresh
    if pieces.last is not None:
        commands += kernel_commands(pieces.last, short, None, [*given, *values], results, threads, scratch)
    return commands


# -- copies and updates -------------------------------------------------------------------------------------------


@cache
def _copier(bits: str) -> Kernel:
    return build(elementwise("copy", [bits], load(0, bits)))


def copy_commands(source: Place, target: Place, threads: int) -> list[Command]:
    """The bits of one place to another of the same shape and dtype."""
    if source.dtype != target.dtype or source.shape != target.shape or source.dtype.hasobject:
        raise Unsuited
    size = source.dtype.itemsize
    source, target = (_as_bits(p, size) for p in (source, target))
    if 0 in target.shape:
        return []
    size = target.dtype.itemsize
    kernel, places = _copier(_BITS[size]), (source, target)
    _check_output(target, source.shape)
    nest, starts = _nest(kernel, target.shape, None, places)
    turning = transpose.turned_nest(nest, size)
    called = transpose.address(size) if turning is not None else 0
    if turning is not None and called:
        return [_command(kernel, f"turn {list(target.shape)}", called, (turning, starts), places, threads)]
    code = kernel.code(nest.layout)
    if code is None:
        raise Unsuited
    return [_command(kernel, f"copy {list(target.shape)}", code.rows, (nest, starts), places, threads)]


def fill_commands(value: Place, target: Place, threads: int) -> list[Command]:
    """One value to all elements of a place."""
    return copy_commands(stretched(value, target.shape), target, threads)


def _as_bits(place: Place, size: int) -> Place:
    if size in _BITS:
        return Place(place.object, place.offset, place.shape, place.strides, NUMPY[_BITS[size]])
    if size == _WIDE:
        return Place(place.object, place.offset, (*place.shape, 2), (*place.strides, 8), NUMPY["i64"])
    raise Unsuited


def update_commands(kernel: Kernel, sets: Sequence[Sequence[Place]], numbers: Place, threads: int) -> list[Command]:
    """An elementwise formula over many sets of places (its inputs, then its outputs), cut into pieces that all threads
    share; the formula's last inputs are the numbers at `numbers`."""
    count = numbers.elements
    own = len(kernel.loop.inputs) - count
    step = numbers.strides[0] if numbers.shape else 0
    given = [numbers.seen((), (), step * i) for i in range(count)]
    found: dict[Layout, Command] = {}
    for places in sets:
        operands = (*places[:own], *given, *places[own:])
        kinds = (*kernel.loop.inputs, *kernel.loop.outputs)
        if any(NUMPY[o.dtype] != p.dtype for o, p in zip(kinds, operands, strict=True)):
            raise Unsuited
        shape = places[0].shape
        if any(p.shape != shape for p in places):
            raise Unsuited
        for place in places[own:]:
            _check_output(place, shape)
        if 0 in shape:
            continue
        _add_set(kernel, shape, operands, (own, count), found)
    total = sum(c.work for c in found.values())
    for command in found.values():
        command.shared = shares_of(total, threads) > 1 and len(command.blocks) > 1
        command.title = f"{kernel.name} over {len(sets)} sets"
    return list(found.values())


def _add_set(
    kernel: Kernel, shape: Shape, places: Sequence[Place], numbers: tuple[int, int], found: dict[Layout, Command]
) -> None:
    nest, starts = _nest(kernel, shape, None, places)
    first, count = numbers
    # One element or many: a number is one value for all, so that both share their code.
    classes = nest.layout.classes
    layout = Layout(nest.layout.mode, classes[:first] + "b" * count + classes[first + count :])
    code = kernel.code(layout)
    if code is None:
        raise Unsuited
    command = found.setdefault(layout, Command("kernel", "", code.rows, [], [], 0.0))
    blocks = _blocks(layouts.pieces(nest, _PIECE), starts)
    command.addresses += operand_addresses(places, len(blocks), len(command.blocks))
    command.blocks += blocks
    command.work += kernel.work(nest) * len(starts)
