"""Lists of calls that run as one group in a way of their own."""

from __future__ import annotations

from typing import Any

from wayfare.batch.record.call import Call


class Steps(list[Call]):
    """The calls of a chain as one group: `sizes` are the numbers of calls of its steps, which never rise."""

    __slots__ = ("sizes",)

    sizes: tuple[int, ...]

    def levels(self) -> list[list[Call]]:
        """The calls of each step."""
        calls = iter(self)
        return [[next(calls) for _ in range(size)] for size in self.sizes]


class StackCalls(list[Call]):
    """The calls of a group that puts rows of one shape one after another."""

    __slots__ = ()

    def rows(self) -> tuple[Any, ...]:
        """The rows of all inputs, those of one call side by side."""
        return tuple([row for call in self for row in call.inputs])
