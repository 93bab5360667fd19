"""The recorded paths of a mapped function, kept from one map to the next: which examples can run along them.

Paths are recorded as for `wf.compile`: an example runs as plain Python, and what it does with tensors is noted. Only
functions without side effects have paths, so examples that run along them may run in any order. Examples that run as
Python keep their order: it is always the first one left that is recorded.
"""

from __future__ import annotations

import warnings
from collections import Counter
from time import thread_time
from typing import Any, Protocol

from wayfare.batch.fibers.example import Example
from wayfare.batch.function_profile import FunctionProfile, MapTiming
from wayfare.batch.garbage_collection import COLLECTOR
from wayfare.batch.paths.blocks import memory_of_graph
from wayfare.batch.paths.budget import PathBudget
from wayfare.batch.paths.functions import BlockFunction
from wayfare.batch.paths.results import deliver
from wayfare.batch.paths.run import Family, PathRun
from wayfare.batch.paths.stats import PathStats
from wayfare.batch.paths.tree import BatchedTree
from wayfare.compiler.check.compare import Difference, coarsest_step, same
from wayfare.compiler.fallback import Plain
from wayfare.compiler.function import Compiled
from wayfare.compiler.record.recorder_state import KEEP_HISTORY
from wayfare.compiler.replay.entry import Entry
from wayfare.compiler.signature import Signature
from wayfare.compiler.structure import Opaque
from wayfare.core.callsite import outside_frames
from wayfare.core.mode import STATE
from wayfare.ir.graph import in_order

# Fewer examples with one signature are not worth a group.
LEAST = 3
# The most examples of one map that are recorded; the budget allows fewer where recording takes long.
_RECORDED = 8
# With `batch=True` what runs must not depend on measured times: this many recordings, and one more in so many maps.
_ALWAYS, _EVERY = 64, 8
# One example in so many is compared with Python in one map, at most, and one more.
_CHECKED = 16
# In the first map, and again after so many, some examples are timed as a loop.
_TIMED_AGAIN = 64
# An outcome is recorded when so many examples had it; before, it may be one that never comes again.
_REPEATED = 2
# After so many maps in a row without an example on a path, the next maps do not look for one; then twice as many.
_FRUITLESS = 8
# Of more than twice as many examples so many are looked at first: if they are all unlike, so are probably the others.
_SAMPLE = 16
_UNLIKE = "most examples have a signature of their own"
# Runs that failed before the paths of an entry are given up.
_FAILURES = 3

class Loop(Protocol):
    """Runs examples one after another as plain Python. Returns the seconds of each if they are timed."""

    def __call__(self, examples: list[Example], timed: bool = False) -> list[float]: ...


class Signed:
    """An example with the signature of its arguments."""

    __slots__ = ("call", "example")

    def __init__(self, example: Example) -> None:
        self.example = example
        self.call = Signature(example.args, {}, STATE.mode, False)


