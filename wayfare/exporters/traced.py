"""A function traced at several sizes, and the program that its runs have in common."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from wayfare.core.errors import ArgumentError, ArgumentTypeError, ExportError
from wayfare.core.numpy_math import Array
from wayfare.core.spec import FLOAT_KINDS
from wayfare.exporters.compare import Counterexample
from wayfare.exporters.examples import Examples, runs_of, tensor_names
from wayfare.exporters.probe_inputs import exploration_inputs
from wayfare.exporters.recover.paths import merged
from wayfare.exporters.trace import Modules, Run, run
from wayfare.exporters.trace_steps import ReadStep
from wayfare.ir.passes.simplify import simplified
from wayfare.ir.program import Program

# Runs at other sizes than the example's. Formulas of two sizes have three unknowns, so three would be the least.
_OTHERS = 4
# How many exploration runs are added before the next attempt, and how many steps one may have at least.
_EXPLORED, _MAX_STEPS = 6, 500
# How often the program is made again with a counterexample as another run.
_COUNTEREXAMPLES = 3

_Proved = TypeVar("_Proved")


class Traced:
    """A function traced at several sizes: its runs, the modules it used, and the program."""

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

    def _run(self, arrays: list[Any], max_steps: float = math.inf) -> Run:
        return run(self.examples.call, arrays, self.modules, max_steps)

    def _merged(self) -> Program:
        examples = self.examples
        return simplified(merged(self.runs, self.modules, examples.names, examples.axes, self._output_names))

    def _merged_or_explored(self) -> Program:
        """The program of the runs; if they are not enough, with runs on exploration inputs too."""
        try:
            return self._merged()
        except ExportError as why:
            reads = [step for run in self.runs for step in run.trace.steps if isinstance(step, ReadStep)]
            if any(read.truth is None for read in reads) or not (reads or any(self.examples.axes)):
                raise
            error = why
        for number, arrays in enumerate(exploration_inputs(self.examples), 1):
            self._add_run(arrays)
            if number % _EXPLORED == 0:
                try:
                    return self._merged()
                except ExportError as why:
                    error = why
        raise error

    def _add_run(self, arrays: list[Array]) -> bool:
        """Trace one more call; False if the function raises for it, or does not end."""
        longest = max(len(run.trace.steps) for run in self.runs)
        try:
            with self.in_eval_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.runs.append(self._run(arrays, max(_MAX_STEPS, 4 * longest)))
        except Exception:
            return False
        return True

    def proved(self, prove: Callable[[], _Proved]) -> _Proved:
        """The result of `prove()`, which compares what was written with the function.

        A counterexample is a run that was missing: it is traced, and the program is made again with it.
        """
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
        """Check that the same call gives the same results: a file has no random numbers, counters or clocks."""
        first = self.runs[-1]
        again = self._run(first.arrays)
        if first.structure != again.structure or not all(map(_equal, first.results, again.results)):
            raise ExportError("export: what the function returns is another when it is called again with the same "
                              "tensors", fix="Take random numbers and what is counted as inputs.")  # fmt: skip

    @contextmanager
    def in_eval_mode(self) -> Iterator[None]:
        """Inside, the modules that are used are in eval mode; afterwards each is as it was."""
        for module in self.modules.switched:
            module.training = False
        try:
            yield
        finally:
            for module in self.modules.switched:
                module.training = True

    @property
    def notes(self) -> list[str]:
        """What was assumed without being seen, as sentences for the report."""
        return [*self.modules.notes, *self.program.notes]

    @property
    def size_names(self) -> list[str]:
        """The names of the size symbols; empty for one that counts iterations."""
        inputs = {id(v): number for number, v in enumerate(self.program.block.inputs)}
        names = []
        for number, (var, axis) in enumerate(self.program.symbols):
            of = inputs.get(id(var))
            inside = "" if axis < 0 else f"size_{number}"
            names.append(inside if of is None else self.examples.axes[of][axis])
        return names


def _equal(a: Array, b: Array) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind in FLOAT_KINDS)


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
    """The keys or fields of the returned structure if they can be names; otherwise `output`, or `output_0`, …"""
    names = tensor_names(structure, "")
    if all(names) and len(set(names)) == len(names) and not set(names) & set(inputs) and not names[0].isdigit():
        return names
    return ["output"] if len(names) == 1 else tensor_names(structure, "output")
