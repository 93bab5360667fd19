"""The state of a module as a dictionary, and back: all of it, or nothing and a list of what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wayfare.api.functions.creation import tensor as new_tensor
from wayfare.autograd.modes import no_grad
from wayfare.core.dlpack import without_history
from wayfare.core.errors import ArgumentTypeError, OperationError
from wayfare.core.tensor import Tensor
from wayfare.nn.parameter import Parameter

if TYPE_CHECKING:
    from wayfare.nn.module import Module

_SAVED = ("parameter", "buffer")
EXTRA = "_extra_state"


def _entries(module: Module, prefix: str) -> list[tuple[str, Module, str]]:
    """(key, module, name) of all that is saved; a tensor that is shared has an entry under each of its paths."""
    found = []
    start = prefix.removesuffix(".")
    for path, inside in module.named_modules(prefix=start, remove_duplicate=False):
        dotted = f"{path}." if path else ""
        found += [
            (dotted + name, inside, name)
            for kind in _SAVED for name, as_what in inside._names.items()
            if as_what == kind and inside.__dict__[name] is not None
        ]  # fmt: skip
        if hasattr(inside, "get_extra_state"):
            found.append((dotted + EXTRA, inside, EXTRA))
    return found


def collect_state(module: Module, into: dict[str, Any], prefix: str, keep_vars: bool) -> None:
    """Fill `into` with everything that is saved, by key."""
    for key, inside, name in _entries(module, prefix):
        if name == EXTRA:
            into[key] = inside.get_extra_state()  # type: ignore[attr-defined]
        else:
            tensor = inside.__dict__[name]
            into[key] = tensor if keep_vars else tensor.detach()


def load_state(
    module: Module, state: Mapping[str, Any], strict: bool, assign: bool
) -> tuple[list[str], list[str]]:
    """Check everything, then copy. Returns the keys on one side only."""
    if not isinstance(state, Mapping):
        raise ArgumentTypeError(f"load_state_dict: takes a dictionary, not {type(state).__name__}",
                                fix="Give what state_dict() or wf.load returned.")  # fmt: skip
    entries = _entries(module, "")
    known = {key for key, _, _ in entries}
    missing = [key for key, _, _ in entries if key not in state]
    unexpected = [key for key in state if key not in known]
    problems = []
    if strict and missing:
        problems.append("missing from the state: " + ", ".join(missing))
    if strict and unexpected:
        problems.append("not in the model: " + ", ".join(map(str, unexpected)))
    values: dict[str, Any] = {}
    for key, inside, name in entries:
        if key in state:
            values[key] = state[key] if name == EXTRA else _as_tensor(key, state[key], inside.__dict__[name], problems)
    if problems:
        raise OperationError(
            f"load_state_dict: the state does not fit {type(module).__name__}, which stays as it was",
            fix=_remedy(known, unexpected, state)
            + "".join(f"\n  {problem}" for problem in problems),
        )
    for key, inside, name in entries:
        if key not in values:
            continue
        if name == EXTRA:
            inside.set_extra_state(values[key])  # type: ignore[attr-defined]
        elif assign:
            setattr(inside, name, _in_place_of(inside.__dict__[name], values[key]))
        else:
            with no_grad():
                inside.__dict__[name].copy_(values[key])
    return missing, unexpected


def _remedy(known: set[str], unexpected: list[Any], state: Mapping[str, Any]) -> str:
    """What may help; a state of a wrapped model is recognised by what all its keys begin with, a whole checkpoint by
    an entry that is a state itself."""
    for name in unexpected:
        inside = state[name]
        if isinstance(inside, Mapping) and inside and (inside.keys() <= known or inside.keys() >= known):
            return f"It is a checkpoint with more than the model: give state[{name!r}]."
    prefix = str(unexpected[0]).split(".")[0] + "." if unexpected else ""
    if prefix and all(str(key).startswith(prefix) and str(key)[len(prefix):] in known for key in unexpected):
        return f"All its keys begin with {prefix!r}: give {{key.removeprefix({prefix!r}): value …}}."
    return "Give the state of a model of the same structure, or strict=False if keys may be on one side only."


def _as_tensor(key: str, value: Any, present: Tensor, problems: list[str]) -> Tensor | None:
    """A value of a state as a tensor that fits, or None and one more problem."""
    if not isinstance(value, Tensor):
        if not hasattr(value, "__array__"):
            problems.append(f"{key}: a {type(value).__name__} is no tensor")
            return None
        value = new_tensor(without_history(value))
    found: Tensor = value
    # Checkpoints from before there were 0-dim tensors hold one number as [1].
    if present.ndim == 0 and tuple(found.shape) == (1,):
        found = found.reshape(())
    if found.shape != present.shape:
        problems.append(f"{key}: {list(found.shape)} in the state, {list(present.shape)} in the model")
        return None
    return found


def _in_place_of(present: Tensor, value: Tensor) -> Tensor:
    """The value's memory, with the role of the tensor that it replaces."""
    return Parameter(value, present.requires_grad) if isinstance(present, Parameter) else value
