"""Costs other than ops: backward passes, compiled functions, optimisers, sessions of automatic batching, and waiting for
other ranks."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from wayfare.batch.session import Session
from wayfare.compiler.function import Compiled
from wayfare.core.counters import COUNTERS
from wayfare.distributed.work import Work
from wayfare.optim import Optimizer


@dataclass
class CompiledCost:
    """The calls of one compiled function."""

    name: str
    calls: int = 0
    seconds: float = 0.0  # with what ran inside
    recorded: int = 0  # calls that were recorded
    plain: int = 0  # calls that ran as plain Python
    kernels: int = 0  # native kernels that ran inside
    products: int = 0  # products of matrices inside its plans
    reasons: list[str] = field(default_factory=list)  # why calls were recorded again

    @property
    def hits(self) -> int:
        """Calls that were replayed or followed."""
        return self.calls - self.recorded - self.plain


@dataclass
class GroupCost:
    """The groups of one kind of call in sessions of automatic batching."""

    name: str
    calls: int = 0
    groups: int = 0
    largest: int = 0
    seconds: float = 0.0


@dataclass
class BatchingCost:
    """All sessions of automatic batching together."""

    sessions: int = 0
    calls: int = 0
    groups: int = 0
    rounds: int = 0
    seconds_recording: float = 0.0
    seconds_scheduling: float = 0.0
    seconds_running: float = 0.0
    kinds: dict[str, GroupCost] = field(default_factory=dict)

    @property
    def mean_group(self) -> float:
        """Calls per group."""
        return self.calls / self.groups if self.groups else 0.0


class Others:
    """Collects their counts."""

    def __init__(self) -> None:
        self._compiled_by_id: dict[int, tuple[weakref.ref[Compiled], CompiledCost]] = {}
        self.compiled: list[CompiledCost] = []
        self.batching = BatchingCost()
        # Counts at the beginning of compiled calls that run: one may call another.
        self._before: list[_Counts] = []

    def starts(self, what: Any) -> bool:
        """Something begins. Returns whether it is part of a backward pass."""
        if isinstance(what, Compiled):
            self._before.append(_Counts(what))
            return False
        return not isinstance(what, (list, Optimizer, Session, Work))

    def ended(self, what: Any, whole: float, seconds: float) -> Iterable[tuple[str, str, float]]:
        """It has ended after `whole` seconds, `seconds` of them its own: (name, kind, seconds) of its parts."""
        if isinstance(what, Compiled):
            self._compiled(what, whole)
            return [(f"{what._name} (compiled)", "compiled", seconds)]
        if isinstance(what, Optimizer):
            return [(f"{type(what).__name__}.step", "optimiser", seconds)]
        if isinstance(what, Work):
            return [(f"(waiting: {what.call})", "waiting", seconds)]
        if isinstance(what, Session):
            return self._session(what, seconds)
        if what.__class__ is list:
            name = what[0].signature.name
            found = self.batching.kinds.setdefault(name, GroupCost(name))
            found.calls += len(what)
            found.groups += 1
            found.largest = max(found.largest, len(what))
            found.seconds += whole
            return [("(batching: groups)", "batching", seconds)]
        return [("(backward pass)", "backward", seconds)]

    def gradients(self, what: Any) -> list[Any]:
        """The arrays of the gradients that a backward pass made for leaves."""
        leaves = getattr(what, "leaves", None)
        return [] if leaves is None else list(leaves.born.values())

    def _session(self, session: Session, seconds: float) -> list[tuple[str, str, float]]:
        stats, total = session.stats, self.batching
        total.sessions += 1
        total.calls += stats.nodes
        total.groups += stats.groups
        total.rounds += stats.rounds
        total.seconds_scheduling += stats.seconds_scheduling
        total.seconds_running += stats.seconds_running
        scheduling = min(stats.seconds_scheduling, seconds)
        total.seconds_recording += seconds - scheduling
        return [("(batching: recording)", "batching", seconds - scheduling),
                ("(batching: scheduling)", "batching", scheduling)]  # fmt: skip

    def _compiled(self, compiled: Compiled, whole: float) -> None:
        if not self._before:  # it began before the profile did
            return
        before, now = self._before.pop(), _Counts(compiled)
        known = self._compiled_by_id.get(id(compiled))
        if known is None or known[0]() is not compiled:
            known = self._compiled_by_id[id(compiled)] = (weakref.ref(compiled), CompiledCost(compiled._name))
            self.compiled.append(known[1])
        cost = known[1]
        cost.calls += 1
        cost.seconds += whole
        cost.recorded += now.recorded - before.recorded
        cost.plain += now.plain - before.plain
        cost.kernels += now.kernels - before.kernels
        cost.products += now.products - before.products
        if now.reason is not before.reason and now.reason not in cost.reasons:
            cost.reasons.append(str(now.reason))


class _Counts:
    """What a compiled function and its kernels had done at some moment."""

    __slots__ = ("kernels", "plain", "products", "reason", "recorded")

    def __init__(self, compiled: Compiled) -> None:
        self.recorded = compiled._recorded
        self.plain = sum(compiled._plain().values())
        self.kernels, self.products = COUNTERS.kernels_run, COUNTERS.matmuls_run
        # Why a call was recorded again last.
        self.reason = compiled._retraces[-1] if compiled._retraces else None
