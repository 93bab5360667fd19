"""Methods of Tensor that belong to no family of functions: backward and friends."""

from __future__ import annotations

from typing import Any

from wayfare.api.functions._public import add_property, method
from wayfare.autograd.backward import backward as _run
from wayfare.core.errors import ArgumentTypeError
from wayfare.core.missing_names import LEFT_OUT, NotThere
from wayfare.core.tensor import Tensor


@method
def _is_view(self: Tensor) -> bool:
    """Is it a view of another tensor?"""
    return self._view is not None


@method
def __delitem__(self: Tensor, index: Any) -> None:
    """An error: a tensor's size does not change."""
    raise ArgumentTypeError("del: elements cannot be deleted from a tensor", fix="Index what is to be kept.")


@method
def is_inference(self: Tensor) -> bool:
    """Was it made under `inference_mode`?"""
    return self._extras is not None and "inference" in self._extras


@method
def backward(
    self: Tensor, gradient: Tensor | None = None, retain_graph: bool | None = None, create_graph: bool = False,
    inputs: Any = None,
) -> None:  # fmt: skip
    """Sum into `.grad` of every leaf the derivative of this tensor (see `wf.autograd.backward`)."""
    _run(self, gradient, retain_graph, create_graph, inputs=inputs)


def _base_of(self: Tensor) -> Any:
    """The tensor that this one is a view of, or None."""
    return None if self._view is None else self._view.base


def _not_sparse(self: Tensor) -> bool:
    """False: there are no sparse tensors. A gradient kept as rows is shown whole by `.grad`."""
    return False


@method
def get_device(self: Tensor) -> int:
    """The number of its GPU; -1 on the CPU."""
    index = self.device.index
    return -1 if index is None or self.device.type == "cpu" else index


add_property("_base", _base_of)
add_property("is_sparse", _not_sparse)

_LEFT_OUT = LEFT_OUT["wayfare.Tensor"]
for _name in _LEFT_OUT:
    setattr(Tensor, _name, NotThere("wayfare.Tensor", _name))


def _names(self: Tensor) -> list[str]:
    """The names that a tensor has, without those that only raise an error with advice."""
    return [name for name in object.__dir__(self) if name not in _LEFT_OUT]


Tensor.__dir__ = _names  # type: ignore[assignment]
