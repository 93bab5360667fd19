"""`watch`: a line for every op that meets the conditions, where a stop would halt."""

from __future__ import annotations

import sys
from typing import Any

from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.core.mode import changed_mode
from wayfare.see.debug.conditions import Conditions, Test
from wayfare.see.debug.here import Here
from wayfare.see.debug.lookout import Lookout


class Watch(Lookout):
    """A watch that is set: `remove()` takes it away, as does the end of its `with` block; `hits` counts."""

    def __init__(self, conditions: Conditions, to: Any, times: int | None) -> None:
        self._to = to
        self._times = times
        super().__init__(conditions)

    def found(self, here: Here) -> None:
        """The conditions hold: print the line."""
        if self._times is not None and self.hits > self._times:
            return
        with changed_mode(watcher=None, anomaly=None):
            if callable(self._to):
                self._to(here)
            else:
                print(here.line(), file=self._to if self._to is not None else sys.stderr)


def watch(
    condition: Test | None = None, *, nan: bool = False, inf: bool = False, op: Any = None, module: Any = None,
    shape: Any = None, line: Any = None, example: int | None = None, backward: bool | None = None,
    to: Any = None, times: int | None = None,
) -> Watch:  # fmt: skip
    """Print a line for every op where all that is asked for holds: line, op, shape, statistics, module, example.

    The conditions are those of `break_on`, and a function of (node, value) as in `break_if`; without any, every op is
    shown. `to` is where it goes: a stream (standard error), or a function that is called with the node. After `times`
    lines it is silent, and only counts on in `hits`.
    """
    if times is not None and (not isinstance(times, int) or isinstance(times, bool) or times < 0):
        raise ArgumentError(f"watch: times is how many lines to print at most, not {times!r}")
    if to is not None and not callable(to) and not hasattr(to, "write"):
        raise ArgumentTypeError(f"watch: to is a stream or a function, not {type(to).__name__}")
    conditions = Conditions("watch", condition, nan=nan, inf=inf, op=op, module=module, shape=shape, line=line,
                            example=example, backward=backward)  # fmt: skip
    return Watch(conditions, to, times)
