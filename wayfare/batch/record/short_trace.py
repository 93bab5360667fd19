"""Tracing a function that is to be one call, and running it for a batch as a fused function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.api.fused import Fused, NotFusable, TracedValue, TraceExecutor
from wayfare.batch.record.call import Row
from wayfare.batch.record.memory import Memory
from wayfare.batch.record.signature import meeting_memory
from wayfare.core.dispatch import apply
from wayfare.core.mode import changed_mode
from wayfare.core.stand_in import StandIn
from wayfare.core.tensor import Tensor
from wayfare.ir.graph import Value, leaf

# A function with more ops than this is not opaque. A model that loops over a sequence has more, and should be recorded
# op by op: examples of other lengths can share its steps, not the whole call.
MAX_STEPS = 120


def place_of(rows: Sequence[Row]) -> Memory:
    """Where a function of such rows runs."""
    try:
        return meeting_memory(rows)
    except NotImplementedError:
        raise NotFusable("it uses tensors of several devices") from None


class _TraceAll(TraceExecutor):
    """Traces all ops, also those on weights alone: weights change, so these must be computed at each run."""

    def __init__(self, count: int, outer: Any) -> None:
        super().__init__(count, outer)
        self._constants: dict[int, Tensor] = {}

    def apply(self, op: Any, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Trace one op; compute it now if it depends on constants only."""
        if all([id(t) in self._constants for t in inputs]) and not op.random and "key" not in attrs:
            with changed_mode(executor=None):
                made = apply(op, inputs, attrs)
            for t in made if isinstance(made, tuple) else (made,):
                self._constants[id(t)] = t
            return made
        return self.enter(op, inputs, attrs)


class QuietFused(Fused):
    """A fused function that the user did not ask for: if it cannot be fused, its ops run one by one, silently."""

    tracer = _TraceAll

    def _warn(self, reason: str) -> None:
        pass


class TooLong(NotFusable):
    """The trace has more than `MAX_STEPS` ops."""


class ShortTrace(_TraceAll):
    """Refuses tensors of one example that are not among the arguments, and long traces."""

    def __init__(self, count: int, outer: Any) -> None:
        super().__init__(count, outer)
        self.steps = self.views = 0
        self.checks_values = False

    def leaves_of(self, rows: Sequence[Row]) -> list[Value]:
        """The arguments in the trace; how they lie is known."""
        leaves = [leaf("input", i, row.shape, row.dtype) for i, row in enumerate(rows)]
        for made, row in zip(leaves, rows, strict=True):
            self.layouts.add(made, row.layout)
        return leaves

    def apply(self, op: Any, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Trace one op."""
        self.steps += 1
        self.views += op.view
        self.checks_values |= op.checks_values
        if self.steps > MAX_STEPS:
            raise TooLong("it has too many steps")
        return super().apply(op, inputs, attrs)

    def effect(self, reason: str) -> None:
        """Refuse what must not be traced: a hook must run once for each example."""
        raise NotFusable(reason)

    def value(self, t: Tensor) -> Value:
        """The value of a tensor in the trace."""
        if t.__class__ is StandIn and t._handle.__class__ is not TracedValue:
            raise NotFusable("it uses a tensor of one example that it was not given")
        return super().value(t)
