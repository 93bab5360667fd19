"""Carries arguments from PyTorch's samples to any module that speaks PyTorch's API.

A sample is first frozen: tensors become NumPy arrays, dtypes become names. Thawing a frozen sample for
PyTorch and for Wayfare then gives both sides their own memory with the same values, the same strides and
the same sharing (a tensor passed twice stays one tensor), so an op that writes into its input cannot make
the other side agree by accident.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch

SUPPORTED_DTYPES = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"}
)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# A sample above this size would spend the referee's time on arithmetic, not on semantics.
LARGEST_TENSOR = 1_000_000

# NumPy's own limit.
MOST_DIMS = 64


class OutOfScope(Exception):
    """A sample that asks for something Wayfare does not have on purpose; the message is the reason."""


@dataclass(frozen=True)
class FrozenTensor:
    array: np.ndarray
    requires_grad: bool
    identity: int


@dataclass(frozen=True)
class FrozenDType:
    name: str


@dataclass(frozen=True)
class FrozenFunction:
    """A function of `nn.functional` with keywords bound, in the place of a torch.nn module."""

    name: str
    keywords: tuple[tuple[str, Any], ...]


_DROPPED = object()


def copy_with_layout(array: np.ndarray) -> np.ndarray:
    """A copy in fresh memory with the very strides of `array` (which are never negative here)."""
    if array.flags.c_contiguous or array.size == 0:
        return array.copy()
    span = sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True))
    memory = np.zeros(span // array.itemsize + 1, array.dtype)
    view = np.lib.stride_tricks.as_strided(memory, array.shape, array.strides)
    view[...] = array
    return view


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a tensor of PyTorch's as an array."""
    if tensor.dtype is torch.bfloat16:  # which its `numpy()` refuses
        return tensor.view(torch.int16).numpy(force=True).view(_BFLOAT16)
    return tensor.numpy()


def from_array(module: Any, array: np.ndarray) -> Any:
    """A tensor of a module on the memory of an array."""
    if array.dtype == _BFLOAT16:
        return module.from_numpy(array.view(np.int16)).view(module.bfloat16)
    return module.from_numpy(array)


def freeze(value: Any) -> Any:
    """The frozen form of an argument, or of any nesting of lists, tuples and dicts of arguments."""
    return _FREEZERS.get(type(value), _freeze_other)(value)


def _freeze_tensor(tensor: torch.Tensor) -> FrozenTensor:
    if tensor.layout is not torch.strided:
        raise OutOfScope(f"{str(tensor.layout).removeprefix('torch.')} layout")
    if tensor.device.type != "cpu":
        raise OutOfScope(f"a tensor on {tensor.device.type}")
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in SUPPORTED_DTYPES:
        raise OutOfScope("complex argument" if tensor.is_complex() else f"{name} argument")
    if tensor.numel() > LARGEST_TENSOR:
        raise OutOfScope(f"a tensor of more than {LARGEST_TENSOR:,} elements")
    if tensor.ndim > MOST_DIMS:
        raise OutOfScope(f"a tensor of more than {MOST_DIMS} dimensions")
    array = to_array(tensor.detach().resolve_neg())
    return FrozenTensor(copy_with_layout(array), tensor.requires_grad, id(tensor))


def _freeze_dtype(dtype: torch.dtype) -> FrozenDType:
    name = str(dtype).removeprefix("torch.")
    if name not in SUPPORTED_DTYPES:
        raise OutOfScope("complex dtype asked for" if dtype.is_complex else f"{name} asked for")
    return FrozenDType(name)


def _freeze_complex(value: complex) -> Any:
    raise OutOfScope("complex argument")


def _freeze_mapping(value: dict[Any, Any]) -> dict[Any, Any]:
    frozen = {key: freeze(item) for key, item in value.items()}
    return {key: item for key, item in frozen.items() if item is not _DROPPED}


def _freeze_sequence(value: Any) -> Any:
    frozen = (freeze(item) for item in value)
    return type(value)(item for item in frozen if item is not _DROPPED)


def _freeze_distance(module: torch.nn.PairwiseDistance) -> FrozenFunction:
    keywords = (("p", module.norm), ("eps", module.eps), ("keepdim", module.keepdim))
    return FrozenFunction("pairwise_distance", keywords)


def _unchanged(value: Any) -> Any:
    return value


def _freeze_other(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _freeze_tensor(value)
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item) for item in value)
    raise OutOfScope(f"argument of type {type(value).__name__}")


_FREEZERS: dict[type, Callable[[Any], Any]] = {
    torch.Tensor: _freeze_tensor,
    torch.nn.Parameter: _freeze_tensor,
    torch.dtype: _freeze_dtype,
    torch.device: lambda device: "cpu",
    torch.Size: tuple,
    # Memory format and layout say where values lie, never what they are.
    torch.memory_format: lambda value: _DROPPED,
    torch.layout: lambda value: _DROPPED,
    torch.nn.PairwiseDistance: _freeze_distance,
    complex: _freeze_complex,
    dict: _freeze_mapping,
    list: _freeze_sequence,
    tuple: _freeze_sequence,
    **dict.fromkeys((int, float, bool, str, type(None), slice, type(...)), _unchanged),
}


@dataclass
class Thawed:
    """Arguments for one module, and its differentiable tensors in order of first appearance."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]


@dataclass
class _Thaw:
    module: Any
    tensors: dict[int, Any] = field(default_factory=dict)
    leaves: list[Any] = field(default_factory=list)

    def value(self, frozen: Any) -> Any:
        if isinstance(frozen, FrozenTensor):
            return self._tensor(frozen)
        if isinstance(frozen, FrozenDType):
            return getattr(self.module, frozen.name)
        if isinstance(frozen, FrozenFunction):
            function = getattr(self.module.nn.functional, frozen.name)
            return functools.partial(function, **dict(frozen.keywords))
        if isinstance(frozen, (list, tuple)):
            return type(frozen)(self.value(item) for item in frozen)
        if isinstance(frozen, dict):
            return {key: self.value(item) for key, item in frozen.items()}
        return frozen

    def _tensor(self, frozen: FrozenTensor) -> Any:
        tensor = self.tensors.get(frozen.identity)
        if tensor is None:
            tensor = from_array(self.module, copy_with_layout(frozen.array))
            if frozen.requires_grad:
                tensor.requires_grad_(True)
                self.leaves.append(tensor)
            self.tensors[frozen.identity] = tensor
        return tensor


def thaw(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Thawed:
    """Frozen arguments as arguments of `module`."""
    state = _Thaw(module)
    thawed_args = tuple(state.value(item) for item in args)
    thawed_kwargs = {key: state.value(item) for key, item in kwargs.items()}
    return Thawed(thawed_args, thawed_kwargs, state.leaves)
