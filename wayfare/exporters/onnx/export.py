"""`wf.onnx.export`: from a function of tensors to a model file that was run and compared."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from typing import Any

from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.exporters.onnx.builder import NEWEST_OPSET, OLDEST_OPSET
from wayfare.exporters.onnx.check import check
from wayfare.exporters.onnx.graph import OnnxValue
from wayfare.exporters.onnx.lower import Lowering
from wayfare.exporters.onnx.report import ExportReport
from wayfare.exporters.onnx.write import Writer, add_metadata, saved
from wayfare.exporters.packages import onnx_package
from wayfare.exporters.traced import Traced
from wayfare.io.files import path_text


def export(
    fn_or_module: Any, examples: Any, path: str | os.PathLike[str], input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None, dynamic_axes: Any = None, opset: int = 21, *,
    external_data: bool | None = None, metadata: dict[str, Any] | None = None, check_results: bool = True,
    timed: bool = True,
) -> ExportReport:  # fmt: skip
    """Write a model file for ONNX Runtime, run it there, and report what was written.

    `examples` is a tuple of arguments, or a list of such tuples: one for each way the function can take. Axes in
    `dynamic_axes` (`{"x": {0: "batch", 1: "length"}}`) stay open; equal names are equal sizes. Weights go to a file of
    their own, `<path>.data`, if there is more than 1 GB of them, or as `external_data` says. The file is compared with
    the function in ONNX Runtime unless `check_results` is False, and timed unless `timed` is. What was taken for
    granted without being seen is a warning, and a note in the report.
    """
    onnx_package()
    path_text("export", path)
    _check_metadata(metadata)
    if not isinstance(opset, int) or not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise ArgumentError(f"export: opset must be from {OLDEST_OPSET} to {NEWEST_OPSET}, it is {opset!r}")
    traced = Traced(fn_or_module, examples, input_names, dynamic_axes, output_names)
    about = {
        "wayfare.function": getattr(fn_or_module, "__name__", type(fn_or_module).__name__),
        "wayfare.examples": [[list(a.shape) for a in arrays] for arrays in traced.examples.arrays],
        **(metadata or {}),
    }

    def write() -> ExportReport:
        graph = Lowering(traced.program, opset).graph()
        writer = Writer(traced.size_names)
        model = writer.model(graph, opset, about)
        made = ExportReport(graph, opset, _specs(writer, graph.inputs), _specs(writer, graph.outputs))
        made.dropped = sorted({str(site) for run in traced.runs for site in run.dropped})
        with saved(model, path, external_data) as (file, files):
            if check_results:
                check(str(file), traced, made, timed)
            made.notes = traced.notes
            if check_results:
                add_metadata(file, {"wayfare.sizes": made.ranges, "wayfare.notes": made.notes})
            made.files = files
        return made

    report = traced.proved(write)
    for note in report.notes:
        warnings.warn(f"export: {note}", stacklevel=2)
    return report


def _check_metadata(metadata: Any) -> None:
    try:
        entries = {} if metadata is None else {key: json.dumps(value) for key, value in metadata.items()}
    except (AttributeError, TypeError, ValueError) as why:
        raise ArgumentTypeError(f"export: metadata must be a dictionary of what JSON can hold: {why}") from None
    if not all(isinstance(key, str) and key for key in entries):
        raise ArgumentTypeError("export: the keys of metadata must be texts")


def _specs(writer: Writer, values: list[OnnxValue]) -> dict[str, str]:
    """Dtype and shape of inputs or outputs, as text."""
    return {v.name: f"{v.dtype.name}[{', '.join(str(writer.size(n)) for n in v.shape)}]" for v in values}
