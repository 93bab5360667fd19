"""What running along paths may cost, compared with the time that the examples take in the loop.

In each map, recording and planning may take as long as the loop. Over all maps, paths may lose a limited time against
the loop. When that is used up, the next maps do not try paths, for longer each time.
"""

from __future__ import annotations

import math
from time import thread_time

from wayfare.batch.function_profile import MapTiming

# The share of the loop's time that recording and planning may take in each map, and how many unused shares are kept.
_SHARE, _SAVED = 1.0, 2.0
# How much time paths may lose at first, in maps as a loop; and the share of each map that they may always lose.
_INVESTED, _LOST = 10.0, 0.05
# Then so many maps do not try; the next time twice as many.
_PAUSE = 8
# With `batch=True` what runs must not depend on measured times: so many plans in each map.
_PLANS = 6


class PathBudget:
    """The account of one mapped function."""

    __slots__ = ("_balance", "_last", "_left", "_pause", "_plans", "paused_until")

    def __init__(self) -> None:
        self._left = 0.0  # seconds for recording and planning
        self._plans = 0  # plans that may be made in this map
        self._balance = _INVESTED  # time that may still be lost, in maps as a loop
        # Of the last map: its timing, and the seconds in the loop for the examples on paths, and for all.
        self._last: tuple[MapTiming, float, float] | None = None
        self._pause = _PAUSE
        self.paused_until = 0  # the number of the map in which paths are tried again

    def begin(self, loop: float | None, number: int) -> bool:
        """Map number `number` begins; as a loop it would take `loop` seconds (None: times do not matter). Returns
        whether its examples may run along paths."""
        self._plans = _PLANS
        if loop is None:
            self._left = math.inf
            return True
        self._settle()
        if number < self.paused_until:
            return False
        if self._balance < 0:
            self.paused_until, self._pause = number + self._pause, 2 * self._pause
            self._balance = _INVESTED / 4
            return False
        before = self._left if self._left < math.inf else 0.0
        self._left, self._plans = min(before + _SHARE * loop, _SAVED * _SHARE * loop), 1 << 30
        return True

    def allows(self) -> bool:
        """May something be recorded or planned now?"""
        return self._left > 0 and self._plans > 0

    def spend(self, began: float) -> None:
        """Something was recorded or planned since the thread time `began`: what others do meanwhile does not count."""
        self._plans -= 1
        self._left -= thread_time() - began

    def ended(self, timing: MapTiming, on_paths: float, loop: float) -> None:
        """A map has ended. As a loop it would have taken `loop` seconds, `on_paths` of them for the examples on paths.
        Its backward passes are added to the timing later."""
        self._last = (timing, on_paths, loop)

    def _settle(self) -> None:
        """Compare the last map with the loop, now that its backward passes are over."""
        if self._last is not None:
            timing, on_paths, loop = self._last
            self._last = None
            both = 2.0 if timing.backward else 1.0
            won = both * on_paths - timing.seconds - timing.backward
            self._balance = min(self._balance + won / max(both * loop, 1e-9) + _LOST, _INVESTED)
