"""Few long rows in several threads.

Rows are independent, so a loop over many rows is split between rows. But the sum of an array is one row, and the sum of
a narrow table over its first dimension a few. There, each stage becomes a loop of its own over pieces of rows, which
writes the reductions of each piece to a table. A second loop combines the pieces, and the next stage gets the results
as per-row inputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from wayfare.codegen.llvm.module import SIZES
from wayfare.codegen.loop import layout as layouts
from wayfare.codegen.loop.expr import NUMPY, Expr, load, reduction, rewritten, walk
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage, elementwise
from wayfare.core.counters import COUNTERS

Array = np.ndarray[Any, np.dtype[Any]]

# The fewest elements of a piece of a row.
_PIECE = 256


def can_split_rows(loop: Loop) -> bool:
    """Has the loop reductions, and none of its values depends on an element's index?"""
    roots = [v for stage in loop.stages for _, v in stage.stores] + [f.value for f in loop.reductions]
    located = any(f.kind in ("argmax", "argmin") for f in loop.reductions)
    plain = not located and not loop.indexed and not loop.carrying
    return bool(loop.reductions) and plain and not any(e.op == "index" for e in walk(*roots))


def pays(nest: layouts.Nest, threads: int) -> bool:
    """Are there fewer rows than threads, and are they long?"""
    outer, rows, elements = nest.sizes
    apart = outer * (rows if nest.layout.mode == "along" else -(-rows // 64))
    return apart < threads and elements >= 2 * _PIECE


def split_rows(nest: layouts.Nest, parts: int) -> list[list[int]]:
    """The argument blocks of every row, split into about `parts` pieces."""
    return layouts.row_pieces(nest, min(parts, nest.sizes[2] // _PIECE))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stage as a loop over pieces of rows, and the loop that combines the pieces (None if not needed)."""

    part: Any
    joined: Any
    stores: tuple[int, ...]
    reloads: tuple[int, ...]
    reductions: tuple[np.dtype[Any], ...]


class Pieces:
    """A loop split into its stages; `build` makes the kernel of a loop."""

    def __init__(self, loop: Loop, build: Callable[[Loop], Any]) -> None:
        self.loop = loop
        self.stages: list[_Piece] = []
        # Per-row inputs: results may need them.
        self.given = [k for k, o in enumerate(loop.inputs) if o.per_row]
        self.results = [k for k, _ in loop.results]
        self.last: Any = None
        done: list[Reduction] = []
        for number, stage in enumerate(loop.stages):
            final = number == len(loop.stages) - 1
            self.stages.append(self._stage(f"{loop.name}_part{number}", stage, done, final, build))
            done += stage.reductions
        if loop.results and not loop.stages[-1].reductions:
            first = len(self.given)
            values = [rewritten(v, partial(self._at_the_end, reductions=first)) for _, v in loop.results]
            dtypes = [loop.inputs[k].dtype for k in self.given] + [f.dtype for f in done]
            self.last = build(elementwise(f"{loop.name}_end", dtypes, *values))

    def _at_the_end(self, e: Expr, reductions: int, own: int = 0, skip: int = 0) -> Expr | None:
        """Rewrite a leaf of a result: per-row inputs start at `skip`, reductions of earlier stages at `reductions`."""
        if e.op == "load":
            return load(skip + self.given.index(e.value), e.dtype)
        if e.op == "reduction":
            return reduction(e.value - own, e.dtype) if skip and e.value >= own else load(reductions + e.value, e.dtype)
        return None

    def _stage(
        self, name: str, stage: Stage, done: list[Reduction], final: bool, build: Callable[[Loop], Any]
    ) -> _Piece:
        loop, count = self.loop, len(self.loop.inputs)
        roots = [v for _, v in stage.stores] + [f.value for f in stage.reductions]
        reloads = tuple(sorted({e.value for e in walk(*roots) if e.op == "reload"}))

        def leaf(e: Expr) -> Expr | None:
            if e.op == "reduction":
                return load(count + e.value, e.dtype)
            return load(count + len(done) + reloads.index(e.value), e.dtype) if e.op == "reload" else None

        inputs = (*loop.inputs, *(Operand(f.dtype, True) for f in done))
        inputs += tuple(Operand(loop.outputs[k].dtype) for k in reloads)
        stores = tuple((j, rewritten(v, leaf)) for j, (_, v) in enumerate(stage.stores))
        reductions = tuple(Reduction(f.kind, rewritten(f.value, leaf)) for f in stage.reductions)
        outputs = tuple(loop.outputs[k] for k, _ in stage.stores) + tuple(Operand(f.dtype, True) for f in reductions)
        results = tuple((len(stores) + j, reduction(j, f.dtype)) for j, f in enumerate(reductions))
        part = build(Loop(name, inputs, outputs, (Stage(stores, reductions),), results))
        wanted = reductions and (not final or self.results)
        joined = build(self._joined(f"{name}_joined", reductions, done, final)) if wanted else None
        dtypes = tuple(NUMPY[f.dtype] for f in reductions)
        return _Piece(part, joined, tuple(k for k, _ in stage.stores), reloads, dtypes)

    def _joined(self, name: str, reductions: tuple[Reduction, ...], done: list[Reduction], final: bool) -> Loop:
        """The loop that combines the reductions of the pieces. That of the last stage computes the results as well."""
        pieces = tuple(Operand(f.dtype) for f in reductions)
        own = tuple(Reduction(f.kind, load(j, f.dtype)) for j, f in enumerate(reductions))
        if not final:
            made = tuple(Operand(f.dtype, True) for f in reductions)
            results = tuple((j, reduction(j, f.dtype)) for j, f in enumerate(own))
            return Loop(name, pieces, made, (Stage(reductions=own),), results)
        skip = len(pieces)
        inputs = (*pieces, *(self.loop.inputs[k] for k in self.given), *(Operand(f.dtype, True) for f in done))
        leaf = partial(self._at_the_end, reductions=skip + len(self.given), own=len(done), skip=skip)
        results = tuple((j, rewritten(v, leaf)) for j, (_, v) in enumerate(self.loop.results))
        made = tuple(self.loop.outputs[k] for k in self.results)
        return Loop(name, inputs, made, (Stage(reductions=own),), results)


class LongRowsPlan:
    """How to run the pieces of a loop on arrays of given shapes and strides; used instead of a LayoutPlan."""

    __slots__ = ("_pieces", "_short", "_stages", "made", "threads")

    def __init__(self, pieces: Pieces, arrays: tuple[Array, ...], shape: tuple[int, ...], axes: tuple[int, ...],
                 parts: int, threads: int) -> None:  # fmt: skip
        self._pieces = pieces
        self._short = tuple(1 if a in axes else n for a, n in enumerate(shape))
        self.threads = threads
        self.made: tuple[tuple[int, ...], ...] = ()
        self._stages: list[tuple[Any, Any, int]] = []
        inputs, outs = arrays[: len(pieces.loop.inputs)], arrays[len(pieces.loop.inputs) :]
        values: list[Array] = []
        for piece in pieces.stages:
            empty = [np.empty(self._short, d) for d in piece.reductions]
            operands = (*inputs, *values, *(outs[k] for k in piece.reloads), *(outs[k] for k in piece.stores), *empty)
            nest = piece.part.nest(operands, shape, axes)
            code = piece.part.code(nest.layout)
            if code is None:
                raise layouts.Scattered("a part cannot be compiled")
            blocks = split_rows(nest, parts)
            for number, block in enumerate(blocks):
                for k, array in enumerate(empty, len(operands) - len(empty)):
                    block[SIZES + 4 * k] += number * array.nbytes
            words = [word for block in blocks for word in block]
            self._stages.append((code, (ctypes.c_int64 * len(words))(*words), len(blocks)))
            values += empty

    def run(self, *operands: Array) -> None:
        """Run on inputs and outputs of the planned layout."""
        COUNTERS.kernels_run += 1
        COUNTERS.kernels_split += 1
        pieces, short = self._pieces, self._short
        count = len(pieces.loop.inputs)
        inputs, outs = operands[:count], operands[count:]
        values: list[Array] = []
        last = len(pieces.stages) - 1
        for number, (piece, (code, words, blocks)) in enumerate(zip(pieces.stages, self._stages, strict=True)):
            tables = [np.empty((blocks, *short), d) for d in piece.reductions]
            code.call(*inputs, *values, *[outs[k] for k in piece.reloads], *[outs[k] for k in piece.stores], *tables,
                      ctypes.addressof(words), blocks)  # fmt: skip
            if piece.joined is None:
                continue
            if number == last:
                rows = [inputs[k] for k in pieces.given]
                piece.joined.rows((*tables, *rows, *values), 0, [outs[k][None] for k in pieces.results])
            else:
                values += [v.reshape(short) for v in piece.joined.rows(tables, 0)]
        if pieces.last is not None:
            pieces.last([inputs[k] for k in pieces.given] + values, [outs[k] for k in pieces.results])
