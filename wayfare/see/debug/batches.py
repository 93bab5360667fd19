"""What automatic batching did during a recording: each call with its example and line, and its group."""

from __future__ import annotations

from typing import Any

from wayfare.batch.record.call import Value
from wayfare.batch.stats import CallInfo, compare

# At most this many reasons are noted for one name, and in total: the first few groups are enough.
_PER_NAME, _REASONS = 8, 2000
_COUNTS = ("nodes", "groups", "rounds", "gathers", "copies_avoided")
_TIMES = ("seconds", "seconds_recording", "seconds_scheduling", "seconds_running")


class Batches:
    """Calls and groups, over all sessions that were seen."""

    def __init__(self) -> None:
        self.examples = 0
        # (example, name, group, shape, code, offset, depth, inputs)
        self.calls: list[tuple[Any, ...]] = []
        self.groups: list[dict[str, Any]] = []
        self.apart: list[tuple[int, int, str]] = []
        self.stats: dict[str, Any] = {}
        self.sessions = 0
        # The calls of the group that runs now.
        self.running: list[Any] | None = None
        self._numbers: dict[int, int] = {}
        self._signatures: dict[int, tuple[int, Any]] = {}
        # Name → signature id → the group of it that ran last: (its CallInfo, its first call).
        self._recent: dict[str, dict[int, tuple[CallInfo, int]]] = {}
        self._unused: list[int] = []

    def starts(self, calls: list[Any], entries: int) -> int:
        """A group of calls is about to run; returns its number."""
        self.running = calls
        signature = calls[0].signature
        group = len(self.groups)
        number = self._signatures.setdefault(id(signature), (len(self._signatures), signature))[0]
        row = signature.outs[0].shape if signature.outs else ()
        first = len(self.calls)
        for call in calls:
            example = -1 if call.example is None else call.example.number
            self.examples = max(self.examples, example + 1)
            inputs = [self._numbers.get(id(v.call), -1) for v in call.inputs if v.__class__ is Value]
            inputs = list(dict.fromkeys(i for i in inputs if i >= 0))
            depth = 1 + max((self.calls[i][6] for i in inputs), default=-1)
            # A call that failed comes again.
            self._numbers[id(call)] = len(self.calls)
            self.calls.append((example, signature.name, group, row, call.code, call.offset, depth, inputs))
        self.groups.append({
            "name": signature.name, "size": len(calls), "round": signature.session.stats.rounds,
            "rows": [len(calls), *row], "session": self.sessions, "kind": number, "nodes": [entries, entries],
        })  # fmt: skip
        self._note_reasons(signature, group, first)
        self._unused = list(range(len(calls[0].inputs)))
        return group

    def _note_reasons(self, signature: Any, group: int, first: int) -> None:
        """Why this group did not run together with the last ones of the same name."""
        here = CallInfo(signature, group, self.groups[group]["round"])
        others = self._recent.setdefault(signature.name, {})
        for there, call in list(others.values())[-_PER_NAME:]:
            if len(self.apart) < _REASONS and self.groups[there.group]["session"] == self.sessions:
                self.apart.append((call, first, compare(there, here)))
        others.pop(id(signature), None)
        others[id(signature)] = (here, first)

    def ended(self, entries: int) -> None:
        """The group has run."""
        self.groups[-1]["nodes"][1] = entries
        self.running = None

    def session_ended(self, session: Any) -> None:
        """All of a session has run."""
        self.sessions += 1
        for name in (*_COUNTS, *_TIMES):
            self.stats[name] = self.stats.get(name, 0) + getattr(session.stats, name)

    def line(self) -> tuple[Any, int]:
        """The user's line that recorded the first call of the group that runs now."""
        assert self.running is not None
        return self.running[0].code, self.running[0].offset

    def sources(self, t: Any) -> tuple[int, ...] | None:
        """The entries whose rows were brought together for the group that runs now; None for what all calls share."""
        calls = self.running or []
        if any(t is leaf for leaf in calls[0].signature.shared):
            return None
        shape = t._array.shape
        for position in self._unused:
            values = [c.inputs[position] for c in calls]
            row = values[0].row.shape if values[0].__class__ is Value else values[0]._array.shape
            if shape in ((len(calls), *row), tuple(row)):
                self._unused.remove(position)
                made = [self._made(v) for v in values if v.__class__ is Value]
                return tuple(dict.fromkeys(m for m in made if m >= 0))
        return None

    def _made(self, value: Any) -> int:
        """The entry of the array that a value is a row of."""
        number = self._numbers.get(id(value.call))
        if number is None:
            return -1
        first, last = self.groups[self.calls[number][2]]["nodes"]
        outs = len(value.call.signature.outs)
        # The results of a group are what it made last.
        made: int = last - outs + value.number
        return made if made >= first else last - 1

    def origin(self, node: Any, out: int) -> tuple[tuple[int, ...], int]:
        """The entry a result of an example is a row of, and the number of the example."""
        tape = node.kept
        if tape is None or not hasattr(tape[0], "seeds"):
            return (), -1
        value = tape[0].seeds[out]
        made = self._made(value)
        example = value.call.example
        return (() if made < 0 else (made,)), -1 if example is None else example.number

    def node_of(self, tensor: Any) -> int:
        """The entry of the array that a tensor of an example is a row of; -1 where it was not seen."""
        return self._made(tensor._handle)

    def let_go(self) -> None:
        """Release all calls and signatures."""
        self.running, self._numbers, self._signatures, self._recent = None, {}, {}, {}
