"""Dead steps: steps of a program that neither its results nor a size depend on are removed, with their symbols."""

from __future__ import annotations

from typing import Any

from wayfare.core.symbolic_sizes import renumbered, symbols_in
from wayfare.ir.graph import Block, Step, Value
from wayfare.ir.program import Program


def without_dead_steps(program: Program) -> None:
    """Remove dead steps and outputs of loops, also in inner blocks; the program is changed in place."""
    _Live(program).prune(program.block)
    _drop_symbols(program)


class _Live:
    """The live values and steps of a program, by id."""

    def __init__(self, program: Program) -> None:
        self._symbols = program.symbols
        self._values: set[int] = set()
        self._steps: set[int] = set()
        self._waiting: list[Value] = list(program.block.outputs)
        self._need_sizes([v.shape for v in program.block.inputs])
        while self._waiting:
            value = self._waiting.pop()
            if id(value) not in self._values:
                self._values.add(id(value))
                self._follow(value)

    def _need_sizes(self, structure: Any) -> None:
        self._waiting += [self._symbols[number][0] for number in symbols_in(structure)]

    def _follow(self, value: Value) -> None:
        """What a live value depends on is live too."""
        step = value.step
        collected = _collected(step)
        if value.position in collected:
            self._need_sizes(value.shape)
            self._waiting.append(step.blocks[0].outputs[collected[value.position]])
        if id(step) in self._steps:
            return
        self._steps.add(id(step))
        self._waiting += step.inputs
        self._need_sizes([step.attrs, step.data, [v.shape for v in step.outputs if v.position not in collected]])
        for block in step.blocks:
            self._need_sizes([v.shape for v in block.inputs])
            self._waiting += block.outputs[: len(block.outputs) - len(collected)]

    def prune(self, block: Block) -> None:
        """Remove what is not live from a block and from those inside it."""
        block.steps = [step for step in block.steps if id(step) in self._steps]
        for step in block.steps:
            unused = {n: at for n, at in _collected(step).items() if id(step.outputs[n]) not in self._values}
            if unused:
                step.makes(*[v for n, v in enumerate(step.outputs) if n not in unused])
                body = step.blocks[0]
                body.outputs = [v for n, v in enumerate(body.outputs) if n not in unused.values()]
            for inner in step.blocks:
                self.prune(inner)


def _collected(step: Step) -> dict[int, int]:
    """The outputs of a loop that it collects: {number of the output: number of the output of its body}."""
    if step.kind != "loop":
        return {}
    lead = 1 if step.attrs["asks"] else 0
    return {n: lead + n for n in range(step.attrs["carried"], len(step.outputs))}


def _drop_symbols(program: Program) -> None:
    """Remove the symbols that stood for removed values, and number the others anew."""
    present = list(program.block.inputs)
    steps = list(program.block.walk())
    for step in steps:
        present += [*step.outputs, *[v for block in step.blocks for v in block.inputs]]
    here = {id(v) for v in (*present, *program.block.constants())}
    kept = [number for number, (value, _) in enumerate(program.symbols) if id(value) in here]
    if len(kept) == len(program.symbols):
        return
    numbers = {number: new for new, number in enumerate(kept)}
    program.symbols[:] = [program.symbols[number] for number in kept]
    for value in present:
        value.shape = renumbered(value.shape, numbers)
    for step in steps:
        step.attrs = renumbered(step.attrs, numbers)
        step.data = renumbered(step.data, numbers)
