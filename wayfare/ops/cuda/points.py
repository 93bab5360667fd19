"""Points in the work of a GPU, for timing."""

from __future__ import annotations

import time
from typing import Any


class Point:
    """An event in the current stream of the current device, and when it was asked for."""

    __slots__ = ("asked", "device", "event", "xp")

    def __init__(self, backend: Any) -> None:
        self.xp = backend.xp
        self.device = 0 if backend.alone else backend.current()
        self.event = self.xp.cuda.Event()
        self.event.record()
        self.asked = time.perf_counter()

    def seconds_to(self, last: Point) -> float:
        """The time from this point to another one; this waits until the GPU has passed them. Events of two devices
        cannot be compared: between them it is the time of the host."""
        last.event.synchronize()
        if self.device != last.device:
            return last.asked - self.asked
        return float(self.xp.cuda.get_elapsed_time(self.event, last.event)) / 1000
