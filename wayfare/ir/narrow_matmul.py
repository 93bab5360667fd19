"""The matmul of float16 or bfloat16 matrices with a float32 result: what tensor cores do.

Rules compute narrow floats in float32, so a graph has `matmul(cast(a), cast(b))`. Where a plan runs on a device that
multiplies narrow matrices, lowering reads `a` and `b` as they are: products of narrow floats are exact in float32, so
the result is the same but for the order of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wayfare.core.op import REGISTRY, Op
from wayfare.core.spec import NARROW_ARRAYS, OF_NUMPY, Spec, float32
from wayfare.ir.assemble import ASSEMBLE, cover
from wayfare.ir.graph import Value

_VIEWS = ("reshape", "permute", "part")
# What lowering makes a step with: (op, inputs, attributes) → outputs.
Once = Callable[[Op, tuple[Value, ...], dict[str, Any]], tuple[Value, ...]]


def _infer(a: Spec, b: Spec) -> Spec:
    found: Spec = REGISTRY["matmul"].infer(Spec(a.shape, float32), Spec(b.shape, float32))
    return found


def _forward(a: Any, b: Any) -> Any:
    return REGISTRY["matmul"].forward(a.astype("f4"), b.astype("f4"))


# Only made by lowering, after differentiation and batching.
NARROW_MATMUL = Op(
    name="narrow_matmul", family="contraction", gemm="nn", forward=_forward, vjp=None, infer=_infer,
    batch=lambda m, size, inputs, batched, attrs: None, samples=lambda rng: (), reference=_forward,
)  # fmt: skip


def of_narrow(once: Once, op: Op, inputs: Sequence[Value], attrs: dict[str, Any]) -> tuple[Value, ...] | None:
    """A matmul as one of narrow matrices, and no cast to float32 and back; None for any other step. `once` makes steps
    of lowered values."""
    if op.name == "cast":
        source = _source(once, inputs[0])
        return (source,) if source is not None and OF_NUMPY[source.dtype] is attrs["dtype"] else None
    if not op.gemm:
        return None
    result = inputs[0].dtype if inputs[0].dtype in NARROW_ARRAYS else None
    a, b = inputs if result is not None else [_source(once, v) for v in inputs]
    if a is None or b is None or a.dtype != b.dtype:
        return None
    if op.gemm == "nt":
        (b,) = once(REGISTRY["permute"], (b,), {"dims": (1, 0)})
    made = once(NARROW_MATMUL, (a, b), {})
    return made if result is None else once(REGISTRY["cast"], made, {"dtype": OF_NUMPY[result]})


def _source(once: Once, v: Value) -> Value | None:
    """The narrow value that this one is in float32, or the same view of it that this one is."""
    op, inputs = v.step.op, v.step.inputs
    if op is None:
        return None
    if op.name == "cast":
        return inputs[0] if v.dtype.char == "f" and inputs[0].dtype in NARROW_ARRAYS else None
    if op is not ASSEMBLE and op.moves not in _VIEWS and op.name != "expand":
        return None
    if op is ASSEMBLE and not cover(v.step.attrs["shape"], v.step.attrs["indexes"])[0]:
        return None  # sums of parts would be rounded
    sources = [_source(once, x) for x in inputs]
    found = tuple([x for x in sources if x is not None and x.dtype == sources[0].dtype])  # type: ignore[union-attr]
    return once(op, found, v.step.attrs)[0] if len(found) == len(inputs) else None
