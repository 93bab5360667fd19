"""What an example costs: counted from its parts, or from the graph that a function records for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import wayfare as wf
from wayfare.core.mode import Watcher, changed_mode

__all__ = ["RecordedCost"]

# How many numbers `structure_of` gives.
STRUCTURE = 3
# Seconds for a recorded node, a floating-point operation and a byte of results, forward and backward, until measured:
# the ratios matter.
_SECONDS = (5e-6, 1e-10, 5e-10)


def structure_of(example: Any) -> tuple[int, int, int]:
    """(containers, values in them, elements of tensors and arrays) of a nested example; a shared part counts each time.

    Strings and bytes are sequences of values.
    """
    containers = values = elements = 0
    waiting = [example]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (tuple, list)):
            containers += 1
            waiting.extend(part)
        elif isinstance(part, dict):
            containers += 1
            waiting.extend(part.values())
        elif isinstance(part, (str, bytes)):
            values += len(part)
        elif hasattr(part, "shape"):
            elements += int(wf.Size(part.shape).numel())
        elif hasattr(part, "__dict__") and not isinstance(part, type) and not callable(part):
            containers += 1
            waiting.extend(vars(part).values())
        else:
            values += 1
    return containers, values, elements


class _Counter(Watcher):
    """Counts ops, their arithmetic, and the bytes of their results."""

    allows_plans = allows_batches = False

    def __init__(self) -> None:
        self.nodes = self.flops = self.bytes = 0

    def ran(self, op: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], attrs: dict[str, Any]) -> None:
        """Count one."""
        self.nodes += 1
        self.flops += op.flops(inputs, outputs, attrs) or 0
        self.bytes += sum([t.nbytes for t in outputs])


class RecordedCost:
    """The cost of an example by the graph that `function(example)` records: nodes, FLOPs and bytes of results.

    The function runs once for an example, without gradients. A tuple is passed as several arguments, as a loader's
    `(tree, label)` is. `coefficients` are the seconds for a unit of each, which a `CostSampler` learns to know better.
    """

    def __init__(
        self, function: Callable[..., Any], coefficients: Sequence[float] = _SECONDS, unpack: bool = True
    ) -> None:
        self.function = function
        self.coefficients = tuple(coefficients)
        self.unpack = unpack

    def __call__(self, example: Any) -> tuple[int, int, int]:
        """(nodes, FLOPs, bytes) of one example."""
        counter = _Counter()
        with changed_mode(grad=False, watcher=counter):
            self.function(*example) if self.unpack and isinstance(example, tuple) else self.function(example)
        return counter.nodes, counter.flops, counter.bytes
