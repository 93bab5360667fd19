"""Calls of a compiled function that run as plain Python: the reasons, how often, and one warning for each reason."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

from wayfare.compiler.costs import Budget, perf_counter
from wayfare.core.callsite import outside_frames
from wayfare.core.errors import OperationError

# The most reasons that are kept.
_REASONS = 32
# The reason shown for calls that ran as plain Python without a warning.
_QUIET = "recording them did not seem worth it so far"
# Plain calls in a row after which the next calls bypass the compiled function, and the longest bypass, in calls.
_IN_A_ROW, _LONGEST = 8, 4096


class Plain:
    """The answer that a call runs as plain Python. Without a reason there is no warning."""

    __slots__ = ("longest_bypass", "reason")

    def __init__(self, reason: str, longest_bypass: int = _LONGEST) -> None:
        self.reason = reason
        self.longest_bypass = longest_bypass  # the most calls that may bypass the function after this


class Fallback:
    """The plain calls of one function."""

    def __init__(self, function: Callable[..., Any], name: str, fullgraph: bool, budget: Budget) -> None:
        self._function, self._name, self._budget = function, name, budget
        self.fullgraph = fullgraph
        self.reasons: dict[str, int] = {}  # why calls ran as plain Python, and how many did
        self.bypass_calls = 0  # how many calls are to bypass the function from now on
        self.bypassed = 0  # calls that bypassed it so far
        self._reason = ""
        self._number = self._row = 0  # the last plain call, and how many there were in a row
        self._bypass_length = _IN_A_ROW
        self._last = 0.0  # seconds of the last plain call

    def run(self, plain: Plain, args: Any, options: Any, number: int) -> Any:
        """Run call number `number` as plain Python."""
        reason = plain.reason
        if not reason:
            self.reasons[_QUIET] = self.reasons.get(_QUIET, 0) + 1
        else:
            if self.fullgraph:
                raise OperationError(f"compile: {self._name} cannot be replayed without Python, because "
                                     f"{self.with_line(reason)}",
                                     fix="Leave out fullgraph=True to have it run as plain Python.")  # fmt: skip
            self._consider_bypass(self.tell(reason), number, plain.longest_bypass)
        began = perf_counter()
        try:
            return self._function(*args, **options)
        finally:
            self._last = perf_counter() - began
            self._budget.total += self._last

    def tell(self, reason: str) -> str:
        """Count a plain call, and warn if the reason is new."""
        if reason not in self.reasons:
            if len(self.reasons) >= _REASONS:
                reason = "there are more reasons than are remembered"
            else:
                told = f"compile: {self._name} runs as plain Python, because {self.with_line(reason)}"
                warnings.warn(told, stacklevel=outside_frames())
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        return reason

    def _consider_bypass(self, reason: str, number: int, longest: int) -> None:
        """After some plain calls in a row let the next ones bypass the function; twice as many each time."""
        if number != self._number + 1:
            self._row, self._bypass_length = 0, _IN_A_ROW
        self._row, self._number = self._row + 1, number
        if self._row >= _IN_A_ROW:
            self.bypass_calls = self._bypass_length = min(2 * self._bypass_length, longest)
            self._reason = reason

    def count(self, calls: int) -> None:
        """Count calls that bypassed the function."""
        self.reasons[self._reason] += calls
        self.bypassed += calls
        self._budget.total += calls * self._last

    def with_line(self, reason: str) -> str:
        """A reason with a line of the user's code; if it has none, the line where the function is defined."""
        function: Any = inspect.unwrap(self._function)
        code = getattr(getattr(function, "forward", function), "__code__", None)
        if code is None or re.search(r":\d+\)$", reason):
            return reason
        return f"{reason} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
