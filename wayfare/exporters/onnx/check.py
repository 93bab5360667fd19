"""The written file, judged by others: ONNX's checker, then ONNX Runtime on the examples and at other sizes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.autograd.modes import no_grad
from wayfare.compiler.decorator import compile as compiled
from wayfare.core.errors import ExportError
from wayfare.core.numpy_math import Array
from wayfare.core.spec import FLOAT_KINDS
from wayfare.core.tensor import wrap
from wayfare.exporters.compare import OTHER_WAY, compare_calls
from wayfare.exporters.onnx.report import Checked, ExportReport
from wayfare.exporters.packages import onnx_package, runtime_package

if TYPE_CHECKING:
    from wayfare.exporters.traced import Traced

# The tolerated difference of results, relative to the largest number among them.
_TOLERANCE = {"float16": 2e-2, "float32": 5e-4, "float64": 1e-8}
# For how many seconds each side is timed.
_TIMED = 0.05


def session_of(path: str) -> Any:
    """A session of ONNX Runtime on the CPU, quiet."""
    runtime = runtime_package()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check(path: str, traced: Traced, report: ExportReport, timed: bool) -> None:
    """Compare the file with the function: raise where they differ, and fill in the report."""
    onnx = onnx_package()
    try:
        onnx.checker.check_model(path, full_check=True)
        session = session_of(path)
    except Exception as error:
        raise ExportError(
            f"export: the file that was written is not a valid model: {_first_line(error)}",
            fix="This is a fault of the exporter: please report it with the function.",
        ) from error

    def compare(arrays: Sequence[Array], wanted: Sequence[Array], fresh: bool) -> None:
        _compare(session, traced, report, arrays, wanted, fresh)

    compare_calls(traced, compare)
    if timed:
        with traced.in_eval_mode(), no_grad():
            _time(session, traced, report)


def _compare(
    session: Any, traced: Traced, report: ExportReport, arrays: Sequence[Array], wanted: Sequence[Array], fresh: bool
) -> None:
    shown = traced.examples.sizes_text(arrays)
    try:
        results = session.run(None, _feed(session, traced, arrays))
    except Exception as error:
        raise ExportError(f"export: with {shown} ONNX Runtime cannot run the model: {_first_line(error)}",
                          fix=OTHER_WAY) from error  # fmt: skip
    for name, got, right in zip(report.outputs, results, wanted, strict=True):
        if got.shape != right.shape or got.dtype != right.dtype:
            raise ExportError(f"export: with {shown} ONNX Runtime gives {got.dtype}{list(got.shape)} for {name}, and "
                              f"the function {right.dtype}{list(right.shape)}", fix=OTHER_WAY)  # fmt: skip
        apart, largest = _distance(got, right)
        if apart > _TOLERANCE.get(right.dtype.name, 0) * max(1.0, largest):
            raise ExportError(f"export: with {shown} ONNX Runtime gives other numbers for {name} than the function, up "
                              f"to {apart:.3g} apart", fix=OTHER_WAY)  # fmt: skip
        report.errors[name] = max(report.errors.get(name, 0.0), apart)
    report.checked.append(Checked(traced.examples.sizes_of(arrays), fresh))


def _feed(session: Any, traced: Traced, arrays: Sequence[Array]) -> dict[str, Array]:
    """The arrays by input name, without inputs that the model does not use."""
    used = {i.name for i in session.get_inputs()}
    named = zip(traced.examples.names, arrays, strict=True)
    return {name: np.asarray(a, order="C") for name, a in named if name in used}


def _distance(got: Array, right: Array) -> tuple[float, float]:
    """The largest difference, and the largest number. Equal infinities, and NaN on both sides, count as equal."""
    if right.dtype.kind not in FLOAT_KINDS:
        return float(np.count_nonzero(got != right)), 0.0
    a, b = got.astype(np.float64), right.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    apart = np.where(same, 0.0, np.abs(np.where(same, 0.0, a) - np.where(same, 0.0, b)))
    apart = np.where(np.isnan(apart), np.inf, apart)
    finite = b[np.isfinite(b)]
    return float(apart.max(initial=0.0)), float(np.abs(finite).max(initial=0.0))


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _time(session: Any, traced: Traced, report: ExportReport) -> None:
    """Time the first example in ONNX Runtime, and compiled by Wayfare."""
    arrays = traced.examples.arrays[0]
    feed = _feed(session, traced, arrays)
    report.seconds["ONNX Runtime"] = _least(lambda: session.run(None, feed))
    tensors = [wrap(np.array(a)) for a in arrays]
    arguments = traced.examples.arguments(tensors)
    function = compiled(traced.examples.function)
    with warnings.catch_warnings():  # a warning that it cannot be compiled does not concern the export
        warnings.simplefilter("ignore")
        report.seconds["Wayfare, compiled"] = _least(lambda: function(*arguments))


def _least(call: Callable[[], Any]) -> float:
    for _ in range(3):
        call()
    least, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < _TIMED:
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return least
