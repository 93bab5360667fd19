"""One example of a map: one call of the user's function, in its own fiber or in a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit

from wayfare.batch.analysis.exception_scopes import ends_search
from wayfare.batch.record.call import Value
from wayfare.batch.record.function_call import as_copy
from wayfare.core.callsite import NO_LINE, Site
from wayfare.core.device import Device
from wayfare.core.generator import example_generator
from wayfare.core.mode import Mode
from wayfare.core.pytree import flatten
from wayfare.core.tensor import Tensor


class Example:
    """One call of the user's function."""

    __slots__ = (
        "_generator", "analysis", "args", "children", "done", "error", "failed", "fiber", "function", "inner", "key",
        "mode", "number", "order", "outer", "parent", "result", "side_effects", "site",
        "waits_for",
    )  # fmt: skip

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], number: int, key: tuple[int, int],
        site: Site | None, outer: Example | None = None,
    ) -> None:  # fmt: skip
        self.function = function
        self.args = args
        self.number = number
        # The user's line that called `wf.map`; needed if the mapped function is the library's own.
        self.site = site
        # The seed of its random numbers.
        self.key = key
        self._generator: Any = None
        self.parent: Example | None = None
        # The example of an outer plain loop, if this map runs inside one.
        self.outer = outer
        # The FunctionAnalysis of its function.
        self.analysis: Any = None
        self.result: Any = None
        self.error: BaseException | None = None

    def elsewhere(self) -> Device | None:
        """A device other than the CPU that a tensor among its arguments is on; None if there is none."""
        tensors: list[Tensor] = []
        flatten(self.args, tensors, [])
        return next((t.device for t in tensors if t.device.type != "cpu"), None)

    def again(self) -> Example:
        """The same call once more."""
        return Example(self.function, self.args, self.number, self.key, self.site, self.outer)

    # Set by `prepare`, for an example that runs in a fiber.
    order: list[int]  # sort key among all examples: its path
    inner: list[Example]  # the examples of a map inside this one
    children: int  # how many of those are not done
    failed: Example | None  # the first of those that failed, while some before it are not done
    fiber: Any
    mode: Mode | None
    waits_for: Value | None
    done: bool
    side_effects: tuple[int, bool] | None  # how many siblings it has, and whether its function has side effects

    def prepare(self, mode: Mode, parent: Example | None) -> None:
        """Prepare to run in a fiber, in this mode but with its own random numbers."""
        self.parent = parent
        self.order = self.path
        self.mode = mode.with_generator(self.generator)
        self.inner, self.children = [], 0
        self.failed = self.fiber = self.waits_for = self.side_effects = None
        self.done = False

    @property
    def generator(self) -> Any:
        """The generator of its random numbers, made when it is first used."""
        if self._generator is None:
            self._generator = example_generator(self.key, self.number)
        return self._generator

    @property
    def path(self) -> list[int]:
        """The numbers of the examples it is inside of, and its own."""
        above = self.parent or self.outer
        return [*(above.path if above is not None else []), self.number]

    def body(self) -> None:
        """The function that the fiber runs."""
        try:
            self.result = _begin(as_copy(self.function), self.args)
        except GreenletExit:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self.waits_for = None

    def restart(self, mode: Mode) -> None:
        """Reset it, as if it had never run."""
        self._generator = self.result = self.error = None
        self.prepare(mode, self.parent)

    def release(self) -> None:
        """Release what it holds: its calls may keep the example itself alive for long."""
        self.function = self.args = self.mode = self._generator = self.result = None  # type: ignore[assignment]
        self.inner = []


def is_within(example: Example | None, these: set[Example]) -> bool:
    """Whether an example is one of these, or inside one."""
    while example is not None and example not in these:
        example = example.parent
    return example is not None


ends_search(Example.body.__code__)


# Its frame counts as the user's code: if the mapped function is the library's own, there is no other.
_begin: Any = lambda function, args: function(*args)
_begin.__code__ = _begin.__code__.replace(co_filename=NO_LINE, co_firstlineno=1)
