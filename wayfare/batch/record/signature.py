"""Signatures: what two calls must have in common to run as one batched call.

A signature has an exact key that is derived from the call: the op, its attributes, the rows it reads (shape, dtype,
layout), the tensors that all calls share (by identity), and the grad mode. No op declares anything for this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import copysign
from typing import TYPE_CHECKING, Any

from wayfare.batch.record.call import Row, row_of
from wayfare.batch.record.layout import layouts
from wayfare.batch.record.memory import HOST, Memory, memory_at
from wayfare.core.device import Device
from wayfare.core.op import Op
from wayfare.core.spec import OF_NUMPY, Spec
from wayfare.core.tensor import Tensor

if TYPE_CHECKING:
    from wayfare.batch.session import Session

# run(signature, size, tensors, batched, extras): each tensor holds the rows of all calls, or is one tensor for all of
# them where `batched` is False.
Runner = Callable[["Signature", int, list[Tensor], list[bool], list[Any]], Any]


# A larger tensor from outside counts as shared: stacking it would copy it once for each example.
MAX_ROW_BYTES = 64 * 1024


class Signature:
    """Calls that can run together. There is one object for each key of a session."""

    __slots__ = (
        "attrs", "carries", "checks_values", "differentiable", "grad", "groups", "inference", "joins", "key",
        "largest", "length", "memory", "name", "nodes", "outs", "over_steps", "pattern", "pending_bytes", "ragged",
        "record", "run", "session", "shared", "shared_need_grad", "target",
    )  # fmt: skip

    def __init__(
        self, session: Session, key: Any, name: str, target: Any, attrs: dict[str, Any],
        pattern: Sequence[Tensor | None], outs: Sequence[Row], carries: Sequence[bool], run: Runner, grad_mode: Any,
    ) -> None:  # fmt: skip
        self.session: Session | None = session
        self.key = key
        self.name = name
        self.target = target
        self.attrs = attrs
        # For each input of the op: the tensor that all calls share, or None where each call has a row of its own.
        self.pattern = tuple(pattern)
        self.shared = tuple(t for t in self.pattern if t is not None)
        self.outs = tuple(outs)
        # Where the results lie.
        self.memory = outs[0].memory
        # The device that numbers of the CPU must join, if rows of them are an input.
        elsewhere = not self.memory.is_host and not getattr(target, "any_device", False)
        self.joins = {"device": str(self.memory.device), "source": "cpu"} if elsewhere else None
        # Which outputs require a gradient if any input does.
        self.carries = tuple(carries)
        # `grad_mode` is part of the key: True, False or "inference".
        self.grad = grad_mode is True
        self.inference = grad_mode == "inference"
        self.differentiable = self.grad and any(carries)
        self.shared_need_grad = self.differentiable and any(t._requires_grad for t in self.shared)
        # True if the op checks values and may raise an error because of them.
        self.checks_values: bool = target.checks_values
        self.run = run
        # For a step of a recurrent cell: a function that runs many steps of many sequences (`run/chain.py`).
        self.over_steps: Callable[..., Any] | None = None
        # What it is part of, if others differ from it only in a length (`ragged_signature.py`); and its own length.
        self.ragged: Any = None
        self.length = 0
        self.pending_bytes = sum(row.bytes for row in self.outs) + 1000
        self.nodes = self.groups = self.largest = 0
        # Records a call; generated when the first call is recorded.
        self.record: Any = None

    def inputs(self, rows: Sequence[Any]) -> tuple[Any, ...]:
        """All inputs in order: the shared tensors, and the given rows in between."""
        if not self.shared:
            return tuple(rows)
        following = iter(rows)
        return tuple([next(following) if t is None else t for t in self.pattern])

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(map(repr, self.outs))}>"


class _OwnLeaf:
    """Marks a leaf that one example made or was given: it is a row of that example, not a shared weight."""


OWN_LEAF = _OwnLeaf()


def is_shared(t: Tensor) -> bool:
    """Whether a tensor from outside counts as the same for all examples: parameters, buffers and large tensors do."""
    if t._view is not None:
        t._renew()
    if t._edge is not None:
        return False
    if t._requires_grad:
        return getattr(t, "_handle", None) is not OWN_LEAF
    size = t._array.nbytes
    return size > MAX_ROW_BYTES or (size > 8 and hasattr(t, "_role"))


class Unkeyable(Exception):
    """An attribute is not hashable, so it cannot be part of a key."""


def exact_key(value: Any) -> Any:
    """A key that tells apart what `==` does not: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    cls = value.__class__
    if cls is int or cls is str or value is None:
        return value
    if cls is float:
        return (float, value, copysign(1.0, value)) if value == 0 else (float, value)
    if cls is tuple or cls is list:
        return (cls, *[exact_key(part) for part in value])
    if cls is dict:
        return (dict, *[(name, exact_key(part)) for name, part in value.items()])
    return (cls, value)


def attributes_key(attrs: dict[str, Any]) -> Any:
    """The exact key of an op's attributes."""
    if not attrs:
        return None
    key = tuple([(name, exact_key(value)) for name, value in attrs.items()])
    try:
        hash(key)
    except TypeError:
        raise Unkeyable from None
    return key


# (op, attributes, input rows) → output rows; valid in every session.
_INFERRED: dict[Any, tuple[Row, ...]] = {}
_CACHE_SIZE = 4096


def infer_rows(op: Op, attrs: dict[str, Any], attrs_key: Any, rows: Sequence[Row]) -> tuple[Row, ...]:
    """The output rows of an op, by its shape rule."""
    key = (op, attrs_key, *rows)
    found = _INFERRED.get(key)
    if found is None:
        made = op.infer(*[Spec(row.shape, OF_NUMPY[row.dtype]) for row in rows], **attrs)
        specs = made if isinstance(made, (tuple, list)) else (made,)
        memory = memory_at(Device(attrs["device"])) if op.any_device else meeting_memory(rows)
        lie = layouts(op, attrs, rows, len(specs))
        found = tuple([row_of(tuple(s.shape), s.dtype.numpy, how, memory) for s, how in zip(specs, lie, strict=True)])
        if len(_INFERRED) >= _CACHE_SIZE:
            _INFERRED.clear()
        _INFERRED[key] = found
    return found


def meeting_memory(rows: Sequence[Row]) -> Memory:
    """Where an op on such rows runs: all lie there, or are numbers of the CPU. NotImplementedError if they do not meet,
    or if nothing can be gathered there: then the op runs at once, or raises on the user's line."""
    found: Memory = HOST
    for row in rows:
        if row.memory is not found and row.memory is not HOST:
            if found is not HOST or not row.memory.has_kernels:
                raise NotImplementedError
            found = row.memory
    if found is not HOST and any([row.memory is HOST and row.shape for row in rows]):
        raise NotImplementedError
    return found


def differentiable_outs(op: Op, outs: Sequence[Row]) -> list[bool]:
    """For each output of an op, whether it is differentiable."""
    wanted = op.differentiable_outputs
    return [op.vjp is not None and row.is_float and (wanted is None or i in wanted) for i, row in enumerate(outs)]
