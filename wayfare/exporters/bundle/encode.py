"""Encoding a program as JSON and arrays. Values are numbered in the order in which they are defined."""

from __future__ import annotations

from typing import Any

from wayfare.core.numpy_math import Array
from wayfare.exporters.bundle.json_values import encoded, encoded_structure
from wayfare.ir.graph import Block, Step, Value
from wayfare.ir.program import Program

VERSION = 1


class Encoding:
    """Numbers the values of a program, and collects its constants by their names in the file."""

    def __init__(self, program: Program, function: str, size_names: list[str], example_sizes: list[int]) -> None:
        self._numbers: dict[int, int] = {}
        self.arrays: dict[str, Array] = {}
        block = program.block
        constants = block.constants()
        for value in [*block.inputs, *constants]:
            self._enter(value)
        names = [self._constant(value) for value in constants]
        body = self._block(block)
        self.document = {
            "version": VERSION, "function": function, "size_names": size_names, "sizes": example_sizes,
            "inputs": [[name, *self._described(v)] for name, v in zip(program.input_names, block.inputs, strict=True)],
            "constants": names, "block": body, "outputs": program.output_names,
            "symbols": [[self._numbers[id(v)], axis] for v, axis in program.symbols],
            "structure": encoded_structure(program.structure),
        }  # fmt: skip

    def _enter(self, value: Value) -> int:
        return self._numbers.setdefault(id(value), len(self._numbers))

    def _constant(self, value: Value) -> str:
        assert value.array is not None
        name = base = value.step.path or "constant"
        count = 1
        while name in self.arrays:
            count += 1
            name = f"{base}_{count}"
        self.arrays[name] = value.array
        return name

    def _described(self, value: Value) -> list[Any]:
        return [value.dtype.name, encoded(value.shape)]

    def _block(self, block: Block) -> dict[str, Any]:
        return {"nodes": [self._step(s) for s in block.steps], "out": [self._numbers[id(v)] for v in block.outputs]}

    def _step(self, step: Step) -> dict[str, Any]:
        made: dict[str, Any] = {"in": [self._numbers[id(v)] for v in step.inputs]}
        given = {"value": step.data} if step.kind == "number" else step.attrs
        attrs = {name: encoded(value) for name, value in given.items()}
        made["kind" if step.op is None else "op"] = step.name
        if attrs:
            made["attrs"] = attrs
        if step.path:
            made["path"] = step.path
        if step.blocks:
            made["blocks"] = []
            for block in step.blocks:
                for value in block.inputs:
                    self._enter(value)
                takes = [self._described(v) for v in block.inputs]
                made["blocks"].append({"takes": takes, **self._block(block)})
        made["made"] = [self._described(v) for v in step.outputs]
        for value in step.outputs:
            self._enter(value)
        return made
