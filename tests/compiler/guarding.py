"""What the tests of guards share: guards of a function that hold, and changes that they notice."""

import wayfare as wf
from wayfare.compiler.captures.guards import Guards
from wayfare.compiler.captures.reach import reach


def guarded(function, *objects):
    seen = reach(function, objects or None)
    assert seen.unguardable is None, seen.unguardable
    guards = Guards(seen)
    assert guards.holds(), guards.why()
    return guards


def changes(guards, *words):
    """The guards no longer hold, and the sentence has these words in it."""
    assert not guards.holds()
    for word in words:
        assert word in guards.why(), guards.why()


def namespace(**values):
    """A function `f` with globals of its own."""
    source = values.pop("source")
    values["wf"] = wf
    exec(compile(source, "user.py", "exec"), values)
    return values["f"], values
