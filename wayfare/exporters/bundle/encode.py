"""Encoding a program as JSON and arrays. Variables are numbered in the order in which they are defined."""

from __future__ import annotations

from typing import Any

from wayfare.core.numpy_math import Array
from wayfare.exporters.bundle.json_values import encoded, encoded_structure
from wayfare.exporters.program import Block, Node, Program, Var

VERSION = 1


class Encoding:
    """Numbers the variables of a program, and collects its constants by their names in the file."""

    def __init__(self, program: Program, function: str, size_names: list[str], example_sizes: list[int]) -> None:
        self._numbers: dict[int, int] = {}
        self.arrays: dict[str, Array] = {}
        block = program.block
        constants = block.constants()
        for var in [*block.inputs, *constants]:
            self._enter(var)
        names = [self._constant(var) for var in constants]
        body = self._block(block)
        self.document = {
            "version": VERSION, "function": function, "size_names": size_names, "sizes": example_sizes,
            "inputs": [[name, *self._described(v)] for name, v in zip(program.input_names, block.inputs, strict=True)],
            "constants": names, "block": body, "outputs": program.output_names,
            "symbols": [[self._numbers[id(v)], axis] for v, axis in program.symbols],
            "structure": encoded_structure(program.structure),
        }  # fmt: skip

    def _enter(self, var: Var) -> int:
        return self._numbers.setdefault(id(var), len(self._numbers))

    def _constant(self, var: Var) -> str:
        assert var.array is not None
        name = base = var.name or "constant"
        count = 1
        while name in self.arrays:
            count += 1
            name = f"{base}_{count}"
        self.arrays[name] = var.array
        return name

    def _described(self, var: Var) -> list[Any]:
        return [var.dtype.name, encoded(var.shape)]

    def _block(self, block: Block) -> dict[str, Any]:
        return {"nodes": [self._node(n) for n in block.nodes], "out": [self._numbers[id(v)] for v in block.outputs]}

    def _node(self, node: Node) -> dict[str, Any]:
        made: dict[str, Any] = {"in": [self._numbers[id(v)] for v in node.inputs]}
        attrs = {name: encoded(value) for name, value in node.attrs.items()}
        if node.op is not None:
            made["op"] = node.op.name
        else:
            made["kind"] = node.kind
        if attrs:
            made["attrs"] = attrs
        if node.path:
            made["path"] = node.path
        if node.blocks:
            made["blocks"] = []
            for block in node.blocks:
                for var in block.inputs:
                    self._enter(var)
                takes = [self._described(v) for v in block.inputs]
                made["blocks"].append({"takes": takes, **self._block(block)})
        made["made"] = [self._described(v) for v in node.outputs]
        for var in node.outputs:
            self._enter(var)
        return made
