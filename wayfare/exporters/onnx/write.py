"""Writing a graph as an ONNX model (protobuf), and the model as a file."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from wayfare.core.errors import ExportError, FileAccessError, MissingFileError
from wayfare.core.symbolic_sizes import Dim, formula_of, symbols_in
from wayfare.core.version import __version__
from wayfare.exporters.inspect.external_data import fault_of
from wayfare.exporters.onnx.graph import OnnxGraph, OnnxNode, OnnxValue, number_of
from wayfare.exporters.packages import onnx_package
from wayfare.io.files import path_text

# The oldest version of the file format (IR version) that knows an operator set.
_FORMAT = {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11}
# More bytes of weights than this go to an external file; the limit of protobuf is 2 GiB.
LARGE = 1 << 30


class Writer:
    """Converts graphs to protobuf messages."""

    def __init__(self, size_names: list[str]) -> None:
        self.onnx = onnx_package()
        self.size_names = size_names  # of the symbols of sizes

    def model(self, graph: OnnxGraph, opset: int, metadata: dict[str, Any]) -> Any:
        """The whole model."""
        helper = self.onnx.helper
        made = helper.make_model(
            self.graph(graph, main=True), producer_name="wayfare", producer_version=__version__,
            ir_version=_FORMAT[opset], opset_imports=[helper.make_opsetid("", opset)],
        )  # fmt: skip
        helper.set_model_props(made, {_encodable(key): _metadata_text(value) for key, value in metadata.items()})
        return made

    def graph(self, graph: OnnxGraph, main: bool = False) -> Any:
        """One graph; all initializers are in the outermost one."""
        _check_names(graph)
        given = {v.name for v in graph.outputs}
        between = [v for name, v in graph.values.items() if name not in given] if main else []
        return self.onnx.helper.make_graph(
            [self.node(n) for n in graph.nodes], graph.name, [self.value(v) for v in graph.inputs],
            [self.value(v) for v in graph.outputs],
            initializer=[self.onnx.numpy_helper.from_array(np.asarray(a), name)
                         for name, a in graph.initializers.items()],
            value_info=[self.value(v) for v in between],
        )  # fmt: skip

    def node(self, node: OnnxNode) -> Any:
        """One node."""
        attributes = {name: self._attribute(v) for name, v in node.attributes.items() if v is not None}
        made = self.onnx.helper.make_node(node.kind, node.inputs, node.outputs, node.name, **attributes)
        if node.op:
            made.metadata_props.add(key="wayfare.op", value=node.op)
        if node.site is not None:
            made.metadata_props.add(key="wayfare.line", value=_encodable(str(node.site)))
        return made

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, OnnxGraph):
            return self.graph(value)
        if isinstance(value, np.ndarray):
            return self.onnx.numpy_helper.from_array(value)
        if isinstance(value, (list, tuple)):
            return [self._attribute(v) for v in value]
        return int(value) if isinstance(value, int) else value

    def value(self, v: OnnxValue) -> Any:
        """Name, dtype and shape of a value."""
        shape = None if v.shape is None else [self.size(n) for n in v.shape]
        return self.onnx.helper.make_tensor_value_info(v.name, number_of(v.dtype), shape)

    def size(self, n: Any) -> int | str | None:
        """A size as a number, or as its name or formula; None for one that changes between iterations of a loop."""
        if not isinstance(n, Dim):
            return int(n)
        names = [self.size_names[number] for number in symbols_in(n)]
        return None if "" in names else _text(formula_of(n), self.size_names)


def add_metadata(file: Path, entries: dict[str, Any]) -> None:
    """Append to the metadata of a written model: protobuf merges messages that stand one after the other."""
    more = onnx_package().ModelProto()
    for key, value in entries.items():
        more.metadata_props.add(key=key, value=_metadata_text(value))
    with file.open("ab") as out:
        out.write(more.SerializeToString())


def _metadata_text(value: Any) -> str:
    return _encodable(value) if isinstance(value, str) else json.dumps(value)


def _encodable(text: str) -> str:
    """A text that UTF-8 can encode: a lone surrogate, which the name of a source file may have, becomes `?`."""
    return text.encode("utf-8", "replace").decode()


def _check_names(graph: OnnxGraph) -> None:
    """Refuse names that cannot be printed: readers of the file would print them."""
    values = [v.name for v in (*graph.inputs, *graph.outputs)]
    for what, names in (("a weight", graph.initializers), ("an input or output", values),
                        ("a node", [n.name for n in graph.nodes])):  # fmt: skip
        for name in names:
            if not name.isprintable():
                raise ExportError(f"export: the name of {what}, {name!r:.60}, has a character in it that cannot be "
                                  "printed", fix="Give it another name.")  # fmt: skip


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
    """Write a model; large weights (or all, if `external` is True) go to `<name>.data` next to it.

    Inside the block the file lies in a temporary folder and can be tried; only when the block ends without an error are
    the files moved to their places. A link is replaced, not followed. Yields the file to try, and the final paths.
    """
    onnx = onnx_package()
    target = Path(path_text("export", path))
    if not target.parent.is_dir():
        missing = MissingFileError(f"export: there is no folder {str(target.parent)!r}", fix="Make it first.")
        missing.errno = errno.ENOENT
        raise missing
    if external is None:
        external = sum(len(t.raw_data) for t in model.graph.initializer) > LARGE
    location = f"{target.name}.data"
    if external and fault_of(location):
        raise ExportError(f"export: a file of weights cannot have the name {location!r}, which {fault_of(location)}",
                          fix="Give the model another name.")  # fmt: skip
    external_options = {"save_as_external_data": True, "location": location, "size_threshold": 1024}
    try:
        _check_target(target)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            file = Path(folder, target.name)
            onnx.save_model(model, str(file), **(external_options if external else {}))
            written = {each: target.with_name(each.name) for each in sorted(Path(folder).iterdir())}
            for place in written.values():
                _check_target(place)
            yield file, list(written.values())
            _put_in_place(written, Path(folder, f"{target.name}.before"))
    except FileAccessError:
        raise
    except OSError as error:
        raise _refused(f"cannot write {str(target)!r}: {error.strerror or error}", error.errno) from error


def _refused(what: str, number: int | None, fix: str = "") -> FileAccessError:
    refused = FileAccessError(f"export: {what}", fix=fix)
    refused.errno = number
    return refused


def _check_target(place: Path) -> None:
    """Refuse to replace what is not a regular file, or is write-protected."""
    if place.is_symlink() or not place.exists():
        return
    mode = place.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or pipe"
        raise _refused(f"{str(place)!r} is {kind}, not a file", errno.EISDIR, "Give the path of a file.")
    if not os.access(place, os.W_OK):
        raise _refused(f"{str(place)!r} is write-protected", errno.EACCES, "Delete it first, or write elsewhere.")


def _put_in_place(written: dict[Path, Path], before: Path) -> None:
    """Move files to their places, the weights before the model; if that fails, restore the old files.

    A model must never lie next to weights of another one, so the old files are moved away first. A single file
    replaces the old one atomically.
    """
    if len(written) == 1:
        os.replace(*written.popitem())
        return
    before.mkdir()
    kept: dict[Path, Path] = {}
    placed: list[Path] = []
    try:
        for place in written.values():
            if os.path.lexists(place):
                os.replace(place, before / place.name)
                kept[place] = before / place.name
        for file, place in reversed(written.items()):
            os.replace(file, place)
            placed.append(place)
    except BaseException:
        for place in placed:
            place.unlink()
        for place, old in kept.items():
            os.replace(old, place)
        raise
