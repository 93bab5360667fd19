"""When to stop, or to print a line: the conditions that `break_on`, `break_if` and `watch` share."""

from __future__ import annotations

import difflib
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from wayfare.core.array_summary import has_infinity, has_nan
from wayfare.core.callsite import Site
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.core.mode import changed_mode
from wayfare.core.module_path import paths_of
from wayfare.core.op import REGISTRY
from wayfare.core.write_clock import owner_of
from wayfare.see.debug.here import Here

# With more bad arrays than this, those that no longer exist are removed.
_MOST_KNOWN = 10_000

Test = Callable[[Here, Any], Any]


class Conditions:
    """All of them must hold; of `nan` and `inf`, one is enough."""

    def __init__(
        self, name: str, test: Test | None, *, nan: bool, inf: bool, op: Any, module: Any, shape: Any, line: Any,
        example: Any, backward: bool | None,
    ) -> None:  # fmt: skip
        if test is not None and not callable(test):
            raise ArgumentTypeError(f"{name}: the condition must be a function of (node, value), "
                                    f"not {type(test).__name__}")  # fmt: skip
        for word, flag in (("nan", nan), ("inf", inf)):
            if not isinstance(flag, bool):
                raise ArgumentTypeError(f"{name}: {word} is True or False, not {flag!r}")
        if backward is not None and not isinstance(backward, bool):
            raise ArgumentTypeError(f"{name}: backward is True, False or None for both, not {backward!r}")
        if example is not None and (not isinstance(example, int) or isinstance(example, bool) or example < 0):
            raise ArgumentError(f"{name}: example is the number of an example, counted from 0, not {example!r}")
        self._test = test
        self._bad = [_Spread(kind, find) for kind, find, wanted in
                     (("NaN", has_nan, nan), ("infinity", has_infinity, inf)) if wanted]  # fmt: skip
        self._ops = _names(name, "op", op)
        self._modules = _modules(name, module)
        self._shape = _shape(name, shape)
        self._line = _line(name, line)
        self._example = example
        self.any = bool(test or nan or inf or self._ops or self._modules or self._line or example is not None
                        or shape is not None)  # fmt: skip
        # Numbers can go bad in both directions. An op, a module or a line is passed twice; the forward pass is meant.
        by_value = test is not None or nan or inf
        self.forward = backward is not True
        self.backward = by_value if backward is None else bool(backward)
        for wanted in self._ops:
            _check_op(name, wanted)

    def hold(self, here: Here) -> bool:
        """Do the conditions hold? If so, `here.number` and `here.reason` say for which value, and why."""
        if not (self.backward if here.backward else self.forward):
            return False
        if self._ops and not any(fnmatchcase(here.op, wanted) for wanted in self._ops):
            return False
        if self._example is not None and here.example != self._example:
            return False
        if self._line is not None and not self._is_on_line(here):
            return False
        if self._modules and not self._is_in_module(here):
            return False
        return any(self._holds_for(here, number) for number, value in enumerate(here.values) if value is not None)

    def _holds_for(self, here: Here, number: int) -> bool:
        here.number = number
        value = here.values[number]
        if self._shape is not None and not fits(here.shape, self._shape):
            return False
        reason = ""
        if self._bad:
            reason = next((bad.kind for bad in self._bad if bad.begins(here, value._array)), "")
            if not reason:
                return False
        if self._test is not None:
            # What the condition computes is neither recorded nor watched.
            with changed_mode(watcher=None, anomaly=None, grad=False):
                if not bool(self._test(here, value)):
                    return False
        here.reason = reason
        return True

    def _is_on_line(self, here: Here) -> bool:
        assert self._line is not None
        if here.backward:
            return here.site is not None and _is_at(here.site.filename, here.site.line, self._line)
        frame = here.frame
        # The line may also call a function of the user's, in which the op runs.
        while frame is not None:
            if frame.f_lineno == self._line[1] and _is_at(frame.f_code.co_filename, frame.f_lineno, self._line):
                return True
            frame = frame.f_back
        return False

    def _is_in_module(self, here: Here) -> bool:
        paths = paths_of(here.modules)
        for module, path in zip(here.modules, paths, strict=True):
            for wanted in self._modules:
                if module is wanted:
                    return True
                if isinstance(wanted, str) and (fnmatchcase(path, wanted) or type(module).__name__ == wanted):
                    return True
        return False


