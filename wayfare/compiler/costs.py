"""Time budgets: what recording, planning and checking may cost, and whether replaying is faster than Python."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any

__all__ = ["Budget", "Timings", "perf_counter"]

# The share of a function's total running time that recording and planning may take.
_SHARE = 0.1
# Allowed in any case: this many seconds, and this many recordings.
_START, _FREE = 1.0, 3
# Timings that are kept of plain and of replayed calls, and how many are needed to compare them.
_EAGER, _CALLS = 8, 16
_FEW_EAGER, _FEW_CALLS = 3, 8
# A replay counts as slower than Python from this ratio on: less is within the noise.
_SLOWER = 1.05


class Budget:
    """The time one function has run, and how much of it was recording, planning and checking."""

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


class Timings:
    """Times of calls of one entry: as plain Python, and as answered by the compiled function.

    Calls on a device return before their work is done, so the device's clock measures them. Its times come some calls
    later.
    """

    __slots__ = ("_running", "calls", "eager")

    def __init__(self) -> None:
        self.eager: deque[float] = deque(maxlen=_EAGER)
        self.calls: deque[float] = deque(maxlen=_CALLS)
        self._running: deque[tuple[deque[float], Any]] = deque(maxlen=_EAGER + _CALLS)

    def add(self, times: deque[float], seconds: float, clock: Any, on_device: bool) -> None:
        """Add the time of a call: that of the device's clock, if there is one."""
        if clock is not None:
            self.stopped(times, clock)
        elif not on_device:
            times.append(seconds)

    def stopped(self, times: deque[float], clock: Any) -> None:
        """Stop the clock of a call, and add the times that devices have measured by now."""
        clock.stop()
        self._running.append((times, clock))
        while self._running:
            times, clock = self._running[0]
            seconds = clock.seconds()
            if seconds is None:
                return
            times.append(seconds)
            self._running.popleft()

    def loses(self) -> tuple[float, float] | None:
        """(seconds compiled, seconds in plain Python) if there are enough timings and Python is faster; else None."""
        if len(self.eager) < _FEW_EAGER or len(self.calls) < _FEW_CALLS:
            return None
        now, python = _typical(self.calls), _typical(self.eager)
        # The fastest quarter as well: on a busy machine most calls of one way may have had to wait.
        slower = now > _SLOWER * python and _typical(self.calls, 1) > _typical(self.eager, 1)
        return (now, python) if slower else None

    def typical(self) -> tuple[float | None, float | None]:
        """Seconds of a call, compiled and as plain Python; None where it was not measured."""
        return _typical(self.calls) if self.calls else None, _typical(self.eager) if self.eager else None


def _typical(samples: deque[float], quarters: int = 3) -> float:
    """The mean of the fastest quarters of the samples, so that what else the machine did is left out."""
    chosen = sorted(samples)[: max(1, len(samples) * quarters // 4)]
    return sum(chosen) / len(chosen)
