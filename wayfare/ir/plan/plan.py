"""Plans: a graph for fixed sizes as fused kernels and matmuls over one arena, run by as few native calls as possible.

    plan = Plan("step", inputs, results, writes, samples)
    made = plan.run(arrays, given)

Results are returned in new arrays. Inputs are written after the last action that can fail, so a run that fails has
changed nothing. A written input must not overlap another input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.codegen.runtime.commands import BufferView, Commands
from wayfare.core.errors import ShapeError
from wayfare.core.numpy_math import Array
from wayfare.core.quiet import quietly
from wayfare.ir.graph import Slot, Value
from wayfare.ir.plan.actions import (  # fmt: skip
    Action,
    KernelAction,
    MatmulAction,
    Objects,
    PythonAction,
    Run,
    UpdateAction,
)
from wayfare.ir.plan.buffers import Buffer, View
from wayfare.ir.plan.build import Builder
from wayfare.ir.plan.join import joined
from wayfare.ir.plan.lower import PlanLowering
from wayfare.ir.plan.memory import Layout
from wayfare.ir.plan.native import CheckAction
from wayfare.ir.target import target_of

_BYTES = np.dtype(np.uint8)


class Plan:
    """Computes some values from arrays with the shapes, strides and dtypes of the samples."""

    def __init__(
        self,
        name: str,
        inputs: Sequence[Value],
        results: Sequence[Value],
        writes: Sequence[tuple[int, Value]],
        samples: Sequence[Array],
    ) -> None:
        self.name = name
        self._graph = (inputs, results, writes)
        self._shapes, self._strides = [a.shape for a in samples], [a.strides for a in samples]
        self._dtypes = [a.dtype for a in samples]
        self.target = target = target_of(samples)
        self._plain = frozenset({target.array})
        self._other_layout: Plan | None = None
        self._written = [i for i, _ in writes]
        lowering = PlanLowering(not target.native)
        leaves = lowering(inputs)
        wanted = lowering([*results, *(v for _, v in writes)])
        if not target.native:
            wanted = joined(leaves, wanted)
        builder = Builder(leaves, wanted, samples)
        views = builder.assignment
        layout = Layout(builder.actions)
        made = layout.results([views[v] for v in wanted[: len(results)]])
        layout.writes([(views[leaves[i]], views[v]) for (i, _), v in zip(writes, wanted[len(results) :], strict=True)])
        layout.lay_out(made)
        self._actions = layout.actions
        self.arena_bytes = layout.arena_bytes
        self.peak_bytes = layout.arena_bytes + layout.result_bytes + layout.slot_bytes
        # The numbers of updates (or the slots that have them), how many, and their dtype.
        self.update_numbers: list[tuple[Any, int, np.dtype[Any]]] = []
        self._number_objects(made, [views[v] for v in wanted[: len(results)]], len(views.constants))
        with target.active():
            self.constants = [target.constant(array) for array in views.constants]
            self._last_list: Any = target.commands()
            self._parts = self._compose(set(made))

    # -- making

    def _number_objects(self, made: Sequence[Buffer], views: Sequence[View], constants: int) -> None:
        """Number all arrays of a run: inputs, constants, the arena, results, numbers of updates, slots."""
        first_constant = len(self._shapes)
        arena = self._arena = first_constant + constants
        # The arrays that each run allocates: (allocator, shape, dtype).
        self.allocations: list[tuple[Any, tuple[int, ...], np.dtype[Any]]] = [
            (self.target.maker(self.arena_bytes), (self.arena_bytes,), _BYTES)
        ]
        for buffer, view in zip(made, views, strict=True):
            if buffer.kind == "result":
                buffer.number = arena + len(self.allocations)
                self.allocations.append((self.target.maker(buffer.bytes), view.shape, view.dtype))
        count = arena + len(self.allocations)
        for action in self._actions:
            if isinstance(action, UpdateAction):
                for kind, dtype in action.precisions():
                    action.objects[kind] = count
                    self.update_numbers.append((action.numbers, action.of.update.numbers, dtype))
                    count += 1
        slots = 0
        seen: set[Buffer] = set()
        for action in self._actions:
            for view in (*action.reads, *action.writes):
                real = view.buffer.real
                if real in seen:
                    continue
                seen.add(real)
                if real.kind == "constant":
                    real.number += first_constant
                elif real.kind == "arena":
                    real.number = arena if real.host is None else real.host.number
                elif real.kind == "slot":
                    real.number = count + slots
                    slots += 1
        self._slots = slots
        self._made = [(buffer.number, view.shape) for buffer, view in zip(made, views, strict=True)]
        # Are all results arrays that the run allocates (not made by Python steps)?
        self.fresh_results = all(buffer.kind == "result" for buffer in made)

    def _compose(self, kept: set[Buffer]) -> list[Run]:
        """Consecutive native actions as command lists, with the Python actions between them."""
        parts: list[Run] = []
        pending: list[Action] = []
        target = self.target
        commands = target.commands()
        made = [buffer.number for buffer in kept if buffer.kind == "result"]
        freed: set[int] = set()
        self.in_python: list[str] = []  # titles of the actions that have no native form
        self.lists = 0

        def flush() -> None:
            nonlocal commands, pending
            if pending:
                target.finish(commands, self._arena, made)
                parts.append(_listed(commands))
                self.lists += 1
                self._last_list = commands
                commands, pending = target.commands(), []
            if freed:
                parts.append(_freed(sorted(freed)))
                freed.clear()

        for i, action in enumerate(self._actions):
            if action.enter(commands):
                pending.append(action)
            else:
                flush()
                parts.append(action.python(target))
                self.in_python.append(action.title())
            done = [s.buffer.real for s in (*action.reads, *action.writes)]
            freed.update(m.number for m in done if m.kind == "slot" and m.last == i and m not in kept)
            if not pending:
                flush()
        flush()
        return parts

    def native_lists(self) -> list[tuple[Commands, BufferView | None]] | None:
        """The run as command lists without any Python; None if an action has no native form.

        After each list but the last, a check: the element that must be False for the run to go on. Buffers are numbered
        as in `run_objects`: inputs, constants, allocations, numbers of updates.
        """
        if not self.target.native:
            return None
        if not self.in_python:
            return [(self._last_list, None)] if len(self._parts) <= 1 and not self._slots else None
        found: list[tuple[Commands, BufferView | None]] = []
        commands = Commands()
        for action in self._actions:
            if isinstance(action, CheckAction):
                wrong = action.enter_check(commands)
                if wrong is None:
                    return None
                found.append((commands, wrong))
                commands = Commands()
            elif not action.enter(commands):
                return None
        return [*found, (commands, None)]

    # -- running

    def run(self, arrays: Sequence[Array], given: Sequence[Any] = ()) -> list[Array]:
        """The results for these arrays (by input number); `given` has the values of the slots."""
        if [a.strides for a in arrays] != self._strides or [a.shape for a in arrays] != self._shapes:
            return self._run_other_layout(arrays, given)
        if not self._plain.issuperset(map(type, arrays)):
            # Native code reads the memory of the array object, so subclasses are not accepted.
            return self._run_other_layout(arrays, given)
        if self.target.native:
            return self._run_on(arrays, given)
        return self.run_on_device(arrays, given)

    def _run_on(self, arrays: Sequence[Array], given: Sequence[Any]) -> list[Array]:
        objects: Objects = [*arrays, *self.constants]
        objects += [empty(shape, dtype) for empty, shape, dtype in self.allocations]
        return self.run_objects(objects, given)

    def run_on_device(self, arrays: Sequence[Array], given: Sequence[Any] = ()) -> list[Array]:
        """`run` on arrays that fit, where the plan's target is a device. The next plan may use the arena as
        soon as this run has been launched: the device runs one after the other."""
        target = self.target
        with target.active(), target.arena(self.arena_bytes) as arena:
            objects: Objects = [*arrays, *self.constants, arena]
            objects += [empty(shape, dtype) for empty, shape, dtype in self.allocations[1:]]
            return self.run_objects(objects, given)

    @property
    def made_numbers(self) -> list[int]:
        """The numbers of the results among the objects of a run, if `fresh_results`."""
        return [number for number, _ in self._made]

    def fits(self, arrays: Sequence[Array]) -> bool:
        """Do arrays have the shapes, strides and dtypes of the samples?"""
        alike = [a.strides for a in arrays] == self._strides and [a.shape for a in arrays] == self._shapes
        return alike and self._plain.issuperset(map(type, arrays)) and [a.dtype for a in arrays] == self._dtypes

    def run_objects(self, objects: Objects, given: Sequence[Any] = ()) -> list[Array]:
        """The results for a list of inputs that fit, then `constants`, then new arrays as `allocations` says."""
        for slot, _, dtype in self.update_numbers:
            objects.append(self.target.numbers(given[slot.number] if slot.__class__ is Slot else slot, dtype))
        if self._slots:
            objects += [None] * self._slots
        if self.in_python:
            with quietly():
                self._run_parts(objects, given)
        else:
            self._run_parts(objects, given)
        if self.fresh_results:
            return [objects[number] for number, _ in self._made]
        return [objects[number].reshape(shape) for number, shape in self._made]

    def _run_parts(self, objects: Objects, given: Sequence[Any]) -> None:
        for part in self._parts:
            part(objects, given)

    def _run_other_layout(self, arrays: Sequence[Array], given: Sequence[Any]) -> list[Array]:
        """Run on arrays with other strides: a second plan runs on contiguous copies."""
        for i, (array, shape, dtype) in enumerate(zip(arrays, self._shapes, self._dtypes, strict=True)):
            if array.shape != shape or array.dtype != dtype:
                raise ShapeError(f"{self.name}: input {i} is {array.dtype}{list(array.shape)}, planned was "
                                 f"{dtype}{list(shape)}", fix="Make a plan for arrays like these.")  # fmt: skip
        plain = [self.target.contiguous(a) for a in arrays]
        plan = self._other_layout
        if plan is None:
            plan = self._other_layout = Plan(self.name, *self._graph, plain)
        made = plan.run(plain, given)
        for i in self._written:
            if not self.target.shares_memory(plain[i], arrays[i]):
                self.target.copy(arrays[i], plain[i])
        return made

    # -- reading

    @property
    def kernels(self) -> int:
        """How many fused kernels a run has."""
        return sum(isinstance(a, KernelAction) for a in self._actions)

    @property
    def matmuls(self) -> int:
        """How many matmuls a run has."""
        return sum(isinstance(a, MatmulAction) for a in self._actions)

    @property
    def python_steps(self) -> int:
        """How many actions of a run are Python."""
        return len(self.in_python)

    def parts(self) -> list[tuple[str, tuple[str, ...], tuple[int, ...]]]:
        """For each action: its title, the names of its ops, and its shape."""
        found = []
        for action in self._actions:
            shape = action.writes[0].shape if action.writes else ()
            ops: tuple[str, ...] = ()
            if isinstance(action, KernelAction):
                ops, shape = action.ops, action.shape
            elif isinstance(action, MatmulAction):
                ops = ("matmul",)
            elif isinstance(action, PythonAction):
                ops = (action.op.name,)
            found.append((action.title(), ops, shape))
        return found

    def describe(self) -> str:
        """The actions, one line each."""
        lines = [f"plan {self.name}: {self.kernels} kernels, {self.matmuls} matmuls, {self.python_steps} steps in "
                 f"Python, {self.lists} native calls, arena {self.arena_bytes} bytes"]  # fmt: skip
        return "\n".join([*lines, *(f"  {action.title()}" for action in self._actions)])


def _listed(commands: Any) -> Run:
    run = commands.run
    return lambda objects, _given: run(objects)


def _freed(numbers: Sequence[int]) -> Run:
    def free(objects: Objects, _given: Sequence[Any]) -> None:
        for number in numbers:
            objects[number] = None

    return free
