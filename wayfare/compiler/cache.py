"""The cache of a compiled function: entries by call signature, and the signatures that run as plain Python."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from wayfare.compiler.captures.reach import can_be_weak
from wayfare.compiler.costs import Budget
from wayfare.compiler.fallback import Plain
from wayfare.compiler.replay.entry import Entry, Unseen

# The most signatures that are kept, and the most entries (sets of guards) for each of them.
_SIGNATURES, _VARIANTS = 1024, 16
# The first signatures are recorded at their first call, later ones at their second.
_EARLY = 8
# The same for outcomes of decisions, for each entry.
_EARLY_OUTCOMES = 16
# After this many new signatures in a row, every call is expected to have a new one.
_ROW = 24
# Refused recordings before there is a warning.
_PATIENCE = 64
_TOO_DEAR = "recording it so often takes more than a tenth of its running time"
_ALWAYS_NEW = (
    "nearly every call has arguments that no earlier call had; give numbers that change as tensors (wf.tensor(n)), and "
    "data in fewer sizes"
)


class EntryCache:
    """The entries of one compiled function."""

    def __init__(self, forget: Callable[[], None]) -> None:
        self._forget = weakref.WeakMethod(forget)  # called when entries were dropped
        self.entries: dict[Any, list[Entry]] = {}
        self.strikes: dict[Any, int] = {}  # by signature: recordings in a row that could not be kept
        self._reasons: dict[Any, str] = {}
        self._once: dict[Any, None] = {}  # signatures seen once
        self._alive: dict[Any, list[Any]] = {}  # weak references to objects whose identity is part of a signature
        self._row = 0
        self._refused = 0

    def reason(self, key: Any) -> str | None:
        """Why calls with this signature run as plain Python, or None."""
        return self._reasons.get(key) if self._reasons else None

    def leave(self, key: Any, reason: str) -> None:
        """Run calls with this signature as plain Python from now on."""
        self.entries.pop(key, None)
        self.strikes.pop(key, None)
        while len(self._reasons) >= _SIGNATURES:
            self._reasons.pop(next(iter(self._reasons)))
        self._reasons[key] = reason

    def enter(self, key: Any, entry: Entry) -> None:
        """Add an entry, and drop the oldest if there are too many."""
        variants = self.entries.pop(key, [])
        variants.insert(0, entry)
        del variants[_VARIANTS:]
        self.entries[key] = variants
        while len(self.entries) > _SIGNATURES:
            oldest = next(iter(self.entries))
            self.entries.pop(oldest)
            self.strikes.pop(oldest, None)
            self._alive.pop(oldest, None)

    def watch(self, key: Any, objects: Sequence[Any]) -> None:
        """Drop a signature when an object whose identity is part of it is deleted."""
        for value in objects:
            if can_be_weak(value):
                self._alive.setdefault(key, []).append(weakref.ref(value, lambda _gone: self._drop(key)))

    def _drop(self, key: Any) -> None:
        for table in (self.entries, self.strikes, self._reasons, self._once, self._alive):
            table.pop(key, None)
        forget = self._forget()
        if forget is not None:
            forget()

    def strike(self, key: Any) -> int:
        """Count a recording that could not be kept; how many were there in a row?"""
        found = self.strikes[key] = self.strikes.get(key, 0) + 1
        return found

    def may_record(self, key: Any, budget: Budget, why: str = "") -> Plain | None:
        """None if the call may be recorded, else the answer to run it as plain Python."""
        if key not in self.entries and len(self.entries) + len(self._reasons) >= _EARLY:
            if key not in self._once:
                while len(self._once) >= 4 * _SIGNATURES:
                    self._once.pop(next(iter(self._once)))
                self._once[key] = None
                self._row += 1
                return Plain(_ALWAYS_NEW if self._row >= _ROW else "", longest_bypass=256)
            self._row = 0
        return None if budget.allows() else self.refuse(f"{_TOO_DEAR}: {why}" if why else _TOO_DEAR)

    def may_grow(self, entry: Entry, new: Unseen, budget: Budget) -> Plain | None:
        """The same for a decision with an outcome that the entry has not recorded."""
        outcome = (id(new.block), new.outcome)
        count = entry.unseen.get(outcome, 0)
        if len(entry.unseen) < 8 * _SIGNATURES:
            entry.unseen[outcome] = count + 1
        if entry.recordings >= _EARLY_OUTCOMES and not count:
            return Plain("")
        line = f" ({new.block.line.rpartition('/')[2]})" if new.block is not None and new.block.line else ""
        return None if budget.allows() else self.refuse(f"its decisions have new outcomes again and again{line}")

    def refuse(self, why: str = _TOO_DEAR) -> Plain:
        """Answer that there is no budget now for a recording or a plan; with a reason only if that happens often."""
        self._refused += 1
        return Plain(why if self._refused > _PATIENCE else "", longest_bypass=64)
