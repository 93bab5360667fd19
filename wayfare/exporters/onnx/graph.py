"""An ONNX graph as plain Python objects, without protobuf: values, nodes and initializers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from wayfare.core.errors import ExportError
from wayfare.core.operators import Operators
from wayfare.core.spec import DType, Spec

# How ONNX numbers its dtypes.
_NUMBERS = {
    "float32": 1, "uint8": 2, "int8": 3, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11,
}  # fmt: skip


def number_of(dtype: DType) -> int:
    """ONNX's number of a dtype."""
    found = _NUMBERS.get(dtype.name)
    if found is None:  # ONNX has bfloat16, but ONNX Runtime has hardly an operator for it on the CPU
        raise ExportError(f"export: a model of {dtype.name} cannot be exported to ONNX",
                          fix="Convert it with .float() or .half() first.")  # fmt: skip
    return found


class OnnxValue(Operators):
    """A tensor of the model: its name, its dtype, and its shape if it is known (sizes may be `Dim`s).

    Python's operators write more nodes, so that the formulas of op records can run on values.
    """

    __slots__ = ("builder", "dtype", "name", "shape")

    def __init__(self, builder: Any, name: str, dtype: DType, shape: tuple[int, ...] | None = None) -> None:
        number_of(dtype)
        self.builder = builder
        self.name = name
        self.dtype = dtype
        self.shape: Any = shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def spec(self) -> Spec:
        """Shape and dtype together."""
        return Spec(self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.dtype.short}{'' if self.shape is None else list(self.shape)}>"

    def __bool__(self) -> bool:
        raise TypeError("the truth of a value is only known when the model runs")

    @staticmethod
    def _apply(op: str, *operands: Any) -> Any:
        builder = next(value.builder for value in operands if isinstance(value, OnnxValue))
        return getattr(builder.ops, op)(*operands)


@dataclass(slots=True)
class OnnxNode:
    """One node: an ONNX operator with the names of its inputs ("" for one left out) and outputs."""

    kind: str
    name: str
    inputs: list[str]
    outputs: list[str]
    # Numbers, strings, lists of them, NumPy arrays, or Graphs (the bodies of If, Loop and Scan).
    attributes: dict[str, Any]
    # The Wayfare op it was written for, and the user's line, for the report.
    op: str = ""
    site: Any = None


@dataclass(slots=True)
class OnnxGraph:
    """Nodes in topological order. The outermost graph has the initializers of the whole model."""

    name: str = "model"
    inputs: list[OnnxValue] = field(default_factory=list)
    outputs: list[OnnxValue] = field(default_factory=list)
    nodes: list[OnnxNode] = field(default_factory=list)
    initializers: dict[str, Any] = field(default_factory=dict)
    # What is known of the values that nodes make, by name.
    values: dict[str, OnnxValue] = field(default_factory=dict)

    def walk(self) -> Iterator[OnnxGraph]:
        """This graph, and those inside its nodes."""
        yield self
        for node in self.nodes:
            for value in node.attributes.values():
                if isinstance(value, OnnxGraph):
                    yield from value.walk()

    def prune(self) -> None:
        """Remove nodes and initializers that are not used, and unused index outputs of MaxPool."""
        kept: list[OnnxNode] = []
        used = {value.name for value in self.outputs}
        for node in reversed(self.nodes):
            if used.isdisjoint(node.outputs):
                continue
            if node.kind == "MaxPool" and len(node.outputs) == 2 and node.outputs[1] not in used:
                # With indices the runtime uses a slower kernel.
                del node.outputs[1]
            used.update(node.inputs)
            for value in node.attributes.values():
                if isinstance(value, OnnxGraph):
                    value.prune()
                    used.update(name for inner in value.walk() for name in inner._read())
            kept.append(node)
        self.nodes = kept[::-1]
        made = {name for node in self.nodes for name in node.outputs}
        self.initializers = {name: array for name, array in self.initializers.items() if name in used}
        self.values = {name: v for name, v in self.values.items() if name in made}

    def _read(self) -> Iterator[str]:
        for node in self.nodes:
            yield from node.inputs
        for value in self.outputs:
            yield value.name