class _Spread:
    """Finds the ops that make NaN or infinity. Later ops that only pass them on are not reported."""

    def __init__(self, kind: str, find: Callable[[Any], bool]) -> None:
        self.kind = kind
        self._find = find
        self._known: dict[int, weakref.ref[Any]] = {}

    def begins(self, here: Here, made: Any) -> bool:
        """Does the result have a NaN or infinity that does not come from a known one?"""
        if not self._find(made):
            return False
        sources = here.given if here.backward else here.inputs
        carried = [t._array for t in sources if t is not None and self._find(t._array)]
        # Gradients are summed on their way, so those that come in are new arrays.
        known = bool(carried and self._known) if here.backward else any(self._is_known(array) for array in carried)
        for array in (made, *carried):
            self._known[id(owner_of(array))] = weakref.ref(owner_of(array))
        if len(self._known) > _MOST_KNOWN:
            self._known = {key: reference for key, reference in self._known.items() if reference() is not None}
        return not known

    def _is_known(self, array: Any) -> bool:
        owner = owner_of(array)
        reference = self._known.get(id(owner))
        return reference is not None and reference() is owner


def fits(shape: Sequence[int], wanted: Sequence[Any]) -> bool:
    """Does the shape match? None stands for any size, `...` for any number of dimensions."""
    if Ellipsis not in wanted:
        return len(shape) == len(wanted) and all(w is None or s == w for s, w in zip(shape, wanted, strict=True))
    place = list(wanted).index(Ellipsis)
    before, after = wanted[:place], wanted[place + 1 :]
    if len(shape) < len(before) + len(after):
        return False
    return fits(shape[:place], before) and fits(shape[len(shape) - len(after) :], after)


def _names(name: str, what: str, given: Any) -> tuple[str, ...]:
    given = () if given is None else (given,) if isinstance(given, str) else given
    if not isinstance(given, (tuple, list, set, frozenset)) or not all(isinstance(n, str) for n in given):
        raise ArgumentTypeError(f"{name}: {what} is a name or several, not {given!r}")
    return tuple(given)


def _modules(name: str, given: Any) -> tuple[Any, ...]:
    given = () if given is None else tuple(given) if isinstance(given, (tuple, list)) else (given,)
    for module in given:
        if not isinstance(module, str) and not hasattr(module, "named_modules"):
            raise ArgumentTypeError(f"{name}: module is a path such as 'encoder.*', a class name or a module, "
                                    f"not {type(module).__name__}")  # fmt: skip
    return given  # type: ignore[no-any-return]


def _shape(name: str, given: Any) -> tuple[Any, ...] | None:
    if given is None:
        return None
    if not isinstance(given, (tuple, list)) or not all(
        s is None or s is Ellipsis or (isinstance(s, int) and s >= 0) for s in given
    ):
        raise ArgumentError(f"{name}: shape is a tuple of sizes, with None for any size and ... for any number of "
                            f"dimensions, not {given!r}")  # fmt: skip
    if list(given).count(Ellipsis) > 1:
        raise ArgumentError(f"{name}: shape may have ... once, not {given!r}")
    return tuple(given)


def _line(name: str, given: Any) -> tuple[str, int] | None:
    if given is None:
        return None
    if isinstance(given, Site):
        return given.filename, given.line
    file, _, number = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    if not file or not number.isdigit():
        raise ArgumentError(f"{name}: line is a file and a number such as 'train.py:31', not {given!r}")
    return file, int(number)


def _is_at(filename: str, line: int, wanted: tuple[str, int]) -> bool:
    """Does the line match? The first folders of the path may be left out."""
    if line != wanted[1]:
        return False
    parts, asked = (os.path.normpath(path).split(os.sep) for path in (filename, wanted[0]))
    return parts[-len(asked) :] == asked


def _check_op(name: str, wanted: str) -> None:
    if any(fnmatchcase(known, wanted) for known in REGISTRY):
        return
    near = difflib.get_close_matches(wanted, REGISTRY, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "See wayfare.core.op.REGISTRY for their names."
    # A @wf.fused function or a Function of the user's is an op as well, and may not exist yet.
    warnings.warn(f"{name}: no op of Wayfare's is called {wanted!r}. {hint}", stacklevel=4)
