"""Comparing what an export wrote with the function: on the traced calls, then on probe inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.autograd.modes import no_grad
from wayfare.compiler.structure import take_apart
from wayfare.core.callsite import Site
from wayfare.core.errors import ExportError
from wayfare.core.mode import Watcher, changed_mode
from wayfare.core.numpy_math import Array
from wayfare.core.tensor import Tensor, wrap
from wayfare.exporters.probe_inputs import probe_inputs

if TYPE_CHECKING:
    from wayfare.exporters.traced import Traced

# Limits of a call on probe inputs: how many ops, and how many elements an op may make. Long and large examples raise
# them; `_MOST_ELEMENTS` is never exceeded.
_MAX_OPS, _MAX_ELEMENTS, _MOST_ELEMENTS = 20_000, 1 << 22, 1 << 27
OTHER_WAY = (
    "Perhaps Python takes another way there than in the examples: add an example of that kind, or leave the axis out "
    "of dynamic_axes."
)


class Counterexample(Exception):
    """Arguments for which a file and the function differ, and the error that says so.

    With `asked` the reason is known: Python decides by a size.
    """

    def __init__(self, arrays: Sequence[Array], error: ExportError, asked: bool) -> None:
        super().__init__(str(error))
        self.arrays = list(arrays)
        self.error = error
        self.asked = asked


def compare_calls(traced: Traced, compare: Callable[[Sequence[Array], Sequence[Array], bool], None]) -> None:
    """Call `compare(arrays, results of the function, whether they are probe inputs)`: traced calls, then probe inputs.

    An ExportError for probe inputs becomes a `Counterexample`.
    """
    for made in traced.runs:
        compare(made.arrays, made.results, False)
    with traced.in_eval_mode(), no_grad():
        for arrays, site in probe_inputs(traced):
            try:
                with _explained(site):
                    wanted = _results_of(traced, arrays)
                    if wanted is not None:
                        compare(arrays, wanted, True)
            except ExportError as error:
                raise Counterexample(arrays, error, site is not None) from None


def _results_of(traced: Traced, arrays: Sequence[Array]) -> list[Array] | None:
    """The results of the function; None if it raises for these inputs, or does not end within the limits."""
    tensors: list[Tensor] = []
    longest = max(len(run.trace.steps) for run in traced.runs)
    largest = max(a.size for run in traced.runs for a in (*run.arrays, *run.results))
    op_limit = _OpLimit(max(_MAX_OPS, 100 * longest), min(max(_MAX_ELEMENTS, 1000 * largest), _MOST_ELEMENTS))
    try:
        with changed_mode(watcher=op_limit):
            structure = take_apart(traced.examples.call([wrap(np.array(a)) for a in arrays]), tensors, [])
    except Exception:
        return None
    if structure != traced.program.structure:
        raise ExportError(f"export: with {traced.examples.sizes_text(arrays)} the function returns another form of "
                          "results, or another plain value among them, than in the examples",
                          fix=OTHER_WAY)  # fmt: skip
    return [t._array for t in tensors]


class _OpLimit(Watcher):
    """Limits the number of ops and the size of their results: with made-up numbers a loop may never end."""

    allows_plans = False
    allows_batches = False

    def __init__(self, ops: int, max_elements: int) -> None:
        self._left = ops
        self._max_elements = max_elements

    def ran(self, op: Any, inputs: Any, outputs: Any, attrs: Any) -> None:
        """After an op."""
        self._left -= 1
        if self._left < 0 or any(out.numel() > self._max_elements for out in outputs):
            raise TimeoutError


@contextmanager
def _explained(site: Site | None) -> Iterator[None]:
    """Name the line of the size query in the error, if the sizes were chosen for its other answer."""
    try:
        yield
    except ExportError as error:
        if site is not None:
            error.sentence += ", because Python decides by a size here"
            error.fix = "Export the two cases apart, or do without the decision."
            error.happened_in("", site)
        raise
