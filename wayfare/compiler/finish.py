"""The end of a recorded call: what is kept of it, or why it cannot be replayed."""

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

# How many variables a function may read and assign.
_STATES = 16


class Again(Exception):
    """The recording is of no use, the next may be: what was not known before is known now."""


class Dropped(Exception):
    """Calls with this signature cannot be replayed."""


def take(
    entry: Entry, call: Signature, recorder: Recorder, assigned: Assigned, result: Any,
    states: list[Variable], strange: MutableMapping[int, Tensor],
) -> Recording:  # fmt: skip
    """The recording of a call that has just run. Raises `GiveUp`, `Dropped`, or `Again`.

    `states` and `strange` are added to.
    """
    if recorder.failed:
        raise GiveUp(recorder.failed)
    guards = entry.guards
    changed = guards.changed_by_call()
    if changed and _new_states(guards, states):
        raise Again(changed)
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
        raise Again(f"{what} is new") from None
    strangers = [t for t in (r() for r in recorder.strange) if t is not None and not any(t is x for x in results)]
    if strangers or changed:
        # Tensors from outside that nobody told us of, or something made at the first call: known from now on.
        strange.update({id(t): t for t in strangers})
        raise Again(changed)
    restless = entry.tree.restless(recorder.decisions)
    if restless is not None:
        raise Dropped(f"{restless.how} hands numbers to Python that are different each time "
                      f"({os.path.basename(restless.line)})")  # fmt: skip
    recording = Recording(recorder, results)
    numbers = recording.results
    for t, number in zip(results, numbers, strict=True):
        _check_marks(t, recording.outputs[number])
    recording.shape, recording.results, recording.effects = shape, numbers[:count], effects
    for effect in effects:
        effect.outputs = [numbers[i] for i in effect.outputs]
    return recording


def _result(recorder: Recorder, result: Any, results: list[Tensor], call: Signature, guards: Guards) -> Any:
    """The structure of what was returned; its tensors are added to `results`."""
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
        raise Dropped("it returns something that is no tensor, number or structure of such")
    return shape


def _new_states(guards: Guards, states: list[Variable]) -> bool:
    """See whether what the function has changed can be handed in at every call; then it is, from now on."""
    names, known = guards.seen.names, {state.identity for state in states}
    found = []
    for place in guards.replaced():
        name = str(place.path) if place.key == "cell_contents" else place.key
        assigned = name in names.stored or any(
            holder is place.holder and key == place.key for holder, key, _ in guards.seen.assigned
        )  # fmt: skip
        if not assigned or not _can_be_state(place.value) or (
            place.in_module and place.key in _names_of(place.holder)
        ):  # fmt: skip
            return False
        variable = Variable(place.holder, place.key, place.path, place.in_module)
        if variable.identity not in known and variable.get() is not ABSENT and _can_be_state(variable.get()):
            found.append(variable)
    if not found or len(states) + len(found) > _STATES:
        return False
    states += found
    return True


def _check_marks(t: Tensor, out: Output) -> None:
    """What a replay hands out is a tensor like any other; so what is new and has a mark must come from Python."""
    if out.kind == "outside":
        return
    if hasattr(t, "_role"):
        raise Dropped(f"it returns or assigns a new nn.{t._role}")
    marked, inference = "inference" in (t._extras or ()), current().inference
    if (marked and not inference) or (inference and not marked and out.kind == "made"):
        raise Dropped("it returns or assigns a tensor made with inference mode other than outside")


def _names_of(held: dict[str, Any]) -> Any:
    """Parameters, buffers and modules inside a module: who replaces those changes the module."""
    return held.get("_names", ())


def _can_be_state(value: Any) -> bool:
    """Tensors, None, and tuples of tensors."""
    if isinstance(value, tuple):
        return all(map(_can_be_state, value))
    return value is None or isinstance(value, Tensor)
