"""`wf.onnx.export`: from a function of tensors to a model file that was run and compared."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from wayfare.core.errors import ArgumentError, ArgumentTypeError, ExportError
from wayfare.core.numpy_math import Array
from wayfare.exporters.onnx.builder import NEWEST_OPSET, OLDEST_OPSET
from wayfare.exporters.onnx.check import Counterexample, check
from wayfare.exporters.onnx.examples import Examples, runs_of, tensor_names
from wayfare.exporters.onnx.fresh import made_up
from wayfare.exporters.onnx.graph import Value
from wayfare.exporters.onnx.lower import Lowering
from wayfare.exporters.onnx.passes import simplified
from wayfare.exporters.onnx.paths import merged
from wayfare.exporters.onnx.program import Program
from wayfare.exporters.onnx.report import ExportReport
from wayfare.exporters.onnx.trace import Look, Modules, Run, run
from wayfare.exporters.onnx.write import Writer, add_metadata, onnx_package, saved
from wayfare.io.files import path_text

# Runs at other sizes than the example's: formulas of two sizes have three unknowns.
_OTHERS = 4
# Runs on made-up numbers are taken so many at a time, and may have so many events, or more if the examples do.
_EXPLORED, _PATIENCE = 6, 500
# So often the program is made anew with a call that showed a difference.
_COUNTEREXAMPLES = 3

_Proved = TypeVar("_Proved")


class Traced:
    """A function traced at several sizes: its program, its runs, and the modules it used."""

    def __init__(self, function: Any, examples: Any, input_names: Sequence[str] | None, dynamic_axes: Any,
                 output_names: Sequence[str] | None = None) -> None:  # fmt: skip
        if not callable(function):
            raise ArgumentTypeError(f"export: takes a module or a function, not {type(function).__name__}")
        self.examples = Examples(function, examples, input_names, dynamic_axes)
        self.modules = Modules(function)
        self.runs: list[Run] = []
        with self.in_eval_mode():
            self.runs += runs_of(self.examples, self._run, _OTHERS)
        self._output_names = _output_names(output_names, self.runs[0].structure, self.examples)
        self.program: Program = self._merged_or_explored()
        with self.in_eval_mode():
            self._run_again()

    def _run(self, arrays: list[Any], patience: float = math.inf) -> Run:
        return run(self.examples.call, arrays, self.modules, patience)

    def _merged(self) -> Program:
        examples = self.examples
        return simplified(merged(self.runs, self.modules, examples.names, examples.axes, self._output_names))

    def _merged_or_explored(self) -> Program:
        """The program of the runs; where they do not tell all about it, of runs on made-up numbers too."""
        try:
            return self._merged()
        except ExportError as why:
            looks = [e for run in self.runs for e in run.trace.events if isinstance(e, Look)]
            if any(e.truth is None for e in looks) or not (looks or any(self.examples.axes)):
                raise
            error = why
        for number, arrays in enumerate(made_up(self.examples), 1):
            self._add_run(arrays)
            if number % _EXPLORED == 0:
                try:
                    return self._merged()
                except ExportError as why:
                    error = why
        raise error

    def _add_run(self, arrays: list[Array]) -> bool:
        """Trace one more call; False if the function does not take it, or does not come to an end."""
        longest = max(len(run.trace.events) for run in self.runs)
        try:
            with self.in_eval_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.runs.append(self._run(arrays, max(_PATIENCE, 4 * longest)))
        except Exception:
            return False
        return True

    def proved(self, prove: Callable[[], _Proved]) -> _Proved:
        """`prove()`, which compares what was written with the function. What shows a difference is a run that was
        missing: the program is made anew with it, if it can be."""
        for _ in range(_COUNTEREXAMPLES):
            try:
                return prove()
            except Counterexample as found:
                if found.asked or not self._add_run(found.arrays):
                    raise found.error from None
                try:
                    self.program = self._merged()
                except ExportError as error:
                    error.sentence += f"; it shows with {self.examples.sizes_text(found.arrays)}"
                    error.happened_in("", None)
                    raise error from found.error
        try:
            return prove()
        except Counterexample as found:
            raise found.error from None

    def _run_again(self) -> None:
        """The same call must give the same: Python's own random numbers, counters and clocks do not go into a file."""
        first = self.runs[-1]
        again = self._run(first.arrays)
        if first.structure != again.structure or not all(map(_equal, first.results, again.results)):
            raise ExportError("export: what the function returns is another when it is called again with the same "
                              "tensors", fix="Take random numbers and what is counted as inputs.")  # fmt: skip

    @contextmanager
    def in_eval_mode(self) -> Iterator[None]:
        """With the modules that are used out of training mode; afterwards each is as it was."""
        for module in self.modules.switched:
            module.training = False
        try:
            yield
        finally:
            for module in self.modules.switched:
                module.training = True

    @property
    def notes(self) -> list[str]:
        """What was taken for granted, as sentences for the report."""
        return [*self.modules.notes, *self.program.notes]

    @property
    def size_names(self) -> list[str]:
        """What the symbols of sizes are called; one that counts iterations has no name."""
        inputs = {id(v): number for number, v in enumerate(self.program.block.inputs)}
        names = []
        for number, (var, axis) in enumerate(self.program.symbols):
            of = inputs.get(id(var))
            inside = "" if axis < 0 else f"size_{number}"
            names.append(inside if of is None else self.examples.axes[of][axis])
        return names


def _equal(a: Array, b: Array) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _output_names(given: Sequence[str] | None, structure: Any, examples: Examples) -> list[str]:
    if given is not None and (not isinstance(given, (list, tuple)) or not all(isinstance(n, str) and n for n in given)):
        raise ArgumentTypeError(f"export: output_names must be a list of names, it is {given!r}")
    found = _found_output_names(structure, examples.names)
    names, count, inputs = found if given is None else list(given), len(found), examples.names
    both = [name for name in names if name in inputs]
    if both:
        raise ArgumentError(f"export: {both[0]!r} is the name of an input and of an output",
                            fix="Give others with input_names or output_names.")  # fmt: skip
    if len(names) != count or len(set(names)) != count:
        raise ArgumentError(f"export: the function returns {count} tensors, output_names are {given!r}",
                            fix="Give a list of that many different names.")  # fmt: skip
    for name in examples.other_axes:
        if name not in names:
            raise ArgumentError(f"export: dynamic_axes names {name!r}, and the inputs are {', '.join(inputs)}, the "
                                f"outputs {', '.join(names)}")  # fmt: skip
    return names


def _found_output_names(structure: Any, inputs: list[str]) -> list[str]:
    """The keys or fields of what is returned, if they can be names; `output`, or `output_0`, … for anything else."""
    names = tensor_names(structure, "")
    if all(names) and len(set(names)) == len(names) and not set(names) & set(inputs) and not names[0].isdigit():
        return names
    return ["output"] if len(names) == 1 else tensor_names(structure, "output")


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


def _specs(writer: Writer, values: list[Value]) -> dict[str, str]:
    """Dtype and shape of inputs or outputs, as text."""
    return {v.name: f"{v.dtype.name}[{', '.join(str(writer.size(n)) for n in v.shape)}]" for v in values}
