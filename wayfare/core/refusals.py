"""Tensors that cannot be kept for a gradient: the errors, each with the way out."""

from __future__ import annotations

from wayfare.core.errors import GraphError, InPlaceError
from wayfare.core.op import VALUE, Op
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import written_after


def refuse_marked(op: Op, inputs: tuple[Tensor, ...]) -> None:
    """Refuse inputs that cannot be kept for a gradient: tensors made under inference_mode, which have no history, and
    outputs of a custom Function that share memory which was written since."""
    needs = tuple(t._requires_grad for t in inputs)
    for t, kept in zip(inputs, op.keeps(needs)[1], strict=True):
        if t._extras is None:
            continue
        if kept == VALUE and "inference" in t._extras:
            raise GraphError(f"{op.name}: a tensor made under inference_mode cannot be kept for a gradient",
                             fix="Clone it outside inference_mode first.")  # fmt: skip
        if "handed_through" in t._extras:
            refuse_stale(t, op.name)


def refuse_stale(t: Tensor, name: str) -> None:
    """Refuse an output of a custom Function that shares memory written since: the Function's gradient ignores that."""
    function, made = t._extras["handed_through"]  # type: ignore[index]
    if written_after(t._array, made):
        raise InPlaceError(f"{name}: this {t.spec} shows memory that the custom Function {function} was given or made, "
                           "and it was written in place since: the gradient would not notice",
                           fix=f"Return a .clone() from {function}.forward, or write to one.")  # fmt: skip
