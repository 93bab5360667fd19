"""The optional packages `onnx` and `onnxruntime`, imported when they are first needed."""

from __future__ import annotations

from typing import Any

from wayfare.core.errors import ExportError


def onnx_package(op: str = "export") -> Any:
    """The `onnx` package, or how to get it."""
    try:
        import onnx
    except ImportError:
        raise ExportError(f"{op}: the package onnx is not installed",
                          fix='Install it with: pip install "wayfare[onnx]".') from None  # fmt: skip
    return onnx


def runtime_package() -> Any:
    """The `onnxruntime` package, or how to get it."""
    try:
        import onnxruntime
    except ImportError:
        raise ExportError(
            "export: the package onnxruntime is not installed, so the file cannot be tried",
            fix='Install it with: pip install "wayfare[onnx]", or give check_results=False.',
        ) from None
    return onnxruntime
