"""The results of a run along recorded paths: ordinary tensors, one for each example, that share one autograd node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np

from wayfare.batch.fibers.example import Example
from wayfare.batch.function_profile import MapTiming
from wayfare.batch.paths.backward import PathTape, Result
from wayfare.batch.paths.run import PathRun
from wayfare.batch.record.call import row_of
from wayfare.compiler.record.recording import Output, Recording, in_order_of
from wayfare.compiler.structure import TENSOR, put_together
from wayfare.core.device import address, copied, is_writable
from wayfare.core.dispatch import apply
from wayfare.core.mode import current
from wayfare.core.op import REGISTRY
from wayfare.core.tensor import Tensor, wrap


def deliver(run: PathRun, examples: Sequence[Example], timing: MapTiming | None) -> None:
    """Give each example its result."""
    results: list[Result] = []
    with_history: list[Tensor] = []
    inference = current().inference
    copies: dict[int, Any] = {}
    delivered: list[tuple[Example, Recording, list[Tensor], Sequence[Tensor]]] = []
    for finished in run.finished:
        recording = finished.block.recording
        assert recording is not None
        columns: list[tuple[Any, Any, Any]] = []
        kept = any([stored.needs for stored in finished.results])
        for number, order in enumerate(recording.orders):
            stored = finished.results[number]
            array = copies.get(id(stored))
            if array is None:
                # The user may write to a result: the gradient may read what the block has made (`detach()` too), and
                # what is computed twice is there once.
                array = stored.array
                if kept or any([_may_overlap(array, other) for other, _, _ in columns]):
                    array = copied(array)
                copies[id(stored)] = array
            needs = stored.needs and recording.made_needs[number]
            columns.append((array, order, row_of(array.shape[1:], array.dtype) if needs else None))
        for index, example in enumerate(finished.examples.tolist()):
            made = []
            for number, (array, order, row) in enumerate(columns):
                t = _row(array, finished.start + index, order)
                if row is not None:
                    results.append(Result(finished, number, index, example, row))
                    with_history.append(t)
                if inference:
                    t._more()["inference"] = True
                made.append(t)
            given = finished.family.arguments[example - finished.family.start]
            delivered.append((examples[example], recording, made, given))
    if results:
        node = PathTape(run, results, timing).node()
        node.results = [ref(t) for t in with_history]
        for number, t in enumerate(with_history):
            t._edge, t._requires_grad = (node, number), True
    for to, recording, made, given in delivered:
        if recording.shape is TENSOR and recording.outputs[recording.results[0]].kind == "made":
            to.result = made[recording.outputs[recording.results[0]].made]
            continue
        tensors: list[Any] = []
        for out in recording.outputs:
            tensors.append(_tensor(out, made, tensors, given))
        to.result = put_together(recording.shape, iter([tensors[i] for i in recording.results]))


def _may_overlap(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.may_share_memory(one, other)
    return address(one) == address(other)


def _tensor(out: Output, made: list[Tensor], before: list[Tensor], given: Sequence[Tensor]) -> Any:
    """An output of a recording: a new tensor, a view of an earlier output, or a tensor that the function was given."""
    if out.kind == "made":
        return made[out.made]
    if out.source is not None:
        return out.source.tensor(given)
    t = before[out.base]
    if out.cut or not out.path:
        t = t.detach()
    for name, attrs in out.path:
        t = apply(REGISTRY[name], (t,), dict(attrs))
    return t


def _row(rows: Any, position: int, order: tuple[int, ...] | None) -> Tensor:
    array: Any = rows[position, ...]
    if order is not None:
        array = in_order_of(array, order)
    return wrap(array if is_writable(array) else copied(array))


