"""The account of a compiled function: what recording, planning and checking cost, and whether replaying pays."""

from __future__ import annotations

from collections import deque
from time import perf_counter

__all__ = ["Budget", "Ledger", "perf_counter"]

# Recording and planning may cost this share of all the time the function has run.
_SHARE = 0.1
# What may be spent before that: so many seconds, and so many recordings however long they take.
_START, _FREE = 1.0, 3
# Samples that are kept of each kind, and how many there must be before they are compared.
_EAGER, _CALLS = 8, 16
_FEW_EAGER, _FEW_CALLS = 3, 8
# A replay may be this much slower than Python, as a ratio: less cannot be told from noise.
_SLOWER = 1.05


class Budget:
    """What one function has spent beside its own work, of the time it has run."""

    __slots__ = ("recordings", "spent", "total")

    def __init__(self) -> None:
        self.total = 0.0  # seconds in all calls that were measured
        self.spent = 0.0  # seconds of recording, planning and checking
        self.recordings = 0

    def allows(self) -> bool:
        """May more be recorded or planned now?"""
        return self.recordings < _FREE or self.spent <= _START + _SHARE * self.total

    def recorded(self, seconds: float) -> None:
        """A call was recorded."""
        self.recordings += 1
        self.spent += seconds
        self.total += seconds


class Ledger:
    """Times of one kind of call: by Python, and as the compiled function answers it."""

    __slots__ = ("calls", "eager")

    def __init__(self) -> None:
        self.eager: deque[float] = deque(maxlen=_EAGER)
        self.calls: deque[float] = deque(maxlen=_CALLS)

    def loses(self) -> tuple[float, float] | None:
        """(seconds as it is, seconds by Python), where that can be told and Python is faster; else None."""
        if len(self.eager) < _FEW_EAGER or len(self.calls) < _FEW_CALLS:
            return None
        now, python = _typical(self.calls), _typical(self.eager)
        return (now, python) if now > _SLOWER * python else None

    def typical(self) -> tuple[float | None, float | None]:
        """What a call takes as it is, and by Python, in seconds; None where it was not measured."""
        return _typical(self.calls) if self.calls else None, _typical(self.eager) if self.eager else None


def _typical(samples: deque[float]) -> float:
    """The mean of the faster three quarters: what else the machine did in the meantime is left out."""
    chosen = sorted(samples)[: max(1, len(samples) * 3 // 4)]
    return sum(chosen) / len(chosen)
