"""`with wf.profile() as p:` — what the block spends its time and memory on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError
from wayfare.core.format import counted
from wayfare.io.replace import replace_text
from wayfare.see.debug.watching import looking_on
from wayfare.see.pages.markup import frame
from wayfare.see.profile import comparison, costs, page, ranks, tables, trace
from wayfare.see.profile.costs import Cost
from wayfare.see.profile.memory import Alive
from wayfare.see.profile.others import BatchingCost, CompiledCost
from wayfare.see.profile.stopwatch import Stopwatch

_BY = ("op", "line", "module", "kernel", "group")
_SORT = ("time", "calls", "flops", "bytes")
_EVENTS = 100_000


class Profile:
    """Times and counts everything that runs in its block, in this thread.

    `print(p)` shows where the time went, `p.table(by="line")` one table, `p.rows(by="op")` the numbers;
    `p.save("profile.html")` writes a page and `p.trace("trace.json")` a file for Perfetto or chrome://tracing.
    Compiled functions run their plans and examples run batched as they would without it.

    `events` is how many single events are kept for the trace (sums go on beyond), `memory=False` leaves out which
    arrays are in use.
    """

    # `wf.profile` is both: called it makes a Profile, and it has these names.
    Comparison: TypeAlias = comparison.Comparison
    Cost: TypeAlias = costs.Cost
    Row: TypeAlias = comparison.Row
    compare = staticmethod(comparison.compare)
    RankTraces: TypeAlias = ranks.RankTraces
    merge = staticmethod(ranks.merge)

    def __init__(self, *, events: int = _EVENTS, memory: bool = True) -> None:
        if not isinstance(events, int) or isinstance(events, bool) or events < 0:
            raise ArgumentError(f"profile: events is how many are kept for the trace, not {events!r}")
        if not isinstance(memory, bool):
            raise ArgumentTypeError(f"profile: memory is True or False, not {memory!r}")
        self._watch = Stopwatch(events, memory)
        self._look: looking_on | None = None
        self._done = False

    def __enter__(self) -> Profile:
        if self._look is not None:
            raise OperationError("profile: this block is in use or was used already", fix="Make a new wf.profile().")
        self._look = looking_on(self._watch)
        self._look.__enter__()
        self._watch.start()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._look is not None
        self._watch.stop()
        self._done = True
        self._look.__exit__(*error)

    # -- numbers

    @property
    def seconds(self) -> float:
        """How long the block took, without the time of the profiling itself."""
        return self._ended().seconds

    @property
    def own_seconds(self) -> float:
        """How much longer the block took because of the profiling, as far as that was measured."""
        return self._ended().own

    @property
    def peak_bytes(self) -> int:
        """The most memory in use at one time, of arrays on the CPU that ops and gradient rules made in the block."""
        memory = self._ended().memory
        return 0 if memory is None else memory.peak

    @property
    def alive_at_peak(self) -> list[Alive]:
        """What was in use then (to within a hundredth of it): place, shape, count and bytes, the largest first."""
        memory = self._ended().memory
        return [] if memory is None else sorted(memory.at_peak, key=lambda a: -a.bytes)

    @property
    def memory(self) -> list[tuple[float, int]]:
        """(seconds since the beginning, bytes in use), a thousand points at most, the highest of each stretch."""
        memory = self._ended().memory
        return [] if memory is None else memory.curve.points()

    @property
    def device_seconds(self) -> float:
        """How long the GPU worked, by events around ops; 0 without one."""
        return self._ended().device.seconds

    @property
    def device_peak_bytes(self) -> int:
        """`peak_bytes` on the GPU, which it does not count."""
        memory = self._ended().device_memory
        return 0 if memory is None else memory.peak

    @property
    def device_alive_at_peak(self) -> list[Alive]:
        """What was in use on the GPU then, as in `alive_at_peak`."""
        memory = self._ended().device_memory
        return [] if memory is None else sorted(memory.at_peak, key=lambda a: -a.bytes)

    @property
    def compiled(self) -> list[CompiledCost]:
        """The compiled functions that were called."""
        return list(self._ended().others.compiled)

    @property
    def batching(self) -> BatchingCost:
        """All sessions of automatic batching together."""
        return self._ended().others.batching

    @property
    def left_out(self) -> int:
        """Events that are counted but not in the trace."""
        return self._ended().left_out

    def rows(self, by: str = "op", sort: str = "time", top: int | None = None) -> list[Cost]:
        """Costs by "op", "line", "module", "kernel" (compiled functions) or "group" (of automatic batching).

        Times leave out what ran inside. Rows by op, line and module add up to all the time: one of them is what ran
        outside of all ops (Python, data).
        """
        watch = self._ended()
        _check(by, _BY, "by")
        _check(sort, _SORT, "sort")
        if top is not None:
            _check_top(top)
        places = watch.places.values()
        if by == "op":
            found = costs.by_op(places)
        elif by == "line":
            found = costs.by_line(places)
        elif by == "module":
            found = costs.by_module(places, watch.modules.values())
        elif by == "kernel":
            found = [Cost(c.name, "compiled", c.calls, c.seconds, c.seconds, total_seconds=c.seconds,
                          text=tables.compiled_text(c)) for c in watch.others.compiled]  # fmt: skip
        else:
            found = [Cost(g.name, "group", g.calls, g.seconds, g.seconds, total_seconds=g.seconds,
                          text=f"{counted(g.groups, 'group')}, largest {g.largest}")
                     for g in watch.others.batching.kinds.values()]  # fmt: skip
        if by in ("op", "line", "module"):
            rest = max(watch.seconds - sum(row.seconds for row in found), 0.0)
            found.append(Cost(costs.OUTSIDE, "outside", seconds=rest, forward_seconds=rest))
        whole = sum(row.seconds for row in found) if by in ("op", "line", "module") else watch.seconds
        for row in found:
            row.share = row.seconds / whole if whole else 0.0
        found.sort(key=lambda row: -float(getattr(row, "seconds" if sort == "time" else sort)))
        return found[:top]

    # -- words and pictures

    def table(self, by: str = "op", sort: str = "time", top: int = 20) -> str:
        """Such rows as a table for 80 columns; what is left out is one more row."""
        rows = self.rows(by, sort)
        _check_top(top)
        return tables.table(by, rows, top)

    def picture(self) -> str:
        """Memory over time, drawn in blocks for 80 columns."""
        watch = self._ended()
        found = [(watch.memory, "memory"), (watch.device_memory, "GPU memory")]
        drawn = [tables.picture(memory, watch.seconds, what) for memory, what in found if memory is not None]
        return "\n\n".join(filter(None, drawn))

    def __str__(self) -> str:
        return tables.summary(self)

    def __repr__(self) -> str:
        return f"<profile of {self._watch.seconds:.3g} s>" if self._done else "<profile, not ended>"

    def html(self) -> str:
        """Tables and the picture as a piece of HTML, to put into a page of your own."""
        self._ended()
        return page.piece(self)

    def _repr_html_(self) -> str:
        return frame(page.whole(self), "Profile")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page that needs nothing else: tables by op, line and module, and memory over time."""
        self._ended()
        _write(path, [page.whole(self)])

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write a trace for https://ui.perfetto.dev or chrome://tracing: JSON in the trace event format."""
        _write(path, trace.text(self._ended()))

    def _ended(self) -> Stopwatch:
        if not self._done:
            raise OperationError("profile: the numbers are there when the block has ended",
                                 fix="Ask after `with wf.profile() as p:`.")  # fmt: skip
        return self._watch


def _check(value: Any, allowed: Sequence[str], name: str) -> None:
    if value not in allowed:
        raise ArgumentError(f"profile: {name} must be one of {', '.join(allowed)}, not {value!r}")


def _check_top(top: Any) -> None:
    if not isinstance(top, int) or isinstance(top, bool) or top < 1:
        raise ArgumentError(f"profile: top is how many rows, from 1, not {top!r}")


def _write(path: Any, parts: Iterable[str]) -> None:
    """Write a file completely or not at all."""
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"profile: takes the name of a file, not {type(path).__name__}")
    replace_text(os.fspath(path), parts)
