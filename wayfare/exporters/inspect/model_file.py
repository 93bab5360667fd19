"""`wf.onnx.inspect`: what is in an ONNX file, without running it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wayfare.core.errors import FileAccessError, FileFormatError
from wayfare.core.format import bytes_text, counted
from wayfare.exporters.inspect.external_data import ExternalData
from wayfare.exporters.inspect.layout import MOST_PRINTED, headline, listed, times_text
from wayfare.exporters.inspect.survey import ModelNode, Survey, type_text
from wayfare.exporters.inspect.wire import MOST_BYTES, Damaged, parsed
from wayfare.exporters.packages import onnx_package
from wayfare.io.files import open_for_reading, path_text
from wayfare.io.kinds import ONNX, kind_of_file

_LONGEST_JSON = 1 << 20


class ModelFile:
    """What `wf.onnx.inspect` found: print it, or look at its parts.

    `inputs` and `outputs` are names with dtype and shape as text, `nodes` all nodes, those inside `If` and `Loop` too,
    with the op and the line they came from if Wayfare wrote the file, `operators` how often each operator occurs,
    `weights` names with dtype, shape, bytes and the file that holds them, `metadata` the texts of the file. `sizes` are
    the least and the largest size at which each axis was tried, and `notes` what was taken for granted, as Wayfare's
    export left them there. `fault` is what ONNX's own checker says against the model, if anything.
    """

    def __init__(self, path: str, size: int, model: Any) -> None:
        self.path = Path(path)
        self.bytes = size
        self.name: str = model.graph.name
        self.producer: str = f"{model.producer_name} {model.producer_version}".strip()
        self.opsets: dict[str, int] = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
        survey = Survey(model, ExternalData(path))
        self.nodes: list[ModelNode] = survey.nodes
        self.operators = Counter(sorted(node.operator for node in self.nodes))
        self.weights = survey.weights
        # A weight may also be listed as an input that need not be given.
        self.inputs = {v.name: type_text(v.type) for v in model.graph.input if v.name not in self.weights}
        self.outputs = {v.name: type_text(v.type) for v in model.graph.output}
        self.metadata: dict[str, str] = {entry.key: entry.value for entry in model.metadata_props}
        self.sizes: dict[str, tuple[int, int]] = {}
        self.notes: list[str] = []
        self._read_metadata()
        self.fault = "" if survey.has_sparse else _fault(model, survey)

    @property
    def opset(self) -> int:
        """The version of ONNX's own operator set; 0 if it uses none of it."""
        return self.opsets.get("ai.onnx", 0)

    def _read_metadata(self) -> None:
        """Read what Wayfare's export wrote as JSON. Anybody can write such entries, so they are checked too."""
        notes, sizes = self._json("wayfare.notes", []), self._json("wayfare.sizes", {})
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            raise Damaged("has something else than a list of texts as 'wayfare.notes' in its metadata")
        if not isinstance(sizes, dict) or not all(_is_range(pair) for pair in sizes.values()):
            raise Damaged("has something else than ranges of sizes as 'wayfare.sizes' in its metadata")
        self.notes = notes
        self.sizes = {name: (pair[0], pair[1]) for name, pair in sizes.items()}

    def _json(self, key: str, default: Any) -> Any:
        text = self.metadata.get(key)
        if text is None:
            return default
        try:
            return json.loads(text) if len(text) <= _LONGEST_JSON else None
        except (ValueError, RecursionError):
            return None

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        weights = sum(weight.bytes for weight in self.weights.values())
        yield from headline(self.path.name, [
            counted(len(self.nodes), "node"), f"{bytes_text(weights)} of weights", f"opset {self.opset}",
        ])  # fmt: skip
        function = self.metadata.get("wayfare.function")
        yield from listed("written", [f"by {self.producer or '?'}" + (f" from {function}" if function else "")], 1)
        yield from listed("name", [self.name] if self.name else [], 1)
        more = [f"{domain} {version}" for domain, version in self.opsets.items() if domain != "ai.onnx"]
        yield from listed("opsets", more, MOST_PRINTED)
        for title, specs in (("inputs", self.inputs), ("outputs", self.outputs)):
            yield from listed(title, [f"{name} {spec}" for name, spec in specs.items()], MOST_PRINTED)
        yield from listed("operators", times_text(self.operators), MOST_PRINTED)
        yield from listed("weights", self._places(), MOST_PRINTED)
        ranges = [f"{label} from {least} to {most}" for label, (least, most) in self.sizes.items()]
        yield from listed("sizes", [*ranges, "others were not tried"] if ranges else [], MOST_PRINTED)
        yield from listed("note", self.notes, MOST_PRINTED)
        others = [f"{key} = {value}" for key, value in self.metadata.items() if not key.startswith("wayfare.")]
        yield from listed("metadata", others, MOST_PRINTED)
        yield from listed("fault", [self.fault] if self.fault else [], 1)

    def _places(self) -> list[str]:
        """How many weights there are of how many bytes, for each file that holds some."""
        places: dict[str, list[int]] = {}
        for weight in self.weights.values():
            places.setdefault(weight.file, []).append(weight.bytes)
        return [f"{counted(len(sizes), 'tensor')}, {bytes_text(sum(sizes))}, in {file or 'the file'}"
                for file, sizes in places.items()]  # fmt: skip


