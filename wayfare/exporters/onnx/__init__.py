"""Model files for ONNX Runtime: `wf.onnx.export` writes one from a function and proves it by running it.

`wf.onnx.inspect` says what is in one, wherever it comes from.
"""

from wayfare.exporters.inspect.model_file import ModelFile, inspect
from wayfare.exporters.onnx.export import export
from wayfare.exporters.onnx.levels import Levels, levels, over_levels
from wayfare.exporters.onnx.report import ExportReport

__all__ = ["ExportReport", "Levels", "ModelFile", "export", "inspect", "levels", "over_levels"]
