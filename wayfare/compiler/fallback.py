"""Calls of a compiled function that run as plain Python: why, how many, and one warning for each reason."""

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

# Reasons that are remembered.
_REASONS = 32
# Why calls run as plain Python without a word.
_QUIET = "recording them did not seem worth it so far"
# Plain calls in a row after which Python is left alone for a while, and for how many calls at the most.
_IN_A_ROW, _LONGEST = 8, 4096


class Plain:
    """The answer that a call is to run as plain Python. Without a reason it is nobody's fault, and nothing is said."""

    __slots__ = ("reason", "rests")

    def __init__(self, reason: str, rests: int = _LONGEST) -> None:
        self.reason = reason
        self.rests = rests  # for how many calls Python may be left alone at the most


class Python:
    """The plain calls of one function."""

    def __init__(self, function: Callable[..., Any], name: str, fullgraph: bool, budget: Budget) -> None:
        self._function, self._name, self._budget = function, name, budget
        self.fullgraph = fullgraph
        self.reasons: dict[str, int] = {}  # why calls ran as plain Python, and how many did
        self.nap = 0  # for how many calls the function is to be left alone now
        self.slept = 0  # calls that went straight to the function
        self._reason = ""
        self._number = self._row = 0  # the last plain call, and how many there were in a row
        self._nap = _IN_A_ROW
        self._last = 0.0  # seconds of the last plain call

    def run(self, plain: Plain, args: Any, options: Any, number: int) -> Any:
        """Run a call, the so-many-th, as plain Python."""
        reason = plain.reason
        if not reason:
            self.reasons[_QUIET] = self.reasons.get(_QUIET, 0) + 1
        else:
            if self.fullgraph:
                raise OperationError(f"compile: {self._name} cannot be replayed without Python, because "
                                     f"{self.with_line(reason)}",
                                     fix="Leave out fullgraph=True to have it run as plain Python.")  # fmt: skip
            self._rest(self.tell(reason), number, plain.rests)
        began = perf_counter()
        try:
            return self._function(*args, **options)
        finally:
            self._last = perf_counter() - began
            self._budget.total += self._last

    def tell(self, reason: str) -> str:
        """Count a plain call, and warn where the reason is new."""
        if reason not in self.reasons:
            if len(self.reasons) >= _REASONS:
                reason = "there are more reasons than are remembered"
            else:
                told = f"compile: {self._name} runs as plain Python, because {self.with_line(reason)}"
                warnings.warn(told, stacklevel=outside_frames())
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        return reason

    def _rest(self, reason: str, number: int, longest: int) -> None:
        """After some plain calls in a row the next ones go straight to the function, ever more of them."""
        if number != self._number + 1:
            self._row, self._nap = 0, _IN_A_ROW
        self._row, self._number = self._row + 1, number
        if self._row >= _IN_A_ROW:
            self.nap = self._nap = min(2 * self._nap, longest)
            self._reason = reason

    def count(self, calls: int) -> None:
        """So many calls went straight to the function."""
        self.reasons[self._reason] += calls
        self.slept += calls
        self._budget.total += calls * self._last

    def with_line(self, reason: str) -> str:
        """A reason with a line of the user's: where no line is known, the one where the function is defined."""
        function: Any = inspect.unwrap(self._function)
        code = getattr(getattr(function, "forward", function), "__code__", None)
        if code is None or re.search(r":\d+\)$", reason):
            return reason
        return f"{reason} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
