"""Control flow that says what it carries: `wf.cond`, `wf.while_loop` and `wf.scan`.

They run as plain Python, so they can be stepped through and differentiated like any code. An exporter, which cannot see
Python's own `if` and `while`, reads off them what belongs to a branch or to a loop (exporters/onnx/stated.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from wayfare.api.functions.join import stack
from wayfare.compiler.structure import Opaque, put_together, take_apart
from wayfare.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from wayfare.core.mode import executor
from wayfare.core.tensor import Tensor

__all__ = ["cond", "scan", "while_loop"]


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()
) -> Any:
    """`true_fn(*operands)` if `pred` holds, else `false_fn(*operands)`. Both must give results of the same form."""
    _check_functions("cond", true_fn, false_fn)
    if not isinstance(operands, (tuple, list)):
        raise ArgumentTypeError(f"cond: operands must be a tuple, not {type(operands).__name__}")
    return executor().cond(pred, true_fn, false_fn, operands)


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Any]) -> Any:
    """`while cond_fn(*carried): carried = body_fn(*carried)`; gives what is carried at the end, as a tuple.

    What is carried keeps its form and its dtypes.
    """
    _check_functions("while_loop", cond_fn, body_fn)
    if not isinstance(carried_inputs, (tuple, list)):
        raise ArgumentTypeError(f"while_loop: carried_inputs must be a tuple, not {type(carried_inputs).__name__}")
    return executor().while_loop(_while, cond_fn, body_fn, tuple(carried_inputs))


def _while(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: tuple[Any, ...]) -> tuple[Any, ...]:
    body = as_tuple(body_fn)
    before, shape = apart("while_loop", carried)
    while cond_fn(*carried):
        carried = body(*carried)
        after, now = apart("while_loop", carried)
        check_alike("while_loop", "what is carried changes:", before, after, shape, now)
    return carried


def scan(
    combine_fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False
) -> tuple[Any, Any]:
    """`carry, y = combine_fn(carry, x)` for each x of `xs` along a dimension; gives (the last carry, all y stacked).

    `xs` may be a tensor or several in tuples, lists and dictionaries; so may carry and y. The y are stacked in
    dimension 0. With `reverse` it goes from the last x to the first, and y stand where their x stood.
    """
    _check_functions("scan", combine_fn)
    rows, _ = apart("scan", xs)
    if not rows:
        raise ArgumentError("scan: xs holds no tensor", fix="Give what to go through.")
    lengths = {t.shape[dim] for t in rows if -t.ndim <= dim < t.ndim}
    if len(lengths) != 1 or any(not -t.ndim <= dim < t.ndim for t in rows):
        shown = ", ".join(str(t.spec) for t in rows)
        raise ShapeError(f"scan: xs must have one size in dimension {dim}, they are {shown}")
    apart("scan", init)
    if lengths == {0}:
        raise ArgumentError("scan: there is nothing to go through", fix="Give at least one x.")
    return executor().scan(_scan, combine_fn, init, xs, dim, reverse)  # type: ignore[no-any-return]


def _scan(combine_fn: Any, init: Any, xs: Any, dim: int, reverse: bool) -> tuple[Any, Any]:
    rows, xs_shape = apart("scan", xs)
    length = rows[0].shape[dim]
    carry, ys, y_shape = init, [], None
    before, shape = apart("scan", init)
    for t in range(length - 1, -1, -1) if reverse else range(length):
        carry, y = _pair(combine_fn(carry, put_together(xs_shape, iter([row.select(dim, t) for row in rows]))))
        after, now = apart("scan", carry)
        check_alike("scan", "the carry changes:", before, after, shape, now)
        parts, y_shape = apart("scan", y)
        ys.append(parts)
    if reverse:
        ys.reverse()
    stacked: Iterator[Tensor] = iter([stack(column) for column in zip(*ys, strict=True)])
    return carry, put_together(y_shape, stacked)


# -- helpers ---------------------------------------------------------------------------------------------------------


class Part:
    """One of the functions, called with a list of tensors; it gives a list, and remembers the form of the result."""

    def __init__(self, function: Callable[..., Any], shape: Any) -> None:
        self._function = function
        self._shape = shape
        self.result: Any = None

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        made, self.result = apart("control flow", self._function(*put_together(self._shape, iter(tensors))))
        return made


class ScanPart:
    """The same for the function of a scan, which gives a carry and a y."""

    def __init__(self, function: Any, carry: Any, xs: Any) -> None:
        self._function = function
        self._shapes = (carry, xs)
        self.carry_after: Any = None
        self.result: Any = None

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        given = iter(tensors)
        carry, x = (put_together(shape, given) for shape in self._shapes)
        after, y = _pair(self._function(carry, x))
        made, self.carry_after = apart("scan", after)
        ys, self.result = apart("scan", y)
        return [*made, *ys]


def apart(name: str, structure: Any) -> tuple[list[Tensor], Any]:
    """The tensors of a structure, and its form."""
    tensors: list[Tensor] = []
    try:
        return tensors, take_apart(structure, tensors, [])
    except Opaque as opaque:
        raise ArgumentTypeError(f"{name}: cannot carry {opaque}",
                                fix="Use tensors in tuples, lists and dictionaries.") from None  # fmt: skip


def as_tuple(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """The function with its result as a tuple."""

    def call(*args: Any) -> tuple[Any, ...]:
        made = function(*args)
        return tuple(made) if isinstance(made, (tuple, list)) else (made,)

    return call


def _pair(made: Any) -> tuple[Any, Any]:
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise ArgumentTypeError(f"scan: the function must return (carry, y), not {type(made).__name__}")
    return made[0], made[1]


def _check_functions(name: str, *functions: Any) -> None:
    for function in functions:
        if not callable(function):
            raise ArgumentTypeError(f"{name}: takes functions, not {type(function).__name__}")


def check_alike(name: str, what: str, a: Sequence[Tensor], b: Sequence[Tensor], first: Any, second: Any) -> None:
    """Two results of one form: the same structure, dtypes and numbers of dimensions."""
    if first != second:
        raise ArgumentError(f"{name}: {what} plain values, or tensors in different tuples, lists or dictionaries",
                            fix="What changes must be a tensor: wf.tensor(0) counts.")  # fmt: skip
    for x, y in zip(a, b, strict=True):
        if x.dtype is not y.dtype or x.ndim != y.ndim:
            raise ArgumentError(f"{name}: {what} {x.spec} and {y.spec}")
