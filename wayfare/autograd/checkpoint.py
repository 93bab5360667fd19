"""`checkpoint`: trade time for memory by computing a stretch again when its gradient is wanted.

The stretch is recorded as usual, but nothing it keeps stays in memory. When backward first asks for a kept value, the
function runs once more, with the same random numbers, and its kept values are handed out in the order they were made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.autograd.modes import enable_grad, saved_tensors_hooks
from wayfare.autograd.vmap import outside_all
from wayfare.core.errors import GraphError
from wayfare.core.generator import get_rng_state, set_rng_state
from wayfare.core.mode import current
from wayfare.core.tensor import Tensor


class _Stretch:
    """One checkpointed call: how to run it again, and the values it kept once it was."""

    def __init__(self, function: Callable[..., Any], args: Any, options: Any, preserve_rng_state: bool) -> None:
        self.function = function
        self.args = args
        self.options = options
        self.random_state = get_rng_state() if preserve_rng_state else None
        self.count = 0
        self.values: list[Tensor] | None = None
        self.left = 0

    def pack(self, _tensor: Tensor) -> int:
        """Forget the value; remember its place."""
        self.count += 1
        return self.count - 1

    def unpack(self, place: int) -> Tensor:
        """The value at a place, from running the stretch again."""
        if self.values is None:
            self.values = self._run_again()
            self.left = self.count
        value = self.values[place]
        self.left -= 1
        if self.left == 0:  # Everything was handed out: the next pass, if any, computes anew.
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
            with outside_all(), enable_grad(), saved_tensors_hooks(keep, lambda t: t):
                self.function(*self.args, **self.options)
        finally:
            if now is not None:
                set_rng_state(now)
        if len(values) != self.count:
            raise GraphError(f"checkpoint: the function kept {self.count} values when it first ran and {len(values)} "
                             "when it ran again", fix="It must do the same each time it is called.")  # fmt: skip
        return values


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **options: Any,
) -> Any:
    """`function(*args, **options)`, without keeping what its gradient needs: it is computed again in backward.

    Random numbers are the same both times unless `preserve_rng_state=False`. `use_reentrant` is accepted for PyTorch's
    sake and changes nothing: every gradient a plain call would give is given here.
    """
    if not current().grad:
        return function(*args, **options)
    stretch = _Stretch(function, args, options, preserve_rng_state)
    with saved_tensors_hooks(stretch.pack, stretch.unpack):
        return function(*args, **options)


def checkpoint_sequential(functions: Any, segments: int, input: Any, **options: Any) -> Any:
    """Run functions one after the other, in `segments` stretches of which all but the last are checkpointed."""
    steps = list(functions)
    size = max(1, len(steps) // segments)

    def run(start: int, stop: int) -> Callable[[Any], Any]:
        def stretch(x: Any) -> Any:
            for step in steps[start:stop]:
                x = step(x)
            return x

        return stretch

    start = 0
    for _ in range(segments - 1):
        input = checkpoint(run(start, start + size), input, **options)
        start += size
    return run(start, len(steps))(input)
