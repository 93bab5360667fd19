"""One example of a map: one call of the user's function, in a fiber of its own or as one of a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit

from wayfare.batch.analysis.exception_scopes import EXAMPLE_CODES
from wayfare.batch.record.call import Value
from wayfare.core.callsite import NO_LINE, Site
from wayfare.core.generator import example_generator
from wayfare.core.mode import Mode


class Example:
    """One call of the user's function, in a fiber of its own."""

    __slots__ = (
        "_generator", "analysis", "args", "children", "done", "error", "failed", "fiber", "function", "inner", "key",
        "mode", "number", "order", "outer", "parent", "result", "site", "waits_for",
    )  # fmt: skip

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], number: int, key: tuple[int, int],
        site: Site | None, outer: Example | None = None,
    ) -> None:  # fmt: skip
        self.function = function
        self.args = args
        self.number = number
        # The user's line that called `wf.map`: where the function itself is one of the library's, there is no other.
        self.site = site
        # What its random numbers come from.
        self.key = key
        self._generator: Any = None
        self.parent: Example | None = None
        # The example of a plain loop that this one is inside of.
        self.outer = outer
        # What the code of its function was read to do.
        self.analysis: Any = None
        self.result: Any = None
        self.error: BaseException | None = None

    # What the hub sets when it is to run in a fiber.
    order: list[int]  # its place among all examples
    inner: list[Example]  # the examples of a map inside this one
    children: int  # how many of those are not done yet
    failed: Example | None  # of those: the first that has failed while some before it are not done
    fiber: Any
    mode: Mode | None
    waits_for: Value | None
    done: bool

    def prepare(self, mode: Mode, parent: Example | None) -> None:
        """It is to run in a fiber, in this mode but with random numbers of its own."""
        self.parent = parent
        self.order = self.path
        self.mode = mode.replace(generator=self.generator)
        self.inner, self.children = [], 0
        self.failed = self.fiber = self.waits_for = None
        self.done = False

    @property
    def generator(self) -> Any:
        """Where its random numbers come from, if it draws any."""
        if self._generator is None:
            self._generator = example_generator(self.key, self.number)
        return self._generator

    @property
    def path(self) -> list[int]:
        """Its number, after those of the examples it is inside of."""
        above = self.parent or self.outer
        return [*(above.path if above is not None else []), self.number]

    def body(self) -> None:
        """What the fiber runs."""
        try:
            self.result = _begin(self.function, self.args)
        except GreenletExit:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self.waits_for = None

    def restart(self, mode: Mode) -> None:
        """As if it had never run."""
        self._generator = self.result = self.error = None
        self.prepare(mode, self.parent)

    def release(self) -> None:
        """It may live as long as what is known of its calls; what it worked with need not."""
        self.function = self.args = self.mode = self._generator = self.result = None  # type: ignore[assignment]
        self.inner = []


EXAMPLE_CODES.add(Example.body.__code__)


# A frame that counts as the user's: where the function itself is one of the library's, there is no other.
_begin: Any = eval(compile("lambda function, args: function(*args)", NO_LINE, "eval"))
