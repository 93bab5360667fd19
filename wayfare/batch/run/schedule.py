"""Schedules: which pending calls run together, and in which order.

The calls of a group have one signature and do not read each other. The fewer the groups, the larger the batches. A
ragged signature counts as one here (`call_loops.kind_of`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from wayfare.batch.record.call import Call, Value
from wayfare.batch.run.call_loops import by_depth, kind_of, one_after_another, reads_of

# This many histories may always be computed, however few the calls are.
_FREE_WORK = 1024
# Joining this many fields of a history costs little more than joining one.
_FIELDS_AT_ONCE = 32
# A sample of one call in this many is tried first.
_SAMPLE = 8
# Merging more bundles than this would take longer than it saves.
_MOST_BUNDLES = 4096


class Schedule(ABC):
    """Divides pending calls into groups that run one after another."""

    @abstractmethod
    def order(self, calls: Sequence[Call]) -> list[list[Call]]:
        """The groups in order, each of one signature; every call is in a later group than the calls it reads.

        `calls` are in the order in which they were recorded. What a call reads is among them or has run already.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ByDepth(Schedule):
    """Calls of one signature and one depth (the longest chain of pending calls before them) run together."""

    def order(self, calls: Sequence[Call]) -> list[list[Call]]:
        """The groups by ascending depth; within one depth in the order in which the signatures first appear."""
        return by_depth(calls)


