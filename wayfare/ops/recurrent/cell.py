"""What one step of a recurrent layer computes: formulas of a cell, and the loops and native routines made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wayfare.codegen.loop.expr import Expr, load
from wayfare.codegen.loop.language import Loop, elementwise
from wayfare.codegen.math.library import loop_math

Parts = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Cell:
    """What one step computes, as formulas over `m` (expressions of a loop, or ops) that stand for each element.

    `step(m, x, a, before)`: from the parts of the projected input and of the projected state, and the state it reads,
    to (parts kept in the input's place, extra parts that are kept too, the states after the step).
    `gradient(m, kept, extra, before, g, back, direct)`: from what was kept, the gradient of the output, and what comes
    back from the next step through the product (`back`) and past it (`direct`, a tuple of one or none), to (gradients
    of the parts of x, those of the parts of a or None where they are the same, the new `direct`).
    """

    name: str
    gates: int
    states: int
    step: Callable[..., tuple[Parts, Parts, Parts]]
    gradient: Callable[..., tuple[Parts, Parts | None, Parts]]
    # How many further parts are kept.
    extra: int = 0
    # The state that a step reads apart from its product: its number, or None.
    reads: int | None = None
    # Is the bias of the state added to the product itself? Else it is added to the bias of the input.
    inner_bias: bool = False

    @property
    def direct(self) -> int:
        """How many gradients go back past the product."""
        return 0 if self.reads is None else 1


class InLoops:
    """The functions that formulas of cells use, as expressions of a loop."""

    sigmoid = loop_math.sigmoid
    tanh = loop_math.tanh

    @staticmethod
    def relu(x: Expr) -> Expr:
        """The larger of x and 0."""
        return loop_math.maximum(x, 0)  # type: ignore[no-any-return]

    @staticmethod
    def gate(g: Expr, mask: Expr) -> Expr:
        """g where the mask is true, else 0."""
        return loop_math.where(mask, g, 0)  # type: ignore[no-any-return]


def step_loop(cell: Cell, dtype: str, twice: bool = False) -> Loop:
    """A step: parts of the input, of the product, the state that is read, and inner biases; to all that it keeps. With
    `twice` the states are written a second time, to where the next step reads them."""
    loads = [load(i, dtype) for i in range(cell.gates * (3 if cell.inner_bias else 2) + cell.direct)]
    x, a, rest = loads[: cell.gates], loads[cell.gates : 2 * cell.gates], loads[2 * cell.gates :]
    if cell.inner_bias:
        a = [part + bias for part, bias in zip(a, rest[cell.direct :], strict=True)]
    kept, extra, after = cell.step(InLoops, x, a, rest[: cell.direct])
    again = after if twice else ()
    return elementwise(f"{cell.name}_step", [dtype] * len(loads), *kept, *extra, *after, *again)


def states_loop(cell: Cell, dtype: str) -> Loop:
    """A step of which nothing is kept but the states, and whose biases are not added yet: those of the input (and of
    the state in it, where there is no inner bias) come last but for the inner ones."""
    count = 2 * cell.gates + cell.direct
    loads = [load(i, dtype) for i in range(count + cell.gates * (2 if cell.inner_bias else 1))]
    x = [part + bias for part, bias in zip(loads[: cell.gates], loads[count:], strict=False)]
    a = loads[cell.gates : 2 * cell.gates]
    if cell.inner_bias:
        a = [part + bias for part, bias in zip(a, loads[count + cell.gates :], strict=True)]
    _, _, after = cell.step(InLoops, x, a, loads[2 * cell.gates : count])
    return elementwise(f"{cell.name}_states", [dtype] * len(loads), *after)


def gradient_loop(cell: Cell, dtype: str, of_rows: bool = False) -> Loop:
    """The gradient of a step. With `of_rows` the last input has gradients of the second state after the rows of this
    step."""
    kept, extra = cell.gates, cell.gates + cell.extra
    count = extra + 2 * cell.direct + 2
    loads = [load(i, dtype) for i in range(count + of_rows)]
    before, (g, back), direct = (loads[extra : extra + cell.direct], loads[extra + cell.direct :][:2],
                                 loads[extra + cell.direct + 2 : count])  # fmt: skip
    if of_rows:
        direct = [direct[0] + loads[count]]
    dx, da, past = cell.gradient(InLoops, loads[:kept], loads[kept:extra], before, g, back, direct)
    return elementwise(f"{cell.name}_gradient", [dtype] * len(loads), *dx, *(da or ()), *past)
