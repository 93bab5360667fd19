"""The end of a recorded call: its `Recording`, or the reason why it cannot be replayed."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Any

from wayfare.compiler.captures.guards import Guards
from wayfare.compiler.record.effects import ABSENT, Assigned, Begun, Variable
from wayfare.compiler.record.recorder import GiveUp, Recorder
from wayfare.compiler.record.recording import Output, Recording
from wayfare.compiler.replay.entry import Entry
from wayfare.compiler.signature import Signature
from wayfare.compiler.structure import ITEM, Opaque, has_objects, take_apart
from wayfare.core.mode import current
from wayfare.core.tensor import Tensor

# The most variables that a function may both read and assign.
_STATES = 16


class Retry(Exception):
    """This recording cannot be kept, but the next one may be: it will know more."""


class Dropped(Exception):
    """Calls with this signature cannot be replayed."""


def finish_recording(
    entry: Entry, call: Signature, recorder: Recorder, assigned: Assigned, result: Any,
    states: list[Variable], found_tensors: MutableMapping[int, Tensor],
) -> Recording:  # fmt: skip
    """The recording of a call that has just run. Raises `GiveUp`, `Dropped`, or `Retry`.

    Adds to `states` and to `found_tensors`.
    """
    if recorder.failed:
        raise GiveUp(recorder.failed)
    guards = entry.guards
    changed = guards.changed_by_call()
    if changed and _new_states(guards, states):
        raise Retry(changed)
    if call.has_changed():
        raise Dropped("it changes its own arguments")
    results: list[Tensor] = []
    shape = _result(recorder, result, results, call, guards)
    count = len(results)
    try:
        effects = assigned.effects(results)
    except Opaque as what:
        raise Dropped(f"it {what}") from None
    except Begun as what:
        raise Retry(f"{what} is new") from None
    unknown = [t for t in (r() for r in recorder.unknown_tensors) if t is not None and not any(t is x for x in results)]
    if unknown or changed:
        # Captured tensors that no guard led to, or objects made by the first call: the next recording knows them.
        found_tensors.update({id(t): t for t in unknown})
        raise Retry(changed)
    unstable = entry.tree.unstable(recorder.decisions)
    if unstable is not None:
        raise Dropped(f"{unstable.how} gives Python a number that is different at nearly every call "
                      f"({os.path.basename(unstable.line)})")  # fmt: skip
    recording = Recording(recorder, results)
    numbers = recording.results
    for t, number in zip(results, numbers, strict=True):
        _check_marks(t, recording.outputs[number])
    recording.shape, recording.results, recording.effects = shape, numbers[:count], effects
    for effect in effects:
        effect.outputs = [numbers[i] for i in effect.outputs]
    return recording


def _result(recorder: Recorder, result: Any, results: list[Tensor], call: Signature, guards: Guards) -> Any:
    """The structure of the returned value; its tensors are added to `results`."""
    if recorder.returned is not None:
        results.append(recorder.returned)
        return ITEM
    objects: list[Any] = []
    met = dict.fromkeys([*call.containers, *guards.seen.met])
    try:
        shape = take_apart(result, results, objects, met)
    except Opaque as what:
        raise Dropped(f"it returns {what}") from None
    if has_objects(shape):
        raise Dropped("it returns an object that is not a tensor, a number or a structure of these")
    return shape


def _new_states(guards: Guards, states: list[Variable]) -> bool:
    """Turn the variables that the call changed into states, which are inputs of every call. False if that is
    impossible."""
    names, known = guards.seen.names, {state.identity for state in states}
    found = []
    for location in guards.replaced():
        name = str(location.path) if location.key == "cell_contents" else location.key
        assigned = name in names.stored or any(
            holder is location.holder and key == location.key for holder, key, _ in guards.seen.assigned
        )  # fmt: skip
        if not assigned or not _can_be_state(location.value) or (
            location.in_module and location.key in _names_of(location.holder)
        ):  # fmt: skip
            return False
        variable = Variable(location.holder, location.key, location.path, location.in_module)
        if variable.identity not in known and variable.get() is not ABSENT and _can_be_state(variable.get()):
            found.append(variable)
    if not found or len(states) + len(found) > _STATES:
        return False
    states += found
    return True


def _check_marks(t: Tensor, out: Output) -> None:
    """Refuse new parameters and tensors made in another inference mode: a replay returns plain tensors only."""
    if out.kind == "outside":
        return
    if hasattr(t, "_role"):
        raise Dropped(f"it returns or assigns a new nn.{t._role}")
    marked, inference = "inference" in (t._extras or ()), current().inference
    if (marked and not inference) or (inference and not marked and out.kind == "made"):
        raise Dropped("it returns or assigns a tensor made in another inference mode than the caller's")


def _names_of(held: dict[str, Any]) -> Any:
    """The names of a module's parameters, buffers and submodules: replacing those changes the module."""
    return held.get("_names", ())


def _can_be_state(value: Any) -> bool:
    """Only tensors, None and tuples of these can be states."""
    if isinstance(value, tuple):
        return all(map(_can_be_state, value))
    return value is None or isinstance(value, Tensor)
