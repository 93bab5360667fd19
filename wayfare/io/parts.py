"""The parts of a checkpoint: how the state of each is taken, and put back into all of them or into none."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentTypeError, OperationError, WayfareError

__all__ = ["RandomNumbers", "Stateful", "as_part", "restore_all"]


class Stateful(Protocol):
    """What modules, optimisers, schedules and loaders have in common."""

    def state_dict(self) -> Any:
        """The state as plain values and tensors."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take a state back."""


class RandomNumbers:
    """The random numbers a program draws without a generator of its own: Wayfare's, Python's and NumPy's."""

    def state_dict(self) -> dict[str, Any]:
        """The states of the three."""
        numpy_state = np.random.get_state(legacy=False)
        return {"wayfare": wf.get_rng_state(), "python": random.getstate(), "numpy": _without_arrays(numpy_state)}

    def load_state_dict(self, state_dict: Any) -> None:
        """Continue the three from their states."""
        if not isinstance(state_dict, dict) or state_dict.keys() != {"wayfare", "python", "numpy"}:
            raise ArgumentTypeError("the states of random numbers are those of wayfare, python and numpy")
        wf.set_rng_state(state_dict["wayfare"])
        random.setstate(state_dict["python"])
        np.random.set_state(state_dict["numpy"])


class _InPlace:
    """A tensor, list, dict or generator of the program's own, whose contents are put back where they were."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def state_dict(self) -> Any:
        """What it holds now."""
        return self._value.get_state() if isinstance(self._value, wf.Generator) else self._value

    def load_state_dict(self, state_dict: Any) -> None:
        """Write the contents back."""
        value = self._value
        if isinstance(value, wf.Generator):
            value.set_state(state_dict)
            return
        if isinstance(value, wf.Tensor):
            if not isinstance(state_dict, wf.Tensor) or (state_dict.shape, state_dict.dtype) != (
                value.shape, value.dtype
            ):  # fmt: skip
                raise ArgumentTypeError(f"it is {_shown(value)} here and {_shown(state_dict)} in the file")
            with wf.no_grad():
                value.copy_(state_dict)
            return
        kind = dict if isinstance(value, dict) else list
        if not isinstance(state_dict, kind):
            raise ArgumentTypeError(f"it is a {kind.__name__} here and {_shown(state_dict)} in the file")
        value.clear()
        (value.update if isinstance(value, dict) else value.extend)(state_dict)


def as_part(name: str, value: Any) -> Stateful:
    """Something with a state that can be put back; a sentence for what has none."""
    if isinstance(value, (wf.Tensor, wf.Generator, list, dict)):
        return _InPlace(value)
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        if not isinstance(value, type):
            return value  # type: ignore[no-any-return]
    raise ArgumentTypeError(
        f"Checkpoint: {name} is a {type(value).__name__}, which has no state_dict and load_state_dict",
        fix="Give a value that changes to save(...) instead, and take it from what restore() returns.",
    )


def restore_all(parts: Mapping[str, Stateful], states: Mapping[str, Any], where: str) -> None:
    """Put each state into its part. If one does not fit, all parts are as before and every misfit is named."""
    before = {name: _copied(part.state_dict()) for name, part in parts.items()}
    problems = [f"{name}: the file has no state for it" for name in parts if name not in states]
    problems += [f"{name}: the file has a state for it, but it was not given to this Checkpoint"
                 for name in states if name not in parts]  # fmt: skip
    touched: list[str] = []
    try:
        for name in parts:
            if name in states:
                touched.append(name)
                try:
                    parts[name].load_state_dict(states[name])
                except Exception as error:
                    problems.append(f"{name}: {_reason(error)}")
        if problems:
            raise OperationError(f"restore: {where} does not fit, and nothing was changed: " + "; ".join(problems),
                                 fix="Make the parts as they were when it was saved, or take what you need "
                                     "from wf.load(path).")  # fmt: skip
    except BaseException:
        for name in touched:
            try:
                parts[name].load_state_dict(before[name])
            except Exception as error:
                warnings.warn(f"restore: {name} refused its own state from before: {error}", stacklevel=4)
        raise


def _reason(error: Exception) -> str:
    """What an error says, without the line, which would be the same for each of them."""
    return f"{error.sentence}. {error.fix}".rstrip(" .") if isinstance(error, WayfareError) else str(error)


def _copied(value: Any) -> Any:
    """A state with memory of its own."""
    if isinstance(value, wf.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    return value


def _without_arrays(value: Any) -> Any:
    """NumPy's state with lists of whole numbers for its arrays, whose dtypes tensors have not."""
    if isinstance(value, dict):
        return {key: _without_arrays(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _shown(value: Any) -> str:
    return f"{value.dtype.short}{list(value.shape)}" if isinstance(value, wf.Tensor) else f"a {type(value).__name__}"
