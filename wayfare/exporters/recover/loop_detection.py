"""Loop and branch detection in traces.

Where runs differ only in how often a sequence of events repeats, the sequence is the body of a loop: its repetitions
become one `LoopEvent`. Where runs differ after a read of a truth value and become equal again, the events in between
are the two sides of an `if`: they become one `BranchEvent`. Nothing is run here; events are compared by their keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from wayfare.exporters.trace import Event, OpEvent, ReadEvent, Trace
from wayfare.ir.graph import Step, Value

# At most this many pairs of runs are compared to find where two branches rejoin.
_PAIRS = 64


class LoopEvent(Event):
    """A loop: the events of each iteration, and (`entry`) the read that decided whether to begin.

    Its place and path are those of the first event of an iteration.
    """

    __slots__ = ("entry", "iterations", "width")

    def __init__(self, iterations: list[list[Any]], width: int, entry: ReadEvent | None, like: Event) -> None:
        super().__init__(like.place, like.path)
        self.iterations = iterations
        self.width = width
        self.entry = entry

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same loop of another run, however often it ran."""
        return ("loop", self.place, self.path, self.width)

    @property
    def inputs(self) -> list[Value]:
        """The values from outside that the first iteration uses."""
        taken = [*inputs_of(self.entry)] if self.entry is not None else []
        made = {id(v) for v in self.outputs}
        for event in self.iterations[0] if self.iterations else ():
            taken += [v for v in inputs_of(event) if id(v) not in made]
        return taken

    @property
    def outputs(self) -> list[Value]:
        """All values that its iterations make."""
        return [v for events in self.iterations for event in events for v in outputs_of(event)]


class PickEvent(OpEvent):
    """A `select` of the value of one iteration from the stacked values of all.

    Its index counts from the first iteration; a negative one is out of range, not counted from the end.
    """

    __slots__ = ()


