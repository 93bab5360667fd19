"""Parameter and Buffer: tensors that a module takes in when they are assigned to it.

Both are plain tensors with a mark. `isinstance(t, Parameter)` reads the mark, and a parameter goes through every
operator as quickly as any other tensor.
"""

from __future__ import annotations

from typing import Any

from wayfare.core.dlpack import type_name
from wayfare.core.errors import ArgumentTypeError
from wayfare.core.tensor import Tensor, wrap

__all__ = ["Parameter", "Buffer"]


# The mark of a buffer that is not saved.
_NOT_SAVED = "Buffer (not saved)"


def is_saved(buffer: Tensor) -> bool:
    """Does a buffer belong into `state_dict`?"""
    return buffer._role != _NOT_SAVED


class _Marked(type):
    """A class whose instances are the tensors whose mark begins with its name."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and getattr(instance, "_role", "").startswith(cls.__name__)


def _marked(role: str, data: Any) -> Tensor:
    """The memory of `data` as a leaf of its own with a mark; without data, an empty tensor."""
    if data is None:
        data = Tensor()
    if not isinstance(data, Tensor):
        raise ArgumentTypeError(f"{role}: takes a Tensor, not {type_name(data)}",
                                fix=f"Write nn.{role}(wf.tensor(...)).")  # fmt: skip
    out = wrap(data.detach()._array)
    out._role = role
    return out


class Parameter(Tensor, metaclass=_Marked):
    """A tensor to be learnt. Assigned to a module it is listed in `parameters()` and saved in its state."""

    __slots__ = ()

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        return _marked("Parameter", data).requires_grad_(requires_grad)  # type: ignore[return-value]


class Buffer(Tensor, metaclass=_Marked):
    """A tensor of a module's state that is not learnt; one that is not `persistent` is left out of `state_dict`."""

    __slots__ = ()

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Buffer:
        buffer = _marked("Buffer", data)
        if not persistent:
            buffer._role = _NOT_SAVED
        return buffer  # type: ignore[return-value]
