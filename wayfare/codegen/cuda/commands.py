"""Command lists on a GPU: launches over one set of device arrays, replayed as a CUDA graph.

    commands = CudaCommands(launcher)
    if commands.matmul(x, weight, hidden) and commands.kernel(relu, (32, 64), None, [hidden], [hidden]):
        commands.finish()
    commands.run([x_array, weight_array, arena])      # arrays by object number

It is built as `codegen.runtime.commands.Commands` is, so a plan does not see the difference. A run on arrays at
addresses that were met before is captured into a CUDA graph, and later runs at the same addresses replay it: one call
for the whole list. A graph owns no memory of others. It is used only if every array lies where it lay when the graph
was made, so what it reads and writes is what the caller gave.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.codegen.cuda.gemm import gemm_calls
from wayfare.codegen.cuda.kernel import build
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.loop.expr import NUMPY, load
from wayfare.codegen.loop.language import Loop, elementwise
from wayfare.codegen.runtime.command import LINE, SCRATCH, BufferView, Scratch, Shape, Unsuited
from wayfare.core.config import settings
from wayfare.core.counters import COUNTERS

Array = np.ndarray[Any, np.dtype[Any]]
# Addresses by object number; the list's own buffers have negative numbers.
Addresses = dict[int, int]
Work = Callable[[Addresses], None]

# How many graphs a list keeps, and how many sets of addresses it remembers to find those that come again.
_GRAPHS, _SEEN = 8, 64
# A list whose graphs are hardly replayed is launched without: this many captures are a trial.
_TRIAL = 16
# Copies use an integer dtype of the same width.
_BITS = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}


class _InStream:
    """What a list needs in one stream: memory of its own, and graphs by the addresses of the arrays."""

    __slots__ = ("captures", "graphs", "kept", "own", "replays", "seen")

    def __init__(self, own: Addresses, kept: list[Any]) -> None:
        self.own, self.kept = own, kept
        self.graphs: OrderedDict[tuple[int, ...], Callable[[], None]] = OrderedDict()
        self.seen: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self.captures = self.replays = 0

    def worthwhile(self, key: tuple[int, ...]) -> bool:
        """Is it time to capture a graph for these addresses?"""
        if self.captures >= _TRIAL and self.replays < 4 * self.captures:
            return False
        if key in self.seen:
            return True
        self.seen[key] = None
        if len(self.seen) > _SEEN:
            self.seen.popitem(last=False)
        return False


class CudaCommands:
    """A list of launches over numbered device arrays: built once, then run many times."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._work: list[Work] = []
        self._used: set[int] = set()
        self.constants: list[Array] = []  # arrays that belong to the list, on the host
        self.titles: list[str] = []
        self.scratch_bytes = 0
        self._numbers: list[int] = []
        self._kernels = self._matmuls = 0
        self._streams: dict[int, _InStream] = {}

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
        self._reserve(scratch, views)
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
        try:
            calls = gemm_calls(a, b, out, add)
        except Unsuited:
            return False
        self._reserve(Scratch(), [a, b, out])
        gemm = self._launcher.gemm

        def run(addresses: Addresses) -> None:
            for call, *locations in calls:
                x, y, z = [addresses[number] + offset for number, offset in locations]
                gemm(call, x, y, z)

        self._matmuls += 1
        self._add(f"matmul {list(a.shape)} @ {list(b.shape)}", run)
        return True

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
        which are the scalars in `numbers`, read at each run), then the outputs."""
        loop = kernel.loop
        item, scalars = numbers.dtype.itemsize, math.prod(numbers.shape)
        arrays = len(loop.inputs) - scalars
        for views in sets:
            shape = views[-1].shape
            ones = [numbers.view((1,) * len(shape), (0,) * len(shape), item * k) for k in range(scalars)]
            if not self._launch(loop, shape, None, [*views[:arrays], *ones, *views[arrays:]]):
                return False
        return True

    def routine(self, request: Any) -> bool:
        """Routines are written for the CPU: False."""
        return False

    def own(self, array: Array) -> BufferView:
        """A view of an array that belongs to the list."""
        self.constants.append(array)
        return BufferView(SCRATCH - len(self.constants), 0, array.shape, array.strides, array.dtype)

    def _reserve(self, scratch: Scratch, views: Sequence[BufferView]) -> None:
        # Launches run one after the other, so all of them use the same scratch memory.
        self.scratch_bytes = max(self.scratch_bytes, scratch.bytes)
        self._used.update(v.object for v in views if v.object >= 0)

    def _add(self, title: str, work: Work) -> None:
        self._work.append(work)
        self.titles.append(title)

    def finish(self) -> None:
        """Prepare to run. Nothing can be added afterwards."""
        self._numbers = sorted(self._used)

    def release(self) -> None:
        """Free the memory that is kept for the next run, which then has to be prepared again."""
        self._streams.clear()

    # -- running

    def run(self, objects: Sequence[Any]) -> None:
        """Run on these arrays, by buffer number. They have the layout of the views."""
        if not self._work:
            return
        launcher, numbers = self._launcher, self._numbers
        pointer = launcher.pointer
        addresses = tuple([pointer(objects[number]) for number in numbers])
        key = (settings.allow_tf32, *addresses)  # all that a graph depends on
        COUNTERS.lists_run += 1
        COUNTERS.device_calls += 1
        here = self._streams.get(launcher.stream())
        if here is None:
            here = self._streams[launcher.stream()] = self._prepared()
        replay = here.graphs.get(key)
        if replay is None:
            table = {**dict(zip(numbers, addresses, strict=True)), **here.own}
            if not here.worthwhile(key):
                self._launch_all(table)
                return
            replay = here.graphs[key] = launcher.capture(lambda: self._launch_all(table))
            here.captures += 1
            COUNTERS.graphs_captured += 1
            if len(here.graphs) > _GRAPHS:
                here.graphs.popitem(last=False)
        else:
            here.replays += 1
            here.graphs.move_to_end(key)
            COUNTERS.graphs_replayed += 1
            COUNTERS.kernels_run += self._kernels
            COUNTERS.matmuls_run += self._matmuls
        replay()

    def _launch_all(self, addresses: Addresses) -> None:
        COUNTERS.matmuls_run += self._matmuls
        for work in self._work:
            work(addresses)

    def _prepared(self) -> _InStream:
        """The list's own memory: scratch and constants."""
        scratch = self._launcher.empty((self.scratch_bytes + LINE,), np.dtype(np.uint8))
        start = self._launcher.pointer(scratch)
        own = {SCRATCH: -(-start // LINE) * LINE}
        kept = [scratch]
        for k, array in enumerate(self.constants):
            kept.append(self._launcher.to_device(array))
            own[SCRATCH - 1 - k] = self._launcher.pointer(kept[-1])
        return _InStream(own, kept)

    def describe(self) -> str:
        """One line for each launch."""
        return "\n".join(self.titles)
