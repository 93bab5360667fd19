"""Compiled functions that are left alone for some calls: those go straight to the plain function, by way of C alone.

What does not pay must not cost anything either, and a method `__call__` written in Python costs a third of a small op.
So a function that sleeps is of a class of its own, whose `__call__` is found to be the plain function itself. An
iterator counts the calls, and its last item wakes the function up.
"""

from __future__ import annotations

import functools
import itertools
import operator
import weakref
from typing import Any

__all__ = ["fall_asleep", "wake", "wake_all"]

# Those that sleep: the iterator of the calls left, and how many there were.
_ASLEEP: weakref.WeakKeyDictionary[Any, tuple[Any, int]] = weakref.WeakKeyDictionary()


def fall_asleep(compiled: Any) -> None:
    """Leave a compiled function alone for as many calls as its Python says."""
    calls, compiled._python.nap = compiled._python.nap, 0
    left = itertools.repeat(compiled._function, calls)
    steps = itertools.chain(left, (functools.partial(_woken, weakref.ref(compiled)),))
    awake = type(compiled)
    # Asked for its `__call__`, the class gives the next step; `next` takes the object for its default.
    asleep = type(awake.__name__, (awake,), {"__call__": property(functools.partial(next, steps)), "_awake": awake})
    _ASLEEP[compiled] = left, calls
    compiled.__class__ = asleep


def wake(compiled: Any) -> None:
    """Let a function look at its calls again, and count those it did not see."""
    left, calls = _ASLEEP.pop(compiled, (None, 0))
    if left is not None:
        compiled.__class__ = type(compiled)._awake
        compiled._python.count(calls - operator.length_hint(left))


def wake_all() -> None:
    """Wake all: somebody wants to know of calls of compiled functions (automatic batching)."""
    for compiled in list(_ASLEEP):
        wake(compiled)


def _woken(reference: Any, *args: Any, **options: Any) -> Any:
    compiled = reference()
    wake(compiled)
    return compiled(*args, **options)
