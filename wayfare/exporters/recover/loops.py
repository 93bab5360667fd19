"""Merging a loop: the `LoopStep`s of several runs become one loop of the program.

Found here: what is carried between iterations, how many there are, and when the loop ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.core.errors import ExportError
from wayfare.core.op import REGISTRY
from wayfare.core.symbolic_sizes import symbols_in
from wayfare.exporters.recover.collecting import Collected
from wayfare.exporters.recover.loop_detection import BranchStep, LoopStep
from wayfare.exporters.recover.merge import makes, refusal
from wayfare.exporters.recover.regions import counter
from wayfare.exporters.trace_steps import ReadStep, RegionStep
from wayfare.ir.graph import Block, Step, Value, constant, leaf, unbound

if TYPE_CHECKING:
    from wayfare.exporters.recover.paths import Paths

_SAME_SO_FAR = "has two values that were the same whenever it mattered: no example tells which of them is meant"
_TELLS_APART = "Add examples that go through it in other orders of its decisions"
# An iteration: the position of its run among the runs, and its number.
Turn = tuple[int, int]


class Carried:
    """A loop-carried variable: its value at the beginning of each iteration where that is known (`held`)."""

    def __init__(self) -> None:
        self.slots: set[Any] = set()
        self.held: dict[Turn, Value] = {}
        self.shown: set[Turn] = set()  # where a step used it; elsewhere in `held` it was inferred

    def near(self, turn: Turn) -> Value:
        """A value of the same dtype and shape as the one at the beginning of an iteration."""
        if turn in self.held:
            return self.held[turn]
        same = [t for t in self.held if t[0] == turn[0]] or list(self.held)
        return self.held[min(same, key=lambda t: abs(t[1] - turn[1]))]


class Loop:
    """One loop in several runs, while it is merged."""

    def __init__(self, m: Paths, run_ids: list[Any], loops: Sequence[LoopStep]) -> None:
        self.m = m
        self.run_ids = run_ids
        self.loops = loops
        self.site = loops[0].site
        self.turns: list[Turn] = [(n, i) for n, loop in enumerate(loops) for i in range(len(loop.iterations))]
        # For each run: in which iteration a value is made, by its id.
        self.made: list[dict[int, int]] = [
            {id(v): i for i, steps in enumerate(loop.iterations) for e in steps for v in e.outputs}
            for loop in loops
        ]
        self.carried: list[Carried] = []
        self._stand_ins: dict[tuple[int, Turn], Value] = {}
        self.variables: list[Value] = []

    def refuse(self, what: str, fix: str = "") -> ExportError:
        """The error for a loop that cannot be written as one."""
        instead = "rite it with wf.scan or wf.while_loop, which say what is carried."
        return refusal(f"the loop here {what}", self.site, f"{fix}, or w{instead}" if fix else f"W{instead}")

    def run_of(self, turn: Turn) -> Any:
        """An iteration as a run of its own."""
        return (self.run_ids[turn[0]], turn[1], id(self))

    def steps_of(self, turn: Turn) -> list[Any]:
        """The steps of an iteration."""
        return self.loops[turn[0]].iterations[turn[1]]

    # -- loop-carried variables

    def _find_carried(self, rests: Sequence[Block], collected: Collected) -> None:
        """Find inputs that take a value of an earlier iteration; inputs that always take the same are one variable."""
        taken: dict[Any, dict[Turn, Value]] = {}
        for turn in self.turns:
            for j, step in enumerate(self.steps_of(turn)):
                for name, value in step.slots():
                    if self.made[turn[0]].get(id(value)) != turn[1]:
                        taken.setdefault((j, name), {})[turn] = value
        lasting = []  # inputs that took values from outside in every iteration
        for slot, held in taken.items():
            if any(id(v) in self.made[n] for (n, _), v in held.items()):
                self._enter(slot, held)
            else:
                lasting.append(held)
        # A value that an iteration did not make was already there when it began.
        waiting = list(self.carried)
        while waiting:
            one = waiting.pop(0)
            for n, i in sorted(self.turns, key=lambda t: -t[1]):
                after = one.held.get((n, i + 1))
                if after is None or self.made[n].get(id(after)) == i:
                    continue
                if (n, i) not in one.held:
                    one.held[n, i] = after
                elif id(after) in self.made[n] and self._holder(one, (n, i), after) is None:
                    between = self._between(one)
                    if between not in waiting:
                        waiting.append(between)
        self._unite()
        self._show()
        self._foresee()
        self._unite()
        for slot, held in self._used_after(rests):
            shows = any(all(one.held.get(t) is v for t, v in held.items()) for one in self.carried)
            if not shows and not collected.picks(slot, held):
                self._enter(None, self._kept_until(held))
                self.carried[-1].shown |= set(self.carried[-1].held)
        self._foresee()
        # Such an input may be a carried variable that had not changed yet whenever its branch was taken.
        for held in lasting:
            if any(all(one.held.get(turn) is v for turn, v in held.items()) for one in self.carried):
                raise self.refuse(_SAME_SO_FAR, _TELLS_APART)

    def _unite(self) -> None:
        """Merge variables that were equal wherever both are known: inputs on two branches are never seen together."""
        united: list[Carried] = []
        for one in self.carried:
            for other in united:
                shared = [t for t in one.held if t in other.held]
                inside = any(id(one.held[t]) in self.made[t[0]] for t in shared)
                if inside and all(one.held[t] is other.held[t] for t in shared):
                    other.slots |= one.slots
                    other.shown |= one.shown
                    other.held.update(one.held)
                    break
            else:
                united.append(one)
        self.carried = united

    def _show(self) -> None:
        for one in self.carried:
            one.shown = set(one.held)

    def _foresee(self) -> None:
        """Infer values that no step used, from other iterations that took the same branches."""
        rules: dict[Any, Any] = {}
        for turn in self.turns:
            for number, one in enumerate(self.carried):
                after = one.held.get((turn[0], turn[1] + 1))
                if after is not None:
                    rules.setdefault((number, self._way(turn)), self._origin(one, turn, after))
        for turn in sorted(self.turns, key=lambda t: t[1]):
            for number, one in enumerate(self.carried):
                then = (turn[0], turn[1] + 1)
                kind, what = rules.get((number, self._way(turn)), ("", None))
                value = one.held.get(then)
                if value is None and kind == "made":
                    value = self.steps_of(turn)[what[0]].outputs[what[1]]
                elif value is None and kind == "carried":
                    value = self.carried[what].held.get(turn)
                if value is not None:
                    one.held[then] = value

    def _way(self, turn: Turn) -> Any:
        """Which branches an iteration took."""
        return tuple(_answers(self.steps_of(turn)))

    def _origin(self, one: Carried, turn: Turn, value: Value) -> tuple[str, Any]:
        """Where a value comes from that an iteration carries on: one of its steps, or a carried variable."""
        if self.made[turn[0]].get(id(value)) == turn[1]:
            for j, step in enumerate(self.steps_of(turn)):
                for pos, made in enumerate(step.outputs):
                    if made is value:
                        # An inner loop makes a varying number of values, so count from its end.
                        return "made", (j, pos - len(step.outputs) if isinstance(step, LoopStep) else pos)
        holder = self._holder(one, turn, value)
        return ("", None) if holder is None else ("carried", self.carried.index(holder))

    def _kept_until(self, held: dict[Turn, Value]) -> dict[Turn, Value]:
        """A value that is used after the loop, carried from the iteration that made it."""
        for (n, count), value in list(held.items()):
            for i in range(count - 1, self.made[n].get(id(value), -1), -1):
                held[n, i] = value
        return held

    def _used_after(self, rests: Sequence[Block]) -> list[tuple[Any, dict[Turn, Value]]]:
        """Inputs after the loop that take a value which, in some run, the last iteration did not make."""
        taken: dict[Any, dict[Turn, Value]] = {}
        for n, rest in enumerate(rests):
            count = len(self.loops[n].iterations)
            step: Any
            for at, step in enumerate(rest.steps):
                for name, value in step.slots():
                    taken.setdefault((at, name), {})[n, count] = value
            for k, value in enumerate(rest.outputs):
                taken.setdefault(("result", k), {})[n, count] = value
        found = []
        for slot, held in taken.items():
            born = [self.made[n].get(id(v), -1) for (n, _), v in held.items()]
            counts = [count for _, count in held]
            if max(born) < 0 or all(i == count - 1 for i, count in zip(born, counts, strict=True)):
                continue
            found.append((slot, held))
        return found

    def _enter(self, slot: Any, held: dict[Turn, Value]) -> None:
        for one in self.carried:
            shared = [t for t in held if t in one.held]
            inside = any(id(held[t]) in self.made[t[0]] for t in shared)
            if inside and all(held[t] is one.held[t] for t in shared):
                break
        else:
            one = Carried()
            self.carried.append(one)
        if slot is not None:
            one.slots.add(slot)
        one.held.update(held)

    def _between(self, later: Carried) -> Carried:
        """A variable that only hands its value to another one in the next iteration (`a, b = x, a`)."""
        one = Carried()
        for (n, i), value in later.held.items():
            if i > 0 and self.made[n].get(id(value)) != i - 1:
                one.held[n, i - 1] = value
        if len(self.carried) > 64:
            raise self.refuse("uses values of too many iterations ago")
        self.carried.append(one)
        return one

    def _holder(self, first: Carried, turn: Turn, value: Value) -> Carried | None:
        """The variable that has this value at the beginning of an iteration."""
        return next((c for c in (first, *self.carried) if c.held.get(turn) is value), None)

    def resolved_all(self, turns: Sequence[Turn], values: Sequence[Value]) -> list[Value]:
        """Values as the loop body sees them: made in the iteration, or placeholders of carried variables.

        If two variables have the same value, other iterations that took the same branches must tell which is meant.
        """
        meant: dict[Any, set[int]] = {}
        for turn, value in zip(turns, values, strict=True):
            if self.made[turn[0]].get(id(value)) != turn[1]:
                holders = {k for k, one in enumerate(self.carried) if one.held.get(turn) is value}
                meant[self._way(turn)] = meant.get(self._way(turn), holders) & holders
        found = []
        for turn, value in zip(turns, values, strict=True):
            if self.made[turn[0]].get(id(value)) != turn[1]:
                holders = meant[self._way(turn)]
                if len(holders) > 1:
                    raise self.refuse(_SAME_SO_FAR, _TELLS_APART)
                value = self._stand_ins[min(holders), turn] if holders else value
            found.append(value)
        return found

    # -- merging

    def merge(self, rests: Sequence[Block]) -> None:
        """Add the loop to the current block, and make the steps after it use its results."""
        m, run_ids = self.m, self.run_ids
        if len(self.turns) < 2:
            raise self.refuse("ran too seldom to tell what it carries")
        end, exit_at = self._exit()
        collected = Collected(self, rests)
        self._find_carried(rests, collected)
        collected.insert_picks()
        inits = [self._init(one) for one in self.carried]
        entry = self._entry(end)
        trips = m.fitting.explain({r: len(loop.iterations) for r, loop in zip(run_ids, self.loops, strict=True)})
        if exit_at is not None:
            trips = self._most(end)
        elif trips is None:
            raise self.refuse("runs a number of times that follows neither from a size nor from a tensor it reads")

        number_of_iteration = counter()
        runs = [self.run_of(turn) for turn in self.turns]
        m.known.update({run: {} for run in runs})
        with m.inside() as steps:
            inner = len(m.symbols)
            m.symbol(number_of_iteration, -1, {run: run[1] for run in runs})
            for number, one in enumerate(self.carried):
                for turn in self.turns:
                    like = one.near(turn)
                    self._stand_ins[number, turn] = leaf("carried", turn, like.shape, like.dtype)
                var = m.output(runs, [self._stand_ins[number, turn] for turn in self.turns])
                Step(None, (), {}, "input", "carried").makes(var)
                self.variables.append(var)
            m.follow(runs, [Block([], self._iteration(turn, exit_at), []) for turn in self.turns])
            outs = [self._out(one) for one in self.carried]
            goes_on = []
            if exit_at is not None:
                asked = self.resolved_all(self.turns, [self.steps_of(turn)[exit_at].value for turn in self.turns])
                goes_on = [self._as_condition(m.var_of(runs, asked), end)]
            finals = [unbound(v.shape, v.dtype) for v in outs]
            self._bind_finals(outs, finals, inits)
            extra = collected.variables()
        m.note_combinations([self.steps_of((n, i)) for n, i in self.turns if (n, i + 1) in self.turns])
        for one, final in zip(self.carried, finals, strict=True):
            if max(symbols_in(final.shape), default=-1) >= inner:
                ran = [(n, len(loop.iterations)) for n, loop in enumerate(self.loops) if loop.iterations]
                m.shape_of(final, [run_ids[n] for n, _ in ran], [one.near(turn).shape for turn in ran])
        block = Block([number_of_iteration, *self.variables], steps, [*goes_on, *outs, *extra])
        for init, var, out in zip(inits, self.variables, outs, strict=True):
            if init.dtype != var.dtype or out.dtype != var.dtype:
                raise self.refuse("carries a value whose dtype changes")
        attrs = {"trips": trips, "asks": exit_at is not None, "entry": bool(entry), "carried": len(inits)}
        step = Step(None, (*entry, *inits), attrs, "loop", blocks=(block,), site=self.site, path=self.loops[0].path)
        m.steps += [step.makes(*finals, *collected.outputs()), *collected.after]

    def _init(self, one: Carried) -> Value:
        """The initial value of a carried variable."""
        begun = [(self.run_ids[n], v) for (n, i), v in one.held.items() if i == 0]
        if not begun:
            raise self.refuse("carries something of which it does not show what it begins with")
        return self.m.seen_from([r for r, _ in begun], [v for _, v in begun])

    def _out(self, one: Carried) -> Value:
        """The value that an iteration carries on, from all iterations where that is seen."""
        turns = [(n, i) for n, i in self.turns if (n, i + 1) in one.shown]
        values = self.resolved_all(turns, [one.held[n, i + 1] for n, i in turns])
        return self.m.seen_from([self.run_of(t) for t in turns], values)

    def _iteration(self, turn: Turn, exit_at: int | None) -> list[Any]:
        """The steps of an iteration, with placeholders for the carried variables."""
        slots = {slot: n for n, one in enumerate(self.carried) for slot in one.slots}
        made = self.made[turn[0]]

        def change(slot: Any, value: Value) -> Value:
            number = slots.get(slot)
            return value if number is None or made.get(id(value)) == turn[1] else self._stand_ins[number, turn]

        steps = []
        for j, step in enumerate(self.steps_of(turn)):
            if j == exit_at:
                continue
            if isinstance(step, RegionStep) and any((j, name) in slots for name, _ in step.slots()):
                raise self.refuse("has another control-flow function inside it")
            steps.append(step.rewired(lambda name, v, j=j: change((j, name), v)))
        return steps

    # -- when it ends

    def _exit(self) -> tuple[bool, int | None]:
        """The truth that ends the loop, and the position of the step that reads it; None if a size ends the loop."""
        width = self.loops[0].width
        reads = [[steps[width - 1] for steps in loop.iterations] for loop in self.loops if loop.iterations]
        if not isinstance(reads[0][0], ReadStep) or reads[0][0].truth is None:
            return False, None
        answers = [[read.truth for read in of_run] for of_run in reads]
        most = max(map(len, answers))
        for end in (False, True):
            going = all(t is not end for a in answers for t in a[:-1])
            if going and any(a[-1] is end for a in answers) and all(a[-1] is end or len(a) == most for a in answers):
                return end, width - 1
        return False, None

    def _most(self, end: bool) -> int | None:
        """The maximal number of iterations, if some run ended at it and not by the condition."""
        for loop in self.loops:
            if loop.iterations and loop.iterations[-1][-1].truth is not end:
                return len(loop.iterations)
        return None

    def _entry(self, end: bool) -> list[Value]:
        """The condition of the first iteration, if it was read."""
        if self.loops[0].entry is None:
            return []
        reads: list[Any] = [loop.entry for loop in self.loops]
        return [self._as_condition(self.m.var_of(self.run_ids, [read.value for read in reads]), end)]

    def _as_condition(self, var: Value, end: bool) -> Value:
        """A bool variable that is true as long as the loop continues."""
        if var.dtype != bool:
            var = self._truth("ne", var, constant(np.zeros((), var.dtype)))
        return self._truth("logical_not", var) if end else var

    def _truth(self, name: str, *inputs: Value) -> Value:
        made = unbound(inputs[0].shape, np.dtype(bool))
        self.m.steps.append(Step(REGISTRY[name], inputs, {}, site=self.site).makes(made))
        return made

    # -- after the loop

    def _bind_finals(self, outs: list[Value], finals: list[Value], inits: list[Value]) -> None:
        """Bind, for each run, the last values of the carried variables to the loop's outputs."""
        m = self.m
        for n, i in sorted(self.turns, key=lambda t: t[1]):
            # A value that no later step used is worked out from the body's output.
            for one, out in zip(self.carried, outs, strict=True):
                if (n, i + 1) not in one.held:
                    value = self._value_of((n, i), out)
                    if value is not None:
                        one.held[n, i + 1] = value
        for one, final, init in zip(self.carried, finals, inits, strict=True):
            for n, r in enumerate(self.run_ids):
                count = len(self.loops[n].iterations)
                last = one.held.get((n, count)) if count else None
                if last is not None and id(last) in self.made[n]:
                    m.known[r].setdefault(id(last), final)
                    continue
                # Not changed in this run (or no iterations): the final value is the initial one.
                begun = m.untouched.setdefault(r, {})
                begun.setdefault(id(init), []).append(final)
                if last is not None:
                    begun.setdefault(id(last), []).append(final)

    def _value_of(self, turn: Turn, var: Value) -> Value | None:
        """The value of a variable of the loop body in one iteration; None if it is not made there."""
        run = self.run_of(turn)
        for one, own in zip(self.carried, self.variables, strict=True):
            if own is var:
                return one.held.get(turn)
        for branch, truths in self.m.decisions:
            if run in truths and makes([branch], var):
                side = branch.blocks[0 if truths[run] else 1]
                return self._value_of(turn, side.outputs[var.position])
        known = self.m.known[run]
        return next((v for v in self._all_values(turn) if known.get(id(v)) is var), None)

    def _all_values(self, turn: Turn) -> Iterator[Value]:
        for step in self.steps_of(turn):
            yield from step.outputs


def _answers(steps: Sequence[Any]) -> Iterator[bool | None]:
    for step in steps:
        if isinstance(step, BranchStep):
            yield step.read.truth
            yield from _answers(step.steps)
