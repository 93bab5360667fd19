"""A step of a scheduler inside a recorded call: it is Python only, so a replay takes it again as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import wayfare as wf
from wayfare.core.mode import UNUSUAL, changed_mode, executor

__all__ = ["SchedulerStep", "replayed"]


Step = TypeVar("Step", bound=Callable[..., Any])


def replayed(step: Step) -> Step:
    """The `step` of a scheduler, which under a recorder becomes a call-out."""

    @functools.wraps(step)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        if not UNUSUAL:
            return step(self, *args, **options)
        return executor().call_out(
            lambda: _scheduler_step(self, step, args, options), lambda: step(self, *args, **options)
        )

    return cast(Step, call)


def _scheduler_step(scheduler: Any, step: Any, args: tuple[Any, ...], options: dict[str, Any]) -> SchedulerStep:
    """The call-out of a step that is about to be taken."""
    if any(isinstance(value, wf.Tensor) for value in (*args, *options.values())):
        executor().not_replayable(f"{type(scheduler).__name__}.step looks at the value of a tensor")
    return SchedulerStep(scheduler, step, args, options)


class SchedulerStep:
    """The call-out of one step of a scheduler."""

    __slots__ = ("_args", "_before", "_options", "_scheduler", "_step", "reason")

    def __init__(
        self, scheduler: Any, step: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self.reason = ""
        self._scheduler = scheduler
        self._step = step
        self._args = args
        self._options = options
        self._before: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def take(self) -> Any:
        """The step itself, while it is recorded. What it does to the rates is its own affair: a rate kept in a tensor
        is written again by every replay."""
        with changed_mode(executor=None):
            return self._step(self._scheduler, *self._args, **self._options)

    def ready(self) -> bool:
        """Always: a scheduler may do with the rates what it likes."""
        return True

    def run(self) -> list[tuple[float, ...]]:
        """Take the step; it makes no update."""
        self._before = [(holder, _kept(holder)) for holder in _holders(self._scheduler)]
        self._step(self._scheduler, *self._args, **self._options)
        return []

    def left(self) -> Any:
        """The attributes of the scheduler, and the options of the groups."""
        return [_kept(holder) for holder in _holders(self._scheduler)]

    def undo(self) -> None:
        """Put the scheduler and the options of the groups back."""
        for holder, before in self._before:
            for name in holder.keys() - before.keys():
                del holder[name]
            for name, value in before.items():
                if isinstance(holder.get(name), wf.Tensor) and isinstance(value, wf.Tensor):
                    holder[name].copy_(value)
                else:
                    holder[name] = value
        self._before = []


def _holders(scheduler: Any) -> list[dict[str, Any]]:
    """Where a step of a scheduler writes: its attributes, those of the schedulers inside it, the parameter groups."""
    inside = vars(scheduler).get("_schedulers", ())
    found = [vars(scheduler), *[holder for other in inside for holder in _holders(other)]]
    return found if inside else [*found, *scheduler.optimizer.param_groups]


def _kept(holder: dict[str, Any]) -> dict[str, Any]:
    """The values now; a rate kept in a tensor is written in place, so it is copied."""
    return {name: value.clone() if isinstance(value, wf.Tensor) else value for name, value in holder.items()}
