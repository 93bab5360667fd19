"""Several watchers in force at once; one of them is added or removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.core.mode import Watcher, current, set_mode


class Several(Watcher):
    """Several watchers as one. Each is told everything, in the order in which they came."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self.watchers = tuple(watchers)
        self.allows_plans = all(w.allows_plans for w in self.watchers)
        self.allows_batches = all(w.allows_batches for w in self.watchers)

    def starts(self, what: Any) -> None:
        """Something begins."""
        for watcher in self.watchers:
            watcher.starts(what)

    def ended(self, what: Any) -> None:
        """It has ended."""
        for watcher in reversed(self.watchers):
            watcher.ended(what)

    def ran(self, op: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], attrs: dict[str, Any]) -> None:
        """An op has run on tensors."""
        for watcher in self.watchers:
            watcher.ran(op, inputs, outputs, attrs)

    def stepped(self, node: Any, given: Any, made: Sequence[Any]) -> None:
        """The gradient rule of a node has run."""
        for watcher in self.watchers:
            watcher.stepped(node, given, made)

    def looked(self, tensor: Any, how: str, array: Any) -> None:
        """Python looked at a value."""
        for watcher in self.watchers:
            watcher.looked(tensor, how, array)

    def entered(self, module: Any) -> None:
        """A call of a module begins."""
        for watcher in self.watchers:
            watcher.entered(module)

    def left(self, module: Any) -> None:
        """A call of a module has ended."""
        for watcher in reversed(self.watchers):
            watcher.left(module)


def together(watcher: Watcher, present: Watcher | None) -> Watcher:
    """A watcher beside the one that is there, if there is one."""
    if present is None:
        return watcher
    others = present.watchers if isinstance(present, Several) else (present,)
    return Several((*others, watcher))


def without(watcher: Watcher, present: Watcher | None) -> Watcher | None:
    """The watchers that are there, without one."""
    if not isinstance(present, Several):
        return None if present is watcher else present
    others = list(present.watchers)
    for at in reversed(range(len(others))):
        if others[at] is watcher:
            del others[at]
            break
    return others[0] if len(others) == 1 else Several(others)


class looking_on:
    """`with looking_on(watcher):` — the watcher is in force in this thread, beside those that are already."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def __enter__(self) -> None:
        set_mode(current().replace(watcher=together(self._watcher, current().watcher)))

    def __exit__(self, *error: object) -> None:
        # Only this one goes: in a notebook, blocks may be left in another order than they were entered.
        set_mode(current().replace(watcher=without(self._watcher, current().watcher)))
