"""A traced function as a list of kernels and single ops, for any sizes; `bound.py` runs it for given sizes."""

from __future__ import annotations

from collections.abc import Sequence

from wayfare.codegen.runtime import kernel
from wayfare.ir.fuse.emit import Emitted, emit
from wayfare.ir.fuse.partition import Group, Partition
from wayfare.ir.graph import Step, Value


class KernelStep:
    """One kernel."""

    def __init__(self, group: Group, emitted: Emitted) -> None:
        self.group = group
        self.emitted = emitted
        self.kernel = kernel.build(emitted.loop)

    @property
    def reads(self) -> list[Value]:
        """The values it needs."""
        return [g.value for g in self.emitted.inputs if g.value is not None]

    @property
    def writes(self) -> Sequence[Value]:
        """The values it stores."""
        return self.emitted.outputs


class OpStep:
    """One op run by its own record."""

    def __init__(self, step: Step) -> None:
        self.step = step

    @property
    def reads(self) -> Sequence[Value]:
        """The values it needs."""
        return self.step.inputs

    @property
    def writes(self) -> Sequence[Value]:
        """The values it makes."""
        return self.step.outputs


class FusedProgram:
    """Steps that compute the outputs from the inputs (leaves of the kind "input", in the order of their numbers)."""

    def __init__(self, name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
        self.name = name
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.partition = Partition(self.outputs)
        self.steps: list[KernelStep | OpStep] = []
        self.slots: dict[Value, int] = {v: i for i, v in enumerate(self.inputs)}
        self.constants: list[tuple[int, Value]] = []
        self._build()
        self.frees = self._last_uses()

    @property
    def kernels(self) -> list[KernelStep]:
        """The steps that are kernels."""
        return [s for s in self.steps if isinstance(s, KernelStep)]

    # -- making

    def _build(self) -> None:
        stored = self.partition.stores()
        count = 0
        for item in self.partition.order:
            if isinstance(item, Step):
                self._add(OpStep(item))
                continue
            wanted = [v for v in item.members if v in stored]
            if wanted:
                names = f"{self.name}_{count}" if count else self.name
                count += 1
                self._add(KernelStep(item, emit(self.partition, item, wanted, names)))
        for v in self.outputs:
            self._have(v)

    def _add(self, step: KernelStep | OpStep) -> None:
        for v in step.reads:
            self._have(v)
        for v in step.writes:
            self.slots.setdefault(v, len(self.slots))
        self.steps.append(step)

    def _have(self, v: Value) -> None:
        """Give a value a slot: constants get one that is filled before a run, view ops become a step."""
        if v in self.slots:
            return
        if v.step.op is None:
            self.slots[v] = len(self.slots)
            self.constants.append((self.slots[v], v))
            return
        self._add(OpStep(v.step))

    def _last_uses(self) -> list[list[int]]:
        """The slots that are not used any more after each step."""
        last: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            for v in (*step.reads, *step.writes):
                last[self.slots[v]] = number
        kept = {self.slots[v] for v in self.outputs}
        return [[s for s, at in last.items() if at == number and s not in kept] for number in range(len(self.steps))]

    # -- reading

    def uses(self, v: Value) -> int:
        """How many steps read a value; an output counts as one more read."""
        return sum(v is x for step in self.steps for x in step.reads) + sum(v is x for x in self.outputs)

    def describe(self) -> str:
        """The steps as text."""
        names = {v: f"in{i}" for i, v in enumerate(self.inputs)}

        def named(v: Value) -> str:
            if v not in names:
                names[v] = str(v.step.data) if v.step.name == "number" else f"v{len(names) - len(self.inputs)}"
            return names[v]

        lines = [f"program {self.name}({', '.join(f'{named(v)}: {v.spec}' for v in self.inputs)})"]
        for step in self.steps:
            made = ", ".join(named(v) for v in step.writes)
            if isinstance(step, OpStep):
                lines.append(f"  {made} = {step.step.name}({', '.join(named(v) for v in step.reads)})")
                continue
            given = [named(g.value) if g.value is not None else str(g.number) for g in step.emitted.inputs]
            lines.append(f"  {made} = kernel {step.kernel.name}({', '.join(given)})")
            lines += ["    " + line for line in step.kernel.source.splitlines()]
            if step.group.recomputed:
                lines.append(f"    recomputed: {', '.join(v.step.name for v in step.group.recomputed)}")
        lines.append(f"  return {', '.join(named(v) for v in self.outputs)}")
        return "\n".join(lines)
