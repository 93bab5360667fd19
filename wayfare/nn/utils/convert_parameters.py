"""All parameters of a model as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from wayfare.api.functions.join import cat
from wayfare.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from wayfare.core.tensor import Tensor

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of all parameters, one after the other: [number of elements]. Differentiable."""
    flat = [parameter.reshape(-1) for parameter in parameters]
    if not flat:
        raise ArgumentError("parameters_to_vector: there are no parameters",
                            fix="A generator, such as model.parameters(), can be used only once.")  # fmt: skip
    return cat(flat)


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Make each parameter a view of its part of `vec`; nothing is copied."""
    if not isinstance(vec, Tensor):
        raise ArgumentTypeError(f"vector_to_parameters: vec must be a Tensor, not {type(vec).__name__}")
    listed = list(parameters)
    wanted = sum(parameter.numel() for parameter in listed)
    if vec.ndim != 1 or vec.numel() < wanted:
        raise ShapeError(f"vector_to_parameters: {len(listed)} parameters need a vector of {wanted} elements, this is "
                         f"{vec.spec}")  # fmt: skip
    values, start = vec.detach(), 0
    for parameter in listed:
        end = start + parameter.numel()
        parameter.data = values[start:end].view(parameter.shape)
        start = end
