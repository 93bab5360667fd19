"""Guards: whether all that a compiled function depended on, besides its arguments, is as it was.

The check that runs at every call is one generated expression of identity tests. Where that fails, a slower look finds
out whether the difference matters: an equal number may have taken the place of a number, an equal list of a list.
"""

from __future__ import annotations

import operator
import weakref
from abc import get_cache_token
from collections.abc import Callable
from typing import Any

from wayfare.compiler.captures.location import HINT, Place, array_content
from wayfare.compiler.captures.reach import Reach
from wayfare.core.structure_epoch import EPOCH


class Guards:
    """A snapshot of what a function can see. `holds()` says whether it is still so, `why()` what is not."""

    holds: Callable[..., bool]  # with `look=False`, only what can be told at once

    def __init__(self, seen: Reach) -> None:
        self._take(seen)

    def _take(self, seen: Reach) -> None:
        self.seen = seen
        self._reason = ""
        live = [place for place in seen.places if place.live]
        self._outside = [place for place in live if not _by_epoch(place)]
        # What only our own methods change: registered names and hooks. One number tells whether any of it has changed.
        self._inside = [place for place in live if _by_epoch(place)]
        self._values: dict[str, Any] = {}
        self.holds = self._generate() if seen.unguardable is None else self._never

    @property
    def count(self) -> int:
        """How many tests a call costs while no module changes."""
        return len(self._outside) + bool(self._inside)

    def still(self) -> bool:
        """`holds()`, as something that keeps the guards themselves alive."""
        return self.holds()

    def why(self) -> str:
        """What is not as it was, in one sentence; empty when the guards held."""
        return self._reason

    def changed_by_call(self) -> str:
        """What the function itself changed while it ran, in words; empty if nothing."""
        return "" if self.holds() else self._reason

    def replaced(self) -> list[Place]:
        """The attributes, globals and cells that hold something else now."""
        return [place for place in self.seen.places if place.live and place.same_now() is not True
                and ((place.kind == "item" and isinstance(place.holder, dict))
                     or (place.kind, place.key) == ("attribute", "cell_contents"))]  # fmt: skip

    def describe(self) -> list[str]:
        """What is guarded, one entry a place."""
        shown = dict.fromkeys(place.path.called() for place in self.seen.places if place.how is not HINT)
        return list(shown)

    # -- the quick way ------------------------------------------------------------------------------------------------

    def _generate(self) -> Callable[[], bool]:
        """`holds` as one function made of identity tests: a loop over records would cost several times as much."""
        values = self._values
        # Weak, so that guards go away with the last who uses them.
        modules, slow = weakref.WeakMethod(self._modules_hold), weakref.WeakMethod(self._look)
        values.update(EPOCH=EPOCH, epoch=self.seen.epoch, modules=modules, slow=slow, is_=operator.is_,
                      array_content=array_content, get_cache_token=get_cache_token)  # fmt: skip
        tests = [self._test(number, place) for number, place in enumerate(self._outside)]
        if self._inside:
            tests.append("(EPOCH[0] == epoch or modules()())")
        # Python's compiler recurses over long chains, so they are cut.
        chains = [" and ".join(tests[i : i + 50]) for i in range(0, len(tests), 50)]
        nested = "".join(f"        if not ({chain}):\n            return look and slow()()\n" for chain in chains)
        source = f"def holds(look=True):\n    try:\n{nested}        return True\n"
        source += "    except Exception:\n        return look and slow()()\n"
        exec(compile(source, "<wayfare guards>", "exec"), values)
        return values.pop("holds")  # type: ignore[no-any-return]

    def _test(self, number: int, place: Place) -> str:
        holder, value, key = f"h{number}", f"v{number}", f"k{number}"
        self._values[holder] = place.holder
        self._values[value] = place.value
        match place.kind:
            case "item":
                if type(place.key) in (str, int):
                    return f"{holder}[{place.key!r}] is {value}"
                self._values[key] = place.key
                return f"{holder}[{key}] is {value}"
            case "attribute":
                return f"{holder}.{place.key} is {value}"
            case "weak":
                return f"{holder}().{place.key} is {value}"
            case "length":
                return f"len({holder}) == {place.value}"
            case "keys" | "names":
                self._values[value] = list(place.value)
                return f"[*{holder}] == {value}"
            case "elements":
                return f"len({holder}) == {len(place.value)} and all(map(is_, {holder}, {value}))"
            case "present":
                return f"{place.key!r} in {holder}"
            case "absent":
                return f"{place.key!r} not in {holder}"
            case "unset":
                return f"not hasattr({holder}, {place.key!r})"
            case "abc":
                return f"get_cache_token() == {value}"
        return f"array_content({holder}) == {value}"

    def _modules_hold(self) -> bool:
        """Are the modules as they were, though the epoch is another one? Then it is the one to be remembered."""
        epoch = EPOCH[0]
        if not all(place.same_now() for place in self._inside):
            return False
        self._values["epoch"] = epoch
        return True

    def _never(self, look: bool = True) -> bool:
        self._reason = f"it cannot be guarded: {self.seen.unguardable}"
        return False

    # -- the slow way -------------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """The quick test failed: what is different, and does it matter?"""
        epoch = EPOCH[0]
        closer = False
        self._reason = ""
        for place in self.seen.places:
            if not place.live:
                continue
            same = place.same_now()
            if same is False:
                self._reason = _sentence(place)
                return False
            closer = closer or same is None
            if same is None and place.kind not in ("length", "names", "present"):
                break  # Another container stands here: the places in the old one tell nothing any more.
        if closer:
            return self._compare(self.seen.again())
        for number, place in enumerate(self._outside):  # equal leaves took the places of leaves
            self._values[f"v{number}"] = list(place.value) if place.kind in ("keys", "names") else place.value
        self._values["epoch"] = epoch
        return True

    def _compare(self, new: Reach) -> bool:
        """Walk again and compare place by place; where all is equal, the new places are watched from now on."""
        if new.unguardable is not None:
            self._reason = f"it cannot be guarded any more: {new.unguardable}"
            return False
        before = [place for place in self.seen.places if place.how is not HINT]
        after = [place for place in new.places if place.how is not HINT]
        if len(before) == len(after) and all(map(_alike, before, after)):
            self._take(new)
            return True
        self._reason = _first_difference(before, after)
        return False


def _alike(old: Place, new: Place) -> bool:
    return _label(old) == _label(new) and old.how is new.how and old.matches(new.value)


def _label(place: Place) -> tuple[str, str, str]:
    return place.kind, place.path.called(), str(place.key) if isinstance(place.key, (str, int)) else ""


def _first_difference(before: list[Place], after: list[Place]) -> str:
    """What a second walk found that the first had not, in words."""
    found = {_label(place): place for place in after}
    gone = None
    for old in before:
        now = found.pop(_label(old), None)
        if now is not None and (old.how is not now.how or not old.matches(now.value)):
            return old.sentence(now.value)
        gone = old if now is None and gone is None else gone
    new = next(iter(found.values()), None)
    if new is not None:
        return f"{new.path.called()} is new"
    return "what it leads to has another order now" if gone is None else f"{gone.path.called()} is gone"


def _sentence(place: Place) -> str:
    try:
        found = place.now()
    except Exception:
        return f"{place.path.called()} is gone"
    return place.sentence(found)


def _by_epoch(place: Place) -> bool:
    return place.in_module and place.kind not in ("item", "length", "names", "present")
