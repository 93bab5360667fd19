"""The state of a model in training, as it was: what a function can reach is remembered, and put back."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.compiler.captures.reach import reach
from wayfare.core.device import copied
from wayfare.core.structure_epoch import structure_changed
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import note_write
from wayfare.optim import Optimizer
from wayfare.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

_SCHEDULES = (LRScheduler, ReduceLROnPlateau)


class Snapshot:
    """Tensors, modules, optimisers, schedules and random generators that a function sees, with their values."""

    def __init__(self, function: Any, arguments: Sequence[Any] = ()) -> None:
        self._tensors: dict[int, _TensorState] = {}
        self._arguments: list[_TensorState] = []
        self._modules: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._optimizers: dict[int, _OptimizerState] = {}
        self._schedules: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._generators: dict[int, tuple[Any, Any]] = {}
        self._random = wf.get_rng_state()
        for value in _visible(function):
            self._see(value)
        for value in _flat(arguments):
            if isinstance(value, Tensor):
                self._arguments.append(_TensorState(value))
            else:
                self._see(value)

    def _see(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._tensors.setdefault(id(value), _TensorState(value))
        elif isinstance(value, wf.nn.Module):
            for module in value.modules():
                if id(module) not in self._modules:
                    self._modules[id(module)] = (module, dict(module.__dict__))
            for tensor in (*value.parameters(), *value.buffers()):
                self._see(tensor)
        elif isinstance(value, Optimizer):
            if id(value) not in self._optimizers:
                self._optimizers[id(value)] = _OptimizerState(value)
                for group in value.param_groups:
                    for tensor in group["params"]:
                        self._see(tensor)
        elif isinstance(value, _SCHEDULES):
            if id(value) not in self._schedules:
                self._schedules[id(value)] = (value, copy.deepcopy(value.state_dict()))
                self._see(value.optimizer)
        elif isinstance(value, wf.Generator):
            self._generators.setdefault(id(value), (value, value.get_state()))

    def restore_arguments(self) -> None:
        """Put the tensors among the arguments back, and nothing else."""
        for state in self._arguments:
            state.restore()

    def restore(self) -> None:
        """Put everything back."""
        for module, held in self._modules.values():
            now = module.__dict__
            if len(now) != len(held) or any(now.get(name) is not value for name, value in held.items()):
                now.clear()
                now.update(held)
                structure_changed()
        for state in (*self._tensors.values(), *self._arguments):
            state.restore()
        for optimizer in self._optimizers.values():
            optimizer.restore()
        for schedule, saved in self._schedules.values():
            schedule.load_state_dict(copy.deepcopy(saved))
        for generator, saved in self._generators.values():
            generator.set_state(saved)
        wf.set_rng_state(self._random)


class _TensorState:
    """The values and the gradient of a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._array = tensor._array
        self._values = copied(tensor._array)
        self._grad = tensor._grad
        grad = None if self._grad is None else tensor.grad
        self._grad_values = None if grad is None else copied(grad._array)

    def restore(self) -> None:
        """Put both back, in place where they have changed."""
        tensor = self._tensor
        tensor._array = self._array
        _write_back(self._array, self._values)
        tensor._grad = self._grad
        grad = None if self._grad is None else tensor.grad
        if grad is not None and self._grad_values is not None:
            _write_back(grad._array, self._grad_values)


class _OptimizerState:
    """What an optimiser remembers and the options of its groups. Tensors are put back in place: plans know them."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._state = {p: {name: _kept(value) for name, value in state.items()} for p, state in optimizer.state.items()}
        self._groups = [{name: _option(value) for name, value in group.items() if name != "params"}
                        for group in optimizer.param_groups]  # fmt: skip

    def restore(self) -> None:
        """Put it back."""
        now = self._optimizer.state
        for p in [p for p in now if p not in self._state]:
            del now[p]
        for p, state in self._state.items():
            now[p] = {name: value.restored() if isinstance(value, _Value) else value for name, value in state.items()}
        for group, options in zip(self._optimizer.param_groups, self._groups, strict=True):
            for name, value in options.items():
                group[name] = value.restored() if isinstance(value, _Value) else value


class _Value(_TensorState):
    """A tensor in the state of an optimiser."""

    def restored(self) -> Tensor:
        """The tensor, with its old values."""
        self.restore()
        return self._tensor


def _kept(value: Any) -> Any:
    return _Value(value) if isinstance(value, Tensor) else copy.deepcopy(value)


def _option(value: Any) -> Any:
    return _Value(value) if isinstance(value, Tensor) else copy.copy(value)


def _write_back(array: Any, values: Any) -> None:
    if array.__class__ is not np.ndarray:  # whether it has changed is a value, which would be waited for
        array[...] = values
        note_write(array)
    elif array.tobytes() != values.tobytes():
        np.copyto(array, values)
        note_write(array)


def _visible(function: Any) -> Iterator[Any]:
    """What a function can see besides its arguments; where guards give up, at least the names in its own code."""
    seen = reach(function)
    yield from seen.tensors.values()
    for place in seen.locations:
        yield place.value
        yield place.holder
    inner = getattr(function, "__func__", function)
    yield from (function, getattr(function, "__self__", None))
    for cell in getattr(inner, "__closure__", None) or ():
        try:
            yield from _flat(cell.cell_contents)
        except ValueError:
            continue  # not assigned yet
    code = getattr(inner, "__code__", None)
    for name in code.co_names if code is not None else ():
        yield from _flat(inner.__globals__.get(name))


def _flat(value: Any) -> Iterator[Any]:
    """A value, or the values in lists, tuples and dictionaries."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inside in value:
            yield from _flat(inside)
    else:
        yield value
