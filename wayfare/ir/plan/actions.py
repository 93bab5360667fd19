"""The actions of a plan: kernels, matmuls, copies, optimiser updates, and ops that run as Python.

Every action knows which views it reads and writes, can add itself to a native command list if it has a native form, and
has a form in Python.
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
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.core.op import Op
from wayfare.ir.fuse.update_op import OfUpdate
from wayfare.ir.graph import Slot
from wayfare.ir.plan.buffers import View
from wayfare.ir.target import Target

Objects = list[Any]
# One action at run time: (arrays by object number, values for the slots of this run).
Run = Callable[[Objects, Sequence[Any]], None]


class Action:
    """One action of a plan."""

    def __init__(self, reads: Sequence[View], writes: Sequence[View]) -> None:
        self.reads, self.writes = list(reads), list(writes)

    def enter(self, commands: Commands) -> bool:
        """Add itself to a command list; False if it has no native form."""
        return False

    def python(self, target: Target) -> Run:
        """The same in Python, on arrays of a target."""
        raise NotImplementedError

    def may_overwrite(self, read: int, write: int) -> bool:
        """May this output use the memory of this input?"""
        return False

    def overwritable(self, write: int) -> Sequence[int]:
        """The inputs to try with `may_overwrite`. All by default; an update of a thousand parameters has several
        thousand inputs and knows which one."""
        return range(len(self.reads))

    def title(self) -> str:
        """One readable line."""
        raise NotImplementedError


def array_of(view: View, target: Target) -> Callable[[Objects], Any]:
    """A function that finds the array of a view among the objects of a run."""
    real = view.buffer.real
    number, offset = real.number, real.offset + view.offset
    shape, strides, dtype, view_of = view.shape, view.strides, view.dtype, target.view
    if real.kind in ("input", "constant", "result", "slot") and not offset:

        def find(objects: Objects) -> Any:
            array = objects[number]
            if array.shape == shape and array.strides == strides and array.dtype == dtype:
                return array
            return view_of(array, shape, dtype, 0, strides)

        return find
    return lambda objects: view_of(objects[number], shape, dtype, offset, strides)


# -- kernels ----------------------------------------------------------------------------------------------------------


class KernelAction(Action):
    """A fused loop. Its operands have one dimension for each axis of the loop."""

    def __init__(
        self, kernel: Kernel, shape: tuple[int, ...], axes: tuple[int, ...] | None, reads: Sequence[View],
        writes: Sequence[View],
    ) -> None:  # fmt: skip
        super().__init__(reads, writes)
        self.kernel, self.shape, self.axes = kernel, shape, axes
        # The names of its ops.
        self.ops: tuple[str, ...] = ()

    def enter(self, commands: Commands) -> bool:
        """As one kernel."""
        return commands.kernel(
            self.kernel, self.shape, self.axes, [s.resolve() for s in self.reads], [s.resolve() for s in self.writes]
        )

    def python(self, target: Target) -> Run:
        """Run the kernel on arrays."""
        kernel, shape, axes = self.kernel, self.shape, self.axes
        inputs, outputs = [array_of(s, target) for s in self.reads], [array_of(s, target) for s in self.writes]
        full = np.broadcast_shapes(*(s.shape for s in self.reads)) == shape
        broadcast = -1 if full else next(i for i, o in enumerate(kernel.loop.inputs) if not o.per_row)

        def run(objects: Objects, _given: Sequence[Any]) -> None:
            arrays = [find(objects) for find in inputs]
            if broadcast >= 0:
                arrays[broadcast] = target.broadcast(arrays[broadcast], shape)
            target.run_kernel(kernel, arrays, [find(objects) for find in outputs], shape, axes)

        return run

    def may_overwrite(self, read: int, write: int) -> bool:
        """Yes, if the layouts are equal and no later stage of the loop reads that memory, as this input or another."""
        a, b = self.reads[read], self.writes[write]
        if a.dtype.itemsize != b.dtype.itemsize or a.shape != self.shape or b.shape != self.shape:
            return False
        if any(n != 1 and x != y for n, x, y in zip(self.shape, a.strides, b.strides, strict=True)):
            return False
        if self.axes is None:
            return True
        same = [k for k, view in enumerate(self.reads) if view.buffer.real is a.buffer.real]
        return max(_last_read(self.kernel.loop, k) for k in same) <= _first_written(self.kernel.loop, write)

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
    """The first stage that writes an output (perhaps an intermediate value)."""
    return min((stage for stage, work in enumerate(loop.stages) for k, _ in work.stores if k == number), default=-1)


# -- matmuls ----------------------------------------------------------------------------------------------------------


class MatmulAction(Action):
    """`out = a @ b`, or `out += a @ b`."""

    def __init__(self, a: View, b: View, out: View, add: bool) -> None:
        super().__init__([a, b], [out])
        self.add = add
        self.sides = _as_matrices(a, b, out)

    def enter(self, commands: Commands) -> bool:
        """By BLAS."""
        a, b, out = self.sides
        return commands.matmul(a.resolve(), b.resolve(), out.resolve(), add=self.add)

    def python(self, target: Target) -> Run:
        """By the library of the target."""
        find_a, find_b, find_out = (array_of(side, target) for side in self.sides)
        add = self.add
        return lambda objects, _given: target.matmul(find_a(objects), find_b(objects), find_out(objects), add)

    def title(self) -> str:
        """Sizes."""
        a, b, _ = self.sides
        return f"matmul {list(a.shape)} @ {list(b.shape)}{', added' if self.add else ''}"


def _as_matrices(a: View, b: View, out: View) -> tuple[View, View, View]:
    """The same matmul of matrices: vectors become rows and columns, a batch times one matrix becomes one large
    matmul."""
    item = a.dtype.itemsize
    shape, strides = list(out.shape), list(out.strides)
    if b.ndim == 1:
        b = b.as_strided((*b.shape, 1), (*b.strides, item))
        shape.append(1)
        strides.append(item)
    if a.ndim == 1:
        a = a.as_strided((1, *a.shape), (a.shape[0] * max(a.strides[0], item), *a.strides))
        shape.insert(len(shape) - 1, 1)
        strides.insert(len(strides) - 1, strides[-1] * shape[-1])
    out = out.as_strided(tuple(shape), tuple(strides))
    if a.ndim > 2 and b.ndim == 2:
        rows, target = _one_axis(a), _one_axis(out)
        if rows is not None and target is not None:
            a, out = rows, target
    return a, b, out


def _one_axis(x: View) -> View | None:
    """All axes but the last merged into one; None if their strides do not allow that."""
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
    return x.as_strided((size, x.shape[-1]), (stride, x.strides[-1]))


# -- copies -----------------------------------------------------------------------------------------------------------


class CopyAction(Action):
    """Copies one view to another of the same shape and dtype."""

    def __init__(self, source: View, target: View) -> None:
        super().__init__([source], [target])

    def enter(self, commands: Commands) -> bool:
        """As a strided copy."""
        return commands.copy(self.reads[0].resolve(), self.writes[0].resolve())

    def python(self, target: Target) -> Run:
        """By the library of the target."""
        source, out = array_of(self.reads[0], target), array_of(self.writes[0], target)
        return lambda objects, _given: target.copy(out(objects), source(objects))

    def title(self) -> str:
        """Sizes."""
        return f"copy {list(self.reads[0].shape)}"


class FillAction(Action):
    """Fills a view with zeros, before parts of it are written."""

    def __init__(self, target: View) -> None:
        super().__init__([], [target])

    def enter(self, commands: Commands) -> bool:
        """As a kernel without inputs."""
        return commands.fill(self.writes[0].resolve(), 0)

    def python(self, target: Target) -> Run:
        """By the library of the target."""
        out = array_of(self.writes[0], target)

        def run(objects: Objects, _given: Sequence[Any]) -> None:
            out(objects)[...] = 0

        return run

    def title(self) -> str:
        """Sizes."""
        return f"zeros {list(self.writes[0].shape)}"


# -- updates ----------------------------------------------------------------------------------------------------------


class UpdateAction(Action):
    """The formula of an optimiser over many sets of arrays; its numbers are an object of their own."""

    def __init__(self, of: OfUpdate, numbers: Any, reads: Sequence[View], writes: Sequence[View]) -> None:
        super().__init__(reads, writes)
        self.of, self.numbers = of, numbers
        # Sets by the dtypes of their arguments. Each has its own kernel, and its numbers in its own precision.
        self.kinds: dict[tuple[str, ...], list[list[int]]] = {}
        for places in of.places:
            self.kinds.setdefault(tuple(OF_NUMPY[reads[p].dtype] for p in places), []).append(places)
        self.objects: dict[tuple[str, ...], int] = {}

    def precisions(self) -> list[tuple[tuple[str, ...], np.dtype[Any]]]:
        """The dtypes in which the numbers are needed."""
        return [(kind, NUMPY["f64" if "f64" in kind else "f32"]) for kind in self.kinds]

    def enter(self, commands: Commands) -> bool:
        """All sets as one command (one for each mix of dtypes)."""
        if len(self.kinds) > 1 and not getattr(commands, "mixed", False):
            return False
        update = self.of.update
        for kind, sets in self.kinds.items():
            dtype = NUMPY["f64" if "f64" in kind else "f32"]
            views = [
                [*(self.reads[p] for p in places), *(self.writes[places[k]] for k in update.written)] for places in sets
            ]
            numbers = contiguous(self.objects[kind], 0, (update.numbers,), dtype)
            if not commands.update(update.kernel(kind), [[s.resolve() for s in own] for own in views], numbers):
                return False
        return True

    def python(self, target: Target) -> Run:
        """Set by set."""
        update, slot, of = self.of.update, self.numbers, self.of
        inputs, outputs = [array_of(s, target) for s in self.reads], [array_of(s, target) for s in self.writes]

        def run(objects: Objects, given: Sequence[Any]) -> None:
            numbers = given[slot.number] if slot.__class__ is Slot else slot
            arrays, made = [find(objects) for find in inputs], [find(objects) for find in outputs]
            for places in of.places:
                update.one([arrays[p] for p in places], [made[places[k]] for k in update.written], numbers)

        return run

    def may_overwrite(self, read: int, write: int) -> bool:
        """The new value of an argument may overwrite the old one."""
        return read == write

    def overwritable(self, write: int) -> Sequence[int]:
        """The old value."""
        return (write,)

    def title(self) -> str:
        """Name and how many sets."""
        return f"update {self.of.update.name} of {self.of.sets} sets"


# -- ops by their own records -----------------------------------------------------------------------------------------


class PythonAction(Action):
    """An opaque op, which its own record runs in Python; its results are stored in slots."""

    def __init__(self, op: Op, attrs: dict[str, Any], reads: Sequence[View], writes: Sequence[View]) -> None:
        super().__init__(reads, writes)
        self.op, self.attrs = op, attrs

    def python(self, target: Target) -> Run:
        """Run the forward of the record, the one that eager mode would use."""
        dtypes, sizes = [s.dtype for s in self.reads], [math.prod(s.shape) for s in self.reads]
        forward = target.forward(self.op, dtypes, max(sizes, default=0))
        attrs, inputs = self.attrs, [array_of(s, target) for s in self.reads]
        waiting = {name: value.number for name, value in attrs.items() if value.__class__ is Slot}
        if not self.writes:

            def check(objects: Objects, _given: Sequence[Any]) -> None:
                forward(*[find(objects) for find in inputs], **attrs)

            return check
        name = self.op.name
        targets = [(s.buffer.real.number, s.shape, s.dtype) for s in self.writes]

        def run(objects: Objects, given: Sequence[Any]) -> None:
            arrays = [find(objects) for find in inputs]
            named = attrs if not waiting else attrs | {key: given[number] for key, number in waiting.items()}
            made = forward(*arrays, **named)
            for (number, shape, dtype), array in zip(
                targets, made if made.__class__ in (tuple, list) else (made,), strict=True
            ):
                objects[number] = target.own(name, array, shape, dtype, arrays)

        return run

    def title(self) -> str:
        """Name and sizes."""
        return f"op {self.op.name}({', '.join(str(list(s.shape)) for s in self.reads)})"
