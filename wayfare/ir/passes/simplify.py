"""All passes over a program: constant folding, common subexpressions, dead steps."""

from __future__ import annotations

from typing import Any

from wayfare.ir.graph import Block, Step, Value, constant
from wayfare.ir.passes.common_subexpressions import array_key, step_key
from wayfare.ir.passes.constant_folding import folded
from wayfare.ir.passes.dead_steps import without_dead_steps
from wayfare.ir.program import Program


def simplified(program: Program) -> Program:
    """Run all passes; the program is changed in place."""
    _Simplifier(program).run()
    without_dead_steps(program)
    return program


class _Simplifier:
    """Constant folding and common subexpressions, block by block; an inner block may reuse steps of outer blocks."""

    def __init__(self, program: Program) -> None:
        self.program = program
        # What replaces a value.
        self._same: dict[Value, Value] = {}
        self._constants: dict[Any, Value] = {}

    def run(self) -> None:
        """Change the program."""
        self._block(self.program.block, {})
        symbols = self.program.symbols
        symbols[:] = [(self._now(value), axis) for value, axis in symbols]

    def _now(self, value: Value) -> Value:
        """The value that replaces this one. Weights, which have names, stay apart."""
        while value in self._same:
            value = self._same[value]
        if value.array is None or value.step.path:
            return value
        key = array_key(value.array)
        return value if key is None else self._constants.setdefault(key, value)

    def _block(self, block: Block, around: dict[Any, Step]) -> None:
        done = dict(around)
        steps = []
        for step in block.steps:
            step.inputs = tuple([self._now(v) for v in step.inputs])
            if step.op is not None and self._is_done(step, done):
                continue
            for inner in step.blocks:
                self._block(inner, done)
            steps.append(step)
        block.steps = steps
        block.outputs = [self._now(v) for v in block.outputs]

    def _is_done(self, step: Step, done: dict[Any, Step]) -> bool:
        """Replace a step by an equal earlier step, by constants, or by its input (a copy). False if it must stay."""
        assert step.op is not None
        if step.op.moves == "copy":
            self._becomes(step, step.inputs[:1])
            return True
        arrays = folded(step.op, step.inputs, step.attrs)
        if arrays is not None:
            self._becomes(step, [constant(a) for a in arrays])
            return True
        key = step_key(step.op, step.inputs, step.attrs)
        before = step if key is None else done.setdefault(key, step)
        if before is step:
            return False
        self._becomes(step, before.outputs)
        return True

    def _becomes(self, step: Step, others: Any) -> None:
        self._same.update(zip(step.outputs, others, strict=True))