def inspect(path: str | os.PathLike[str]) -> ModelFile:
    """Say what is in a model file. Nothing in it is run, and files of weights beside it are not opened.

    The file may come from anywhere: one that is cut off, damaged or made to do harm is refused with a sentence, and
    takes no more memory than a multiple of its size. That goes for weights in files outside the model's folder, behind
    links, or with other sizes than their shapes ask for, and for graphs whose names are not clear. Needs the package
    `onnx`, whose checker was tried on tens of thousands of damaged models before it was trusted with the rest.
    """
    onnx_package("inspect")
    name = path_text("inspect", path)
    data = _contents(name)
    size = len(data)
    try:
        try:
            model = parsed(data)
        except Damaged:
            known = kind_of_file(data[:64], data[-1:], name)
            if known is None or known[0] == ONNX:
                raise
            raise Damaged(f"is {known[0]}, not an ONNX model") from None
        del data
        return ModelFile(name, size, model)
    except Damaged as why:
        raise FileFormatError(f"inspect: {name!r} {why}") from None


def _contents(name: str) -> bytes:
    """All of a file, if it is one that may be read whole."""
    with open_for_reading(name, "inspect") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise FileFormatError(f"inspect: {name!r} has {size:,} bytes, and an ONNX file at most {MOST_BYTES:,}",
                                  fix="Larger weights lie in files beside the model.")  # fmt: skip
        try:
            data = file.read(size)
            while len(data) < size and (more := file.read(size - len(data))):  # the system may give it in parts
                data += more
        except OSError as error:
            refused = FileAccessError(f"inspect: cannot read {name!r}: {error.strerror}")
            refused.errno = error.errno
            raise refused from None
    if is_safetensors(data[:9]):
        raise FileFormatError(f"inspect: {name!r} is a safetensors file, not an ONNX model",
                              fix="Read a program with wf.load_program, tensors with wf.load.")  # fmt: skip
    return data


def is_safetensors(start: bytes) -> bool:
    """Do a file's first nine bytes look like safetensors, and so like a program of `wf.export`?"""
    return start[8:9] == b"{" and start[4:8] == bytes(4)


def _fault(model: Any, survey: Survey) -> str:
    """What ONNX's checker objects to, as one line. The weights were checked before and are emptied first."""
    for tensor in survey.tensors:
        name, kind = tensor.name, tensor.data_type
        tensor.Clear()
        tensor.name, tensor.data_type = name, kind
        tensor.dims.append(0)
    try:
        onnx_package().checker.check_model(model)
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def _is_range(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(n) is int and 0 <= n < 2**63 for n in pair)
