"""Loop and branch detection in traces.

Where runs differ only in how often a sequence of steps repeats, the sequence is the body of a loop: its repetitions
become one `LoopStep`. Where runs differ after a read of a truth value and become equal again, the steps in between
are the two sides of an `if`: they become one `BranchStep`. Nothing is run here; steps are compared by their keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from wayfare.exporters.trace_steps import ReadStep, TraceStep
from wayfare.ir.graph import Block, Value, unbound

# At most this many pairs of runs are compared to find where two branches rejoin.
_PAIRS = 64


class LoopStep(TraceStep):
    """A loop: the steps of each iteration, and (`entry`) the read that decided whether to begin.

    Its inputs are the values from outside that the first iteration uses; its outputs are all values that its iterations
    make. Its place and path are those of the first step of an iteration.
    """

    __slots__ = ("entry", "iterations", "width")

    def __init__(self, iterations: list[list[Any]], width: int, entry: ReadStep | None, like: TraceStep) -> None:
        outputs = [v for steps in iterations for step in steps for v in step.outputs]
        made = {id(v) for v in outputs}
        taken = [v for step in iterations[0] for v in step.inputs if id(v) not in made] if iterations else []
        asked = () if entry is None else entry.inputs
        super().__init__(None, [*asked, *taken], {}, like.place, like.path, "iterations")
        self.outputs = tuple(outputs)
        self.iterations = iterations
        self.width = width
        self.entry = entry

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same loop of another run, however often it ran."""
        return ("loop", self.place, self.path, self.width)

    def rewired(self, change: Callable[[Any, Value], Value]) -> LoopStep:
        """The same loop with other values from outside."""
        others = {id(v): change(name, v) for name, v in self.slots()}

        def replaced(step: Any) -> Any:
            return step.rewired(lambda _, v: others.get(id(v), v))

        entry = None if self.entry is None else replaced(self.entry)
        return LoopStep([[replaced(step) for step in steps] for steps in self.iterations], self.width, entry, self)


class PickStep(TraceStep):
    """A `select` of the value of one iteration from the stacked values of all.

    Its index counts from the first iteration; a negative one is out of range, not counted from the end.
    """

    __slots__ = ()


