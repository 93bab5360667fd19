"""The nodes and weights of a model, found by walking all its graphs.

The graphs are checked on the way: every name stands for one value, and every value is made before it is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from wayfare.core.format import plain
from wayfare.exporters.inspect.external_data import ExternalData
from wayfare.exporters.inspect.weights import Weight, dtype_name, weight_of
from wayfare.exporters.inspect.wire import Damaged


class ModelNode(NamedTuple):
    """A node of a model file: its operator and, if Wayfare wrote it, the op and the line of Python it came from."""

    name: str
    operator: str
    op: str
    line: str


class Survey:
    """Walks a model once; `tensors` are all tensors in it, also those of attributes."""

    def __init__(self, model: Any, external: ExternalData) -> None:
        self.nodes: list[ModelNode] = []
        self.weights: dict[str, Weight] = {}
        self.tensors: list[Any] = []
        self.has_sparse = False
        self._external = external
        self._times: Counter[str] = Counter()
        main = self._graph(model.graph, [])
        for training in model.training_info:
            for graph in (training.initialization, training.algorithm):
                self._graph(graph, [main])
        for function in model.functions:
            known: set[str] = set()
            _enter(known, function.input, "an input of a function")
            for attribute in function.attribute_proto:
                self._attribute(attribute, [])
            self._body(function, known, [])
        external.check_overlaps()

    def _graph(self, graph: Any, outer: list[set[str]]) -> set[str]:
        """Walk one graph and those inside it; returns the names it defines."""
        known: set[str] = set()
        weights: set[str] = set()
        _enter(known, (value.name for value in graph.input), "an input")
        for tensor in self._stored(graph.initializer, graph.sparse_initializer):
            _enter(weights, [tensor.name], "a weight")
            self.weights[self._free_name(tensor.name)] = weight_of(tensor, self._external)
        known |= weights
        self._body(graph, known, outer)
        return known

    def _body(self, graph: Any, known: set[str], outer: list[set[str]]) -> None:
        scopes = [*outer, known]
        for node in graph.node:
            if not node.op_type:
                raise Damaged(f"has a node without an operator, {node.name!r:.60}")
            shown = f"the node {node.name!r:.60} ({plain(node.op_type[:40])})"
            for name in node.input:
                if name and not any(name in scope for scope in scopes):
                    raise _unknown(name, shown, graph)
            for attribute in node.attribute:
                self._attribute(attribute, scopes)
            _enter(known, filter(None, node.output), f"a result of {shown}")
            self.nodes.append(_described(node))
        for output in graph.output:
            name = output if isinstance(output, str) else output.name
            if not any(name in scope for scope in scopes):
                raise Damaged(f"has the output {name!r:.60}, which nothing makes")

    def _attribute(self, attribute: Any, scopes: list[set[str]]) -> None:
        tensors = [attribute.t] if attribute.HasField("t") else []
        sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        for tensor in self._stored([*tensors, *attribute.tensors], [*sparse, *attribute.sparse_tensors]):
            weight_of(tensor, self._external)
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            self._graph(graph, scopes)

    def _stored(self, tensors: Iterable[Any], sparse: Iterable[Any]) -> Iterator[Any]:
        """Dense tensors, and the values of sparse ones."""
        for tensor in tensors:
            self.tensors.append(tensor)
            yield tensor
        for each in sparse:
            self.has_sparse = True
            weight_of(each.indices, self._external)
            yield each.values

    def _free_name(self, name: str) -> str:
        """The name of a weight; if an earlier graph has it too, with a number."""
        free = name
        while free in self.weights:
            self._times[name] += 1
            free = f"{name} ({self._times[name] + 1})"
        return free


def _enter(known: set[str], names: Iterable[str], what: str) -> None:
    for name in names:
        if not name:
            raise Damaged(f"has {what} without a name")
        if name in known:
            raise Damaged(f"has two values with the name {name!r:.60}, one of them {what}")
        known.add(name)


def _unknown(name: str, shown: str, graph: Any) -> Damaged:
    if any(name in node.output for node in graph.node):
        return Damaged(f"uses {name!r:.60} in {shown} before it is made: its nodes are out of order, or go in a circle")
    return Damaged(f"uses {name!r:.60} in {shown}, and nothing makes that")


def _described(node: Any) -> ModelNode:
    notes = {entry.key: entry.value for entry in node.metadata_props}
    operator = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    return ModelNode(node.name, operator, notes.get("wayfare.op", ""), notes.get("wayfare.line", ""))


def type_text(kind: Any) -> str:
    """The type of an input or output: `float32[batch, 3]`; `?` for what the file leaves open."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        held = getattr(kind, which)
        prefix = "sparse " if which == "sparse_tensor_type" else ""
        sizes = f"[{', '.join(map(_size_text, held.shape.dim))}]" if held.HasField("shape") else "[…]"
        return f"{prefix}{dtype_name(held.elem_type)}{sizes}"
    if which in ("sequence_type", "optional_type"):
        return f"{which.removesuffix('_type')} of {type_text(getattr(kind, which).elem_type)}"
    if which == "map_type":
        return f"map from {dtype_name(kind.map_type.key_type)} to {type_text(kind.map_type.value_type)}"
    return "?" if which is None else which.removesuffix("_type")


def _size_text(size: Any) -> str:
    which = size.WhichOneof("value")
    if which == "dim_value" and size.dim_value < 0:
        raise Damaged(f"has a size of {size.dim_value}")
    return str(getattr(size, which)) if which and (which == "dim_value" or size.dim_param) else "?"
