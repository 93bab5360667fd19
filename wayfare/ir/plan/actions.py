"""What a plan does, one action after the other: kernels, products, copies, updates, and ops run by their own records.

Every action says what it reads and writes, enters itself in a command list if it can, and has a form in Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import NUMPY, OF_NUMPY, walk
from wayfare.codegen.loop.language import Loop
from wayfare.codegen.runtime.command import contiguous
from wayfare.codegen.runtime.commands import Commands
from wayfare.codegen.runtime.gemm import batched_matmul, matmul
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.core.buffer_pool import owns_memory
from wayfare.core.errors import ShapeError
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.ir.fuse.update_op import OfUpdate
from wayfare.ir.plan.buffers import Seat
from wayfare.ir.plan.lower import Slot

Objects = list[Any]
# One action at run time: (arrays by object number, what the run is given).
Run = Callable[[Objects, Sequence[Any]], None]


class Action:
    """One thing to do."""

    def __init__(self, reads: Sequence[Seat], writes: Sequence[Seat]) -> None:
        self.reads, self.writes = list(reads), list(writes)

    def enter(self, commands: Commands) -> bool:
        """Add itself to a command list; False where it has no native form."""
        return False

    def python(self) -> Run:
        """The same in Python."""
        raise NotImplementedError

    def may_overwrite(self, read: int, write: int) -> bool:
        """May this output lie where this input lies?"""
        return False

    def overwritable(self, write: int) -> Sequence[int]:
        """The inputs to ask `may_overwrite` about: all, unless it is known which they are. An update of a thousand
        parameters has a thousand outputs and several thousand inputs."""
        return range(len(self.reads))

    def title(self) -> str:
        """One readable line."""
        raise NotImplementedError


def array_of(seat: Seat) -> Callable[[Objects], Array]:
    """A function that finds the array of a seat among the objects of a run."""
    real = seat.memory.real
    number, offset = real.number, real.offset + seat.offset
    shape, strides, dtype = seat.shape, seat.strides, seat.dtype
    if real.kind in ("input", "constant", "result", "slot") and not offset:

        def find(objects: Objects) -> Array:
            array: Array = objects[number]
            if array.shape == shape and array.strides == strides and array.dtype == dtype:
                return array
            return _seen(array, shape, dtype, 0, strides)

        return find
    return lambda objects: _seen(objects[number], shape, dtype, offset, strides)


class _Window:
    """Some memory as NumPy takes it: what it belongs to is kept alive."""

    def __init__(self, owner: Array, address: int, shape: Any, strides: Any, dtype: np.dtype[Any]) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "shape": shape, "strides": strides, "typestr": dtype.str,
        }  # fmt: skip


def _seen(array: Array, shape: Any, dtype: np.dtype[Any], offset: int, strides: Any) -> Array:
    if array.flags.c_contiguous:
        return np.ndarray(shape, dtype, array, offset, strides)
    # NumPy takes only whole memory as a buffer: by its address, then.
    address = array.__array_interface__["data"][0] + offset
    return np.asarray(_Window(array, address, shape, strides, dtype))


# -- kernels ----------------------------------------------------------------------------------------------------------


class KernelAction(Action):
    """A fused loop. Its operands are seen along the axes of the loop."""

    def __init__(
        self, kernel: Kernel, shape: tuple[int, ...], axes: tuple[int, ...] | None, reads: Sequence[Seat],
        writes: Sequence[Seat],
    ) -> None:  # fmt: skip
        super().__init__(reads, writes)
        self.kernel, self.shape, self.axes = kernel, shape, axes
        # The names of the steps it was made of.
        self.ops: tuple[str, ...] = ()

    def enter(self, commands: Commands) -> bool:
        """As one kernel."""
        return commands.kernel(
            self.kernel, self.shape, self.axes, [s.place() for s in self.reads], [s.place() for s in self.writes]
        )

    def python(self) -> Run:
        """By the kernel's own way of running on arrays."""
        kernel, shape, axes = self.kernel, self.shape, self.axes
        inputs, outputs = [array_of(s) for s in self.reads], [array_of(s) for s in self.writes]
        full = np.broadcast_shapes(*(s.shape for s in self.reads)) == shape
        stretched = -1 if full else next(i for i, o in enumerate(kernel.loop.inputs) if not o.per_row)

        def run(objects: Objects, _given: Sequence[Any]) -> None:
            arrays = [find(objects) for find in inputs]
            if stretched >= 0:
                arrays[stretched] = np.broadcast_to(arrays[stretched], shape)
            kernel.into(arrays, [find(objects) for find in outputs], shape, axes)

        return run

    def may_overwrite(self, read: int, write: int) -> bool:
        """An element may be read and then written, if no later stage reads it again."""
        a, b = self.reads[read], self.writes[write]
        if a.dtype.itemsize != b.dtype.itemsize or a.shape != self.shape or b.shape != self.shape:
            return False
        if any(n != 1 and x != y for n, x, y in zip(self.shape, a.strides, b.strides, strict=True)):
            return False
        return self.axes is None or _last_read(self.kernel.loop, read) <= _first_written(self.kernel.loop, write)

    def title(self) -> str:
        """Name and sizes."""
        along = f" along {self.axes}" if self.axes else ""
        return f"kernel {self.kernel.name} over {list(self.shape)}{along}"


