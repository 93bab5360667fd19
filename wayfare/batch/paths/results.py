"""The results of a run along recorded paths: ordinary tensors, one for each example, that share one autograd node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np

from wayfare.batch.fibers.example import Example
from wayfare.batch.function_profile import MapTiming
from wayfare.batch.paths.backward import PathTape, Result
from wayfare.batch.paths.run import Finished, PathRun
from wayfare.compiler.record.recording import in_order_of
from wayfare.compiler.structure import put_together
from wayfare.core.mode import current
from wayfare.core.tensor import Tensor, wrap


def deliver(run: PathRun, examples: Sequence[Example], timing: MapTiming | None) -> None:
    """Give each example its result."""
    results: list[Result] = []
    with_history: list[Tensor] = []
    inference = current().inference
    for finished in run.finished:
        recording = finished.block.recording
        assert recording is not None
        for index, example in enumerate(finished.examples.tolist()):
            tensors = []
            for number, order in enumerate(recording.orders):
                t = _row(finished, number, index, order)
                if finished.results[number]._requires_grad and recording.made_needs[number]:
                    results.append(Result(finished, number, index))
                    with_history.append(t)
                if inference:
                    t._more()["inference"] = True
                tensors.append(t)
            outputs = [recording.outputs[i] for i in recording.results]
            # A tensor that the function was given and gives back is that tensor itself.
            given = run.arguments[example]
            chosen: list[Any] = [tensors[o.made] if o.source is None else o.source.tensor(given) for o in outputs]
            examples[example].result = put_together(recording.shape, iter(chosen))
    if results:
        node = PathTape(run, results, timing).node()
        node.results = [ref(t) for t in with_history]
        for number, t in enumerate(with_history):
            t._edge, t._requires_grad = (node, number), True


def _row(finished: Finished, number: int, index: int, order: tuple[int, ...] | None) -> Tensor:
    array: Any = finished.results[number]._array[finished.start + index, ...]
    if order is not None:
        array = in_order_of(array, order)
    return wrap(array if array.flags.writeable else np.array(array))
