"""Locks that a fork waits for: a child must not inherit one that a thread holds which does not exist in it."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from itertools import count
from typing import Any


class _Made(weakref.ref[Any]):
    """A weak reference to a lock; dead, it lies in the queue of those to be forgotten."""

    __slots__ = ("number",)

    number: int


# In the order of their making. One hook goes through all of them: a hook cannot be taken back, so one for each lock
# would keep the locks of functions that are long gone.
_made: dict[int, _Made] = {}
_dead: deque[_Made] = deque()
_number = count()
_taken: list[Any] = []


def lock() -> Any:
    """A lock that its holder may take again. Locks are taken by a fork in the opposite order of their making, so one
    that is held while another is taken must be made after it."""
    _forget_the_dead()
    made = threading.RLock()
    known = _Made(made, _dead.append)
    known.number = next(_number)
    _made[known.number] = known
    return made


def count_of_locks() -> int:
    """How many locks a fork waits for."""
    _forget_the_dead()
    return len(_made)


def _forget_the_dead() -> None:
    while True:
        try:
            gone = _dead.popleft()
        except IndexError:
            return
        _made.pop(gone.number, None)


def _take_all() -> None:
    _forget_the_dead()
    for known in reversed(list(_made.values())):
        held = known()
        if held is not None:
            held.acquire()
            _taken.append(held)


def _let_all_go() -> None:
    while _taken:
        _taken.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take_all, after_in_parent=_let_all_go, after_in_child=_let_all_go)
