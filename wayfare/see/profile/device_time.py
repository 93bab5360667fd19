"""How long a device works on what: two events of its stream around each op, read when the device has passed them.

Asking does not wait for the device, so a program that does not wait runs as without a profile. Times leave out what ran
inside, as those of the processor do. While the device has nothing else to do, the moment between the first event and
the kernel counts, too: a kernel of few microseconds seems to take some more.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from wayfare.core.counters import COUNTERS
from wayfare.core.device import BACKENDS
from wayfare.see.profile.costs import Place

# With more spans than this the device is waited for once, and they are read.
_WAITING = 4096

# For the trace: what, when it began on the device, seconds, was it backward.
Work: TypeAlias = tuple[Place, float, float, bool]


class Span:
    """What a device does for something that runs."""

    __slots__ = ("backward", "calls", "first", "inside", "last", "outer", "place", "works")

    def __init__(self, first: Any, outer: Span | None) -> None:
        self.first, self.outer = first, outer
        self.last: Any = None
        self.place: Any = None
        self.backward = False
        self.inside = 0.0  # seconds of spans inside
        self.works = False  # something inside it has worked
        self.calls = COUNTERS.device_calls

    @property
    def has_worked(self) -> bool:
        """Was the device asked for something since it began?"""
        return self.works or COUNTERS.device_calls != self.calls


class DeviceTime:
    """The time of a device, from the moment that it is used."""

    def __init__(self, events: int) -> None:
        self.seconds = 0.0
        self.work: list[Work] = []
        self.left_out = 0
        self._limit = events
        self._waiting: list[Span] = []
        self._backend: Any = None
        # The first event, and when it was on the clock of the profile.
        self._base: Any = None
        self._base_at = 0.0

    def begin(self, outer: Span | None, now: float) -> Span | None:
        """Something starts; None if no device is in use."""
        if self._backend is None:
            self._backend = next(iter(BACKENDS.values()), None)
            if self._backend is None:
                return None
            self._base, self._base_at = self._backend.mark(), now
        return Span(self._backend.mark(), outer)

    def end(self, span: Span, place: Place, backward: bool) -> None:
        """It has ended."""
        if span.outer is not None:
            span.outer.works = True
        span.last, span.place, span.backward = self._backend.mark(), place, backward
        self._waiting.append(span)
        if len(self._waiting) >= _WAITING:
            self._read()

    def _read(self) -> None:
        """Wait for the device, and add up times. Inner spans come first: they have ended first."""
        between = self._backend.seconds_between
        for span in self._waiting:
            whole = between(span.first, span.last)
            own, place = max(whole - span.inside, 0.0), span.place
            if span.outer is not None:
                span.outer.inside += whole
            else:
                self.seconds += whole
            if span.backward:
                place.backward_device_seconds += own
            else:
                place.device_seconds += own
            if len(self.work) < self._limit:
                self.work.append((place, self._base_at + between(self._base, span.first), whole, span.backward))
            else:
                self.left_out += 1
        self._waiting.clear()

    def close(self) -> None:
        """The end."""
        if self._waiting:
            self._read()
        self._base = self._backend = None
