"""The written file, judged by others: ONNX's checker, then ONNX Runtime on the examples and at other sizes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.autograd.modes import no_grad
from wayfare.compiler.decorator import compile as compiled
from wayfare.compiler.structure import take_apart
from wayfare.core.callsite import Site
from wayfare.core.errors import ExportError
from wayfare.core.mode import Watcher, changed_mode
from wayfare.core.numpy_math import Array
from wayfare.core.tensor import Tensor, wrap
from wayfare.exporters.onnx.fresh import fresh_inputs
from wayfare.exporters.onnx.report import Checked, ExportReport
from wayfare.exporters.onnx.write import onnx_package

if TYPE_CHECKING:
    from wayfare.exporters.onnx.export import Traced

# How far results may be apart, relative to the largest number among them.
_TOLERANCE = {"float16": 2e-2, "float32": 5e-4, "float64": 1e-8}
# A call on fresh inputs may take so many ops, and each may make so many elements, more for long and large examples.
_PATIENCE, _ROOM, _MOST_ROOM = 20_000, 1 << 22, 1 << 27
# Seconds for which each side is timed.
_TIMED = 0.05


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


def session_of(path: str) -> Any:
    """A session of ONNX Runtime on the CPU, quiet."""
    runtime = runtime_package()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Counterexample(Exception):
    """Arguments for which a file does something else than the function, and the error that says so.

    `asked` says that it is known why: Python decides by a size.
    """

    def __init__(self, arrays: Sequence[Array], error: ExportError, asked: bool) -> None:
        super().__init__(str(error))
        self.arrays = list(arrays)
        self.error = error
        self.asked = asked


def check(path: str, traced: Traced, report: ExportReport, timed: bool) -> None:
    """Raise where the file does something else than the function; enter in the report how it did."""
    onnx = onnx_package()
    try:
        onnx.checker.check_model(path, full_check=True)
        session = session_of(path)
    except Exception as error:
        raise ExportError(
            f"export: the file that was written is no valid model: {_first_line(error)}",
            fix="This is a fault of the exporter: please report it with the function.",
        ) from error

    def compare(arrays: Sequence[Array], wanted: Sequence[Array], fresh: bool) -> None:
        _compare(session, traced, report, arrays, wanted, fresh)

    compare_calls(traced, compare)
    if timed:
        with traced.in_eval_mode(), no_grad():
            _time(session, traced, report)


def compare_calls(traced: Traced, compare: Callable[[Sequence[Array], Sequence[Array], bool], None]) -> None:
    """`compare(arrays, what the function gives, whether nobody has seen them)`: the traced calls, then fresh inputs.

    What it raises for fresh inputs comes out as a `Counterexample`.
    """
    for made in traced.runs:
        compare(made.arrays, made.results, False)
    with traced.in_eval_mode(), no_grad():
        for arrays, site in fresh_inputs(traced):
            try:
                with _explained(site):
                    wanted = _results_of(traced, arrays)
                    if wanted is not None:
                        compare(arrays, wanted, True)
            except ExportError as error:
                raise Counterexample(arrays, error, site is not None) from None


def _results_of(traced: Traced, arrays: Sequence[Array]) -> list[Array] | None:
    """What the function itself gives; None for what it does not take, or where it does not come to an end."""
    tensors: list[Tensor] = []
    longest = max(len(run.trace.events) for run in traced.runs)
    largest = max(a.size for run in traced.runs for a in (*run.arrays, *run.results))
    patience = _Patience(max(_PATIENCE, 100 * longest), min(max(_ROOM, 1000 * largest), _MOST_ROOM))
    try:
        with changed_mode(watcher=patience):
            structure = take_apart(traced.examples.call([wrap(np.array(a)) for a in arrays]), tensors, [])
    except Exception:
        return None
    if structure != traced.program.structure:
        raise ExportError(f"export: with {traced.examples.sizes_text(arrays)} the function returns another form of "
                          "results, or another plain value among them, than in the examples",
                          fix=OTHER_WAY)  # fmt: skip
    return [t._array for t in tensors]


class _Patience(Watcher):
    """Lets only so many ops run, on arrays of only so many elements: made-up numbers may keep a loop going for ever."""

    allows_plans = False
    allows_batches = False

    def __init__(self, ops: int, room: int) -> None:
        self._left = ops
        self._room = room

    def ran(self, op: Any, inputs: Any, outputs: Any, attrs: Any) -> None:
        """After an op."""
        self._left -= 1
        if self._left < 0 or any(out.numel() > self._room for out in outputs):
            raise TimeoutError


@contextmanager
def _explained(site: Site | None) -> Iterator[None]:
    """A difference at sizes that were chosen for the other answer to a question has the line of the question."""
    try:
        yield
    except ExportError as error:
        if site is not None:
            error.sentence += ", because Python decides by a size here"
            error.fix = "Export the two cases apart, or do without the decision."
            error.happened_in("", site)
        raise


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
    """The arrays by the names of the inputs; one that nothing uses is no input of the model."""
    used = {i.name for i in session.get_inputs()}
    named = zip(traced.examples.names, arrays, strict=True)
    return {name: np.asarray(a, order="C") for name, a in named if name in used}


OTHER_WAY = (
    "Perhaps Python takes another way there than in the examples: add an example of that kind, or leave the axis out "
    "of dynamic_axes."
)


def _distance(got: Array, right: Array) -> tuple[float, float]:
    """The largest difference, and the largest number. What is equal, infinite or NaN on both sides is no difference."""
    if right.dtype.kind != "f":
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
    """The first example: in ONNX Runtime, and compiled by Wayfare."""
    arrays = traced.examples.arrays[0]
    feed = _feed(session, traced, arrays)
    report.seconds["ONNX Runtime"] = _least(lambda: session.run(None, feed))
    tensors = [wrap(np.array(a)) for a in arrays]
    arguments = traced.examples.arguments(tensors)
    function = compiled(traced.examples.function)
    with warnings.catch_warnings():  # that it cannot be compiled is no matter of the export
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
