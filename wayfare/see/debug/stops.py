"""`break_if` and `break_on`: stop in the user's own frame, under pdb or the IDE's debugger, with the node at hand."""

from __future__ import annotations

from typing import Any

from wayfare.core.errors import ArgumentError
from wayfare.core.mode import changed_mode
from wayfare.see.debug.conditions import Conditions, Test
from wayfare.see.debug.debugger import stop_in
from wayfare.see.debug.here import STOPPED, Here
from wayfare.see.debug.lookout import Lookout


class Stop(Lookout):
    """A stop that is set: `remove()` takes it away, as does the end of its `with` block; `hits` counts."""

    def found(self, here: Here) -> None:
        """The conditions hold: hand over to the debugger, in the user's frame."""
        if here.frame is None:
            return
        outer, STOPPED.here = STOPPED.here, here
        here.stop = self
        try:
            # What is typed at the prompt is not watched, or it would stop again.
            with changed_mode(watcher=None, anomaly=None):
                stop_in(here.frame, here)
        finally:
            STOPPED.here = outer


def break_if(condition: Test, *, backward: bool | None = None) -> Stop:
    """Stop where `condition(node, value)` holds, forward or backward.

    `node` says what ran: `op`, `shape`, `dtype`, `site`, `module` (its path), `example`, `direction`, `inputs`. `value`
    is the tensor it made; in backward, each gradient it made. `backward=True` looks at backward only, False at forward
    only.

    The stop is set at once, in this thread; `remove()` it, or use `with`. Set inside a `with` block (such as `no_grad`)
    it ends with that block.
    """
    return Stop(Conditions("break_if", condition, nan=False, inf=False, op=None, module=None, shape=None, line=None,
                           example=None, backward=backward))  # fmt: skip


def break_on(
    *, nan: bool = False, inf: bool = False, op: Any = None, module: Any = None, shape: Any = None, line: Any = None,
    example: int | None = None, backward: bool | None = None,
) -> Stop:  # fmt: skip
    """Stop where all that is asked for holds: `break_on(nan=True, module="encoder.*")`.

    `nan`, `inf`: the first value that has one (of both, one is enough). `op`: its name, a pattern, or several.
    `module`: a path such as "encoder.*", a class name, or a module. `shape`: of the result, None for any size, ... for
    any number of them. `line`: "train.py:31", the op's own line or one that led to it. `example`: its number in
    `wf.map`. Numbers are looked at in backward too, places only if `backward=True`.

    It is set and taken away as `break_if` is.
    """
    conditions = Conditions("break_on", None, nan=nan, inf=inf, op=op, module=module, shape=shape, line=line,
                            example=example, backward=backward)  # fmt: skip
    if not conditions.any:
        raise ArgumentError("break_on: there is nothing to stop on",
                            fix='Say what, for instance nan=True, op="softmax" or line="train.py:31".')  # fmt: skip
    return Stop(conditions)
