"""How a list of launches runs: as it is the first times, then as one CUDA graph, wherever its arrays lie.

A graph has the addresses of its arrays in it. Weights, and the state of an optimiser, stay where they are; batches and
results lie elsewhere at every call. So an array that was seen at two addresses *moves*: the graph works on a copy that
belongs to the list, begins with copying inputs there, and ends with copying results away. A table in device memory has
the addresses to copy from and to, and the numbers of the optimiser; one launch writes it before each replay if anything
in it has changed. Small results always move.

What is written, but for results, is an *anchor*: a graph serves one set of addresses of the anchors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.codegen.cuda.kernels.table import moves_by_table, packed, table_writer
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.runtime.command import SCRATCH, BufferView
from wayfare.codegen.runtime.kernel import refuse
from wayfare.core.config import settings
from wayfare.core.counters import COUNTERS

# Addresses by object number; the list's own buffers have negative numbers.
Addresses = dict[int, int]
# The number of the table; constants have the numbers below that of the scratch memory.
TABLE = SCRATCH - (1 << 30)

# Graphs of a list, and sets of addresses of its anchors that are remembered to find those that come again.
_GRAPHS, _SITES = 8, 64
# After this many captures, a list whose graphs are hardly replayed is not captured any more.
_TRIAL = 16
# What a capture costs, in launches: an estimate, not measured. A list is captured when it has made so many launches;
# one that runs a few times only, as for one size of a group in a map, never is.
CAPTURE_COST = 64
# What is larger is not copied: a graph serves one address.
_LARGEST = 1 << 28
# The most bytes that a list has for copies; what would be more is an anchor.
_ROOM = 1 << 29
# A result of so many bytes is always copied.
_SMALL = 1 << 16
_ALIGNED = 256


class Use:
    """What a list does to one of its objects: which bytes it reads or writes, and how. The plan says
    `anchor` (its address hardly ever changes) and `result` (it is a new, contiguous array)."""

    __slots__ = ("anchor", "first", "high", "low", "result", "written")

    def __init__(self) -> None:
        self.low = self.high = 0
        self.written = self.anchor = self.result = False
        self.first = -1  # how many bytes without gaps are written before anything is read

    def add(self, view: BufferView, writes: bool) -> None:
        """Note a view that a launch reads, or writes."""
        low = high = view.offset
        for n, stride in zip(view.shape, view.strides, strict=True):
            low, high = (low, high + stride * (n - 1)) if stride > 0 else (low + stride * (n - 1), high)
        high += view.dtype.itemsize
        if self.first < 0:
            whole = writes and high - low == view.elements * view.dtype.itemsize
            self.first = high - low if whole else 0
            self.low, self.high = low, high
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.written |= writes

    @property
    def can_move(self) -> bool:
        """May a graph work on a copy?"""
        return not self.anchor and self.high - self.low <= _LARGEST and (self.result or not self.written)

    @property
    def is_small_result(self) -> bool:
        """Does it hardly matter that it is copied? Results lie elsewhere sooner or later."""
        return self.result and self.high - self.low <= _SMALL

    @property
    def is_read(self) -> bool:
        """Must the copy begin with what is there?"""
        return self.first != self.high - self.low


class _Site:
    """What is known of runs with the anchors at certain addresses."""

    __slots__ = ("fixed", "graph", "moving", "runs", "still")

    def __init__(self, movable: Sequence[int], addresses: Sequence[int]) -> None:
        self.moving: list[int] = []  # places, in the order of the objects
        self.still = list(movable)
        self.fixed = [addresses[place] for place in movable]
        self.graph: Callable[[], None] | None = None
        self.runs = 1


class InStream:
    """What a list needs in one stream: memory of its own, its table, and graphs. `objects` are those that it uses."""

    def __init__(
        self, launcher: Launcher, uses: dict[int, Use], numbers: int, own: Addresses, memory: Any,
        constants: list[Any], launch: Callable[[Addresses], None], launches: int,
    ) -> None:  # fmt: skip
        """`numbers`: how many words of the table are numbers."""
        self._launcher, self._own, self._launch, self.constants = launcher, own, launch, constants
        self._kept = [memory]
        self.objects = list(uses)
        self._uses = list(uses.values())
        self._movable = [place for place, use in enumerate(self._uses) if use.can_move]
        self._anchors = [place for place, use in enumerate(self._uses) if not use.can_move]
        self._numbers = numbers
        self._sites: OrderedDict[tuple[int, ...], _Site] = OrderedDict()
        self._copies: dict[int, int] = {}  # where the list's own memory for a place lies
        self._writers: dict[int, Callable[[bytes], None]] = {}
        self._written = b""
        self._captures = self._replays = 0
        self._launches = launches
        self._refused = launches < 2  # a graph of one launch costs more than the launch

    def run(self, addresses: list[int], numbers: Sequence[float]) -> bool:
        """Run on arrays at these addresses; True if a graph did it."""
        key = (settings.allow_tf32, *[addresses[place] for place in self._anchors])
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = _Site(self._movable, addresses)
            if len(self._sites) > _SITES:
                self._sites.popitem(last=False)
            self._launch_plain(addresses, numbers)
            return False
        self._sites.move_to_end(key)
        there = [addresses[place] for place in site.still]
        graph = site.graph if there == site.fixed else None
        if graph is None:
            site.runs += 1
            too_soon = (site.runs - 1) * self._launches < CAPTURE_COST
            if too_soon or self._refused or (self._captures >= _TRIAL and self._replays < 4 * self._captures):
                self._launch_plain(addresses, numbers)
                return False
            graph = self._captured(site, addresses, there)
            if graph is None:
                self._launch_plain(addresses, numbers)
                return False
        else:
            self._replays += 1
            COUNTERS.graphs_replayed += 1
        self._write(numbers, [addresses[place] for place in site.moving])
        COUNTERS.device_calls += 1
        graph()
        return True

    def _launch_plain(self, addresses: Sequence[int], numbers: Sequence[float]) -> None:
        self._write(numbers, ())
        self._launch({**dict(zip(self.objects, addresses, strict=True)), **self._own})

    def _write(self, numbers: Sequence[float], addresses: Sequence[int]) -> None:
        """Write the table, if it is not there already."""
        words = len(numbers) + len(addresses)
        if not words:
            return
        given = packed(numbers, addresses)
        if given == self._written:
            return
        write = self._writers.get(words)
        if write is None:
            write = self._writers[words] = table_writer(self._launcher, self._own[TABLE], words)
        COUNTERS.device_calls += 1
        write(given)
        self._written = given

    # -- graphs

    def _captured(self, site: _Site, addresses: Sequence[int], there: list[int]) -> Callable[[], None] | None:
        """A graph for these addresses; None, after one warning, if there can be none. What has moved is copied."""
        moved = [place for place, old, new in zip(site.still, site.fixed, there, strict=True)
                 if old != new or self._uses[place].is_small_result]  # fmt: skip
        if moved:
            site.moving = sorted([*site.moving, *moved])
            site.still = [place for place in site.still if place not in moved]
            site.fixed = [addresses[place] for place in site.still]
            if not self._has_room(site):
                return None
        table = {**dict(zip(self.objects, addresses, strict=True)), **self._own}
        work = self._launch
        counted = COUNTERS.kernels_run, COUNTERS.matmuls_run, COUNTERS.device_calls
        try:
            before, after = self._moves(site, table)

            def launch() -> None:
                for copy in before:
                    copy()
                work(table)
                for copy in after:
                    copy()

            site.graph = self._launcher.capture(launch)
        except Exception as error:
            self._refused, site.graph = True, None
            refuse("a list of launches (as a CUDA graph)", error, "its kernels are launched one by one, slower")
            return None
        finally:
            # Noting a launch in a graph does not run it.
            COUNTERS.kernels_run, COUNTERS.matmuls_run, COUNTERS.device_calls = counted
        self._captures += 1
        COUNTERS.graphs_captured += 1
        with_graphs = [own for own in self._sites.values() if own.graph is not None and own is not site]
        for old in with_graphs[: len(with_graphs) - _GRAPHS + 1]:
            old.graph = None
        return site.graph

    def _has_room(self, site: _Site) -> bool:
        """Is there room for the copies? If not, the largest becomes an anchor, and all begins anew."""
        sizes = {place: self._uses[place].high - self._uses[place].low for place in {*site.moving, *self._copies}}
        if sum(sizes.values()) <= _ROOM:
            return True
        largest = max(site.moving, key=sizes.__getitem__)
        self._movable.remove(largest)
        self._anchors = sorted([*self._anchors, largest])
        self._sites.clear()
        return False

    def _moves(self, site: _Site, table: Addresses) -> tuple[list[Any], list[Any]]:
        """The copies before and after the launches of a graph; the places that move get other addresses in `table`."""
        before, after = [], []
        for entry, place in enumerate(site.moving):
            use = self._uses[place]
            size = use.high - use.low
            own = self._copies.get(place)
            if own is None:
                memory = self._launcher.empty((size + _ALIGNED,), np.dtype(np.uint8))
                self._kept.append(memory)
                own = self._copies[place] = -(-self._launcher.pointer(memory) // _ALIGNED) * _ALIGNED
            move = (self._numbers + entry, use.low, own, size)
            table[self.objects[place]] = own - use.low
            if use.is_read:
                before.append(move)
            if use.written:
                after.append(move)
        start = self._own[TABLE]
        return (moves_by_table(self._launcher, start, before, False),
                moves_by_table(self._launcher, start, after, True))  # fmt: skip