class RecordedPaths:
    """The paths of one function."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.compiled = Compiled(function, check=False)
        self.compiled.records_gradient = False  # that of a batch is derived from the blocks
        self.reason = ""  # why no example of this function runs along paths
        self._trees: dict[tuple[int, frozenset[int]], BatchedTree] = {}
        self._functions: dict[Any, BlockFunction] = {}  # by key of the blocks
        self._budget = PathBudget()
        self._one = 0.0  # seconds of an example in the loop
        # By block and outcome: how many examples left the tree there. And where those of this map did.
        self._left_at: dict[tuple[int, Any], int] = {}
        self._exits: dict[int, tuple[int, Any]] = {}
        self._refused: dict[int, str] = {}  # by id of an entry: why its examples do not run along paths
        self._failures = self._maps = 0
        self._fruitless, self._look_at, self._pause = 0, 0, _FRUITLESS

    def run(
        self, examples: list[Example], loop: Loop, profile: FunctionProfile, stats: PathStats, always: bool
    ) -> list[Example]:
        """Run the examples whose paths are known. Returns the others, in order. With `always`, also if that is slower
        than the loop."""
        self._maps += 1
        if self.reason or self._maps < self._look_at:
            stats.refused(self.reason or "hardly any example has a recorded path")
            return examples
        if not always and self._maps % _TIMED_AGAIN == 1:
            # Not those that are left later: they may be the longest ones.
            seconds = loop(examples[:LEAST], True)
            profile.timed(seconds)
            self._one = sum(seconds) / len(seconds)
            examples = examples[LEAST:]
            if len(examples) < LEAST:
                return examples
        COLLECTOR.enter()
        try:
            return self._run_signed(examples, loop, profile, stats, always)
        finally:
            COLLECTOR.leave()

    def _run_signed(
        self, examples: list[Example], loop: Loop, profile: FunctionProfile, stats: PathStats, always: bool
    ) -> list[Example]:
        began = thread_time()
        loop_seconds = self._one * len(examples)
        if not self._budget.begin(None if always else loop_seconds, self._maps):
            stats.refused("along paths it took longer than the loop so far")
            return examples
        if len(examples) > 2 * _SAMPLE and not self._any_alike(examples[:_SAMPLE]):
            stats.refused(_UNLIKE)
            self._note_success(False)
            return examples
        signed, rest = _signed(examples)
        if len(signed) < LEAST:
            if not signed:
                self.reason = "its arguments are not tensors, numbers, or structures of these"
            return examples
        alike = Counter([one.call.key for one in signed])
        hopeful = sum([alike[one.call.key] >= LEAST or bool(self._entries(one)) for one in signed])
        if 2 * hopeful < len(examples):
            # The session batches examples of different signatures too; taking a few out of it makes its groups smaller.
            stats.refused(_UNLIKE)
            self._note_success(False)
            return examples
        self._exits.clear()
        timing = MapTiming(len(examples))
        left = self._along(signed, loop, stats, timing)
        left = self._grow(left, rest, loop, stats, timing, always)
        timing.seconds = thread_time() - began
        timing.examples = max(stats.examples, 1)
        self._note_success(bool(stats.examples))
        stats.growing = bool(stats.examples or stats.recorded) and self._decide()
        if not always:
            self._budget.ended(timing, self._one * (stats.examples + stats.recorded), loop_seconds)
        return sorted([*rest, *[one.example for one in left]], key=lambda example: example.number)

    def _any_alike(self, examples: list[Example]) -> bool:
        """Whether at least half of some examples are like another one of them, or like one that was recorded. (To find
        the signatures of all takes as long as running short examples.)"""
        signed, rest = _signed(examples)
        alike = Counter([one.call.key for one in signed])
        hopeful = sum([alike[one.call.key] > 1 or bool(self._entries(one)) for one in signed])
        return bool(rest) or 2 * hopeful >= len(examples)

    def skip(self, maps: int) -> int:
        """How many of the next maps would certainly not look for a path; they are counted as if they had happened."""
        if not self.reason:
            until = max(self._look_at, self._budget.paused_until)
            maps = max(min(maps, until - self._maps - 1), 0)
        self._maps += maps
        return maps

    def _decide(self) -> bool:
        """Whether examples read values on recorded paths."""
        roots = [entry.tree.root for entries in self.compiled._cache.entries.values() for entry in entries]
        return any([root is not None and bool(root.children) for root in roots])

    def _note_success(self, success: bool) -> None:
        """After several maps without an example on a path, the next maps do not look for one."""
        self._fruitless = 0 if success else self._fruitless + 1
        if self._fruitless >= _FRUITLESS:
            self._fruitless, self._pause = 0, 2 * self._pause
            self._look_at = self._maps + self._pause

    # -- recording

    def _grow(
        self, left: list[Signed], rest: list[Example], loop: Loop, stats: PathStats, timing: MapTiming, always: bool
    ) -> list[Signed]:
        """Record the first examples that are left, and run others along the new paths."""
        while left and stats.recorded < _RECORDED and self._may_record(always):
            first = min(left, key=lambda one: one.example.number)
            if rest and rest[0].number < first.example.number:
                break  # that one is not recorded, and comes first
            if not self._worth_recording(first, left) or not self._record(first, loop, stats):
                break
            left.remove(first)
            left = self._along(left, loop, stats, timing)
        return left

    def _worth_recording(self, first: Signed, left: list[Signed]) -> bool:
        """Whether other examples are likely to take the path of this one."""
        entries = self._entries(first)
        if any([entry.meets(first.call.tensors) for entry in entries]):
            return False
        place = self._exits.get(first.example.number)
        if place is not None:
            return self._left_at[place] >= _REPEATED
        return bool(entries) or sum([one.call.key == first.call.key for one in left]) >= LEAST

    def _may_record(self, always: bool) -> bool:
        compiled = self.compiled
        return compiled._recorded < _ALWAYS + self._maps // _EVERY if always else self._budget.allows()

    def _entries(self, one: Signed) -> list[Entry]:
        return self.compiled._cache.entries.get(one.call.key, [])

    def _entry(self, one: Signed) -> Entry | None:
        """The entry that holds for an example."""
        for entry in self._entries(one):
            if entry.holds(one.call.tensors):
                return entry
        return None

    def _record(self, one: Signed, loop: Loop, stats: PathStats) -> bool:
        """Run an example as Python and record it. False if that is not possible; then it has not run."""
        compiled, cache = self.compiled, self.compiled._cache
        key, entry, example = one.call.key, self._entry(one), one.example
        reason = cache.reason(key)
        if entry is not None:
            reason = reason or entry.eager_reason or self._refused.get(id(entry))
        if reason:
            stats.refused(reason)
            return False
        function = example.function
        example.function = lambda *args: compiled._record(entry, one.call, args, {})
        began = thread_time()
        try:
            loop([example])
        finally:
            example.function = function
            self._budget.spend(began)
        if example.result.__class__ is Plain:
            stats.refused(example.result.reason or "recording it has to wait")
            return False
        stats.recorded += 1
        entry = self._entry(one)
        reason = cache.reason(key)
        if entry is not None:
            reason = reason or entry.eager_reason or _unbatchable(entry)
            if reason:
                self._refused[id(entry)] = reason
        if reason:
            stats.refused(reason)
        return True

    # -- running

    def _along(self, signed: list[Signed], loop: Loop, stats: PathStats, timing: MapTiming) -> list[Signed]:
        """Run what can run along recorded paths; returns the rest."""
        by_key: dict[Any, list[Signed]] = {}
        for one in signed:
            by_key.setdefault(one.call.key, []).append(one)
        left: list[Signed] = []
        running: list[Signed] = []
        families: list[Family] = []
        # A tensor that all examples are given is shared. Which ones are is seen best in the largest group.
        for alike in sorted(by_key.values(), key=len, reverse=True):
            entry, members = self._usable(alike)
            family = None if entry is None else self._family(entry, members)
            if family is None:
                left += alike
            else:
                families.append(family)
                running += members
                left += [one for one in alike if one not in members] if len(members) < len(alike) else []
        if len(running) < LEAST:
            return signed
        return left + self._run(families, running, loop, stats, timing)

    def _usable(self, alike: list[Signed]) -> tuple[Entry | None, list[Signed]]:
        """The entry along whose paths examples with one signature can run, and those of them that can. Arguments that
        are, or overlap, tensors that the function reads must be seen by Python."""
        for entry in self._entries(alike[0]):
            if entry.shares_memory or entry.tree.root is None or entry.eager_reason or id(entry) in self._refused:
                continue
            members = [one for one in alike if not entry.meets(one.call.tensors)]
            if members and entry.holds(members[0].call.tensors):
                return entry, members
        return None, []

    def _family(self, entry: Entry, members: list[Signed]) -> Family | None:
        """Examples with one signature that run along the paths of an entry."""
        arguments = [one.call.tensors for one in members]
        if len(members) == 1:
            differ = frozenset(range(len(arguments[0])))
        else:
            differ = frozenset([n for n, t in enumerate(arguments[0]) if any([args[n] is not t for args in arguments])])
        if not differ:
            return None
        tree = self._trees.get((id(entry), differ))
        if tree is None:
            tree = self._trees[id(entry), differ] = BatchedTree(entry, differ, self._functions, self._budget)
        return Family(tree, arguments)

    def _run(
        self, families: list[Family], running: list[Signed], loop: Loop, stats: PathStats, timing: MapTiming
    ) -> list[Signed]:
        """Run families of examples together; returns those that left the tree, or all of them after an error."""
        # Checks of earlier ops, which the first decision may raise.
        waiting = [error for memory in {family.tree.memory for family in families} for error in memory.late_errors()]
        try:
            run = PathRun(families, STATE.mode is None or STATE.mode.grad)
        except Exception as error:
            if any([error is one for one in waiting]):
                raise
            # An error of one example fails the whole group: Python raises it on its own line.
            self._failures += 1
            stats.failed = error
            if self._failures >= _FAILURES:
                for family in families:
                    self._refused[id(family.tree.entry)] = f"a group failed: {type(error).__name__}: {error}"
            return running
        deliver(run, [one.example for one in running], timing)
        if not self._checked(run, running, loop, stats):
            return running
        stats.add(run)
        for block, outcome, unseen in run.unseen:
            place = (id(block), outcome)
            numbers = [running[int(i)].example.number for i in unseen]
            self._left_at[place] = self._left_at.get(place, 0) + sum([self._exits.get(n) != place for n in numbers])
            self._exits.update(dict.fromkeys(numbers, place))
        return [running[i] for i in sorted([int(i) for _, _, unseen in run.unseen for i in unseen])]

    def _checked(self, run: PathRun, members: list[Signed], loop: Loop, stats: PathStats) -> bool:
        """Compare one example of each path with plain Python, at its 1st, 2nd, 4th, 8th, … run, or later if there are
        too many in one map."""
        most = 1 + len(members) // _CHECKED
        for finished in run.finished:
            block = finished.block
            block.hits += 1
            if block.hits <= block.next_check or stats.checked >= most:
                continue
            block.next_check = 2 * block.hits - 1
            stats.checked += 1
            example, entry = members[int(finished.examples[0])].example, finished.family.tree.entry
            python = example.again()
            loop([python])
            try:
                recording = block.recording
                step = coarsest_step(recording.made) if recording is not None else 0.0
                same("the result", example.result, python.result, step)
            except Difference as found:
                reason = f"the result of its recorded path was found to differ from Python in {found}"
                self._refused[id(entry)] = reason
                warnings.warn(f"map: {entry.name} does not run along recorded paths, because {reason}",
                              stacklevel=outside_frames())  # fmt: skip
                return False
        return True


def _signed(examples: list[Example]) -> tuple[list[Signed], list[Example]]:
    """Examples with their signatures, and those whose arguments have none."""
    signed: list[Signed] = []
    rest: list[Example] = []
    for example in examples:
        try:
            signed.append(Signed(example))
        except (Opaque, TypeError):
            rest.append(example)
    return signed, rest


def _unbatchable(entry: Entry) -> str:
    """Why the paths of an entry cannot be run for many examples at once; "" if they can."""
    if not memory_of_graph(entry.graph).has_kernels:
        return "its tensors are on a device where nothing can be gathered"
    for block in entry.tree.walk():
        recording = block.recording
        if recording is None:
            continue
        if recording.slots or recording.calls or recording.draws:
            return "it draws random numbers, or steps an optimiser"
        if recording.writes or recording.grads or recording.forgotten or recording.grad_guards or recording.effects:
            return "it changes tensors or variables from outside"
        if recording.customs:
            return "it uses a custom Function"
        if recording.new_leaves:
            # A detached tensor is the same value of the graph: nothing would stop the gradient there.
            return "it makes tensors that require a gradient of their own"
        if any([step.op is not None and step.op.family == "vjp" for step in in_order(recording.made)]):
            return "it computes gradients"
        if any([out.leaf or out.grad >= 0 for out in recording.outputs]):
            return "it returns a new leaf, or a tensor with a gradient"
        if any([source.kind not in ("argument", "captured") for source in recording.sources]):
            return "it reads a gradient, or views that overlap"
        wanted = [*recording.made, *recording.unused, *[decision.value for decision in recording.decisions]]
        if any([step.op is KEEP_HISTORY for step in in_order(wanted)]):
            return "it writes in place without a gradient"
    return ""
