"""Bypassing a compiled function that does not pay: its next calls go straight to the plain function, without Python
code.

A `__call__` written in Python costs a third of a small op, so a bypassed function gets a class of its own, whose
`__call__` is the plain function itself. An iterator counts the calls; its last item ends the bypass.
"""

from __future__ import annotations

import functools
import itertools
import operator
import weakref
from typing import Any

__all__ = ["start_bypass", "end_bypass", "end_all_bypasses"]

# Functions that are bypassed now: the iterator over the calls left, and how many there were at the start.
_BYPASSED: weakref.WeakKeyDictionary[Any, tuple[Any, int]] = weakref.WeakKeyDictionary()


def start_bypass(compiled: Any) -> None:
    """Bypass a compiled function for the next `_fallback.bypass_calls` calls."""
    calls, compiled._fallback.bypass_calls = compiled._fallback.bypass_calls, 0
    left = itertools.repeat(compiled._function, calls)
    steps = itertools.chain(left, (functools.partial(_last_call, weakref.ref(compiled)),))
    normal = type(compiled)
    # Looking up `__call__` takes the next item of `steps`; the object is `next`'s default, which is never used.
    members = {"__call__": property(functools.partial(next, steps)), "_normal": normal}
    _BYPASSED[compiled] = left, calls
    compiled.__class__ = type(normal.__name__, (normal,), members)


def end_bypass(compiled: Any) -> None:
    """End the bypass of a function, and count the calls that went past it."""
    left, calls = _BYPASSED.pop(compiled, (None, 0))
    if left is not None:
        compiled.__class__ = type(compiled)._normal
        compiled._fallback.count(calls - operator.length_hint(left))


def end_all_bypasses() -> None:
    """End all bypasses, because calls of compiled functions must be seen (by automatic batching)."""
    for compiled in list(_BYPASSED):
        end_bypass(compiled)


def _last_call(reference: Any, *args: Any, **options: Any) -> Any:
    compiled = reference()
    end_bypass(compiled)
    return compiled(*args, **options)
