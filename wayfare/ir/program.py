"""A function without Python: a block of the graph, with the names of its inputs and outputs.

It is recovered from several runs of a function; ONNX files and `.wf` bundles are written from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wayfare.ir.graph import Block, Value


@dataclass(eq=False, slots=True)
class Program:
    """The main block, with the names of its inputs and outputs."""

    block: Block
    # What each symbol of a formula is: an axis of a value, or (axis -1) the number in a scalar.
    symbols: list[tuple[Value, int]]
    input_names: list[str]
    output_names: list[str]
    # The structure of the function's results, for `wayfare.compiler.structure.put_together`.
    structure: Any
    # What was assumed without being seen, as sentences for the report.
    notes: list[str] = field(default_factory=list)
