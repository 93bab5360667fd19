"""Locks that are taken before a fork: a child must not inherit a lock that is held by a thread it does not have."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from itertools import count
from typing import Any


class _Made(weakref.ref[Any]):
    """A weak reference to a lock; when the lock dies, it is put into the queue of entries to remove."""

    __slots__ = ("number",)

    number: int


# All locks in the order of creation, for one fork hook. A hook cannot be unregistered, so a hook per lock would keep
# locks alive for ever.
_made: dict[int, _Made] = {}
_dead: deque[_Made] = deque()
_number = count()
_taken: list[Any] = []


def lock() -> Any:
    """A reentrant lock. A fork takes all locks in the opposite order of their creation, so a lock that is held while
    another is taken must be created after it."""
    _forget_the_dead()
    made = threading.RLock()
    known = _Made(made, _dead.append)
    known.number = next(_number)
    _made[known.number] = known
    return made


def count_of_locks() -> int:
    """How many locks a fork takes."""
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
