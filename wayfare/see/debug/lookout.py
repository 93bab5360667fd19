"""The watcher behind `break_on` and `watch`: after each op it checks the conditions, and stops or prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.core.callsite import user_frame
from wayfare.core.mode import Watcher, current, set_mode, watcher
from wayfare.core.module_timeline import ModuleTimeline
from wayfare.see.debug.conditions import Conditions
from wayfare.see.debug.here import Here, backward_here, forward_here
from wayfare.see.debug.watching import together, without


class Lookout(Watcher):
    """Active from its creation until `remove()` or the end of its `with` block, in the thread that made it.

    While it is, compiled functions run as plain Python and the examples of `wf.map` one after the other, so that
    everything happens on its own line.
    """

    allows_plans = False
    allows_batches = False

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._timeline = ModuleTimeline()
        # How often the conditions held.
        self.hits = 0
        self._removed = False
        set_mode(current().replace(watcher=together(self, watcher())))

    def remove(self) -> None:
        """Stop watching; calling it twice is harmless."""
        set_mode(current().replace(watcher=without(self, watcher())))
        # It may have been set outside of a block that is running now, and come back when that ends: see `ran`.
        self._removed = True
        self.allows_plans = self.allows_batches = True

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def ran(self, op: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], attrs: dict[str, Any]) -> None:
        """An op has run on tensors."""
        self._timeline.ran(outputs)
        if self._removed:
            self.remove()
        elif self._conditions.forward:
            self._consider(forward_here(op, inputs, outputs, attrs, user_frame(), self._timeline))

    def stepped(self, node: Any, given: Any, made: Sequence[Any]) -> None:
        """The gradient rule of a node has run."""
        if self._conditions.backward and not self._removed:
            self._consider(backward_here(node, given, made, user_frame(), self._timeline))

    def entered(self, module: Any) -> None:
        """A call of a module begins."""
        self._timeline.entered(module)

    def left(self, module: Any) -> None:
        """A call of a module has ended."""
        self._timeline.left()

    def _consider(self, here: Here) -> None:
        if self._conditions.hold(here):
            self.hits += 1
            self.found(here)
            if self._removed:  # at the prompt, where it was not in force
                self.remove()

    def found(self, here: Here) -> None:
        """The conditions hold."""
        raise NotImplementedError
