"""`with wf.debug.record() as run:` — records one step, to look at it afterwards."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterable
from typing import Any

from wayfare.core.callsite import current_site
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError
from wayfare.see.debug.naming import Naming
from wayfare.see.debug.recorder import Recorder
from wayfare.see.debug.run import Run
from wayfare.see.debug.watching import looking_on

# Values beyond this many are only counted: a page with more cannot be read, and takes much memory.
LIMIT = 500_000


class record:
    """`with wf.debug.record() as run:` — writes down all that happens in the block, in this thread.

    Forward and backward in order: ops with the user's line, module, example, shapes and statistics; gradients; what
    Python looked at; memory. Statistics are kept of every value, elements of small ones, and the corners of larger ones
    (`values="all"`, the default). `values="small"` leaves the corners out, `"none"` all elements; names (`["softmax",
    "encoder.*"]`: ops, paths of modules and parameters) or a function `(name, tensor) -> bool` choose of which larger
    tensors corners are kept. `module` is a model, or a dictionary of models by name, whose parameters are to have names
    although it is not called in the block. No more than `limit` values are written down.

    Compiled functions run as plain Python meanwhile, and `wf.map` stays batched. An error in the block passes on, and
    the run has all that happened before.
    """

    def __init__(
        self, values: str | Iterable[str] | Callable[[str, Any], bool] = "all", module: Any = None,
        title: str | None = None, limit: int = LIMIT,
    ) -> None:  # fmt: skip
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ArgumentError(f"record: limit is a number of values, at least 1, not {limit!r}")
        if title is not None and not isinstance(title, str):
            raise ArgumentTypeError(f"record: title must be text, not {type(title).__name__}")
        naming = Naming(module)
        self._recorder = Recorder(naming, _choice(values, naming), limit, values != "none")
        self._watch = looking_on(self._recorder)
        if title is None:
            site = current_site()
            title = "run" if site is None else f"run of {os.path.basename(site.filename)}:{site.line}"
        self._run = Run(title, self._recorder)
        self._used = False

    def __enter__(self) -> Run:
        if self._used:
            raise OperationError("record: this block is in use or was used already",
                                 fix="Make a new wf.debug.record().")  # fmt: skip
        self._used = True
        self._watch.__enter__()
        return self._run

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._watch.__exit__(kind, error, trace)
        self._run._end(error)


def _choice(values: Any, naming: Naming) -> Callable[[str, Any], bool]:
    if isinstance(values, str):
        if values not in ("all", "small", "none"):
            raise ArgumentError(f"record: values is 'all', 'small', 'none', names or a function, not {values!r}",
                                fix=f"For one name write values=[{values!r}].")  # fmt: skip
        return (lambda name, tensor: True) if values == "all" else (lambda name, tensor: False)
    if callable(values):
        return lambda name, tensor: bool(values(name, tensor))
    try:
        names = list(values)
    except TypeError:
        names = [None]
    if not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(f"record: values is 'all', 'small', 'none', names or a function, not {values!r}")

    def chosen(name: str, tensor: Any) -> bool:
        path = naming.here()
        return any(fnmatch.fnmatchcase(name, n) or (path and fnmatch.fnmatchcase(path, n)) for n in names)

    return chosen
