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
from wayfare.exporters.probe_inputs import fresh_inputs

if TYPE_CHECKING:
    from wayfare.exporters.traced import Traced

# A call on fresh inputs may take so many ops, and each may make so many elements, more for long and large examples.
_PATIENCE, _ROOM, _MOST_ROOM = 20_000, 1 << 22, 1 << 27
OTHER_WAY = (
    "Perhaps Python takes another way there than in the examples: add an example of that kind, or leave the axis out "
    "of dynamic_axes."
)


class Counterexample(Exception):
    """Arguments for which a file does something else than the function, and the error that says so.

    `asked` says that it is known why: Python decides by a size.
    """

    def __init__(self, arrays: Sequence[Array], error: ExportError, asked: bool) -> None:
        super().__init__(str(error))
        self.arrays = list(arrays)
        self.error = error
        self.asked = asked


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
