"""Guards: do all captures of a compiled function (what it depends on besides its arguments) still have their values?

The fast check at every call is one generated function of identity tests. If it fails, a slow check decides whether the
difference matters: a number may have been replaced by an equal number, a list by an equal list.
"""

from __future__ import annotations

import operator
import weakref
from abc import get_cache_token
from collections.abc import Callable
from typing import Any

from wayfare.compiler.captures.location import HINT, Location, array_content
from wayfare.compiler.captures.reach import Reach
from wayfare.compiler.generated import define, unless
from wayfare.core.native import NATIVE
from wayfare.core.structure_epoch import EPOCH

# Tests that the native module makes, all in one call.
_NATIVE = frozenset({"item", "attribute", "length", "present", "absent"})


class Guards:
    """A snapshot of the captures of a function. `holds()` checks it, `why()` says what has changed."""

    holds: Callable[..., bool]  # with `thorough=False`, only the fast check

    def __init__(self, seen: Reach) -> None:
        self._take(seen)

    def _take(self, seen: Reach) -> None:
        self.seen = seen
        self._reason = ""
        live = [location for location in seen.locations if location.live]
        self._outside = [location for location in live if not _by_epoch(location)]
        # Names and hooks of modules, which only our own methods change. They increase one counter, the epoch.
        self._inside = [location for location in live if _by_epoch(location)]
        self._values: dict[str, Any] = {}
        self.holds = self._generate() if seen.unguardable is None else self._never

    @property
    def count(self) -> int:
        """The number of tests at each call, if no module changes."""
        return len(self._outside) + bool(self._inside)

    def __call__(self) -> bool:
        """`holds()`, of an object that keeps the guards alive."""
        return self.holds()

    @property
    def native_tests(self) -> Any:
        """The tests at each call if no module changes, as one native object; None if Python makes some of them."""
        native = all([location.kind in _NATIVE for location in self._outside])
        return self._values.get("native_tests") if native else None

    def why(self) -> str:
        """What has changed, in words; "" if the guards held."""
        return self._reason

    def changed_by_call(self) -> str:
        """What the call itself has changed, in words; "" if nothing."""
        return "" if self.holds() else self._reason

    def replaced(self) -> list[Location]:
        """The attributes, globals and cells that have another value now."""
        return [location for location in self.seen.locations if location.live and location.same_now() is not True
                and ((location.kind == "item" and isinstance(location.holder, dict))
                     or (location.kind, location.key) == ("attribute", "cell_contents"))]  # fmt: skip

    def describe(self) -> list[str]:
        """What is guarded, one entry for each path."""
        shown = dict.fromkeys(location.path.called() for location in self.seen.locations if location.how is not HINT)
        return list(shown)

    # -- the fast check -----------------------------------------------------------------------------------------------

    def _generate(self) -> Callable[[], bool]:
        """Generate `holds` as one function of identity tests: see `compiler/generated.py`."""
        values = self._values
        # Weak references, so that there is no cycle and guards are freed at once.
        modules, slow = weakref.WeakMethod(self._modules_hold), weakref.WeakMethod(self._check_slowly)
        values.update(EPOCH=EPOCH, epoch=self.seen.epoch, modules=modules, slow=slow, is_=operator.is_,
                      array_content=array_content, get_cache_token=get_cache_token)  # fmt: skip
        tests = [self._test(number, location) for number, location in enumerate(self._outside)
                 if NATIVE is None or location.kind not in _NATIVE]  # fmt: skip
        if len(tests) < len(self._outside):
            self._keep_native_tests()
            tests.insert(0, "native_tests()")
        if self._inside:
            tests.append("(EPOCH[0] == epoch or modules()())")
        tested = [f"    {line}" for line in unless(tests, "return thorough and slow()()")]
        body = ["try:", *tested, "    return True", "except Exception:", "    return thorough and slow()()"]
        return define("holds", "thorough=True", body, values)  # type: ignore[no-any-return]

    def _test(self, number: int, location: Location) -> str:
        holder, value, key = f"h{number}", f"v{number}", f"k{number}"
        self._values[holder] = location.holder
        self._values[value] = location.value
        match location.kind:
            case "item":
                if type(location.key) in (str, int):
                    return f"{holder}[{location.key!r}] is {value}"
                self._values[key] = location.key
                return f"{holder}[{key}] is {value}"
            case "attribute":
                return f"{holder}.{location.key} is {value}"
            case "weak":
                return f"{holder}().{location.key} is {value}"
            case "length":
                return f"len({holder}) == {location.value}"
            case "keys" | "names":
                self._values[value] = list(location.value)
                return f"[*{holder}] == {value}"
            case "elements":
                return f"len({holder}) == {len(location.value)} and all(map(is_, {holder}, {value}))"
            case "present":
                return f"{location.key!r} in {holder}"
            case "absent":
                return f"{location.key!r} not in {holder}"
            case "unset":
                return f"not hasattr({holder}, {location.key!r})"
            case "abc":
                return f"get_cache_token() == {value}"
        return f"array_content({holder}) == {value}"

    def _keep_native_tests(self) -> None:
        """The tests that the native module makes (`native/guards.h`), for the values that are there now."""
        native = [location for location in self._outside if location.kind in _NATIVE]
        self._values["native_tests"] = NATIVE.GuardTests(tuple([(l.kind, l.holder, l.key, l.value) for l in native]))

    def _modules_hold(self) -> bool:
        """The epoch has changed: are the modules of this function unchanged? If so, remember the new epoch."""
        epoch = EPOCH[0]
        if not all(location.same_now() for location in self._inside):
            return False
        self._values["epoch"] = epoch
        return True

    def _never(self, thorough: bool = True) -> bool:
        self._reason = f"it cannot be guarded: {self.seen.unguardable}"
        return False

    # -- the slow check -----------------------------------------------------------------------------------------------

    def _check_slowly(self) -> bool:
        """The fast check failed: find what has changed, and whether it matters."""
        epoch = EPOCH[0]
        closer = False
        self._reason = ""
        for location in self.seen.locations:
            if not location.live:
                continue
            same = location.same_now()
            if same is False:
                self._reason = _sentence(location)
                return False
            closer = closer or same is None
            if same is None and location.kind not in ("length", "names", "present"):
                break  # Another container is here: the locations inside the old one do not matter any more.
        if closer:
            return self._compare(self.seen.refreshed())
        for number, location in enumerate(self._outside):  # leaves were replaced by equal ones
            self._values[f"v{number}"] = list(location.value) if location.kind in ("keys", "names") else location.value
        if "native_tests" in self._values:
            self._keep_native_tests()
        self._values["epoch"] = epoch
        return True

    def _compare(self, new: Reach) -> bool:
        """Walk the captures again and compare all locations. If all are equal, guard the new ones from now on."""
        if new.unguardable is not None:
            self._reason = f"it cannot be guarded any more: {new.unguardable}"
            return False
        before = [location for location in self.seen.locations if location.how is not HINT]
        after = [location for location in new.locations if location.how is not HINT]
        if len(before) == len(after) and all(map(_alike, before, after)):
            self._take(new)
            return True
        self._reason = _first_difference(before, after)
        return False


def _alike(old: Location, new: Location) -> bool:
    return _label(old) == _label(new) and old.how is new.how and old.matches(new.value)


def _label(location: Location) -> tuple[str, str, str]:
    return location.kind, location.path.called(), str(location.key) if isinstance(location.key, (str, int)) else ""


def _first_difference(before: list[Location], after: list[Location]) -> str:
    """The first difference between two walks, in words."""
    found = {_label(location): location for location in after}
    gone = None
    for old in before:
        now = found.pop(_label(old), None)
        if now is not None and (old.how is not now.how or not old.matches(now.value)):
            return old.sentence(now.value)
        gone = old if now is None and gone is None else gone
    new = next(iter(found.values()), None)
    if new is not None:
        return f"{new.path.called()} is new"
    return "its captures have another order now" if gone is None else f"{gone.path.called()} is gone"


def _sentence(location: Location) -> str:
    try:
        found = location.now()
    except Exception:
        return f"{location.path.called()} is gone"
    return location.sentence(found)


def _by_epoch(location: Location) -> bool:
    return location.in_module and location.kind not in ("item", "length", "names", "present")
