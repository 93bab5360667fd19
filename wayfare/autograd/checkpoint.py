"""Activation checkpointing: saves memory by computing a segment again when its gradient is needed.

The segment is recorded as usual, but the values kept for its gradient are dropped. When backward first needs one, the
function runs again with the same random numbers, and the kept values are found by their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.autograd.modes import enable_grad, saved_tensors_hooks
from wayfare.autograd.vmap import outside_all
from wayfare.core.errors import GraphError
from wayfare.core.generator import get_rng_state, set_rng_state
from wayfare.core.mode import changed_mode, current
from wayfare.core.tensor import Tensor


class _Segment:
    """One checkpointed call: how to run it again, and its kept values after that."""

    def __init__(self, function: Callable[..., Any], args: Any, options: Any, preserve_rng_state: bool) -> None:
        self.function = function
        self.args = args
        self.options = options
        self.autocast = current().autocast
        self.random_state = get_rng_state() if preserve_rng_state else None
        self.count = 0
        self.values: list[Tensor] | None = None
        self.left = 0

    def pack(self, _tensor: Tensor) -> int:
        """Drop the value; return its number."""
        self.count += 1
        return self.count - 1

    def unpack(self, place: int) -> Tensor:
        """The value with this number, computed by running the segment again."""
        if self.values is None:
            self.values = self._run_again()
            self.left = self.count
        value = self.values[place]
        self.left -= 1
        if self.left == 0:  # all values were used; another backward pass runs the segment again
            self.values = None
        return value

    def _run_again(self) -> list[Tensor]:
        values: list[Tensor] = []

        def keep(tensor: Tensor) -> Tensor:
            values.append(tensor)
            return tensor

        now = get_rng_state() if self.random_state is not None else None
        if self.random_state is not None:
            set_rng_state(self.random_state)
        try:
            again = changed_mode(saved_hooks=(keep, lambda t: t), autocast=self.autocast)
            with outside_all(), enable_grad(), again:
                self.function(*self.args, **self.options)
        finally:
            if now is not None:
                set_rng_state(now)
        if len(values) != self.count:
            raise GraphError(f"checkpoint: the function kept {self.count} values when it first ran and {len(values)} "
                             "when it ran again", fix="It must do the same each time it is called.")  # fmt: skip
        return values


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True,
    **options: Any,
) -> Any:  # fmt: skip
    """`function(*args, **options)` without keeping the values for its gradient: backward computes them again.

    Random numbers are the same both times unless `preserve_rng_state=False`. `use_reentrant` is accepted for
    compatibility with PyTorch and has no effect.
    """
    if not current().grad:
        return function(*args, **options)
    segment = _Segment(function, args, options, preserve_rng_state)
    with saved_tensors_hooks(segment.pack, segment.unpack):
        return function(*args, **options)


def checkpoint_sequential(functions: Any, segments: int, input: Any, **options: Any) -> Any:
    """Run functions one after the other in `segments` segments; all but the last are checkpointed."""
    steps = list(functions)
    size = max(1, len(steps) // segments)

    def run(start: int, stop: int) -> Callable[[Any], Any]:
        def segment(x: Any) -> Any:
            for step in steps[start:stop]:
                x = step(x)
            return x

        return segment

    start = 0
    for _ in range(segments - 1):
        input = checkpoint(run(start, start + size), input, **options)
        start += size
    return run(start, len(steps))(input)
