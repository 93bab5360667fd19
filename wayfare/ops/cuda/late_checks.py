"""Checks of values on a device: asked when Python next reads a value, so that nothing waits before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.core.callsite import Site, current_site
from wayfare.core.errors import WayfareError

# How many checks may wait for the next read.
_MOST = 64
# The errors of checks that are part of plans, by the name of the op: functions of its attributes.
ERRORS: dict[str, Callable[..., WayfareError]] = {}


class LateChecks:
    """The checks of a backend that wait."""

    xp: Any

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[Any, WayfareError]] = []
        # Flags of plans: which op, its attributes, and the line that ran the plan first since the last read.
        self._flags: dict[int, tuple[Any, str, dict[str, Any], Site | None]] = {}

    def require(self, fine: Any, error: WayfareError) -> None:
        """All of `fine` must hold. That is asked when Python next reads a value, so that nothing waits now; the error
        names the op and the user's line, which is this one."""
        if len(self._waiting) >= _MOST:
            self.check_now()
        self._waiting.append((fine.reshape(()) if fine.size == 1 else fine.all(), error))

    def knows(self, name: str) -> bool:
        """Can the check of a plan by this name be told of by `watch`?"""
        return name in ERRORS

    def watch(self, flag: Any, name: str, attrs: dict[str, Any]) -> None:
        """The plan that was run sets `flag`, an array of one truth value, if the check fails: never, or for good."""
        if id(flag) not in self._flags:
            self._flags[id(flag)] = flag, name, attrs, current_site()

    def late_errors(self) -> list[Exception]:
        """The errors of checks that wait."""
        return [error for _, error in self._waiting]

    def check_now(self) -> None:
        """Raise the first error among the checks that wait; what they found comes in one copy."""
        waiting, self._waiting = self._waiting, []
        watched, self._flags = self._flags, {}
        found = [fine for fine, _ in waiting] + [flag.reshape(()) for flag, *_ in watched.values()]
        if len(found) == 1:
            found = [found[0].get()]
        elif len({array.device.id for array in found}) == 1:
            found = self.xp.stack(found).get().tolist()
        for fine, (_, error) in zip(found, waiting, strict=False):
            if not bool(fine):
                error.late = True
                raise error
        for wrong, (flag, name, attrs, site) in zip(found[len(waiting) :], watched.values(), strict=True):
            if bool(wrong):
                flag[...] = False
                failed = ERRORS[name](**attrs)
                failed.happened_in("", site)
                failed.late = True
                raise failed
