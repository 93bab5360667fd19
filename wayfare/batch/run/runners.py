"""How a group of calls runs as one: by the op's batch rule, as one `index` for many selects, or call by call with own
random keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.batch.record.memory import memory_of
from wayfare.batch.record.signature import Signature
from wayfare.core.dispatch import apply, tensor_ops
from wayfare.core.tensor import Tensor, wrap


def all_inputs(
    signature: Signature, rows: list[Tensor], batched: list[bool]
) -> tuple[tuple[Tensor, ...], tuple[bool, ...]]:
    """All inputs in order, and which of them have a batch dimension."""
    flags = iter(batched)
    return signature.inputs(rows), tuple([t is None and next(flags) for t in signature.pattern])


def run_op(signature: Signature, size: int, rows: list[Tensor], batched: list[bool], extras: list[Any]) -> Any:
    """One op on all rows at once."""
    inputs, flags = all_inputs(signature, rows, batched)
    if True not in flags:
        return apply(signature.target, inputs, signature.attrs)
    return signature.target.batch(tensor_ops, size, inputs, flags, signature.attrs)


def run_selected(signature: Signature, size: int, rows: list[Tensor], batched: list[bool], extras: list[Any]) -> Any:
    """`select` of one shared tensor, with an index for each call."""
    inputs, _ = all_inputs(signature, rows, batched)
    index = memory_of(inputs[0]._array).moved(np.array(extras, np.int64))
    return tensor_ops.index(inputs[0], wrap(index), dims=(0,))


def run_random(signature: Signature, size: int, rows: list[Tensor], batched: list[bool], extras: list[Any]) -> Any:
    """Random ops: each call draws with its own key, so its numbers do not depend on the group."""
    inputs, flags = all_inputs(signature, rows, batched)
    made = []
    for i, key in enumerate(extras):
        own = tuple(tensor_ops.select(t, dim=0, index=i) if b else t for t, b in zip(inputs, flags, strict=True))
        made.append(apply(signature.target, own, signature.attrs | {"key": key}))
    if isinstance(made[0], tuple):
        return tuple(tensor_ops.stack(*outputs, dim=0) for outputs in zip(*made, strict=True))
    return tensor_ops.stack(*made, dim=0)
