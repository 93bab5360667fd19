"""What a compiled function remembers: entries by the signature of calls, and signatures that are left to Python."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from wayfare.compiler.captures.reach import can_be_weak
from wayfare.compiler.costs import Budget
from wayfare.compiler.fallback import Plain
from wayfare.compiler.replay.entry import Entry, Unseen

# Signatures that are remembered, and states of what the function depends on for each.
_KINDS, _VARIANTS = 1024, 16
# So many signatures are recorded when they first come, later ones when they come again.
_EARLY = 8
# Outcomes of decisions likewise, for each entry.
_EARLY_OUTCOMES = 16
# New signatures in a row after which calls are taken to be new for ever.
_ROW = 24
# Recordings that are put off before anything is said.
_PATIENCE = 64
_TOO_DEAR = "recording it so often takes more than a tenth of its running time"
_ALWAYS_NEW = (
    "nearly every call has arguments that never came before; give numbers that change as tensors (wf.tensor(n)), and "
    "data in fewer sizes"
)


class Known:
    """The entries of one function."""

    def __init__(self, forget: Callable[[], None]) -> None:
        self._forget = weakref.WeakMethod(forget)  # told when entries have gone
        self.kinds: dict[Any, list[Entry]] = {}
        self.strikes: dict[Any, int] = {}  # signatures: recordings in a row that were of no use
        self._reasons: dict[Any, str] = {}
        self._once: dict[Any, None] = {}  # signatures that came once
        self._alive: dict[Any, list[Any]] = {}  # weak references to objects that signatures know by identity
        self._row = 0
        self._refused = 0

    def reason(self, key: Any) -> str | None:
        """Why calls with this signature run as plain Python; None where they need not."""
        return self._reasons.get(key) if self._reasons else None

    def leave(self, key: Any, reason: str) -> None:
        """Calls with this signature run as plain Python from now on."""
        self.kinds.pop(key, None)
        self.strikes.pop(key, None)
        while len(self._reasons) >= _KINDS:
            self._reasons.pop(next(iter(self._reasons)))
        self._reasons[key] = reason

    def enter(self, key: Any, entry: Entry) -> None:
        """Remember an entry, and forget the oldest if there are too many."""
        variants = self.kinds.pop(key, [])
        variants.insert(0, entry)
        del variants[_VARIANTS:]
        self.kinds[key] = variants
        while len(self.kinds) > _KINDS:
            oldest = next(iter(self.kinds))
            self.kinds.pop(oldest)
            self.strikes.pop(oldest, None)
            self._alive.pop(oldest, None)

    def watch(self, key: Any, objects: Sequence[Any]) -> None:
        """Forget a signature when an object goes away that it knows by identity."""
        for value in objects:
            if can_be_weak(value):
                self._alive.setdefault(key, []).append(weakref.ref(value, lambda _gone: self._drop(key)))

    def _drop(self, key: Any) -> None:
        for table in (self.kinds, self.strikes, self._reasons, self._once, self._alive):
            table.pop(key, None)
        forget = self._forget()
        if forget is not None:
            forget()

    def strike(self, key: Any) -> int:
        """A recording was of no use; how many in a row?"""
        found = self.strikes[key] = self.strikes.get(key, 0) + 1
        return found

    def may_record(self, key: Any, budget: Budget, why: str = "") -> Plain | None:
        """None if a call is to be recorded; else the answer that Python runs."""
        if key not in self.kinds and len(self.kinds) + len(self._reasons) >= _EARLY:
            if key not in self._once:
                while len(self._once) >= 4 * _KINDS:
                    self._once.pop(next(iter(self._once)))
                self._once[key] = None
                self._row += 1
                return Plain(_ALWAYS_NEW if self._row >= _ROW else "", rests=256)
            self._row = 0
        return None if budget.allows() else self.refuse(f"{_TOO_DEAR}: {why}" if why else _TOO_DEAR)

    def may_grow(self, entry: Entry, new: Unseen, budget: Budget) -> Plain | None:
        """The same for an outcome that an entry has not seen."""
        outcome = (id(new.stretch), new.outcome)
        count = entry.unseen.get(outcome, 0)
        if len(entry.unseen) < 8 * _KINDS:
            entry.unseen[outcome] = count + 1
        if entry.recordings >= _EARLY_OUTCOMES and not count:
            return Plain("")
        line = f" ({new.stretch.line.rpartition('/')[2]})" if new.stretch is not None and new.stretch.line else ""
        return None if budget.allows() else self.refuse(f"it decides on values in ever new ways{line}")

    def refuse(self, why: str = _TOO_DEAR) -> Plain:
        """There is no budget for a recording or a plan now; said only where that lasts."""
        self._refused += 1
        return Plain(why if self._refused > _PATIENCE else "", rests=64)
