"""Command lists on a GPU: launches over one set of device arrays, replayed as a CUDA graph.

    commands = CudaCommands(launcher)
    if commands.matmul(x, weight, hidden) and commands.kernel(relu, (32, 64), None, [hidden], [hidden]):
        commands.finish()
    commands.run([x_array, weight_array, arena])      # arrays by object number

It is built as `codegen.runtime.commands.Commands` is, so a plan does not see the difference. What happens at a run is
in `replay.py`.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.codegen.cuda.gemm import gemm_calls
from wayfare.codegen.cuda.kernel import build
from wayfare.codegen.cuda.kernels.routine import THREADS
from wayfare.codegen.cuda.kernels.update import arranged
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.cuda.replay import TABLE, Addresses, InStream, Use
from wayfare.codegen.loop.expr import NUMPY, apply, load
from wayfare.codegen.loop.language import Loop, elementwise
from wayfare.codegen.runtime.command import LINE, SCRATCH, BufferView, Scratch, Shape, Unsuited
from wayfare.core.counters import COUNTERS

Array = np.ndarray[Any, np.dtype[Any]]
Work = Callable[[Addresses], None]

# Copies use an integer dtype of the same width.
_BITS = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}
# Which operands of a product are copied first (the third: the result, afterwards), from the simplest on.
_COPIED = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1))


class CudaCommands:
    """A list of launches over numbered device arrays: built once, then run many times."""

    # May one update have sets of several dtypes?
    mixed = True

    def __init__(self, launcher: Launcher, checks: Any = None) -> None:
        """`checks.watch(flag, name, attrs)` is told of flags that checks set, if `checks.knows(name)`."""
        self._launcher, self._checks = launcher, checks
        self._flags: list[tuple[int, str, dict[str, Any]]] = []
        self._work: list[Work] = []
        self._uses: dict[int, Use] = {}
        self.constants: list[Array] = []  # arrays that belong to the list, on the host
        self.titles: list[str] = []
        self.scratch_bytes = 0
        # The objects with the numbers of updates, which are on the host: where in the table their words begin.
        self._given: dict[int, int] = {}
        self._words = 0
        self._kernels = self._matmuls = 0
        self._streams: dict[int, InStream] = {}
        self._lock = threading.Lock()  # two threads share one table

    # -- building

    def kernel(
        self, kernel: Any, shape: Shape, axes: tuple[int, ...] | None, inputs: Sequence[BufferView],
        outputs: Sequence[BufferView],
    ) -> bool:  # fmt: skip
        """A loop over `shape`, given as a kernel of any target. Inputs broadcast; rows run along `axes` (adjacent, in
        order), where per-row outputs have size 1. Without rows, an output may be an input of the same layout; else it
        overlaps no input."""
        return self._launch(kernel.loop, shape, axes, [*inputs, *outputs])

    def _launch(self, loop: Loop, shape: Shape, axes: tuple[int, ...] | None, views: list[BufferView]) -> bool:
        if 0 in shape:
            return all(0 in v.shape for v in views[len(loop.inputs) :])
        if any(NUMPY[o.dtype] != v.dtype for o, v in zip((*loop.inputs, *loop.outputs), views, strict=True)):
            return False
        kernel = build(loop, self._launcher)
        sizes, strides = tuple([v.shape for v in views]), tuple([v.strides for v in views])
        aligned = kernel.plan(sizes, strides, shape, axes, True)
        plain = kernel.plan(sizes, strides, shape, axes, False) if aligned.masks else aligned
        scratch = Scratch()
        tables = scratch.allocate((max(aligned.workspace, plain.workspace),), np.dtype(np.uint8))
        self.scratch_bytes = max(self.scratch_bytes, scratch.bytes)
        count = len(loop.inputs)
        self._note(views[:count], views[count:])
        places = [(v.object, v.offset) for v in views]

        def run(addresses: Addresses) -> None:
            pointers = [addresses[number] + offset for number, offset in places]
            chosen = aligned if aligned.fits(pointers) else plain
            chosen.run(pointers, addresses[SCRATCH] + tables.offset)

        self._kernels += 1
        self._add(f"{loop.name} {list(shape)}" + (f" rows along {list(axes)}" if axes is not None else ""), run)
        return True

    def matmul(self, a: BufferView, b: BufferView, out: BufferView, *, add: bool = False) -> bool:
        """`out = a @ b`, or `out += a @ b`, of matrices and batches; `out` overlaps neither."""
        if a.shape and a.shape[-1] == 0:
            return add or self.fill(out, 0)
        if 0 in out.shape:
            return True
        found = self._calls(a, b, out, add)
        if found is None:
            return False
        calls, copies, out_copy = found
        for source, target in copies:
            self.copy(source, target)
        self._note([a, b, out] if add else [a, b], [out])
        gemm = self._launcher.gemm

        def run(addresses: Addresses) -> None:
            for call, *locations in calls:
                x, y, z = [addresses[number] + offset for number, offset in locations]
                gemm(call, x, y, z)

        self._matmuls += 1
        self._add(f"matmul {list(a.shape)} @ {list(b.shape)}", run)
        return out_copy is None or self.copy(out_copy, out)

    def _calls(self, a: BufferView, b: BufferView, out: BufferView, add: bool) -> Any:
        """The calls of a product, the copies of operands before it, and what is copied to the result after it (None:
        nothing): as few launches as possible. A batch that no single step walks along would be many calls. None if
        there is no way."""
        best: Any = None
        for which in _COPIED[: 4 if add else 8]:
            scratch = Scratch()
            x, y, z = (scratch.allocate(v.shape, v.dtype) if copied else v
                       for v, copied in zip((a, b, out), which, strict=True))  # fmt: skip
            try:
                calls = gemm_calls(x, y, z, add)
            except Unsuited:
                continue
            if best is None or len(calls) + sum(which) < best[0]:
                copies = [(v, made) for v, made, copied in zip((a, b), (x, y), which, strict=False) if copied]
                best = len(calls) + sum(which), scratch, calls, copies, z if which[2] else None
        if best is None:
            return None
        self.scratch_bytes = max(self.scratch_bytes, best[1].bytes)
        return best[2:]

    def copy(self, source: BufferView, target: BufferView) -> bool:
        """Copy one view to another of the same shape and dtype that does not overlap it."""
        if source.dtype.itemsize not in _BITS:
            return False
        bits = _BITS[source.dtype.itemsize]
        views = [BufferView(v.object, v.offset, v.shape, v.strides, NUMPY[bits]) for v in (source, target)]
        return self._launch(elementwise("copy", [bits], load(0, bits)), target.shape, None, views)

    def fill(self, target: BufferView, value: Any) -> bool:
        """Write one value to all elements."""
        rank = len(target.shape)
        one = self.own(np.full((1,) * rank, value, target.dtype))
        return self.copy(one.view(target.shape, (0,) * rank), target)

    def update(self, kernel: Any, sets: Sequence[Sequence[BufferView]], numbers: BufferView) -> bool:
        """An elementwise loop over many sets of views that do not overlap. A set has the inputs (without the last ones,
        which are the scalars in `numbers`: a sequence of floats at each run), then the outputs."""
        loop = kernel.loop
        scalars = math.prod(numbers.shape)
        arrays = len(loop.inputs) - scalars
        filled = [own for own in sets if 0 not in own[-1].shape]
        kinds = [NUMPY[o.dtype] for o in (*loop.inputs[:arrays], *loop.outputs)]
        if any([v.dtype for v in own] != kinds for own in filled):
            return False
        if not filled:
            return True
        filled, before, after = self._in_one_order(filled, arrays)
        for source, target in before:
            self.copy(source, target)
        word = self._given.get(numbers.object)
        if word is None:
            word = self._given[numbers.object] = self._words
            self._words += scalars
        for own in filled:
            self._note(own[:arrays], own[arrays:])
        for part in arranged(loop, [own[0].elements for own in filled], scalars, True):
            places = [(v.object, v.offset) for own in filled[part.begin : part.end] for v in own]
            self._kernels += 1
            self._add(f"update {loop.name} of {part.end - part.begin} sets", self._update(part, places, 8 * word))
        return all([self.copy(source, target) for source, target in after])

    def _in_one_order(self, sets: list[Sequence[BufferView]], arrays: int) -> tuple[list[Any], list[Any], list[Any]]:
        """The sets, each with its elements in one order and without gaps; what is copied for that before and after."""
        scratch = Scratch()
        found: list[Any] = []
        before: list[Any] = []
        after: list[Any] = []
        for own in sets:
            views = list(own)
            if not _dense(views):
                for k, view in enumerate(own):
                    if not _in_rows(view):
                        views[k] = scratch.allocate(view.shape, view.dtype)
                        (before if k < arrays else after).append((view, views[k]) if k < arrays else (views[k], view))
            found.append(views)
        self.scratch_bytes = max(self.scratch_bytes, scratch.bytes)
        return found, before, after

    def _update(self, part: Any, places: list[tuple[int, int]], word: int) -> Work:
        launch, function = self._launcher.launch, self._launcher.compile(part.text)[part.name]

        def run(addresses: Addresses) -> None:
            pointers = [addresses[number] + offset for number, offset in places]
            words = part.words(pointers, [addresses[TABLE] + word])
            COUNTERS.kernels_run += 1
            launch(function, (part.blocks, 1, 1), (THREADS, 1, 1), 0, (ctypes.c_int64 * len(words))(*words))

        return run

    def watch(self, name: str, attrs: dict[str, Any], enter: Callable[[], BufferView | None]) -> bool:
        """A check of values, by the name of its op. `enter` adds it, and returns where it writes what is wrong.
        The flag of the list stays set until it is read."""
        if self._checks is None or not self._checks.knows(name):
            return False
        wrong = enter()
        if wrong is None:
            return False
        flag = self.own(np.zeros(wrong.shape, np.bool_))
        either = elementwise("either", ["bool", "bool"], apply("logical_or", load(0, "bool"), load(1, "bool")))
        self._flags.append((len(self.constants) - 1, name, attrs))
        return self._launch(either, wrong.shape, None, [wrong, flag, flag])

    def routine(self, request: Any) -> bool:
        """Routines are written for the CPU: False."""
        return False

    def own(self, array: Array) -> BufferView:
        """A view of an array that belongs to the list."""
        self.constants.append(array)
        return BufferView(SCRATCH - len(self.constants), 0, array.shape, array.strides, array.dtype)

    def _note(self, read: Sequence[BufferView], written: Sequence[BufferView]) -> None:
        """Note what a launch does to the objects of a run."""
        for views, writes in ((read, False), (written, True)):
            for view in views:
                if view.object >= 0:
                    self._uses.setdefault(view.object, Use()).add(view, writes)

    def _add(self, title: str, work: Work) -> None:
        self._work.append(work)
        self.titles.append(title)

    def finish(self, anchors: Sequence[int] = (), results: Sequence[int] = ()) -> None:
        """Prepare to run. Nothing can be added afterwards. `anchors` are objects whose addresses hardly ever change,
        `results` are new contiguous arrays."""
        for number, use in self._uses.items():
            use.anchor, use.result = number in anchors, number in results

    def release(self) -> None:
        """Free the memory that is kept for the next run, which then has to be prepared again."""
        self._streams.clear()

    # -- running

    def run(self, objects: Sequence[Any]) -> None:
        """Run on these arrays, by buffer number. They have the layout of the views."""
        if not self._work:
            return
        launcher = self._launcher
        COUNTERS.lists_run += 1
        with self._lock:
            stream = launcher.stream()
            here = self._streams.get(stream)
            if here is None:
                here = self._streams[stream] = self._prepared()
            pointer = launcher.pointer
            numbers: list[float] = []
            for number in self._given:
                numbers.extend(objects[number])
            if here.run([pointer(objects[number]) for number in here.objects], numbers):
                COUNTERS.kernels_run += self._kernels
                COUNTERS.matmuls_run += self._matmuls
        for k, name, attrs in self._flags:
            self._checks.watch(here.constants[k], name, attrs)

    def _launch_all(self, addresses: Addresses) -> None:
        COUNTERS.matmuls_run += self._matmuls
        for work in self._work:
            work(addresses)

    def _prepared(self) -> InStream:
        """What the list needs in a stream: scratch memory, constants, its table."""
        launcher = self._launcher
        uses = dict(sorted(self._uses.items()))
        table = -(-8 * (self._words + len(uses)) // LINE) * LINE
        memory = launcher.empty((table + self.scratch_bytes + LINE,), np.dtype(np.uint8))
        start = -(-launcher.pointer(memory) // LINE) * LINE
        own = {TABLE: start, SCRATCH: start + table}
        constants = [launcher.to_device(array) for array in self.constants]
        own |= {SCRATCH - 1 - k: launcher.pointer(array) for k, array in enumerate(constants)}
        return InStream(launcher, uses, self._words, own, memory, constants, self._launch_all, len(self._work))

    def describe(self) -> str:
        """One line for each launch."""
        return "\n".join(self.titles)


def _dense(views: Sequence[BufferView]) -> bool:
    """Do all views have the same elements in the same places of one piece of memory each, without gaps?"""
    shape, strides = views[0].shape, views[0].strides
    if any((v.shape, v.strides) != (shape, strides) for v in views):
        return all(v.shape == shape and _in_rows(v) for v in views)
    step = views[0].dtype.itemsize
    for stride, n in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride != step:
            return False
        step *= n
    return True


def _in_rows(view: BufferView) -> bool:
    step = view.dtype.itemsize
    for stride, n in zip(reversed(view.strides), reversed(view.shape), strict=True):
        if n > 1 and stride != step:
            return False
        step *= n
    return True