def _last_read(loop: Loop, number: int) -> int:
    """The last stage that reads an input."""
    return max(
        (stage for stage, work in enumerate(loop.stages)
         for e in walk(*(v for _, v in work.stores), *(f.value for f in work.reductions))
         if e.op == "load" and e.value == number),
        default=-1,
    )  # fmt: skip


def _first_written(loop: Loop, number: int) -> int:
    """The first stage that writes an output, be it something else for the time being."""
    return min((stage for stage, work in enumerate(loop.stages) for k, _ in work.stores if k == number), default=-1)


# -- products ---------------------------------------------------------------------------------------------------------


class ProductAction(Action):
    """`out = a @ b`, or `out += a @ b`."""

    def __init__(self, a: Seat, b: Seat, out: Seat, add: bool) -> None:
        super().__init__([a, b], [out])
        self.add = add
        self.sides = _as_matrices(a, b, out)

    def enter(self, commands: Commands) -> bool:
        """By BLAS."""
        a, b, out = self.sides
        return commands.matmul(a.place(), b.place(), out.place(), add=self.add)

    def python(self) -> Run:
        """By NumPy."""
        find_a, find_b, find_out = map(array_of, self.sides)
        add = self.add

        def run(objects: Objects, _given: Sequence[Any]) -> None:
            a, b, out = find_a(objects), find_b(objects), find_out(objects)
            if add:
                out += matmul(a, b)
            elif a.ndim > 2 and a.shape[:-2] == b.shape[:-2]:
                batched_matmul(a, b, out)
            else:
                matmul(a, b, out)

        return run

    def title(self) -> str:
        """Sizes."""
        a, b, _ = self.sides
        return f"product {list(a.shape)} @ {list(b.shape)}{', added' if self.add else ''}"


def _as_matrices(a: Seat, b: Seat, out: Seat) -> tuple[Seat, Seat, Seat]:
    """The same product of matrices: vectors become rows and columns, a stack times one matrix one large product."""
    item = a.dtype.itemsize
    shape, strides = list(out.shape), list(out.strides)
    if b.ndim == 1:
        b = b.seen((*b.shape, 1), (*b.strides, item))
        shape.append(1)
        strides.append(item)
    if a.ndim == 1:
        a = a.seen((1, *a.shape), (a.shape[0] * max(a.strides[0], item), *a.strides))
        shape.insert(len(shape) - 1, 1)
        strides.insert(len(strides) - 1, strides[-1] * shape[-1])
    out = out.seen(tuple(shape), tuple(strides))
    if a.ndim > 2 and b.ndim == 2:
        rows, target = _one_axis(a), _one_axis(out)
        if rows is not None and target is not None:
            a, out = rows, target
    return a, b, out


def _one_axis(x: Seat) -> Seat | None:
    """All axes but the last as one; None where they do not run on from one into the other."""
    size, stride = 1, 0
    for n, step in zip(reversed(x.shape[:-1]), reversed(x.strides[:-1]), strict=True):
        if n == 1:
            continue
        if size == 1:
            size, stride = n, step
        elif step == stride * size:
            size *= n
        else:
            return None
    if size == 1:
        stride = x.shape[-1] * x.dtype.itemsize
    return x.seen((size, x.shape[-1]), (stride, x.strides[-1]))


# -- copies -----------------------------------------------------------------------------------------------------------


class CopyAction(Action):
    """The elements of one seat to another of the same shape and dtype."""

    def __init__(self, source: Seat, target: Seat) -> None:
        super().__init__([source], [target])

    def enter(self, commands: Commands) -> bool:
        """As a strided copy."""
        return commands.copy(self.reads[0].place(), self.writes[0].place())

    def python(self) -> Run:
        """By NumPy."""
        source, target = array_of(self.reads[0]), array_of(self.writes[0])
        return lambda objects, _given: np.copyto(target(objects), source(objects))

    def title(self) -> str:
        """Sizes."""
        return f"copy {list(self.reads[0].shape)}"


class FillAction(Action):
    """Zeros everywhere, before parts are put in."""

    def __init__(self, target: Seat) -> None:
        super().__init__([], [target])

    def enter(self, commands: Commands) -> bool:
        """As a kernel without inputs."""
        return commands.fill(self.writes[0].place(), 0)

    def python(self) -> Run:
        """By NumPy."""
        target = array_of(self.writes[0])

        def run(objects: Objects, _given: Sequence[Any]) -> None:
            target(objects)[...] = 0

        return run

    def title(self) -> str:
        """Sizes."""
        return f"zeros {list(self.writes[0].shape)}"


