"""Calls whose Python runs every time: followed along what was recorded of earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.compiled.entry import Entry
from wayfare.compiled.events import Event
from wayfare.compiled.follow import Follower, sharing_of
from wayfare.compiled.recorder import GiveUp
from wayfare.compiled.recording import Recording
from wayfare.compiled.tree import Unsteady
from wayfare.compiled.watch import Watcher
from wayfare.state import changed_mode

# Kinds of calls that are remembered, and paths of one kind.
_KINDS, _PATHS = 256, 64
# Recordings after which more calls must have been followed than recorded.
_FEW = 12


class Dynamic:
    """The followed calls of one function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[Any, Entry] = {}
        self.followed = self.recorded = 0

    def call(self, key: Any, function: Callable[[], Any], reason: str) -> Any:
        """Run Python along known paths, or record where it does something new."""
        entry = self.entries.get(key)
        if entry is None:
            while len(self.entries) >= _KINDS:
                self.entries.pop(next(iter(self.entries)))
            entry = self.entries[key] = Entry(self.name, None, ())
            entry.rerun_reason = reason
        follower = Follower(entry) if entry.tree.roots else None
        watcher = Watcher(entry.graph) if follower is None else None
        try:
            with changed_mode(executor=follower or watcher):
                result = function()
        except BaseException:
            if follower is not None:
                follower.happen()  # what Python did before it failed has happened
            raise
        if follower is not None:
            if follower.finish():
                self.followed += 1
                return result
            watcher = follower.watcher
        assert watcher is not None
        self._take(entry, watcher)
        return result

    def _take(self, entry: Entry, watcher: Watcher) -> None:
        """Keep a recording."""
        self.recorded += 1
        try:
            with changed_mode(executor=watcher):
                if watcher.failed:
                    raise GiveUp(watcher.failed)
                recording = Recording(watcher, watcher.held())
                recording.sharing = sharing_of(watcher.given)
                if entry.recordings >= _PATHS or (entry.recordings >= _FEW and entry.hits < entry.recordings):
                    raise GiveUp("it does something else at nearly every call")
                entry.add(recording, (), _by_stretch(watcher.events))
        except (GiveUp, Unsteady) as reason:
            entry.eager_reason = str(reason)


def _by_stretch(events: list[Event]) -> list[list[Event]]:
    """The events up to each look at a value, and those after the last."""
    parts: list[list[Event]] = [[]]
    for event in events:
        parts[-1].append(event)
        if event.kind == "read":
            parts.append([])
    return parts
