"""The module timeline: which modules and examples were running when a node was made.

It serves errors about gradients, which come long after the forward op ran. Time is counted in node numbers, so ops need
no bookkeeping. Only a bounded number of calls is remembered.
"""

from __future__ import annotations

import math
import weakref
from bisect import bisect_left, bisect_right
from collections import deque
from typing import Any

from wayfare.core.mode import STATE
from wayfare.core.write_clock import tick

_REMEMBERED = 100_000


class _Call:
    """A call of a module: when it began and ended, and the call around it."""

    __slots__ = ("around", "began", "ended", "module")

    def __init__(self, module: Any, around: _Call | None) -> None:
        self.module = weakref.ref(module)
        self.around = around
        self.began = tick()
        self.ended: float = math.inf


class ModuleTimeline:
    """Calls of modules and turns of examples, entered by a watcher as they happen."""

    def __init__(self) -> None:
        self._calls: deque[_Call] = deque(maxlen=_REMEMBERED)
        self._running: _Call | None = None
        self._examples: deque[tuple[int, list[int] | None]] = deque(maxlen=_REMEMBERED)
        # The example whose ops ran last.
        self.example: Any = None

    def entered(self, module: Any) -> None:
        """A call of a module begins."""
        self._running = _Call(module, self._running)
        self._calls.append(self._running)

    def left(self) -> None:
        """The call that began last has ended."""
        if self._running is not None:
            self._running.ended = tick()
            self._running = self._running.around

    def ran(self, outputs: tuple[Any, ...]) -> None:
        """An op has run: note if another example has its turn now."""
        if STATE.example is not self.example:
            self.example = STATE.example
            # The node of the op, if it has one, is older than now and belongs to this example already.
            node = next((out.grad_fn for out in outputs if out.grad_fn is not None), None)
            self._examples.append((tick() if node is None else node.number, example_now()))

    def modules_at(self, number: int) -> list[Any]:
        """The modules that were running when a node was made, the outermost first, as far as they still exist."""
        place = bisect_left(self._calls, number, key=lambda call: call.began)
        call = self._calls[place - 1] if place else None
        # The last call that had begun is the innermost; if it had ended before, a call around it is.
        while call is not None and call.ended < number:
            call = call.around
        return _around(call)

    def modules_now(self) -> list[Any]:
        """The modules that are running, the outermost first."""
        return _around(self._running)

    def example_at(self, number: int) -> list[int] | None:
        """The number of the example in which a node was made, after those of the examples around it."""
        place = bisect_right(self._examples, number, key=lambda entry: entry[0])
        return self._examples[place - 1][1] if place else None


def _around(call: _Call | None) -> list[Any]:
    modules = []
    while call is not None:
        module = call.module()
        if module is not None:
            modules.append(module)
        call = call.around
    return modules[::-1]


def example_now() -> list[int] | None:
    """The number of the example that is running, after those of the examples around it; None outside of `wf.map`."""
    return None if STATE.example is None else STATE.example.path


def example_text(path: list[int] | None) -> str:
    """`example 17 of wf.map`; empty for None."""
    return "" if path is None else " of ".join(f"example {n}" for n in reversed(path)) + " of wf.map"
