"""A program without Python: blocks of nodes on variables, with sizes as formulas.

It is recovered from several runs of a function; ONNX files and `.wf` bundles are written from it. Numbers in attributes
and shapes may be `Dim`s, whose symbols are listed in `Program.symbols`.
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
    """A variable of the program: an input, computed, or (with an `array`) a constant."""

    __slots__ = ("array", "dtype", "fixed", "name", "shape")

    def __init__(
        self, dtype: DType, shape: tuple[int, ...], name: str = "", array: Array | None = None, fixed: bool = False
    ) -> None:
        self.dtype = dtype
        self.shape = shape  # sizes may be Dims
        self.name = name
        self.array = array
        # Is its value the same in every call, because it depends on no input?
        self.fixed = fixed or array is not None

    def __repr__(self) -> str:
        return f"<{self.name or 'var'}: {self.dtype.short}{list(self.shape)}>"


@dataclass(eq=False, slots=True)
class Node:
    """One node. `kind` is "op" (with the record in `op`), "number" or "grid" (constants that depend on sizes),
    "if" (with two blocks, then and else) or "loop" (with one block, the body).

    Attributes of a loop: `trips`, the maximal number of iterations (None: no bound); `carried`, the number of
    loop-carried variables; `entry`, whether the first input is the condition to begin; `asks`, whether the first output
    of the body is the condition to continue. The other inputs are the initial values of the carried variables. The body
    takes the number of the iteration and the carried variables; it gives their next values, then the values that the
    loop collects by stacking.
    """

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
    """Nodes in order, with inputs and outputs. A block inside a node may use variables of the blocks around it."""

    inputs: list[Var]
    nodes: list[Node]
    outputs: list[Var]

    def walk(self) -> Iterator[Node]:
        """Every node; those of inner blocks come after the node that holds the block."""
        waiting = list(reversed(self.nodes))
        while waiting:
            node = waiting.pop()
            yield node
            for block in reversed(node.blocks):
                waiting.extend(reversed(block.nodes))

    def constants(self) -> list[Var]:
        """Every constant, also those of inner blocks, once, in the order of first use."""
        used: list[Var] = []
        for node in self.walk():
            used += node.inputs
            for block in node.blocks:
                used += block.outputs
        return list({id(v): v for v in (*used, *self.outputs) if v.array is not None}.values())


@dataclass(eq=False, slots=True)
class Program:
    """The main block, with the names of its inputs and outputs."""

    block: Block
    # What each symbol of a formula is: an axis of a variable, or (axis -1) the value of a scalar variable.
    symbols: list[tuple[Var, int]]
    input_names: list[str]
    output_names: list[str]
    # The structure of the function's results, for `wayfare.compiler.structure.put_together`.
    structure: Any
    # What was assumed without being seen, as sentences for the report.
    notes: list[str] = field(default_factory=list)