# -- updates ----------------------------------------------------------------------------------------------------------


class UpdateAction(Action):
    """An optimiser's formula over many sets of arrays; its numbers lie in an object of their own."""

    def __init__(self, of: OfUpdate, numbers: Any, reads: Sequence[Seat], writes: Sequence[Seat]) -> None:
        super().__init__(reads, writes)
        self.of, self.numbers = of, numbers
        # Sets by the dtypes of their arguments: a kernel each, and an object with the numbers in its precision.
        self.kinds: dict[tuple[str, ...], list[list[int]]] = {}
        for places in of.places:
            self.kinds.setdefault(tuple(OF_NUMPY[reads[p].dtype] for p in places), []).append(places)
        self.objects: dict[tuple[str, ...], int] = {}

    def precisions(self) -> list[tuple[tuple[str, ...], np.dtype[Any]]]:
        """The dtypes in which the numbers are needed."""
        return [(kind, NUMPY["f64" if "f64" in kind else "f32"]) for kind in self.kinds]

    def enter(self, commands: Commands) -> bool:
        """All sets as one command (one for each mix of dtypes)."""
        if len(self.kinds) > 1:
            return False
        update = self.of.update
        for kind, sets in self.kinds.items():
            dtype = NUMPY["f64" if "f64" in kind else "f32"]
            seats = [
                [*(self.reads[p] for p in places), *(self.writes[places[k]] for k in update.written)] for places in sets
            ]
            numbers = contiguous(self.objects[kind], 0, (update.numbers,), dtype)
            if not commands.update(update.kernel(kind), [[s.place() for s in own] for own in seats], numbers):
                return False
        return True

    def python(self) -> Run:
        """Set by set."""
        update, slot, of = self.of.update, self.numbers, self.of
        inputs, outputs = [array_of(s) for s in self.reads], [array_of(s) for s in self.writes]

        def run(objects: Objects, given: Sequence[Any]) -> None:
            numbers = given[slot.number] if slot.__class__ is Slot else slot
            arrays, made = [find(objects) for find in inputs], [find(objects) for find in outputs]
            for places in of.places:
                update.one([arrays[p] for p in places], [made[places[k]] for k in update.written], numbers)

        return run

    def may_overwrite(self, read: int, write: int) -> bool:
        """The new value of an argument may lie where the old one lies."""
        return read == write

    def overwritable(self, write: int) -> Sequence[int]:
        """The old value."""
        return (write,)

    def title(self) -> str:
        """Name and how many sets."""
        return f"update {self.of.update.name} of {self.of.sets} sets"


# -- ops by their own records -----------------------------------------------------------------------------------------


class PythonAction(Action):
    """An op that only its own record can run; what it makes is kept in slots."""

    def __init__(self, op: Op, attrs: dict[str, Any], reads: Sequence[Seat], writes: Sequence[Seat]) -> None:
        super().__init__(reads, writes)
        self.op, self.attrs = op, attrs

    def python(self) -> Run:
        """By the record's forward, the one that would be used op by op."""
        largest = max([math.prod(s.shape) for s in self.reads], default=0)
        forward = self.op.forward if largest < self.op.large_from else self.op.large
        attrs, inputs = self.attrs, [array_of(s) for s in self.reads]
        waiting = {name: value.number for name, value in attrs.items() if value.__class__ is Slot}
        if not self.writes:

            def check(objects: Objects, _given: Sequence[Any]) -> None:
                forward(*[find(objects) for find in inputs], **attrs)

            return check
        name = self.op.name
        targets = [(s.memory.real.number, s.shape, s.dtype) for s in self.writes]

        def run(objects: Objects, given: Sequence[Any]) -> None:
            arrays = [find(objects) for find in inputs]
            named = attrs if not waiting else attrs | {key: given[number] for key, number in waiting.items()}
            made = forward(*arrays, **named)
            for (number, shape, dtype), array in zip(
                targets, made if made.__class__ in (tuple, list) else (made,), strict=True
            ):
                objects[number] = _own(name, array, shape, dtype, arrays)

        return run

    def title(self) -> str:
        """Name and sizes."""
        return f"op {self.op.name}({', '.join(str(list(s.shape)) for s in self.reads)})"


def _own(name: str, made: Any, shape: tuple[int, ...], dtype: np.dtype[Any], given: list[Array]) -> Array:
    """What an op made, row after row, in memory that is not that of its inputs."""
    array = made if made.__class__ is np.ndarray else np.asarray(made)
    if array.shape != shape or array.dtype != dtype:
        raise ShapeError(f"{name}: {array.dtype}{list(array.shape)} came out where {dtype}{list(shape)} was planned")
    if not array.flags.c_contiguous:
        return array.copy()
    if not array.flags.writeable or any(array is a for a in given):
        return array.copy()
    if not owns_memory(array) and any(np.may_share_memory(array, a) for a in given):
        return array.copy()
    return array
