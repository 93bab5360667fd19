"""Numbers of optimisers and schedules that a recorded function reads: they change with every step, so it cannot be
replayed. The steps themselves tell a recorder what they count on; here others are noticed."""

from __future__ import annotations

from typing import Any

from wayfare.core.mode import UNUSUAL, executor

__all__ = ["Noticed", "notice"]


class Noticed:
    """An attribute of an optimiser that a recorder is told of, where code of the user's reads it."""

    __slots__ = ("_name",)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        if UNUSUAL:
            notice(instance, self._name)
        try:
            return instance.__dict__[self._name]
        except KeyError:
            raise AttributeError(f"{type(instance).__name__} has no attribute {self._name!r}") from None

    def __set__(self, instance: Any, value: Any) -> None:
        if UNUSUAL:
            notice(instance, self._name)
        instance.__dict__[self._name] = value


def notice(instance: Any, name: str) -> None:
    """Tell a recorder that code of the user's reads or sets an attribute, two frames above this one."""
    executor().step_state_used(instance, name)
