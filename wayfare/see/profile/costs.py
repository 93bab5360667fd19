"""What things cost: sums by place while a program runs, and rows by op, line or module afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from wayfare.core.callsite import Site, locate

OUTSIDE = "(outside: Python, data)"
NO_MODULE = "(in no module)"


class Place:
    """All calls of one thing on one line, inside one module. Times are without those of what ran inside."""

    __slots__ = (
        "backward_bytes", "backward_calls", "backward_device_seconds", "backward_seconds", "bytes", "calls", "code",
        "device_seconds", "flops", "kind", "known", "module", "name", "offset", "seconds",
    )  # fmt: skip

    def __init__(self, name: str, kind: str, code: CodeType | None, offset: int, module: Any) -> None:
        self.name = name
        self.kind = kind  # "op", or what else takes time: "backward", "compiled", "optimiser", "batching",
        # "waiting" (for other ranks)
        self.code, self.offset = code, offset
        self.module = module
        self.calls = self.backward_calls = 0
        self.seconds = self.backward_seconds = 0.0
        self.device_seconds = self.backward_device_seconds = 0.0
        self.flops = 0
        self.bytes = self.backward_bytes = 0
        # FLOPs by shapes, so that a rule is asked once.
        self.known: dict[Any, int] = {}

    @property
    def site(self) -> Site | None:
        """The user's line."""
        return locate(self.code, self.offset)


@dataclass
class Cost:
    """One row of a profile. `seconds` leaves out what ran inside; `share` is its part of all the time."""

    name: str
    kind: str
    calls: int = 0
    seconds: float = 0.0
    forward_seconds: float = 0.0
    backward_calls: int = 0
    backward_seconds: float = 0.0
    flops: int = 0  # forward
    bytes: int = 0  # of arrays that were made, forward and backward
    share: float = 0.0
    text: str = ""  # the source of a line, the class of a module
    total_seconds: float = 0.0  # of a module: with its submodules, forward only
    device_seconds: float = 0.0  # that a GPU worked, forward and backward

    def add(self, place: Place) -> None:
        """Add a place."""
        self.calls += place.calls
        self.backward_calls += place.backward_calls
        self.forward_seconds += place.seconds
        self.backward_seconds += place.backward_seconds
        self.seconds += place.seconds + place.backward_seconds
        self.device_seconds += place.device_seconds + place.backward_device_seconds
        self.flops += place.flops
        self.bytes += place.bytes + place.backward_bytes


def by_op(places: Iterable[Place]) -> list[Cost]:
    """One row for each op, and for each other thing that took time."""
    return _grouped(places, lambda p: (p.name, p.kind), lambda p: Cost(p.name, p.kind))


def by_line(places: Iterable[Place]) -> list[Cost]:
    """One row for each line of the user's."""

    def row(place: Place) -> Cost:
        site = place.site
        if site is None:
            return Cost("(no line)", "line")
        return Cost(str(site), "line", text=site.text)

    def key(place: Place) -> Any:
        site = place.site
        return None if site is None else (site.filename, site.line)

    return _grouped(places, key, row)


def by_module(places: Iterable[Place], modules: Iterable[Any]) -> list[Cost]:
    """One row for each module that was called, and one for what ran in none."""
    found = list(modules)
    roots = {call.root for call in found}
    rows = {call: Cost(call.shown(len(roots) > 1), "module", text=call.kind) for call in found}
    apart = Cost(NO_MODULE, "module")
    for place in places:
        rows.get(place.module, apart).add(place)
    for call, row in rows.items():
        row.calls, row.total_seconds = call.calls, call.seconds
    return [*rows.values(), apart]


def _grouped(places: Iterable[Place], key: Callable[[Place], Any], row: Callable[[Place], Cost]) -> list[Cost]:
    rows: dict[Any, Cost] = {}
    for place in places:
        of = key(place)
        if of not in rows:
            rows[of] = row(place)
        rows[of].add(place)
    return list(rows.values())
