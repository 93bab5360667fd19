"""The program that several runs of a function have in common: ops on variables, sizes as formulas, no Python.

It is what the model file is written from. Numbers among the attributes and shapes may be `Dim`s: their symbols are
listed in `Program.symbols`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from wayfare.core.callsite import Site
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.core.spec import DType


class Var:
    """A tensor of the program: computed, given, or (with an `array`) constant."""

    __slots__ = ("array", "dtype", "fixed", "name", "shape")

    def __init__(
        self, dtype: DType, shape: tuple[int, ...], name: str = "", array: Array | None = None, fixed: bool = False
    ) -> None:
        self.dtype = dtype
        self.shape = shape  # sizes may be Dims
        self.name = name
        self.array = array
        # Does it depend on nothing that is given when the model runs?
        self.fixed = fixed or array is not None

    def __repr__(self) -> str:
        return f"<{self.name or 'var'}: {self.dtype.short}{list(self.shape)}>"


@dataclass(eq=False, slots=True)
class Node:
    """One step. `kind` is "op" (a record, in `op`), "number" and "grid" (constants that follow from sizes),
    "if" (with a block for each way) or "loop" (with one for an iteration).

    A loop is given what it carries, before that (with `entry`) whether to begin at all; its block gets the number of
    the iteration and what is carried, and gives (with `asks`) whether to go on, what is carried, and what is collected.
    `trips` is how often it runs at most, None for no bound."""

    kind: str
    inputs: list[Var]
    outputs: list[Var]
    attrs: dict[str, Any] = field(default_factory=dict)
    op: Op | None = None
    blocks: list[Block] = field(default_factory=list)
    site: Site | None = None
    path: str = ""

    @property
    def label(self) -> str:
        """The op's name, or the kind."""
        return self.kind if self.op is None else self.op.name


@dataclass(eq=False, slots=True)
class Block:
    """Nodes in order, between inputs and outputs. A block inside a node may use what the blocks around it know."""

    inputs: list[Var]
    nodes: list[Node]
    outputs: list[Var]

    def walk(self) -> Iterator[Node]:
        """Every node, those of inner blocks after the node they are in."""
        waiting = list(reversed(self.nodes))
        while waiting:
            node = waiting.pop()
            yield node
            for block in reversed(node.blocks):
                waiting.extend(reversed(block.nodes))

    def constants(self) -> list[Var]:
        """Every variable with an array, also in inner blocks, once, in the order of first use."""
        used: list[Var] = []
        for node in self.walk():
            used += node.inputs
            for block in node.blocks:
                used += block.outputs
        return list({id(v): v for v in (*used, *self.outputs) if v.array is not None}.values())


@dataclass(eq=False, slots=True)
class Program:
    """A block with the names of what goes in and comes out."""

    block: Block
    # What the symbols of a Dim's formula are: an axis of a variable, or (axis -1) the one number it holds.
    symbols: list[tuple[Var, int]]
    input_names: list[str]
    output_names: list[str]
    # The results as the function gave them: see `wayfare.compiler.structure.put_together`.
    structure: Any
    # What was taken for granted, as sentences for the report.
    notes: list[str] = field(default_factory=list)
