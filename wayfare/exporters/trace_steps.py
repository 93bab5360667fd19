"""The steps of a trace: ops that ran, values that Python read, and calls of control-flow functions.

They are steps of the graph that also know which part of the user's line they come from. Two runs are compared by the
keys of their steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

from wayfare.core.callsite import Site, user_frame
from wayfare.core.errors import ExportError
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.ir.graph import Block, Step, Value


class Place(NamedTuple):
    """A position in the user's code: the line, and which part of the line."""

    site: Site | None
    part: Any


@lru_cache(maxsize=256)
def _parts(code: CodeType) -> tuple[Any, ...]:
    return tuple(code.co_positions())


def current_place(asked: bool = False) -> Place:
    """The part of the user's code that is running now.

    It distinguishes two conditions on one line, but not the two copies that Python compiles of a `while` condition:
    they have the same source. A jump (`asked`) has the whole statement as its source, so for a read the position of
    the instruction before it is taken.
    """
    frame = user_frame(2)
    if frame is None:
        return Place(None, None)
    code = frame.f_code
    parts, at = _parts(code), frame.f_lasti // 2 - asked
    site = Site(code.co_filename, frame.f_lineno, code.co_name)
    return Place(site, parts[at] if 0 <= at < len(parts) else None)


_NOWHERE = Place(None, None)


class TraceStep(Step):
    """A step of a trace; this class itself is an op."""

    __slots__ = ("place",)

    def __init__(
        self, op: Op | None, inputs: Sequence[Value], attrs: dict[str, Any], place: Place = _NOWHERE, path: str = "",
        kind: str = "op", blocks: Sequence[Block] = (),
    ) -> None:  # fmt: skip
        super().__init__(op, tuple(inputs), attrs, kind, None, tuple(blocks), place.site, path)
        self.place = place

    def happened(self, place: Place, path: str) -> None:
        """Say where in the user's code it happened, and in which module."""
        self.place, self.site, self.path = place, place.site, path

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same step of another run."""
        return ("op", self.name, self.place, self.path, tuple((v.ndim, v.dtype.char) for v in self.outputs))

    def slots(self) -> list[tuple[Any, Value]]:
        """The values it uses, each with a name of its position that is the same in other iterations and runs."""
        return list(enumerate(self.inputs))

    def rewired(self, change: Callable[[Any, Value], Value]) -> Any:
        """The same step with other inputs: `change(name of the position, value)`."""
        step = type(self)(self.op, [change(name, v) for name, v in self.slots()], self.attrs, self.place, self.path)
        step.outputs = self.outputs
        return step


class ReadStep(TraceStep):
    """Python read a value (`if t:`, `t.item()`); `seen` is what it saw."""

    __slots__ = ("how", "seen")

    def __init__(self, value: Value, how: str, seen: Array, place: Place, path: str) -> None:
        super().__init__(None, (value,), {}, place, path, "read")
        self.how = how
        self.seen = seen

    @property
    def value(self) -> Value:
        """What was read."""
        return self.inputs[0]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same read of another run, also if it saw another value."""
        return ("read", self.how, self.place, self.path)

    @property
    def truth(self) -> bool | None:
        """What `bool(t)` gave; None for other reads."""
        return bool(self.seen.item()) if self.how == "bool()" and self.seen.size == 1 else None

    def rewired(self, change: Callable[[Any, Value], Value]) -> ReadStep:
        """The same read of another value."""
        return ReadStep(change(0, self.value), self.how, self.seen, self.place, self.path)

    def refusal(self) -> ExportError:
        """The error for a read that a file cannot do, with what to write instead."""
        if self.how in _COUNTED:
            sentence = (f"{self.how}: how many elements there are depends on the values of the input, and in a file "
                        "shapes follow from sizes alone")  # fmt: skip
        else:
            sentence = f"{self.how} reads a number that depends on the input, and Python may do anything with it"
        error = ExportError(f"export: {sentence}", fix=_COUNTED.get(self.how) or _INSTEAD.get(self.how) or _INSTEAD[""])
        error.happened_in("", self.site)
        return error


# Reads that make the number of elements depend on values, and what to write instead.
_COUNTED = {
    "a mask as index": "Keep the shape: wf.where(mask, x, 0), masked_fill, or a sum over x * mask.",
    "masked_select()": "Keep the shape: wf.where(mask, x, 0), or masked_fill.",
    "nonzero()": "Keep the shape: compute with the mask itself (wf.where(mask, x, 0), x * mask), or take a fixed "
    "number of places with topk.",
}
# What to write instead of reading a number.
_INSTEAD = {
    "item()": "Keep it a tensor: index with it, compute with it; a loop that runs so often is wf.while_loop, or "
    "wf.scan over an input.",
    "": "Compute with tensors (wf.where, masked_fill, index_select).",
}


class RegionStep(TraceStep):
    """A call of `wf.cond`, `wf.while_loop` or `wf.scan`: traces of its functions, and the results."""

    __slots__ = ("options",)

    def __init__(self, kind: str, inputs: list[Value], blocks: list[Block], outputs: list[Value], options: Any,
                 place: Place, path: str) -> None:  # fmt: skip
        super().__init__(None, inputs, {}, place, path, kind, blocks)
        self.outputs = tuple(outputs)
        self.options = options

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same call of another run."""
        return ("region", self.kind, self.options, self.place, self.path, len(self.inputs), len(self.outputs))

    def rewired(self, change: Callable[[Any, Value], Value]) -> RegionStep:
        """The step itself: a loop with another control-flow function inside it is refused."""
        return self
