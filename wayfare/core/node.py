"""A node of the autograd graph: one op that ran, its inputs, and what its gradient rule needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

from wayfare.core.callsite import Site, locate
from wayfare.core.op import Op
from wayfare.core.spec import OF_NUMPY, Spec
from wayfare.core.structure_epoch import structure_changed


class Extras:
    """What only few nodes have: several outputs, hooks, tensors that retain their gradient, an unpack hook."""

    __slots__ = ("outs", "post_hooks", "pre_hooks", "retained", "tensor_hooks", "unpack")

    def __init__(self) -> None:
        self.outs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...] | None = None
        self.tensor_hooks: dict[int, dict[int, Callable[[Any], Any]]] = {}
        self.retained: dict[int, Any] = {}  # output number → weak reference to the tensor
        self.pre_hooks: dict[int, Callable[..., Any]] = {}
        self.post_hooks: dict[int, Callable[..., Any]] = {}
        self.unpack: Callable[[Any], Any] | None = None


class Node:
    """One recorded op. `edges` has, per input: the node that made it (or (node, output number) for a node of
    several outputs), the leaf tensor itself, or None when no gradient is wanted there."""

    __slots__ = (
        "__weakref__",
        "attrs",
        "code",
        "dtype",
        "edges",
        "extras",
        "kept",
        "number",
        "offset",
        "op",
        "shape",
    )

    op: Op
    attrs: dict[str, Any]
    edges: tuple[Any, ...]
    kept: tuple[Any, ...] | None  # None once freed by a backward pass
    number: int  # creation time: inputs are always older; a later write makes kept values stale
    shape: tuple[int, ...]  # of the output; of the first one when there are several
    dtype: np.dtype[Any]
    code: CodeType | None
    offset: int
    extras: Extras | None

    def name(self) -> str:
        """The name PyTorch gives such a node: `MulBackward0`."""
        return self.op.grad_name

    @property
    def site(self) -> Site | None:
        """The user's line that made this node."""
        return locate(self.code, self.offset)

    @property
    def outs(self) -> tuple[tuple[tuple[int, ...], np.dtype[Any]], ...] | None:
        """Shape and dtype of all outputs when there are several, else None."""
        return None if self.extras is None else self.extras.outs

    @property
    def specs(self) -> tuple[Spec, ...]:
        """Shape and dtype of each output."""
        outs = self.outs or ((self.shape, self.dtype),)
        return tuple(Spec(shape, OF_NUMPY[dtype]) for shape, dtype in outs)

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """(node, output number) of each input that can have a gradient, as in PyTorch: (None, 0) for a constant, and a
        leaf shows as an AccumulateGrad."""
        edges, listed = self.edges, self.op.listed
        return tuple(_next_function(edge) for edge in (edges if listed is None else [edges[i] for i in listed]))

    def register_hook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook(grad_inputs, grad_outputs)` after this node's gradient rule has run."""
        return Handle(self.more().post_hooks, hook)

    def register_prehook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook(grad_outputs)` before this node's gradient rule runs."""
        return Handle(self.more().pre_hooks, hook)

    def more(self) -> Extras:
        """The extras, made when first needed."""
        if self.extras is None:
            self.extras = Extras()
        return self.extras

    def __repr__(self) -> str:
        return f"<{self.name()} object at {hex(id(self))}>"


def unroll(node: Any) -> None:
    """Split a node that stands for many steps (a compiled call), so that each output has a node of its own."""
    if hasattr(node, "unroll"):
        node.unroll()


class AccumulateGrad:
    """Stands for a leaf in `next_functions`: the end of the graph, where the gradient is added to `.grad`."""

    __slots__ = ("variable",)

    def __init__(self, variable: Any) -> None:
        self.variable = variable

    def name(self) -> str:
        """`AccumulateGrad`."""
        return "AccumulateGrad"

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """A leaf has no inputs."""
        return ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AccumulateGrad) and other.variable is self.variable

    def __hash__(self) -> int:
        return hash(id(self.variable))

    def __repr__(self) -> str:
        return f"<AccumulateGrad object at {hex(id(self.variable))}>"


def _next_function(edge: Any) -> tuple[Any, int]:
    if edge is None:
        return (None, 0)
    if isinstance(edge, Node):
        return (edge, 0)
    if isinstance(edge, tuple):
        return (edge[0], edge[1])
    return (AccumulateGrad(edge), 0)


class Handle:
    """Removes a hook: by `handle.remove()`, or at the end of its `with` block."""

    __slots__ = ("_hooks", "_key")
    _keys = itertools.count()

    def __init__(self, hooks: dict[int, Any], hook: Any) -> None:
        self._hooks = hooks
        self._key = next(Handle._keys)
        hooks[self._key] = hook

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        self._hooks.pop(self._key, None)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class StructureHandle(Handle):
    """The handle of a hook of a module or a leaf: such hooks are part of the structure of a model."""

    __slots__ = ()

    def __init__(self, hooks: dict[int, Any], hook: Any) -> None:
        super().__init__(hooks, hook)
        structure_changed()

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        super().remove()
        structure_changed()
