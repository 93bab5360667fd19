"""`wf.func`: functions of functions, as in `torch.func`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from wayfare.api.functions.join import stack
from wayfare.autograd.jacobians import hessian, jacfwd, jacrev
from wayfare.autograd.transforms import grad, grad_and_value, jvp, linearize, vjp, vmap
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError, WrongKindError
from wayfare.core.structure_epoch import structure_changed
from wayfare.core.tensor import Tensor
from wayfare.nn.module import Module

__all__ = [
    "functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
    "stack_module_state", "vjp", "vmap",
]  # fmt: skip


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call a module with other tensors in the place of its parameters and buffers, which are given by path.

    A tensor that the module holds under several paths is replaced under all of them (`tie_weights`). With `strict`,
    every parameter and buffer must be given, and nothing else. The module is the same after the call, whatever happens
    in it; a buffer that it assigns anew is found in the dictionary that gave the old one.
    """
    if not isinstance(module, Module):
        raise ArgumentTypeError(f"functional_call: takes an nn.Module, not {type(module).__name__}")
    parts = _parts(parameter_and_buffer_dicts)
    given = {key: value for part in parts for key, value in part.items()}
    if len(given) < sum(map(len, parts)):
        repeated = [key for key in given if sum(key in part for part in parts) > 1]
        raise ArgumentError(f"functional_call: {', '.join(repeated)} appeared in multiple dictionaries",
                            fix="Give each tensor once.")  # fmt: skip
    places: dict[str, tuple[dict[str, Any], str]] = {}
    for path, inside in module.named_modules(remove_duplicate=False):
        for name, kind in inside._names.items():
            if kind != "module":
                places[f"{path}.{name}" if path else name] = (inside.__dict__, name)
    unknown = [key for key in given if key not in places and strict]
    given = {key: value for key, value in given.items() if key in places}
    absent = [key for key in places if key not in given and strict]
    if unknown or absent:
        said = [f"it has no {', '.join(unknown)}"] * bool(unknown) + [f"{', '.join(absent)} are missing"] * bool(absent)
        raise OperationError(f"functional_call: the tensors do not fit {type(module).__name__}: {'; '.join(said)}")
    by_identity: dict[int, list[str]] = {}
    for key, (held, name) in places.items():
        by_identity.setdefault(id(held[name]), []).append(key)
    new: dict[str, Tensor] = {}
    for key, value in given.items():
        held, name = places[key]
        for tied in by_identity[id(held[name])] if tie_weights and held[name] is not None else [key]:
            new.setdefault(tied, value)
        new[key] = value
    old = {key: places[key][0][places[key][1]] for key in new}
    try:
        for key, value in new.items():
            held, name = places[key]
            held[name] = value
        structure_changed()
        return module(*(() if args is None else args if isinstance(args, tuple) else (args,)), **(kwargs or {}))
    finally:
        for key, value in old.items():
            held, name = places[key]
            if held.get(name) is not new[key]:
                _hand_back(parts, key, held.get(name))
            held[name] = value
        structure_changed()


def _parts(given: Any) -> list[Mapping[str, Tensor]]:
    """One or several dictionaries as a list."""
    parts = [given] if isinstance(given, Mapping) or not isinstance(given, Sequence) else list(given)
    for part in parts:
        if not isinstance(part, Mapping):
            said = f"not {type(part).__name__}" if part is given else f"one of them is a {type(part).__name__}"
            raise WrongKindError(f"functional_call: takes a dictionary of tensors by path, {said}",
                                 fix="Give dict(module.named_parameters()), or a tuple of such.")  # fmt: skip
    return parts


def _hand_back(parts: list[Mapping[str, Tensor]], key: str, value: Any) -> None:
    """What a module has put in the place of a tensor that it was given goes to who gave it."""
    for part in parts:
        if key in part and isinstance(part, MutableMapping):
            part[key] = value


def stack_module_state(models: Iterable[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters and the buffers of equal models, stacked along a new dimension 0: for `vmap` over an ensemble."""
    if not isinstance(models, Iterable):
        raise ArgumentTypeError(f"stack_module_state: takes a list of models, not {type(models).__name__}")
    models = list(models)
    if not models:
        raise OperationError("stack_module_state: got no models")
    if any(type(model) is not type(models[0]) for model in models):
        raise OperationError("stack_module_state: the models must be of one class")
    parameters = [dict(model.named_parameters()) for model in models]
    buffers = [dict(model.named_buffers()) for model in models]
    return (
        {key: stack([p[key].detach() for p in parameters]).requires_grad_(value.requires_grad)
         for key, value in parameters[0].items()},
        {key: stack([b[key].detach() for b in buffers]) for key in buffers[0]},
    )  # fmt: skip
