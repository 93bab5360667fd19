"""What a stop or a watch shows: the op, its inputs, its value, and where it is."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from types import FrameType
from typing import Any

from wayfare.autograd.anomaly import array_of
from wayfare.core.array_summary import described
from wayfare.core.callsite import Site, locate
from wayfare.core.errors import OperationError
from wayfare.core.module_path import module_text, path_of
from wayfare.core.module_timeline import ModuleTimeline, example_now, example_text
from wayfare.core.tensor import Tensor, wrap
from wayfare.see.graph.listing import attrs_text


class Here:
    """One op that has just run, or (backward) the gradient rule of one. Conditions are given this as `node`."""

    def __init__(
        self, op: Any, attrs: dict[str, Any], frame: FrameType | None, modules: Sequence[Any], path: list[int] | None
    ) -> None:
        # The op's name, its record, and what it was called with beside tensors.
        self.op: str = op.name
        self.record = op
        self.attrs = attrs
        # The user's frame: that of the op, or the one that called backward.
        self.frame = frame
        # The modules that are running (of a backward step: that were running in forward), the outermost first.
        self.modules = tuple(modules)
        self._path = path
        self.direction = "forward"
        self.inputs: tuple[Any, ...] = ()
        self._given: tuple[Any, ...] = ()
        self._made: Sequence[Any] = ()
        # The node of the graph; None where no gradient is recorded.
        self.node: Any = None
        # The value that the condition held for.
        self.number = 0
        self.reason = ""
        # The stop that halted here, so that it can be taken away at the prompt: `here.stop.remove()`.
        self.stop: Any = None

    @cached_property
    def values(self) -> tuple[Any, ...]:
        """What was made: the results, or the gradient of each input (None where none is wanted)."""
        return tuple(_as_tensor(made) for made in self._made)

    @cached_property
    def given(self) -> tuple[Any, ...]:
        """Backward only: the gradients that came in."""
        return tuple(_as_tensor(given) for given in self._given)

    @property
    def value(self) -> Any:
        """The tensor that the condition held for: the op's result, or a gradient that it made."""
        return self.values[self.number]

    @property
    def backward(self) -> bool:
        """Is this a step of a backward pass?"""
        return self.direction == "backward"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the op's result (also in backward)."""
        return tuple(self.node.shape if self.backward else self.value.shape)

    @property
    def dtype(self) -> Any:
        """Of the value."""
        return self.value.dtype

    @cached_property
    def site(self) -> Site | None:
        """The user's line that ran the op (of a backward step: the forward line)."""
        if self.backward:
            found: Site | None = self.node.site
            return found
        return None if self.frame is None else locate(self.frame.f_code, self.frame.f_lasti)

    @cached_property
    def module(self) -> str:
        """The path of the module it runs in, from the outermost: `encoder.0`; empty outside of modules."""
        return path_of(self.modules)

    @property
    def example(self) -> int | None:
        """Which example of `wf.map` it belongs to; None outside of one."""
        return None if self._path is None else self._path[-1]

    @property
    def where(self) -> str:
        """Line, module and example in a few words."""
        parts = [str(self.site)] if self.site is not None else []
        if self.modules:
            parts.append(f"in {module_text(self.modules)}")
        if self.example is not None:
            parts.append(f"in {example_text(self._path)}")
        return ", ".join(parts)

    def line(self) -> str:
        """All of it in one line: what `wf.debug.watch` prints."""
        where = f"{self.site}  " if self.site is not None else ""
        around = f"  in {self.module or type(self.modules[-1]).__name__}" if self.modules else ""
        example = f"  example {self.example}" if self.example is not None else ""
        made = [(i, v) for i, v in enumerate(self.values) if v is not None]
        if self.backward:
            text = "; ".join(f"gradient of input {i} {described(v._array)}" for i, v in made)
        else:
            text = "; ".join(described(v._array) for _, v in made)
        return f"{where}{self.op}{' backward' if self.backward else ''}  {text}{around}{example}"

    def __repr__(self) -> str:
        reason = f"{self.reason}: " if self.reason else ""
        shown = [f"{reason}{self.op}, {self.direction} ({self.where})"]
        if self.site is not None and self.site.text:
            shown.append(f"    {self.site.line}: {self.site.text}")
        rows = [(f"input {i}", t) for i, t in enumerate(self.inputs)]
        rows += [(f"given {i}" if len(self.given) > 1 else "given", t) for i, t in enumerate(self.given)]
        name = "gradient" if self.backward else "value"
        rows += [(f"{name} {i}" if len(self.values) > 1 else name, t) for i, t in enumerate(self.values)]
        shown += [f"  {name:<11}{described(t._array)}" for name, t in rows if t is not None]
        if self.attrs:
            shown.append("  with       " + ", ".join(attrs_text(self.attrs)))
        return "\n".join(shown)


def forward_here(
    op: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], attrs: dict[str, Any], frame: FrameType | None,
    timeline: ModuleTimeline,
) -> Here:  # fmt: skip
    """An op that has just run."""
    here = Here(op, attrs, frame, timeline.modules_now(), example_now())
    here.inputs, here._made = inputs, outputs
    here.node = outputs[0].grad_fn if outputs else None
    return here


def backward_here(
    node: Any, given: Any, made: Sequence[Any], frame: FrameType | None, timeline: ModuleTimeline
) -> Here:
    """A gradient rule that has just run."""
    here = Here(node.op, node.attrs, frame, timeline.modules_at(node.number), timeline.example_at(node.number))
    here.direction, here.node = "backward", node
    here._given = given if isinstance(given, tuple) else (given,)
    here._made = made
    return here


def _as_tensor(value: Any) -> Any:
    """A gradient as a tensor; None stays None."""
    array = array_of(value)
    return value if array is None or isinstance(value, Tensor) else wrap(array)


class _Stopped(threading.local):
    here: Here | None = None


STOPPED = _Stopped()


class Latest:
    """`wf.debug.here`: the node of the stop that holds this thread. Printing it gives a summary of one screen."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if STOPPED.here is None:
            raise OperationError("debug.here: nothing is stopped in this thread",
                                 fix="Set a stop with wf.debug.break_on(nan=True).")  # fmt: skip
        return getattr(STOPPED.here, name)

    def __repr__(self) -> str:
        return "nothing is stopped" if STOPPED.here is None else repr(STOPPED.here)


here = Latest()
