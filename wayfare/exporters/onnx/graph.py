"""An ONNX graph as plain Python objects, without protobuf: values, nodes and initializers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from wayfare.core.spec import DType, Spec


class OnnxValue:
    """A tensor of the model: its name, its dtype, and its shape if it is known (sizes may be `Dim`s).

    Python's operators write more nodes, so that the formulas of op records can run on values.
    """

    __slots__ = ("builder", "dtype", "name", "shape")

    def __init__(self, builder: Any, name: str, dtype: DType, shape: tuple[int, ...] | None = None) -> None:
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

    # Comparisons give values, so hashing is by identity.
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("the truth of a value is only known when the model runs")

    def __add__(self, other: Any) -> Any:
        return self.builder.ops.add(self, other)

    def __radd__(self, other: Any) -> Any:
        return self.builder.ops.add(other, self)

    def __sub__(self, other: Any) -> Any:
        return self.builder.ops.sub(self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.builder.ops.sub(other, self)

    def __mul__(self, other: Any) -> Any:
        return self.builder.ops.mul(self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.builder.ops.mul(other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.builder.ops.div(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.builder.ops.div(other, self)

    def __pow__(self, other: Any) -> Any:
        return self.builder.ops.pow(self, other)

    def __mod__(self, other: Any) -> Any:
        return self.builder.ops.remainder(self, other)

    def __neg__(self) -> Any:
        return self.builder.ops.neg(self)

    def __abs__(self) -> Any:
        return self.builder.ops.abs(self)

    def __eq__(self, other: Any) -> Any:
        return self.builder.ops.eq(self, other)

    def __ne__(self, other: Any) -> Any:
        return self.builder.ops.ne(self, other)

    def __lt__(self, other: Any) -> Any:
        return self.builder.ops.lt(self, other)

    def __le__(self, other: Any) -> Any:
        return self.builder.ops.le(self, other)

    def __gt__(self, other: Any) -> Any:
        return self.builder.ops.gt(self, other)

    def __ge__(self, other: Any) -> Any:
        return self.builder.ops.ge(self, other)


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