class BranchEvent(Event):
    """An `if` whose branches rejoin: the read that decided, and the events of the branch that was taken."""

    __slots__ = ("events", "read")

    def __init__(self, read: ReadEvent, events: list[Any]) -> None:
        super().__init__(read.place, read.path)
        self.read = read
        self.events = events

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same `if` of another run, whichever branch it took."""
        return ("choice", self.read.key)

    @property
    def inputs(self) -> list[Value]:
        """The values from outside that the condition and the branch use."""
        made = {id(v) for v in self.outputs}
        return [v for event in (self.read, *self.events) for v in inputs_of(event) if id(v) not in made]

    @property
    def outputs(self) -> list[Value]:
        """All values that the branch makes."""
        return [v for event in self.events for v in outputs_of(event)]


def slots_of(event: Any) -> list[tuple[Any, Value]]:
    """The values an event uses, each with a name of its position that is the same in other iterations and runs."""
    if isinstance(event, OpEvent):
        return list(enumerate(event.step.inputs))
    if isinstance(event, ReadEvent):
        return [(0, event.value)]
    if isinstance(event, BranchEvent):
        inner = [((event.read.truth, n, name), v) for n, e in enumerate(event.events) for name, v in slots_of(e)]
        return [("read", event.read.value), *inner]
    return list(enumerate(event.inputs))


def inputs_of(event: Any) -> list[Value]:
    """The values an event uses."""
    return [value for _, value in slots_of(event)]


def outputs_of(event: Any) -> Sequence[Value]:
    """The values an event makes."""
    if isinstance(event, OpEvent):
        return event.step.outputs
    return () if isinstance(event, ReadEvent) else event.outputs


def rewired(event: Any, change: Callable[[Any, Value], Value]) -> Any:
    """The same event with other input values: `change(name of the position, value)`."""
    if isinstance(event, ReadEvent):
        return ReadEvent(change(0, event.value), event.how, event.array, event.place, event.path)
    if isinstance(event, OpEvent):
        step = Step(event.step.op, tuple(change(k, v) for k, v in enumerate(event.step.inputs)), event.step.attrs)
        step.outputs = event.step.outputs
        return type(event)(step, event.place, event.path)
    if isinstance(event, BranchEvent):
        truth = event.read.truth
        read = rewired(event.read, lambda _, v: change("read", v))
        way = [rewired(e, lambda name, v, n=n: change((truth, n, name), v)) for n, e in enumerate(event.events)]  # type: ignore[misc]
        return BranchEvent(read, way)
    if isinstance(event, LoopEvent):
        return _loop_with(event, {id(v): change(k, v) for k, v in enumerate(event.inputs)})
    return event


def _loop_with(loop: LoopEvent, others: dict[int, Value]) -> LoopEvent:
    def replaced(event: Any) -> Any:
        return rewired(event, lambda _, v: others.get(id(v), v))

    entry = None if loop.entry is None else replaced(loop.entry)
    return LoopEvent([[replaced(e) for e in events] for events in loop.iterations], loop.width, entry, loop)


def begins_otherwise(loops: Sequence[LoopEvent]) -> bool:
    """Does the first iteration use a value of another dtype or rank than the later ones (the 0 of `total = 0`)?"""
    for loop in loops:
        made = {id(v) for v in loop.outputs}
        for first, second in zip(*loop.iterations[:2], strict=True) if len(loop.iterations) > 1 else ():
            later = dict(slots_of(second))
            for name, value in slots_of(first):
                other = later.get(name)
                if other is not None and id(value) not in made and id(other) in made:
                    if (value.ndim, value.dtype) != (other.ndim, other.dtype):
                        return all(one.iterations and one.entry is None for one in loops)
    return False


def first_apart(loop: LoopEvent) -> list[Any]:
    """The first iteration peeled off: its events, then the loop of the others. A read at its end becomes the entry."""
    first, *others = loop.iterations
    asked = first[-1] if isinstance(first[-1], ReadEvent) else None
    before = first if asked is None else first[:-1]
    return [*before, LoopEvent(others, loop.width, asked, loop)]


def with_parts_moved(trace: Trace) -> Trace:
    """A trace in which parts of a tensor that one line takes in a row are moved to where each is first used."""
    events = trace.events
    waiting: dict[int, OpEvent] = {}
    kept: list[Any] = []

    def place_parts(values: Sequence[Value]) -> None:
        for v in values:
            part = waiting.pop(id(v), None)
            if part is not None:
                place_parts(part.step.inputs)
                kept.append(part)

    for number, event in enumerate(events):
        if _is_part(event) and any(
            0 <= n < len(events) and _is_part(events[n]) and events[n].key == event.key
            and events[n].step.inputs[0] is event.step.inputs[0] and events[n].step.attrs != event.step.attrs
            for n in (number - 1, number + 1)
        ):  # fmt: skip
            waiting[id(event.step.outputs[0])] = event
            continue
        if isinstance(event, (OpEvent, ReadEvent)):
            place_parts(inputs_of(event))
        else:
            for v in list(waiting.values()):  # a region may use any of them
                place_parts(v.step.outputs)
        kept.append(event)
    place_parts(trace.results)
    return Trace(trace.inputs, kept, trace.results)


def _is_part(event: Any) -> bool:
    return isinstance(event, OpEvent) and event.step.op is not None and event.step.op.moves == "part"


def first_difference(lists: Sequence[Sequence[Any]]) -> int | None:
    """The first position at which runs differ: another event, or the one after a read of another truth; else None."""
    for place in range(max(map(len, lists))):
        events = [events[place] if place < len(events) else None for events in lists]
        if len({None if e is None else e.key for e in events}) > 1:
            return place
        if isinstance(events[0], ReadEvent) and len({e.truth for e in events}) > 1:  # type: ignore[union-attr]
            return place + 1
    return None


def with_loops(lists: Sequence[list[Any]]) -> list[list[Any]]:
    """The runs with loops and branches as single events, until they are equal or nothing more is found."""
    made = [list(events) for events in lists]
    while True:
        place = first_difference(made)
        if place is None:
            return made
        # An `if` first: its condition comes again only in the next iteration of a loop around it, while the condition
        # of a `while` comes again before the branches rejoin.
        if not (_branch_at(made, place) or _loop_at(made, place, True) or _loop_at(made, place, False)):
            return made


def _loop_at(lists: list[list[Any]], place: int, ends_here: bool) -> bool:
    """Replace the loop that ends at `place` in the run with the fewest iterations; False if there is none.

    Without `ends_here`: the loop that has no iterations in that run; it must read a condition before each iteration.
    """
    keys = [[e.key for e in events] for events in lists]
    longest = max(len(k) for k in keys)
    for width in range(1, longest // 2 + 1):
        for mine in keys:
            begin = _beginning(mine, place, width, ends_here)
            if begin is None:
                continue
            body = mine[place : place + width]
            if len({_repeats(k, begin, body) for k in keys}) > 1:
                _replace(lists, begin, body)
                return True
    return False


def _beginning(keys: list[Any], place: int, width: int, ends_here: bool) -> int | None:
    """Where the loop begins whose body is the `width` events from `place` on; None if they do not repeat."""
    body = keys[place : place + width]
    if len(body) < width:
        return None
    if not ends_here:
        asks = place > 0 and keys[place - 1] == body[-1] and body[-1][0] == "read"
        return place if asks else None
    begin = place
    while begin >= width and keys[begin - width : begin] == body:
        begin -= width
    return begin if begin < place else None


def _repeats(keys: list[Any], begin: int, body: list[Any]) -> int:
    count, width = 0, len(body)
    while keys[begin + count * width : begin + (count + 1) * width] == body:
        count += 1
    return count


def _replace(lists: list[list[Any]], begin: int, body: list[Any]) -> None:
    """Put one event in place of the iterations; also where the same loop comes again (inside a loop around it)."""
    width = len(body)
    like = next(events[i : i + width] for events in lists for i in range(begin, len(events) - width + 1)
                if [e.key for e in events[i : i + width]] == body)  # fmt: skip
    asked = isinstance(like[-1], ReadEvent) and begin > 0 and all(
        isinstance(e[begin - 1], ReadEvent) and e[begin - 1].key == like[-1].key for e in lists
    )  # fmt: skip
    for events in lists:
        place, seen = begin, False
        while place <= len(events):
            count = _repeats([e.key for e in events], place, body)
            if count or not seen:
                seen = True
                iterations = [events[place + i * width : place + (i + 1) * width] for i in range(count)]
                last = _not_asked_after(events, place + count * width, iterations)
                count += last is not None
                iterations += [] if last is None else [last]
                taken = sum(map(len, iterations)) - (0 if last is None else _asking(like))
                before = asked and place > 0 and events[place - 1].key == like[-1].key
                entry = events[place - 1] if before else None
                first = place - 1 if before else place
                events[first : place + taken] = [LoopEvent(iterations, width, entry, like[0])]
                place = first
            place += 1


def _asking(body: Sequence[Any]) -> int:
    """How many events at the end of an iteration compute its condition: those on the line of the read."""
    own = itertools.takewhile(lambda e: e.site == body[-1].site, reversed(body))
    return len(list(own)) if isinstance(body[-1], ReadEvent) else 0


def _not_asked_after(events: list[Any], at: int, iterations: list[list[Any]]) -> list[Any] | None:
    """The last iteration of `while n < 9 and not done():` when `n < 9` ended it, so that `done()` was not read.

    It is completed with the read that would have come. None if there is no such iteration.
    """
    asking = _asking(iterations[-1]) if iterations else 0
    # Only if the last read said "go on": then the events that follow can be one more iteration.
    if not asking or asking == len(iterations[-1]) or iterations[-1][-1].truth is not iterations[0][-1].truth:
        return None
    model = iterations[-1]
    part = events[at : at + len(model) - asking]
    if [e.key for e in part] != [e.key for e in model[:-asking]]:
        return None
    now = {id(v): w for e, other in zip(model, part, strict=False)
           for v, w in zip(outputs_of(e), outputs_of(other), strict=True)}  # fmt: skip
    inside = {id(v) for one in iterations for e in one for v in outputs_of(e)}
    for event in model[-asking:]:
        if not isinstance(event, (OpEvent, ReadEvent)):
            return None
        if any(id(v) in inside and id(v) not in now for v in inputs_of(event)):
            return None
        made = rewired(event, lambda _, v: now.get(id(v), v))
        if isinstance(made, OpEvent):
            made.step.outputs = tuple(Value(made.step, v.position, v.shape, v.dtype) for v in outputs_of(event))
            now.update({id(v): w for v, w in zip(outputs_of(event), made.step.outputs, strict=True)})
        part = [*part, made]
    return part


def _branch_at(lists: list[list[Any]], place: int) -> bool:
    """Put one event in place of the read before `place` and the branch after it, wherever that read comes.

    False if the two branches do not rejoin.
    """
    reads = [events[place - 1] if 0 < place <= len(events) else None for events in lists]
    if not all(isinstance(read, ReadEvent) and read.truth is not None for read in reads):
        return False
    ways = {truth: [events[place:] for events, read in zip(lists, reads, strict=True)
                    if read is not None and read.truth is truth] for truth in (True, False)}  # fmt: skip
    # Two runs may also differ later for another reason (a longer loop), so several pairs are tried.
    found: tuple[list[Any], list[Any]] | None = None
    for yes, no in itertools.islice(itertools.product(ways[True], ways[False]), _PAIRS):
        limit = len(yes) + len(no) if found is None else len(found[0]) + len(found[1]) - 1
        lengths = _until_together(yes, no, limit)
        if lengths is not None:
            found = (yes[: lengths[0]], no[: lengths[1]])
    assert reads[0] is not None
    asked = reads[0].key
    if found is None or any(event.key == asked for way in found for event in way):
        return False
    keys = {truth: [e.key for e in way] for truth, way in zip((True, False), found, strict=True)}
    for truth, taken in zip((True, False), found, strict=True):
        # A branch that differs between runs has not rejoined yet.
        if any(first_difference([way[: len(taken)], taken]) is not None for way in ways[truth]):
            return False
    for events in lists:
        at = 0
        while at < len(events):
            event = events[at]
            if event.key == asked:
                way = events[at + 1 : at + 1 + len(keys[event.truth])]
                if [e.key for e in way] == keys[event.truth]:
                    events[at : at + 1 + len(way)] = [BranchEvent(event, way)]
            at += 1
    return True


def _until_together(yes: list[Any], no: list[Any], limit: int) -> tuple[int, int] | None:
    """The fewest events of each branch after which both continue equally: to the end, or to the next read."""
    for total in range(limit + 1):
        for of_yes in range(max(0, total - len(no)), min(total, len(yes)) + 1):
            rest, other = yes[of_yes:], no[total - of_yes :]
            if bool(rest) != bool(other) or (rest and rest[0].key != other[0].key):
                continue
            apart = first_difference([rest, other])
            if apart is None or (apart > 0 and isinstance(rest[apart - 1], ReadEvent)):
                return of_yes, total - of_yes
    return None
