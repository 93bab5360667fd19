"""Model files for ONNX Runtime: `wf.onnx.export` writes one from a function, and proves it by running it."""

from wayfare.onnx.export import export
from wayfare.onnx.levels import Levels, levels, over_levels
from wayfare.onnx.report import ExportReport

__all__ = ["ExportReport", "Levels", "export", "levels", "over_levels"]