class Agenda(Schedule):
    """A signature runs only when waiting longer would not make its group larger.

    A signature is complete when each of its pending calls is ready or comes after another pending call of the same
    signature. As long as some signature is complete, running it is optimal: no order has fewer groups. If none is, the
    signature runs whose pending calls have the least depth on average.
    """

    def order(self, calls: Sequence[Call]) -> list[list[Call]]:
        """The groups in order; never more of them than `ByDepth` makes."""
        # A method that fails for the first calls alone fails for all of them, so try it on a sample first.
        first = calls[: len(calls) // _SAMPLE]
        groups = one_after_another(calls) if not first or one_after_another(first) else []
        if groups:
            return groups
        if sum(map(len, _Layers(first).run())) == len(first):
            groups = _Layers(calls).run()
            if sum(map(len, groups)) == len(calls):
                return groups
        # Signatures wait for each other in different examples: go on with bundles of calls of one depth.
        rest = by_depth(calls)
        if groups:
            for group in groups:
                for call in group:
                    call.depth = 0
            rest = [left for group in rest if (left := [call for call in group if call.depth])]
        return groups + (_run_agenda(rest) if len(rest) <= _MOST_BUNDLES else rest)


class _Layer:
    """The calls of one signature that have equally many calls of it before them, on the longest path."""

    __slots__ = ("calls", "needs")

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.needs = 0  # joined history of its calls: for each signature, how many of its layers must have run


class _History:
    """What comes before a call: for each signature, the most calls of it on any path that leads to the call.

    `fields` is one integer with a bit field for each signature, so that all are compared at once; the top bit of each
    field stays free for that. Histories are interned, so they are compared by identity.
    """

    __slots__ = ("fields", "joined", "steps")

    def __init__(self, fields: int) -> None:
        self.fields = fields
        # Caches: the join with another history; and for one more call of a signature, (the history after it, the list
        # that collects such calls).
        self.joined: dict[_History, _History] = {}
        self.steps: dict[int, tuple[_History, list[Call]]] = {}


class _Layers:
    """Calls by signature and layer. If all calls of a layer are ready, no later call could join them.

    `Call.depth` holds the history of a call, including the call itself.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self.width = len(calls).bit_length() + 1
        self.tops = 0  # the top bit of every field
        self.shifts: dict[int, int] = {}  # where the field of a signature begins
        self.layers: list[list[_Layer]] = []
        self.histories: dict[int, _History] = {}
        # A budget: where almost every call has a history of its own, computing them costs more than it saves.
        self.work_left = len(calls) // 2 + _FREE_WORK
        self._sort(calls)
        for history in self.histories.values():
            # Break reference cycles: the garbage collector runs seldom while a session is open.
            history.joined.clear()
            history.steps.clear()

    def _sort(self, calls: Sequence[Call]) -> None:
        nothing = self._history(0)
        for call in calls:
            before = nothing
            for v in call.inputs:
                if v.__class__ is Value:
                    producer = v.call
                    if producer.group is None:
                        history: Any = producer.depth
                        if history is not before:
                            if before is nothing:
                                before = history
                            else:
                                both = before.joined.get(history)
                                if both is None:
                                    both = self._history(self._join(before.fields, history.fields))
                                    before.joined[history] = both
                                before = both
            signature = id(getattr(call.signature, "ragged", None) or call.signature)  # `kind_of`, written out
            step = before.steps.get(signature)
            if step is None:
                step = before.steps[signature] = self._step(signature, before.fields)
                if self.work_left < 0:
                    self.layers.clear()
                    return
            call.depth, members = step
            members.append(call)

    def _history(self, fields: int) -> _History:
        """The interned history of these fields."""
        found = self.histories.get(fields)
        if found is None:
            found = self.histories[fields] = _History(fields)
        return found

    def _join(self, one: int, other: int) -> int:
        """The fields of two histories joined: the greater number in each field."""
        self.work_left -= 1 + len(self.layers) // _FIELDS_AT_ONCE
        # A top bit survives the subtraction where `one` is not less; from there it spreads over its field.
        kept = ((one | self.tops) - other) & self.tops
        kept -= kept >> (self.width - 1)
        return (one & kept) | (other & ~kept)

    def _step(self, signature: int, before: int) -> tuple[_History, list[Call]]:
        """The history with one more call of a signature, and the call list of the layer of that call."""
        shift = self.shifts.get(signature)
        if shift is None:
            shift = self.shifts[signature] = len(self.layers) * self.width
            self.tops |= 1 << (shift + self.width - 1)
            self.layers.append([])
        layers = self.layers[shift // self.width]
        number = (before >> shift) & ((1 << self.width) - 1)
        if number == len(layers):
            layers.append(_Layer())
        layer = layers[number]
        layer.needs = self._join(layer.needs, before)
        return self._history(before + (1 << shift)), layer.calls

    def run(self) -> list[list[Call]]:
        """The layers that can run as one group each, in a valid order."""
        groups: list[list[Call]] = []
        done = 0
        unrun = [iter(layers) for layers in self.layers]
        following = [next(layers) for layers in unrun]
        # For each signature: the signatures whose next layer waits for more layers of it.
        waiting: list[list[int]] = [[] for _ in unrun]
        to_check = deque(range(len(unrun)))
        while to_check:
            number = to_check.popleft()
            layer = following[number]
            lacking = self.tops & ~((done | self.tops) - layer.needs)
            if lacking:
                waiting[(lacking.bit_length() - 1) // self.width].append(number)
                continue
            groups.append(layer.calls)
            done += 1 << (number * self.width)
            to_check.extend(waiting[number])
            waiting[number].clear()
            after = next(unrun[number], None)
            if after is not None:
                following[number] = after
                to_check.append(number)
        return groups


class _Bundle:
    """Calls of one signature and one depth, which run together."""

    __slots__ = ("above", "calls", "depth", "missing", "number", "readers", "state", "waiting")

    def __init__(self, number: int, calls: list[Call], state: _SignatureState) -> None:
        self.number = number
        self.calls = calls
        self.state = state
        self.depth = calls[0].depth
        self.readers: list[_Bundle] = []
        self.missing = 0  # how many of the bundles it reads have not run
        self.above = 0  # bit set of the bundles that must run before it, directly or not
        self.waiting: list[_Bundle] = []  # bundles of its signature that are checked again when it has run


class _SignatureState:
    """The state of the bundles of one signature."""

    __slots__ = ("depths", "first", "frontier", "pending", "ready", "size", "turn")

    def __init__(self, first: int) -> None:
        self.first = first  # its number among the signatures, to break ties
        self.pending = 0  # bit set of the bundles that have not run
        self.frontier = 0  # number of pending bundles with no pending bundle of the same signature before them
        self.ready: list[_Bundle] = []
        self.size = 0  # number of pending calls; and below, the sum of their depths
        self.depths = 0
        self.turn = 0  # how often it has run; older heap entries are stale


def _run_agenda(groups: list[list[Call]]) -> list[list[Call]]:
    """Merge groups: always a complete signature if there is one, else the one with the least average depth."""
    bundles = _bundles(groups)
    complete: list[tuple[float, int, int, _SignatureState]] = []
    partial: list[tuple[float, int, int, _SignatureState]] = []

    def note(states: Iterable[_SignatureState]) -> None:
        for state in states:
            if state.ready:
                agenda = complete if len(state.ready) == state.frontier else partial
                heappush(agenda, (state.depths / state.size, state.first, state.turn, state))

    note(dict.fromkeys(bundle.state for bundle in bundles))
    merged = []
    while complete or partial:
        _, _, turn, state = heappop(complete or partial)
        if turn != state.turn:
            continue
        running, state.ready = state.ready, []
        state.turn += 1
        merged.append([call for bundle in running for call in bundle.calls])
        for bundle in running:
            state.pending ^= 1 << bundle.number
            state.size -= len(bundle.calls)
            state.depths -= len(bundle.calls) * bundle.depth
        state.frontier -= len(running)
        changed = {state: None}
        for bundle in running:
            for other in bundle.waiting:
                _add_to_frontier(other, bundles)
            for reader in bundle.readers:
                reader.missing -= 1
                if not reader.missing:
                    reader.state.ready.append(reader)
                    changed[reader.state] = None
        note(changed)
    return merged


def _bundles(groups: list[list[Call]]) -> list[_Bundle]:
    """A bundle for each group, with its readers and what comes before it; calls of no bundle have depth 0."""
    bundles: list[_Bundle] = []
    states: dict[int, _SignatureState] = {}
    for number, calls in enumerate(groups):
        signature = id(kind_of(calls[0]))
        state = states.get(signature)
        if state is None:
            state = states[signature] = _SignatureState(len(states))
        bundle = _Bundle(number, calls, state)
        bundles.append(bundle)
        for source in reads_of(calls, number + 1):
            read = bundles[source - 1]
            read.readers.append(bundle)
            bundle.missing += 1
            bundle.above |= read.above | 1 << read.number
        _add_to_frontier(bundle, bundles)
        state.pending |= 1 << number
        state.size += len(calls)
        state.depths += len(calls) * bundle.depth
        if not bundle.missing:
            state.ready.append(bundle)
    return bundles


def _add_to_frontier(bundle: _Bundle, bundles: list[_Bundle]) -> None:
    """Count a bundle to the frontier of its signature, or let it wait for the last bundle of it that comes before."""
    before = bundle.above & bundle.state.pending
    if before:
        bundles[before.bit_length() - 1].waiting.append(bundle)
    else:
        bundle.state.frontier += 1
