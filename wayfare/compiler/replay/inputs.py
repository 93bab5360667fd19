"""Collecting the input arrays of a plan at each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.compiler.record.graph import Source
from wayfare.core.numpy_math import Array
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import histories, note_write, note_writes
from wayfare.ir.graph import Value


class Fetch:
    """Finds the inputs of one block: arrays of captured tensors are cached, those of arguments and earlier blocks
    looked up."""

    __slots__ = ("_arguments", "_captured", "_cuts", "_histories", "_others", "_template", "_written", "moved")

    def __init__(self, inputs: Sequence[Source | Value], written: Sequence[Source]) -> None:
        self._captured: list[tuple[int, Tensor]] = []
        self._arguments: list[tuple[int, int]] = []
        self._others: list[tuple[int, Source]] = []
        self._cuts: list[tuple[int, Value]] = []
        for place, where in enumerate(inputs):
            if isinstance(where, Value):
                self._cuts.append((place, where))
            elif where.kind == "captured":
                self._captured.append((place, where.what))
            elif where.kind == "argument":
                self._arguments.append((place, where.what))
            else:
                self._others.append((place, where))
        self._written = list(written)
        self._template: list[Any] = [None] * len(inputs)
        self._histories: list[Any] = []
        self.moved = -1

    def renew(self, moved: int) -> None:
        """Captured tensors have moved to other memory."""
        self.moved = moved
        for place, t in self._captured:
            self._template[place] = t._array
        self._histories = histories([s.what._array for s in self._written if s.kind == "captured"])

    def arrays(self, arguments: Sequence[Tensor], there: dict[Value, Array]) -> list[Array]:
        """The input arrays of one call."""
        found = self._template.copy()
        for place, number in self._arguments:
            found[place] = arguments[number]._array
        for place, source in self._others:
            found[place] = source.tensor(arguments)._array  # type: ignore[union-attr]
        for place, value in self._cuts:
            found[place] = there[value]
        return found

    def note_writes(self, arguments: Sequence[Tensor]) -> None:
        """Note that the plan has written to its targets in place."""
        if self._histories:
            note_writes(self._histories)
        for source in self._written:
            if source.kind != "captured":
                note_write(source.tensor(arguments)._array)  # type: ignore[union-attr]
