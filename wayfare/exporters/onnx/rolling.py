"""Loops found in traces: where runs differ only in how often a stretch repeats, the stretch is a loop body.

Nothing is run here. A trace is a list of events; the stretch becomes one `Rolled` event that keeps its iterations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from wayfare.exporters.onnx.trace import Event, Happening, Look, Trace
from wayfare.ir.graph import Step, Value

# Views of one tensor that Python takes one after the other (`for x in xs`): each is moved to where it is used.
# So many pairs of runs are compared to find where two ways come together.
_PAIRS = 64


class Rolled(Happening):
    """A stretch of events that repeats: its iterations, and the question that was asked before the first.

    It is where an iteration begins.
    """

    __slots__ = ("entry", "iterations", "width")

    def __init__(self, iterations: list[list[Any]], width: int, entry: Look | None, like: Happening) -> None:
        super().__init__(like.place, like.path)
        self.iterations = iterations
        self.width = width
        self.entry = entry

    @property
    def key(self) -> tuple[Any, ...]:
        """What the same loop of another run has in common with it."""
        return ("loop", self.place, self.path, self.width)

    @property
    def inputs(self) -> list[Value]:
        """What the first iteration takes from outside, and so do all others but for what is carried."""
        taken = [*inputs_of(self.entry)] if self.entry is not None else []
        made = {id(v) for v in self.outputs}
        for event in self.iterations[0] if self.iterations else ():
            taken += [v for v in inputs_of(event) if id(v) not in made]
        return taken

    @property
    def outputs(self) -> list[Value]:
        """All that is made in it."""
        return [v for events in self.iterations for event in events for v in outputs_of(event)]


class Picked(Event):
    """A step that takes the value of one iteration out of those of all: its index counts from the first one.

    Below 0 there is none, and it must not be taken for counting from the end.
    """

    __slots__ = ()


class Choice(Happening):
    """A decision and the events of the way that was taken; the ways come together after it."""

    __slots__ = ("events", "look")

    def __init__(self, look: Look, events: list[Any]) -> None:
        super().__init__(look.place, look.path)
        self.look = look
        self.events = events

    @property
    def key(self) -> tuple[Any, ...]:
        """What the same decision of another run has in common with it, whichever way it took."""
        return ("choice", self.look.key)

    @property
    def inputs(self) -> list[Value]:
        """What the decision and the way take from outside."""
        made = {id(v) for v in self.outputs}
        return [v for event in (self.look, *self.events) for v in inputs_of(event) if id(v) not in made]

    @property
    def outputs(self) -> list[Value]:
        """All that is made on the way."""
        return [v for event in self.events for v in outputs_of(event)]


def slots_of(event: Any) -> list[tuple[Any, Value]]:
    """The values an event takes, each with a name for its place that is the same in other iterations and runs."""
    if isinstance(event, Event):
        return list(enumerate(event.step.inputs))
    if isinstance(event, Look):
        return [(0, event.value)]
    if isinstance(event, Choice):
        inner = [((event.look.truth, n, name), v) for n, e in enumerate(event.events) for name, v in slots_of(e)]
        return [("look", event.look.value), *inner]
    return list(enumerate(event.inputs))


def inputs_of(event: Any) -> list[Value]:
    """The values an event takes."""
    return [value for _, value in slots_of(event)]


def outputs_of(event: Any) -> Sequence[Value]:
    """The values an event makes."""
    if isinstance(event, Event):
        return event.step.outputs
    return () if isinstance(event, Look) else event.outputs


def rewired(event: Any, change: Callable[[Any, Value], Value]) -> Any:
    """The same event with other values: `change(name of the place, value)`."""
    if isinstance(event, Look):
        return Look(change(0, event.value), event.how, event.array, event.place, event.path)
    if isinstance(event, Event):
        step = Step(event.step.op, tuple(change(k, v) for k, v in enumerate(event.step.inputs)), event.step.attrs)
        step.outputs = event.step.outputs
        return type(event)(step, event.place, event.path)
    if isinstance(event, Choice):
        truth = event.look.truth
        look = rewired(event.look, lambda _, v: change("look", v))
        way = [rewired(e, lambda name, v, n=n: change((truth, n, name), v)) for n, e in enumerate(event.events)]  # type: ignore[misc]
        return Choice(look, way)
    if isinstance(event, Rolled):
        return _rolled_with(event, {id(v): change(k, v) for k, v in enumerate(event.inputs)})
    return event


def _rolled_with(loop: Rolled, others: dict[int, Value]) -> Rolled:
    def replaced(event: Any) -> Any:
        return rewired(event, lambda _, v: others.get(id(v), v))

    entry = None if loop.entry is None else replaced(loop.entry)
    return Rolled([[replaced(e) for e in events] for events in loop.iterations], loop.width, entry, loop)


def begins_otherwise(loops: Sequence[Rolled]) -> bool:
    """Does the first iteration take something of another dtype or rank than the others (0, of `total = 0`)?"""
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


def first_apart(loop: Rolled) -> list[Any]:
    """The events of a loop with its first iteration taken out of it. A question at its end says whether to go on."""
    first, *others = loop.iterations
    asked = first[-1] if isinstance(first[-1], Look) else None
    before = first if asked is None else first[:-1]
    return [*before, Rolled(others, loop.width, asked, loop)]


def with_parts_moved(trace: Trace) -> Trace:
    """Different parts of a tensor, taken one after the other at one line, moved to where each is first used."""
    events = trace.events
    waiting: dict[int, Event] = {}
    kept: list[Any] = []

    def settle(values: Sequence[Value]) -> None:
        for v in values:
            part = waiting.pop(id(v), None)
            if part is not None:
                settle(part.step.inputs)
                kept.append(part)

    for number, event in enumerate(events):
        if _is_part(event) and any(
            0 <= n < len(events) and _is_part(events[n]) and events[n].key == event.key
            and events[n].step.inputs[0] is event.step.inputs[0] and events[n].step.attrs != event.step.attrs
            for n in (number - 1, number + 1)
        ):  # fmt: skip
            waiting[id(event.step.outputs[0])] = event
            continue
        if isinstance(event, (Event, Look)):
            settle(inputs_of(event))
        else:
            for v in list(waiting.values()):  # A region may use anything.
                settle(v.step.outputs)
        kept.append(event)
    settle(trace.results)
    return Trace(trace.inputs, kept, trace.results)


def _is_part(event: Any) -> bool:
    return isinstance(event, Event) and event.step.op is not None and event.step.op.moves == "part"


def first_difference(lists: Sequence[Sequence[Any]]) -> int | None:
    """Where the runs part: at another event, or after a question that was answered differently; None if nowhere."""
    for place in range(max(map(len, lists))):
        events = [events[place] if place < len(events) else None for events in lists]
        if len({None if e is None else e.key for e in events}) > 1:
            return place
        if isinstance(events[0], Look) and len({e.truth for e in events}) > 1:  # type: ignore[union-attr]
            return place + 1
    return None


def rolled(lists: Sequence[list[Any]]) -> list[list[Any]]:
    """The runs with every loop rolled up that explains why they differ."""
    made = [list(events) for events in lists]
    while True:
        place = first_difference(made)
        if place is None:
            return made
        # An if comes back to its question only in the next turn of a loop, a while before its ways come together.
        if not (_choose_at(made, place) or _roll_at(made, place, True) or _roll_at(made, place, False)):
            return made


def _roll_at(lists: list[list[Any]], place: int, ends_here: bool) -> bool:
    """Roll up the loop that ends at `place` in the run with the fewest iterations; False if there is none.

    Or (not `ends_here`) the loop that has no iterations in that run: it must ask before each whether to go on.
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
    """Where the loop with a body as long as `width` at `place` begins; None if it does not repeat."""
    body = keys[place : place + width]
    if len(body) < width:
        return None
    if not ends_here:
        asks = place > 0 and keys[place - 1] == body[-1] and body[-1][0] == "look"
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
    """Put one event in place of the iterations; the same loop further on (in a loop around it) is rolled up too."""
    width = len(body)
    like = next(events[i : i + width] for events in lists for i in range(begin, len(events) - width + 1)
                if [e.key for e in events[i : i + width]] == body)  # fmt: skip
    asked = isinstance(like[-1], Look) and begin > 0 and all(
        isinstance(e[begin - 1], Look) and e[begin - 1].key == like[-1].key for e in lists
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
                events[first : place + taken] = [Rolled(iterations, width, entry, like[0])]
                place = first
            place += 1


def _asking(body: Sequence[Any]) -> int:
    """How many events at the end of an iteration are its question: those at the line of the look."""
    own = itertools.takewhile(lambda e: e.site == body[-1].site, reversed(body))
    return len(list(own)) if isinstance(body[-1], Look) else 0


def _not_asked_after(events: list[Any], at: int, iterations: list[list[Any]]) -> list[Any] | None:
    """The last iteration of `while n < 9 and not done():`, after which nothing was asked because of the number, with
    the question that would have come. None if there is no such iteration."""
    asking = _asking(iterations[-1]) if iterations else 0
    # Whether to go on was answered as before: what comes now is one more iteration.
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
        if any(id(v) in inside and id(v) not in now for v in inputs_of(event)) or not isinstance(event, (Event, Look)):
            return None
        made = rewired(event, lambda _, v: now.get(id(v), v))
        if isinstance(made, Event):
            made.step.outputs = tuple(Value(made.step, v.position, v.shape, v.dtype) for v in outputs_of(event))
            now.update({id(v): w for v, w in zip(outputs_of(event), made.step.outputs, strict=True)})
        part = [*part, made]
    return part


def _choose_at(lists: list[list[Any]], place: int) -> bool:
    """Put one event in place of a decision before `place` and the ways from it to where they come together; and so
    wherever the same decision comes again. False if they do not come together."""
    looks = [events[place - 1] if 0 < place <= len(events) else None for events in lists]
    if not all(isinstance(look, Look) and look.truth is not None for look in looks):
        return False
    ways = {truth: [events[place:] for events, look in zip(lists, looks, strict=True)
                    if look is not None and look.truth is truth] for truth in (True, False)}  # fmt: skip
    # Two runs may differ for other reasons further on (a longer loop); some pair does not.
    found: tuple[list[Any], list[Any]] | None = None
    for yes, no in itertools.islice(itertools.product(ways[True], ways[False]), _PAIRS):
        limit = len(yes) + len(no) if found is None else len(found[0]) + len(found[1]) - 1
        lengths = _until_together(yes, no, limit)
        if lengths is not None:
            found = (yes[: lengths[0]], no[: lengths[1]])
    assert looks[0] is not None
    asked = looks[0].key
    if found is None or any(event.key == asked for way in found for event in way):
        return False
    keys = {truth: [e.key for e in way] for truth, way in zip((True, False), found, strict=True)}
    for truth, taken in zip((True, False), found, strict=True):
        # A way that parts again has not come together with the other.
        if any(first_difference([way[: len(taken)], taken]) is not None for way in ways[truth]):
            return False
    for events in lists:
        at = 0
        while at < len(events):
            event = events[at]
            if event.key == asked:
                way = events[at + 1 : at + 1 + len(keys[event.truth])]
                if [e.key for e in way] == keys[event.truth]:
                    events[at : at + 1 + len(way)] = [Choice(event, way)]
            at += 1
    return True


def _until_together(yes: list[Any], no: list[Any], limit: int) -> tuple[int, int] | None:
    """The fewest events on each way after which both go on alike: to their ends, or to the next decision."""
    for total in range(limit + 1):
        for of_yes in range(max(0, total - len(no)), min(total, len(yes)) + 1):
            rest, other = yes[of_yes:], no[total - of_yes :]
            if bool(rest) != bool(other) or (rest and rest[0].key != other[0].key):
                continue
            apart = first_difference([rest, other])
            if apart is None or (apart > 0 and isinstance(rest[apart - 1], Look)):
                return of_yes, total - of_yes
    return None
