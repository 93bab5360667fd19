"""Control flow that the user states (`wf.cond`, `wf.while_loop`, `wf.scan`), traced: each part once, as a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wayfare.compiler.control_flow import Part, ScanPart, apart, as_tuple, check_alike
from wayfare.compiler.structure import put_together
from wayfare.core.errors import ArgumentTypeError
from wayfare.core.mode import changed_mode
from wayfare.core.tensor import Tensor


def trace_cond(
    tracer: Any, pred: Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    """Both branches are traced, and the one that `pred` chooses gives the results."""
    tensors, shape = apart("cond", tuple(operands))
    parts = [Part(f, shape) for f in (true_fn, false_fn)]
    traces, made = zip(*[tracer.block(part, tensors) for part in parts], strict=True)
    check_alike("cond", "the two branches give", made[0], made[1], parts[0].result, parts[1].result)
    with changed_mode(executor=None):
        taken = made[0] if pred else made[1]
    results = tracer.region("cond", [pred, *tensors], list(traces), [t._array for t in taken], None)
    return put_together(parts[0].result, iter(results))


def trace_while(tracer: Any, run: Callable[..., Any], cond_fn: Any, body_fn: Any, carried: tuple[Any, ...]) -> Any:
    """The condition and the body are traced once; the loop itself runs untraced."""
    before, shape = apart("while_loop", carried)
    condition, body = Part(cond_fn, shape), Part(as_tuple(body_fn), shape)
    traces = [tracer.block(part, before) for part in (condition, body)]
    if len(traces[0][1]) != 1:
        raise ArgumentTypeError("while_loop: cond_fn must give one tensor that is true or false to be exported",
                                fix="Compute it from what is carried.")  # fmt: skip
    check_alike("while_loop", "what is carried changes:", before, traces[1][1], shape, body.result)
    with changed_mode(executor=None):
        final, _ = apart("while_loop", run(cond_fn, body_fn, carried))
    made = tracer.region("while", before, [trace for trace, _ in traces], [t._array for t in final], None)
    return put_together(shape, iter(made))


def trace_scan(
    tracer: Any, run: Callable[..., Any], combine_fn: Any, init: Any, xs: Any, dim: int, reverse: bool
) -> tuple[Any, Any]:
    """The function is traced on the first x; the loop itself runs untraced."""
    rows, xs_shape = apart("scan", xs)
    carry, carry_shape = apart("scan", init)
    part = ScanPart(combine_fn, carry_shape, xs_shape)
    with changed_mode(executor=None):
        first = [t.select(dim, t.shape[dim] - 1 if reverse else 0) for t in rows]
        last, ys = run(combine_fn, init, xs, dim, reverse)
    trace, made = tracer.block(part, [*carry, *first])
    check_alike("scan", "the carry changes:", carry, made[: len(carry)], carry_shape, part.carry_after)
    final, _ = apart("scan", last)
    stacked, _ = apart("scan", ys)
    arrays = [t._array for t in (*final, *stacked)]
    results = tracer.region("scan", [*carry, *rows], [trace], arrays, (dim, reverse, len(carry)))
    given = iter(results)
    return put_together(carry_shape, given), put_together(part.result, given)