class BranchStep(TraceStep):
    """An `if` whose branches rejoin: the read that decided, and the steps of the branch that was taken."""

    __slots__ = ("read", "steps")

    def __init__(self, read: ReadStep, steps: list[Any]) -> None:
        taken = [v for step in (read, *steps) for v in step.inputs]
        super().__init__(None, taken, {}, read.place, read.path, "branch")
        self.outputs = tuple([v for step in steps for v in step.outputs])
        self.read = read
        self.steps = steps

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same `if` of another run, also if it took the other branch."""
        return ("choice", self.read.key)

    def slots(self) -> list[tuple[Any, Value]]:
        """The values that the condition and the branch use."""
        inner = [((self.read.truth, n, name), v) for n, step in enumerate(self.steps) for name, v in step.slots()]
        return [("read", self.read.value), *inner]

    def rewired(self, change: Callable[[Any, Value], Value]) -> BranchStep:
        """The same branch with other inputs."""
        truth = self.read.truth
        read = self.read.rewired(lambda _, v: change("read", v))
        way = [step.rewired(lambda name, v, n=n: change((truth, n, name), v)) for n, step in enumerate(self.steps)]
        return BranchStep(read, way)


def begins_otherwise(loops: Sequence[LoopStep]) -> bool:
    """Does the first iteration use a value of another dtype or rank than the later ones (the 0 of `total = 0`)?"""
    for loop in loops:
        made = {id(v) for v in loop.outputs}
        for first, second in zip(*loop.iterations[:2], strict=True) if len(loop.iterations) > 1 else ():
            later = dict(second.slots())
            for name, value in first.slots():
                other = later.get(name)
                if other is not None and id(value) not in made and id(other) in made:
                    if (value.ndim, value.dtype) != (other.ndim, other.dtype):
                        return all(one.iterations and one.entry is None for one in loops)
    return False


def first_apart(loop: LoopStep) -> list[Any]:
    """The first iteration peeled off: its steps, then the loop of the others. A read at its end becomes the entry."""
    first, *others = loop.iterations
    asked = first[-1] if isinstance(first[-1], ReadStep) else None
    before = first if asked is None else first[:-1]
    return [*before, LoopStep(others, loop.width, asked, loop)]


def with_parts_moved(trace: Block) -> Block:
    """A trace in which parts of a tensor that one line takes in a row are moved to where each is first used."""
    steps: list[Any] = trace.steps
    waiting: dict[int, TraceStep] = {}
    kept: list[Any] = []

    def place_parts(values: Sequence[Value]) -> None:
        for v in values:
            part = waiting.pop(id(v), None)
            if part is not None:
                place_parts(part.inputs)
                kept.append(part)

    for number, step in enumerate(steps):
        if _is_part(step) and any(
            0 <= n < len(steps) and _is_part(steps[n]) and steps[n].key == step.key
            and steps[n].inputs[0] is step.inputs[0] and steps[n].attrs != step.attrs
            for n in (number - 1, number + 1)
        ):  # fmt: skip
            waiting[id(step.outputs[0])] = step
            continue
        if step.kind in ("op", "read"):
            place_parts(step.inputs)
        else:
            for part in list(waiting.values()):  # a region may use any of them
                place_parts(part.outputs)
        kept.append(step)
    place_parts(trace.outputs)
    return Block(trace.inputs, kept, trace.outputs)


def _is_part(step: Any) -> bool:
    return step.op is not None and step.op.moves == "part"


def first_difference(lists: Sequence[Sequence[Any]]) -> int | None:
    """The first position at which runs differ: another step, or the one after a read of another truth; else None."""
    for place in range(max(map(len, lists))):
        steps = [steps[place] if place < len(steps) else None for steps in lists]
        if len({None if e is None else e.key for e in steps}) > 1:
            return place
        if isinstance(steps[0], ReadStep) and len({e.truth for e in steps}) > 1:  # type: ignore[union-attr]
            return place + 1
    return None


def with_loops(lists: Sequence[list[Any]]) -> list[list[Any]]:
    """The runs with loops and branches as single steps, until they are equal or nothing more is found."""
    made = [list(steps) for steps in lists]
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
    keys = [[e.key for e in steps] for steps in lists]
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
    """Where the loop begins whose body is the `width` steps from `place` on; None if they do not repeat."""
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
    """Put one step in place of the iterations; also where the same loop comes again (inside a loop around it)."""
    width = len(body)
    like = next(steps[i : i + width] for steps in lists for i in range(begin, len(steps) - width + 1)
                if [e.key for e in steps[i : i + width]] == body)  # fmt: skip
    asked = isinstance(like[-1], ReadStep) and begin > 0 and all(
        isinstance(e[begin - 1], ReadStep) and e[begin - 1].key == like[-1].key for e in lists
    )  # fmt: skip
    for steps in lists:
        place, seen = begin, False
        while place <= len(steps):
            count = _repeats([e.key for e in steps], place, body)
            if count or not seen:
                seen = True
                iterations = [steps[place + i * width : place + (i + 1) * width] for i in range(count)]
                last = _not_asked_after(steps, place + count * width, iterations)
                count += last is not None
                iterations += [] if last is None else [last]
                taken = sum(map(len, iterations)) - (0 if last is None else _asking(like))
                before = asked and place > 0 and steps[place - 1].key == like[-1].key
                entry = steps[place - 1] if before else None
                first = place - 1 if before else place
                steps[first : place + taken] = [LoopStep(iterations, width, entry, like[0])]
                place = first
            place += 1


def _asking(body: Sequence[Any]) -> int:
    """How many steps at the end of an iteration compute its condition: those on the line of the read."""
    own = itertools.takewhile(lambda e: e.site == body[-1].site, reversed(body))
    return len(list(own)) if isinstance(body[-1], ReadStep) else 0


def _not_asked_after(steps: list[Any], at: int, iterations: list[list[Any]]) -> list[Any] | None:
    """The last iteration of `while n < 9 and not done():` when `n < 9` ended it, so that `done()` was not read.

    It is completed with the read that would have come. None if there is no such iteration.
    """
    asking = _asking(iterations[-1]) if iterations else 0
    # Only if the last read said "go on": then the steps that follow can be one more iteration.
    if not asking or asking == len(iterations[-1]) or iterations[-1][-1].truth is not iterations[0][-1].truth:
        return None
    model = iterations[-1]
    part = steps[at : at + len(model) - asking]
    if [e.key for e in part] != [e.key for e in model[:-asking]]:
        return None
    now = {id(v): w for e, other in zip(model, part, strict=False)
           for v, w in zip(e.outputs, other.outputs, strict=True)}  # fmt: skip
    inside = {id(v) for one in iterations for e in one for v in e.outputs}
    for step in model[-asking:]:
        if step.kind not in ("op", "read"):
            return None
        if any(id(v) in inside and id(v) not in now for v in step.inputs):
            return None
        made = step.rewired(lambda _, v: now.get(id(v), v))
        if made.kind == "op":
            made.makes(*[unbound(v.shape, v.dtype) for v in step.outputs])
            now.update({id(v): w for v, w in zip(step.outputs, made.outputs, strict=True)})
        part = [*part, made]
    return part


def _branch_at(lists: list[list[Any]], place: int) -> bool:
    """Put one step in place of the read before `place` and the branch after it, wherever that read comes.

    False if the two branches do not rejoin.
    """
    reads = [steps[place - 1] if 0 < place <= len(steps) else None for steps in lists]
    if not all(isinstance(read, ReadStep) and read.truth is not None for read in reads):
        return False
    ways = {truth: [steps[place:] for steps, read in zip(lists, reads, strict=True)
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
    if found is None or any(step.key == asked for way in found for step in way):
        return False
    keys = {truth: [e.key for e in way] for truth, way in zip((True, False), found, strict=True)}
    for truth, taken in zip((True, False), found, strict=True):
        # A branch that differs between runs has not rejoined yet.
        if any(first_difference([way[: len(taken)], taken]) is not None for way in ways[truth]):
            return False
    for steps in lists:
        at = 0
        while at < len(steps):
            step = steps[at]
            if step.key == asked:
                way = steps[at + 1 : at + 1 + len(keys[step.truth])]
                if [e.key for e in way] == keys[step.truth]:
                    steps[at : at + 1 + len(way)] = [BranchStep(step, way)]
            at += 1
    return True


def _until_together(yes: list[Any], no: list[Any], limit: int) -> tuple[int, int] | None:
    """The fewest steps of each branch after which both continue equally: to the end, or to the next read."""
    for total in range(limit + 1):
        for of_yes in range(max(0, total - len(no)), min(total, len(yes)) + 1):
            rest, other = yes[of_yes:], no[total - of_yes :]
            if bool(rest) != bool(other) or (rest and rest[0].key != other[0].key):
                continue
            apart = first_difference([rest, other])
            if apart is None or (apart > 0 and isinstance(rest[apart - 1], ReadStep)):
                return of_yes, total - of_yes
    return None
