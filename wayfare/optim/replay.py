"""A step of an optimiser inside a recorded call: what Python does of it at every replay, and whether it still may.

The arithmetic of a step is a fused update, which the recorder keeps. Python's part is small: the counters go up, and
the learning rate, the options and the counters give the numbers of the update.
"""

from __future__ import annotations

import weakref
from operator import is_
from typing import TYPE_CHECKING, Any

from wayfare.core.executor import StaleCall
from wayfare.core.mode import changed_mode, executor

if TYPE_CHECKING:
    from wayfare.api.fused_update import FusedUpdate
    from wayfare.optim.elementwise import ElementwiseOptimizer

__all__ = ["GroupStep", "group_step", "parts_of"]


def parts_of(counts: list[list[Any]]) -> dict[tuple[Any, ...], list[int]]:
    """The places of parameters whose counters are equal, by their values."""
    apart: dict[tuple[Any, ...], list[int]] = {}
    for place, key in enumerate(zip(*counts, strict=True)):
        apart.setdefault(key, []).append(place)
    return apart


def group_step(
    optimizer: ElementwiseOptimizer, group: dict[str, Any], params: list[Any], grads: list[Any],
    states: list[dict[str, Any]],
) -> GroupStep:  # fmt: skip
    """The call-out of a step of one group that is about to be taken."""
    if not _formula_is_all(type(optimizer)):
        executor().not_replayable(f"{type(optimizer).__name__}.update is Python of its own")
    # States begin and options are read as outside: they are not part of what is recorded.
    with changed_mode(executor=None):
        counts = optimizer.gathered(group, params, grads, states)[1]
        return GroupStep(optimizer, group, params, grads, states, counts)


def _formula_is_all(kind: type) -> bool:
    """Does the formula say all that `update` does? Not where a subclass has an `update` of its own."""
    owners = [next(c for c in kind.__mro__ if name in c.__dict__) for name in ("formula", "update")]
    return owners[0] in kind.__mro__[: kind.__mro__.index(owners[1]) + 1]


class GroupStep:
    """The call-out of one parameter group: its parameters and states by identity, and the formulas they go through.

    Identity throughout: tensors cannot be asked whether they are equal.
    """

    __slots__ = (
        "_formulas", "_grads", "_group", "_groups", "_listed", "_made", "_optimizer", "_params", "_places",
        "_states", "_tensors", "_undo", "_whole", "reason",
    )  # fmt: skip

    def __init__(
        self, optimizer: ElementwiseOptimizer, group: dict[str, Any], params: list[Any], grads: list[Any],
        states: list[dict[str, Any]], counts: list[list[Any]],
    ) -> None:  # fmt: skip
        self.reason = ""
        self._optimizer = weakref.ref(optimizer)  # who has gone takes no more steps
        self._group = group
        self._groups = tuple(optimizer.param_groups)
        self._listed = group["params"]
        self._whole = tuple(self._listed)
        self._params = params
        self._grads = grads  # until the step is taken
        self._states = states
        self._tensors = [(name, [s[name] for s in states]) for name in optimizer.state_names(group)]
        # The parameters that are updated together, by their places: nearly always one part with all of them.
        apart = parts_of(counts) if counts else {(): list(range(len(params)))}
        self._places = list(apart.values())
        self._made = [optimizer.formula(group, *key) for key in apart]
        self._formulas: list[FusedUpdate] = [formula for formula, _, _ in self._made]
        self._undo: list[tuple[list[dict[str, Any]], str, Any]] = []

    def take(self) -> None:
        """The step itself, while it is recorded."""
        optimizer = self._optimizer()
        assert optimizer is not None
        lists = [self._params, self._grads, *[column for _, column in self._tensors]]
        self._grads = []
        for places, (formula, numbers, _) in zip(self._places, self._made, strict=True):
            part = lists if len(self._places) == 1 else [[c[i] for i in places] for c in lists]
            formula(*optimizer.formula_lists(part), **numbers)
        self._advance()

    def ready(self) -> bool:
        """Are parameters, states and formulas those that were recorded?"""
        self.reason = self._difference()
        return not self.reason

    def _difference(self) -> str:
        """What would make a step now another one than the recorded; "" if nothing would."""
        optimizer, group, states = self._optimizer(), self._group, self._states
        if optimizer is None:
            return "the optimiser is gone"
        if optimizer._before or optimizer._after:
            return "the optimiser has hooks for its step"
        groups, listed, whole = optimizer.param_groups, group["params"], self._whole
        if len(groups) != len(self._groups) or not all(map(is_, groups, self._groups)):
            return "the optimiser has other parameter groups"
        if listed is not self._listed or len(listed) != len(whole) or not all(map(is_, listed, whole)):
            return "a parameter group has other parameters"
        if not all(map(is_, map(optimizer.state.get, self._params), states)):
            return "the optimiser has other states"
        try:
            for name, column in self._tensors:
                if not all(map(is_, [s[name] for s in states], column)):
                    return f"the optimiser has another {name}"
            counts = optimizer.counts(group, states)
        except KeyError as missing:
            return f"a state of the optimiser has lost its {missing}"
        try:
            if all([c.count(c[0]) == len(c) for c in counts]):
                alike = len(self._places) == 1
                made = [optimizer.formula(group, *[c[0] for c in counts])]
            else:
                apart = parts_of(counts)
                alike = list(apart.values()) == self._places
                made = [optimizer.formula(group, *key) for key in apart]
        except Exception as error:
            return f"the options of the optimiser do not work ({type(error).__name__})"
        if not alike:
            return "other parameters are at the same step"
        formulas = self._formulas
        if made[0][0] is not formulas[0] or (len(made) > 1 and [part[0] for part in made] != formulas):
            return "the options of the optimiser or the number of the step ask for another formula"
        self._made = made
        return ""

    def run(self) -> list[tuple[float, ...]]:
        """Count the step, and give the numbers of its updates."""
        # Looks even if `ready` was just asked: a call-out before this one may have changed options and counters.
        if not self.ready():
            raise StaleCall(self.reason)
        self._advance()
        return [formula.in_order(numbers) for formula, numbers, _ in self._made]

    def _advance(self) -> None:
        states, undo = self._states, []
        for places, (_, _, after) in zip(self._places, self._made, strict=True):
            mine = states if len(places) == len(states) else [states[i] for i in places]
            for name, value in after.items():
                undo.append((mine, name, mine[0][name]))
                for state in mine:
                    state[name] = value
        self._undo = undo

    def left(self) -> Any:
        """The counters."""
        return [(name, [state[name] for state in self._states]) for _, _, after in self._made for name in after]

    def undo(self) -> None:
        """Put the counters back."""
        for states, name, value in self._undo:
            for state in states:
                state[name] = value
        self._undo = []
