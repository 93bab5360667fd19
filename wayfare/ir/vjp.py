"""The gradient rule of a recorded op as an op of its own: a "vjp" step, which runs on arrays or is decomposed into ops.

    op = vjp_op(original, needs, arrived, given, outputs, inputs)
    step = Step(op, tuple(vjp_inputs(original, needs, grads, made, taken)), attrs)      # attrs: the original's own

`needs` says which inputs need a gradient, `arrived` which outputs have one, `given` the positions of the inputs for
which the rule returns one (the outputs of the vjp op, in that order); `outputs` and `inputs` are the Specs of the
original op. `vjp_inputs` selects the inputs of the step: the gradients that exist (not None), then the outputs and
inputs of the original op whose values the rule reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.routines.reductions import sum_to
from wayfare.codegen.routines.rows import Rows
from wayfare.core.errors import WayfareError
from wayfare.core.op import DROP, SPEC, VALUE, Op, joint, raw_ops
from wayfare.core.spec import NARROW, NARROW_ARRAYS, Spec, float32
from wayfare.ir.flops import traced_flops
from wayfare.ir.graph import Value, leaf, trace_ops


@lru_cache(maxsize=8192)
def vjp_op(
    op: Op, needs: tuple[bool, ...], arrived: tuple[bool, ...], given: tuple[int, ...], outputs: tuple[Spec, ...],
    inputs: tuple[Spec, ...],
) -> Op:  # fmt: skip
    """The op that computes the gradients `given` of an op from those `arrived` and what its rules read."""
    rule = Rule(op, needs, arrived, given, outputs, inputs)
    return Op(
        name=f"{op.name}_vjp", family="vjp", forward=rule.forward, infer=rule.infer, vjp=None, batch=_no_batch,
        samples=lambda rng: (), reference=rule.forward, formula=rule.by_ops, outputs=len(given),
        work=rule.work,
    )  # fmt: skip


def vjp_inputs(
    op: Op, needs: tuple[bool, ...], grads: Sequence[Any], outputs: Sequence[Any], inputs: Sequence[Any]
) -> list[Any]:
    """The inputs of a vjp step: the gradients that exist, then the outputs and inputs whose values are read."""
    of_output, of_inputs = op.keeps(needs)
    picked = [g for g in grads if g is not None]
    if of_output == VALUE:
        picked += [outputs[i] for i in _read_outputs(op, len(outputs))]
    return picked + [x for x, kept in zip(inputs, of_inputs, strict=True) if kept == VALUE]


def original(op: Op) -> Op:
    """The op whose gradient a vjp op computes."""
    return rule_of(op).op


def rule_of(op: Op) -> Rule:
    """The rule of a vjp op."""
    return op.forward.__self__  # type: ignore[attr-defined,no-any-return]


def input_grads_by(op: Op, rule: Callable[..., Any], m: Any, values: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """The outputs of a vjp op by another rule: rule(original, needs, grads, kept, attrs) returns a gradient per
    input."""
    own = rule_of(op)
    return own.by_rule(m, values, lambda g, kept: rule(own.op, own.needs, g, kept, attrs))


def _read_outputs(op: Op, count: int) -> Sequence[int]:
    return range(count) if op.outputs == 1 or op.kept_outputs is None else op.kept_outputs


def _no_batch(m: Any, size: int, inputs: Any, batched: Any, attrs: Any) -> Any:
    raise NotImplementedError("a recorded gradient is not batched")


class Rule:
    """A gradient rule with what it needs besides values: Specs, and which gradients exist."""

    def __init__(
        self, op: Op, needs: tuple[bool, ...], arrived: tuple[bool, ...], given: tuple[int, ...],
        outputs: tuple[Spec, ...], inputs: tuple[Spec, ...],
    ) -> None:  # fmt: skip
        self.op, self.needs, self.arrived, self.given = op, needs, arrived, given
        self.outputs, self.inputs = outputs, inputs
        self.several = op.outputs != 1
        self.of_output, self.of_inputs = op.keeps(needs)
        self.read = _read_outputs(op, len(outputs))
        self._counted: dict[Any, int | None] = {}

    def infer(self, *_specs: Spec, **_attrs: Any) -> Any:
        """A gradient has the shape and dtype of its input."""
        made = tuple(self.inputs[i] for i in self.given)
        return made if len(made) > 1 else made[0]

    def _sorted(self, values: Sequence[Any], zeros: Any) -> tuple[Any, tuple[Any, ...]]:
        """The gradients and the saved values, as the rule takes them, from the inputs of a vjp step."""
        rest = iter(values)
        grads = [next(rest) if there else None for there in self.arrived]
        if not self.op.takes_none:
            grads = [zeros(spec) if g is None else g for g, spec in zip(grads, self.outputs, strict=True)]
        kept: list[Any] = [None]
        if self.of_output == VALUE:
            found = {i: next(rest) for i in self.read}
            kept = [tuple(found.get(i) for i in range(len(self.outputs))) if self.several else found[0]]
        elif self.of_output == SPEC:
            kept = [self.outputs if self.several else self.outputs[0]]
        for how, spec in zip(self.of_inputs, self.inputs, strict=True):
            kept.append(None if how == DROP else spec if how == SPEC else next(rest))
        return (tuple(grads) if self.several else grads[0]), tuple(kept)

    def _run(self, m: Any, g: Any, kept: tuple[Any, ...], attrs: dict[str, Any]) -> Sequence[Any]:
        vjp = self.op.vjp
        assert vjp is not None
        if isinstance(vjp, joint):
            return list(vjp.rule(m, self.needs, g, *kept, **attrs))
        return [rule(m, g, *kept, **attrs) if wanted and rule is not None else None
                for wanted, rule in zip(self.needs, vjp, strict=True)]  # fmt: skip

    def forward(self, *arrays: Any, **attrs: Any) -> Any:
        """The rule on arrays, as in an eager backward pass."""
        g, kept = self._sorted(arrays, lambda spec: np.broadcast_to(np.zeros((), spec.dtype.numpy), spec.shape))
        op = self.op
        found = None
        if not self.several and op.large_vjp is not None and g.size >= op.large_vjp_from:
            found = op.large_vjp(g, kept, self.needs, attrs)
        if found is None:
            found = self._run(raw_ops, g, kept, attrs)
        made = []
        for i in self.given:
            gradient = found[i]
            if gradient.__class__ is Rows:
                gradient = gradient.dense()
            elif op.broadcasts and gradient.shape != self.inputs[i].shape:
                gradient = sum_to(gradient, self.inputs[i].shape)
            made.append(gradient)
        return tuple(made) if len(made) > 1 else made[0]

    def work(self, inputs: Sequence[Any], outputs: Sequence[Any], attrs: dict[str, Any]) -> int | None:
        """The FLOPs of the rule op by op, traced once for each set of attributes."""
        key = tuple(attrs.items())
        try:
            if key not in self._counted:
                self._counted[key] = self._count(attrs)
            return self._counted[key]
        except TypeError:  # An attribute that has no hash.
            return self._count(attrs)

    def _leaves(self) -> list[Any]:
        """Leaves in place of the inputs of a vjp step."""
        grads, made, taken = ([leaf("input", 0, spec.shape, spec.dtype.numpy) for spec in specs]
                              for specs in (self.outputs, self.outputs, self.inputs))  # fmt: skip
        arrived = [g if there else None for g, there in zip(grads, self.arrived, strict=True)]
        return vjp_inputs(self.op, self.needs, arrived, made, taken)

    def traced(self, attrs: dict[str, Any]) -> Sequence[Any]:
        """The traced gradient for each input; None where the rule returns none."""
        g, kept = self._sorted(self._leaves(), lambda spec: leaf("input", 0, spec.shape, spec.dtype.numpy))
        return self._run(trace_ops, g, kept, attrs)

    def _count(self, attrs: dict[str, Any]) -> int | None:
        try:
            input_grads = self.by_ops(trace_ops, *self._leaves(), **attrs)
        except (WayfareError, NotImplementedError, TypeError, AttributeError, IndexError, ValueError):
            return None  # The rule reads numbers, which a trace does not have.
        made = input_grads if isinstance(input_grads, tuple) else (input_grads,)
        return traced_flops(v for v in made if isinstance(v, Value))

    def by_ops(self, m: Any, *values: Any, **attrs: Any) -> Any:
        """The rule op by op, as when the gradient is differentiated again; narrow floats are computed in float32."""
        return self.by_rule(m, values, lambda g, kept: self._run(m, g, kept, attrs))

    def as_is(self, m: Any, *values: Any, **attrs: Any) -> Any:
        """The same in the dtypes of the values, for rules that take narrow floats."""
        return self.by_rule(m, values, lambda g, kept: self._run(m, g, kept, attrs), widen=False)

    def by_rule(
        self, m: Any, values: Sequence[Any], rule: Callable[[Any, tuple[Any, ...]], Sequence[Any]], widen: bool = True
    ) -> Any:
        """Op by op, with a given rule (gradients, saved values) → gradients of the inputs."""
        wide = [m.cast(v, dtype=float32) if widen and v.dtype in NARROW_ARRAYS else v for v in values]

        def zeros(spec: Spec) -> Any:
            dtype = float32 if widen and spec.dtype in NARROW else spec.dtype
            return m.expand(m.cast(np.zeros((), dtype.numpy), dtype=dtype), shape=spec.shape)

        g, kept = self._sorted(wide, zeros)
        found = rule(g, kept)
        made = []
        for i in self.given:
            gradient, spec = found[i], self.inputs[i]
            if gradient is None:
                raise NotImplementedError(f"{self.op.name}: its rule by ops gives no gradient of input {i}")
            if self.op.broadcasts and gradient.shape != spec.shape:
                gradient = m.sum_to(gradient, shape=spec.shape)
            if gradient.dtype != spec.dtype.numpy:
                gradient = m.cast(gradient, dtype=spec.dtype)
            made.append(gradient)
        return tuple(made) if len(made) > 1 else made[0]
