"""A graph as a model in ONNX's own format, and that as a file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from wayfare.errors import ExportError
from wayfare.fusion.sizes import Dim, formula_of
from wayfare.io.files import path_text
from wayfare.onnx.builder import DTYPE_NUMBERS
from wayfare.onnx.graph import Graph, Node, Value
from wayfare.onnx.sizes import symbols_in
from wayfare.version import __version__

# The oldest version of the file format that knows an operator set.
_FORMAT = {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11}
# Weights beyond this go to a file of their own; protobuf itself ends at 2 GiB.
LARGE = 1 << 30


def onnx_package() -> Any:
    """The `onnx` package, or how to get it."""
    try:
        import onnx
    except ImportError:
        raise ExportError("export: the package onnx is not installed",
                          fix='Install it with: pip install "wayfare[onnx]".') from None  # fmt: skip
    return onnx


class Writer:
    """Makes protobuf messages of graphs."""

    def __init__(self, size_names: list[str]) -> None:
        self.onnx = onnx_package()
        self.size_names = size_names  # of the symbols of sizes

    def model(self, graph: Graph, opset: int, metadata: dict[str, Any]) -> Any:
        """The whole model."""
        helper = self.onnx.helper
        made = helper.make_model(
            self.graph(graph, main=True), producer_name="wayfare", producer_version=__version__,
            ir_version=_FORMAT[opset], opset_imports=[helper.make_opsetid("", opset)],
        )  # fmt: skip
        helper.set_model_props(made, {key: v if isinstance(v, str) else json.dumps(v) for key, v in metadata.items()})
        return made

    def graph(self, graph: Graph, main: bool = False) -> Any:
        """One graph; the initializers are all in the outermost."""
        given = {v.name for v in graph.outputs}
        between = [v for name, v in graph.values.items() if name not in given] if main else []
        return self.onnx.helper.make_graph(
            [self.node(n) for n in graph.nodes], graph.name, [self.value(v) for v in graph.inputs],
            [self.value(v) for v in graph.outputs],
            initializer=[self.onnx.numpy_helper.from_array(np.asarray(a), name)
                         for name, a in graph.initializers.items()],
            value_info=[self.value(v) for v in between],
        )  # fmt: skip

    def node(self, node: Node) -> Any:
        """One node."""
        attributes = {name: self._attribute(v) for name, v in node.attributes.items() if v is not None}
        made = self.onnx.helper.make_node(node.kind, node.inputs, node.outputs, node.name, **attributes)
        if node.op:
            made.metadata_props.add(key="wayfare.op", value=node.op)
        if node.site is not None:
            made.metadata_props.add(key="wayfare.line", value=str(node.site))
        return made

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, Graph):
            return self.graph(value)
        if isinstance(value, np.ndarray):
            return self.onnx.numpy_helper.from_array(value)
        if isinstance(value, (list, tuple)):
            return [self._attribute(v) for v in value]
        return int(value) if isinstance(value, int) else value

    def value(self, v: Value) -> Any:
        """Name, dtype and shape of a value."""
        shape = None if v.shape is None else [self.size(n) for n in v.shape]
        return self.onnx.helper.make_tensor_value_info(v.name, DTYPE_NUMBERS[v.dtype.name], shape)

    def size(self, n: Any) -> int | str | None:
        """A size as a number, or as a text that names it; None for one that changes as a loop goes on."""
        if not isinstance(n, Dim):
            return int(n)
        names = [self.size_names[number] for number in symbols_in(n)]
        return None if "" in names else _text(formula_of(n), self.size_names)


def add_metadata(file: Path, entries: dict[str, Any]) -> None:
    """Add to the metadata of a model that is written: messages of protobuf one behind the other are one message."""
    more = onnx_package().ModelProto()
    for key, value in entries.items():
        more.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    with file.open("ab") as out:
        out.write(more.SerializeToString())


def _text(formula: Any, names: list[str]) -> str:
    if formula.__class__ is not tuple:
        return str(formula)
    if formula[0] == "symbol":
        return names[formula[1]]
    parts = [_text(part, names) for part in formula[1:]]
    if len(parts) == 1:
        return f"{formula[0]}({parts[0]})"
    return "(" + f" {formula[0]} ".join(parts) + ")"


@contextmanager
def saved(model: Any, path: str | os.PathLike[str], external: bool | None) -> Iterator[tuple[Path, list[Path]]]:
    """Write a model; weights that are large (or if `external` says so) into `<name>.data` beside it.

    Inside the block the file can be tried, in a folder of its own; only when the block ends well do the files take the
    place of what was there. Gives the file to try, and the files as they will be.
    """
    onnx = onnx_package()
    target = Path(path_text("export", path))
    if not target.parent.is_dir():
        raise ExportError(f"export: there is no folder {str(target.parent)!r}", fix="Make it first.")
    if external is None:
        external = sum(len(t.raw_data) for t in model.graph.initializer) > LARGE
    beside = {"save_as_external_data": True, "location": f"{target.name}.data", "size_threshold": 1024}
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            file = Path(folder, target.name)
            onnx.save_model(model, str(file), **(beside if external else {}))
            # The weights first: the old file still finds its own names in them, or none.
            written = sorted(Path(folder).iterdir(), key=lambda f: f == file)
            yield file, [target.with_name(f.name) for f in reversed(written)]
            for each in written:
                os.replace(each, target.with_name(each.name))
    except OSError as error:
        raise ExportError(f"export: cannot write {str(target)!r}: {error.strerror or error}") from error
