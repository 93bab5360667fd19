"""A traced function as an op record: forward and backward programs, a batch rule, a shape rule."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from wayfare.codegen.routines.rows import Rows
from wayfare.core.device import BACKENDS, as_array, copied, device_of
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY, Op, joint, raw_ops
from wayfare.core.spec import FLOAT_KINDS, OF_NUMPY, Spec
from wayfare.core.symbolic_sizes import evaluated, formula_of, symbols_in, value_of
from wayfare.ir.flops import traced_flops
from wayfare.ir.fuse.bound import Bound
from wayfare.ir.fuse.program import FusedProgram
from wayfare.ir.gradient import gradients, needed_from, reached, standing_on
from wayfare.ir.graph import Value, in_order, leaf
from wayfare.ir.lower import Lowering
from wayfare.ir.target import target_of

# The most sets of sizes that are kept for one record.
_BOUND = 256

# `detach()` in a trace: the same value without a gradient.
STOP = Op(
    name="detach", family="elementwise", forward=lambda x: x, infer=lambda x: x, vjp=None,
    batch=lambda m, size, inputs, batched, attrs: inputs[0], samples=lambda rng: (), reference=lambda x: x,
    formula=lambda m, x: x, moves="identity",
)  # fmt: skip


class Factors(NamedTuple):
    """Gradients of a weight and of its bias that are left for later as factors.

    The gradient of the input number `matrix` is `gradient.T @ x`, that of the input number `vector` the sum of the rows
    of `gradient`; or what `finish_matrix` and `finish` make of those, as if only some rows of a weight are used. One of
    the two may be None.
    """

    matrix: int | None
    vector: int | None
    gradient: Any
    x: Any
    finish: Callable[[Array], Any] | None = None
    finish_matrix: Callable[[Array], Any] | None = None


class FusedRecord:
    """The programs of one trace, and their op record. `symbols_of(shapes, numbers)` returns the sizes of a call."""

    def __init__(
        self,
        name: str,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        needs: Sequence[bool],
        symbols_of: Callable[[Sequence[Any], tuple[float, ...]], tuple[Any, ...]],
    ) -> None:
        self.name = name = re.sub(r"\W", "", name) or "fused"
        self.inputs, self.outputs = list(inputs), list(outputs)
        self._symbols_of = symbols_of
        lowering = Lowering()
        lowering(self.inputs)
        lowered = lowering(self.outputs)
        self.wanted = [i for i, (v, need) in enumerate(zip(self.inputs, needs, strict=True)) if need]
        self.given = [leaf("input", len(self.inputs) + i, v.shape, v.dtype) for i, v in enumerate(self.outputs)]
        self.input_grads: list[Value | None] = []
        self.hidden: list[Value] = []
        self.needed: list[Value] = []
        self.backward: FusedProgram | None = None
        # The same with the factors of gradients in place of their products; made when it is first used.
        self.factors: list[Factors] = []
        self._factored: FusedProgram | None = None
        # The inputs whose gradients it gives whole.
        self.whole: list[int] = []
        # The inputs of the backward program: ("given" | "input" | "output", number).
        self.sources: list[tuple[str, int]] = []
        if self.wanted:
            self._differentiate(lowering, lowered)
        self.forward = FusedProgram(name, self.inputs, [*lowered, *self.hidden])
        self._copied = _shared(lowered, self.inputs, self.hidden)
        self._bound: dict[Any, Bound] = {}
        # Which outputs are used → which inputs get a gradient.
        self._reached: dict[tuple[bool, ...], list[bool]] = {}
        self.op = self._record()

    # -- making

    def _differentiate(self, lowering: Lowering, lowered: list[Value]) -> None:
        self.input_grads = gradients(self.outputs, self.given, [self.inputs[i] for i in self.wanted])
        input_grads = lowering([g for g in self.input_grads if g is not None])
        lowering(self.given)
        self.needed = needed_from(lowered, input_grads)
        known = {*self.inputs, *lowered, *self.given}
        self.hidden = [v for v in self.needed if v not in known]
        places = {v: ("given", i) for i, v in enumerate(self.given)}
        places |= {v: ("output", i) for i, v in enumerate([*lowered, *self.hidden])}
        places |= {v: ("input", i) for i, v in enumerate(self.inputs)}
        self.sources = [places[v] for v in self.needed]
        inputs, outputs = standing_on(input_grads, self.needed)
        self.backward = FusedProgram(f"{self.name}_backward", inputs, outputs)
        self._backward_bound: dict[Any, tuple[Bound, tuple[Any, ...]]] = {}
        self._lowered_grads = dict(zip([i for i, g in zip(self.wanted, self.input_grads, strict=True) if g is not None],
                                       input_grads, strict=True))  # fmt: skip
        self.factors = [f._replace(gradient=lowering([f.gradient])[0], x=None if f.x is None else lowering([f.x])[0])
                        for f in self._find_factors()]  # fmt: skip
        factored = {i for f in self.factors for i in (f.matrix, f.vector)}
        self.whole = [i for i in self._lowered_grads if i not in factored]

    def _find_factors(self) -> list[Factors]:
        found: list[Factors] = []
        grads = {i: g for i, g in zip(self.wanted, self.input_grads, strict=True) if g is not None}
        before = {i: _before_moves(g) for i, g in grads.items()}
        sums = {i: total for i, total in before.items() if total.step.op is REGISTRY["sum_to"]
                and len(total.shape) == 1 and len(total.step.inputs[0].shape) == 2}  # fmt: skip
        for i, product in before.items():
            if product.step.op is not REGISTRY["matmul"] or product.step.inputs[0].step.op is not REGISTRY["permute"]:
                continue
            left, x = product.step.inputs
            gradient = left.step.inputs[0]
            if tuple(left.step.attrs["dims"]) != (1, 0) or len(x.shape) != 2:
                continue
            vector = next((k for k, total in sums.items() if total.step.inputs[0] is gradient), None)
            finish = None if vector is None else _finish(sums.pop(vector), grads[vector])
            found.append(Factors(i, vector, gradient, x, finish, _finish(product, grads[i])))
        found += [Factors(None, i, total.step.inputs[0], None, _finish(total, grads[i])) for i, total in sums.items()]
        return found

    def _record(self) -> Op:
        made = [*self.outputs, *self.hidden]
        floats = tuple(i for i, v in enumerate(self.outputs) if v.dtype.kind in FLOAT_KINDS)
        read = sorted({i for kind, i in self.sources if kind == "output"})
        return Op(
            name=self.name, family="fused", forward=self._forward, infer=self._infer,
            vjp=joint(self._rule(bool(read))) if self.wanted and floats else None, batch=self._batch,
            samples=lambda rng: (), reference=self._forward, formula=self._by_ops, outputs=len(made),
            differentiable_outputs=floats,
            kept_outputs=tuple(read) if len(made) > 1 else None, takes_none=True, work=self._work,
            grad_name="".join(w.capitalize() for w in self.name.strip("_<>").split("_")) + "Backward0",
        )  # fmt: skip

    def _rule(self, reads_output: bool) -> Any:
        """The gradient rule; the names of its parameters say what is saved."""

        def rule(m: Any, needs: Any, g: Any, y: Any, *inputs: Any, numbers: tuple[float, ...] = ()) -> Any:
            grads = list(g) if len(self.op_outputs) > 1 else [g]
            grads = grads[: len(self.outputs)]
            complete = all([x is not None for x in grads]) or self.may_be_zero([x is None for x in grads])
            # To ask whether numbers are finite would wait for the device.
            if m.works_on_arrays or (complete and any([x.__class__ in BACKENDS for x in grads])):
                found = self._input_grads(needs, grads, y, inputs, numbers)
                if not complete:
                    found = [g if one else None for g, one in zip(found, self.reached_by(grads), strict=True)]
                if complete or all([x is None or np.isfinite(x).all() for x in found]):
                    return found
                # Zeros stood for the gradients of unused outputs, and zero times infinity is NaN.
            symbols = self._symbols_of([x.shape for x in inputs], numbers)
            return self._input_grads_by_ops(m, needs, grads, inputs, symbols)

        # All inputs of the gradient op by op, which may be more than the backward program needs.
        kept = {id(step) for step in in_order([g for g in self.input_grads if g is not None])}
        names = [f"x{i}" if id(v.step) in kept else f"x{i}_spec" for i, v in enumerate(self.inputs)]
        kind = inspect.Parameter.POSITIONAL_ONLY
        rule.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(n, kind) for n in ("m", "needs", "g", "y" if reads_output else "_y", *names)]
        )
        return rule

    @property
    def op_outputs(self) -> list[Value]:
        """The outputs of the op: those of the function, and further values that the gradient needs."""
        return [*self.outputs, *self.hidden]

    def reached_by(self, grads: Sequence[Any]) -> list[bool]:
        """For each input, whether it gets a gradient from those of the outputs; an output that is not used has None."""
        used = tuple([g is not None for g in grads])
        if used not in self._reached:
            outputs = [v for v, one in zip(self.outputs, used, strict=True) if one]
            self._reached[used] = reached(outputs, self.inputs)
        return self._reached[used]

    @property
    def shares_memory(self) -> bool:
        """Does an output share memory with an input, a constant or another output?"""
        return bool(self._copied)

    @property
    def factored(self) -> FusedProgram:
        """The backward program that gives the gradients of `whole`, then the factors of the others."""
        if self._factored is None:
            factors = [v for f in self.factors for v in (f.gradient, f.x) if v is not None]
            wanted = [*[self._lowered_grads[i] for i in self.whole], *factors]
            self._factored = FusedProgram(f"{self.name}_backward", *standing_on(wanted, self.needed))
        return self._factored

    def reads(self, later: int, earlier: int) -> bool:
        """Is one output computed from another one, so that its gradient is a part of the other's?"""
        return earlier < len(self.outputs) and later in self._readers[earlier]

    def may_be_zero(self, missing: Sequence[bool]) -> bool:
        """May zeros stand for the gradients of outputs that have none? They may if another output that has one is
        computed from such an output: then zero is added to a gradient before anything multiplies it. (Zero times
        infinity would be NaN.)"""
        given = {j for j, lacks in enumerate(missing) if not lacks}
        return all([not lacks or not given.isdisjoint(self._readers[i]) for i, lacks in enumerate(missing)])

    @cached_property
    def _readers(self) -> list[set[int]]:
        found: list[set[int]] = [set() for _ in self.outputs]
        for number, output in enumerate(self.outputs):
            waiting, seen = [output.step], set()
            while waiting:
                step = waiting.pop()
                if id(step) in seen or step.op is None or step.op.vjp is None:
                    continue
                seen.add(id(step))
                for value in step.inputs:
                    waiting.append(value.step)
                    for i, other in enumerate(self.outputs):
                        if value is other and i != number:
                            found[i].add(number)
        return found

    # -- running

    def _forward(self, *arrays: Array, numbers: tuple[float, ...] = ()) -> Any:
        target = target_of(arrays)
        key = (target, numbers, *[a.shape for a in arrays])
        bound = self._bound.get(key)
        if bound is None:
            if len(self._bound) >= _BOUND:
                self._bound.clear()
            symbols = self._symbols_of([a.shape for a in arrays], numbers)
            bound = self._bound[key] = Bound(self.forward, symbols, target)
        made = bound(arrays)
        for i in self._copied:
            made[i] = copied(made[i])
        return tuple(made) if len(made) > 1 else made[0]

    def _input_grads(
        self, needs: Any, grads: list[Any], y: Any, inputs: Sequence[Any], numbers: tuple[float, ...]
    ) -> list[Any]:
        """Run the backward program on arrays."""
        assert self.backward is not None
        made = iter(self._run_backward(self.backward, grads, y, inputs, numbers))
        return self._spread([None if g is None else next(made) for g in self.input_grads], needs)

    def factored_grads(
        self, needs: Any, g: Any, y: Any, inputs: Sequence[Any], numbers: tuple[float, ...] = ()
    ) -> tuple[list[Any], list[Factors]]:
        """Gradients of the inputs, and for those that are None the arrays of their factors: where many such
        gradients are added, one product of all rows takes less time than many. `g` has a gradient of every output."""
        grads = list(g[: len(self.outputs)]) if len(self.op_outputs) > 1 else [g]
        made = self._run_backward(self.factored, grads, y, inputs, numbers)
        found: list[Any] = [None] * len(self.inputs)
        for i, array in zip(self.whole, made, strict=False):
            found[i] = array if needs[i] else None
        arrays = iter(made[len(self.whole) :])
        return found, [f._replace(gradient=next(arrays), x=None if f.x is None else next(arrays)) for f in self.factors]

    def _run_backward(
        self, program: FusedProgram, grads: list[Any], y: Any, inputs: Sequence[Any], numbers: tuple[float, ...]
    ) -> list[Array]:
        target = target_of(grads)
        key = (target, program is self.backward, numbers, *[x.shape for x in inputs])
        found = self._backward_bound.get(key)
        if found is None:
            if len(self._backward_bound) >= _BOUND:
                self._backward_bound.clear()
            symbols = self._symbols_of([x.shape for x in inputs], numbers)
            found = self._backward_bound[key] = (Bound(program, symbols, target), symbols)
        bound, symbols = found
        several = len(self.op_outputs) > 1
        arrays = []
        for kind, i in self.sources:
            if kind == "input":
                arrays.append(inputs[i])
            elif kind == "output":
                arrays.append(y[i] if several else y)
            else:
                arrays.append(_zeros(self.outputs[i], symbols, grads) if grads[i] is None else as_array(grads[i]))
        return bound(arrays)

    def _by_ops(self, m: Any, *inputs: Any, numbers: tuple[float, ...] = ()) -> Any:
        """All outputs op by op, for a larger graph that decomposes the function."""
        symbols = self._symbols_of([x.shape for x in inputs], numbers)
        known: dict[Value, Any] = dict(zip(self.inputs, inputs, strict=True))
        made = by_ops(m, [*self.outputs, *self.forward.outputs[len(self.outputs) :]], known, symbols)
        return tuple(made) if len(made) > 1 else made[0]

    def _spread(self, input_grads: list[Any], needs: Any) -> list[Any]:
        found: list[Any] = [None] * len(self.inputs)
        for i, g in zip(self.wanted, input_grads, strict=True):
            found[i] = g if needs[i] else None
        return found

    def _input_grads_by_ops(self, m: Any, needs: Any, grads: list[Any], inputs: Sequence[Any], symbols: Any) -> Any:
        """The gradient op by op on tensors, so that it can be differentiated again."""
        known: dict[Value, Any] = dict(zip(self.inputs, inputs, strict=True))
        known |= {v: g for v, g in zip(self.given, grads, strict=True) if g is not None}
        input_grads = self.input_grads
        used = [i for i, g in enumerate(grads) if g is not None]
        if len(used) < len(grads):
            by = [self.inputs[i] for i in self.wanted]
            input_grads = gradients([self.outputs[i] for i in used], [self.given[i] for i in used], by)
        made = iter(by_ops(m, [g for g in input_grads if g is not None], known, symbols))
        return self._spread([None if g is None else next(made) for g in input_grads], needs)

    # -- the other rules of a record

    def _infer(self, *specs: Spec, numbers: tuple[float, ...] = ()) -> Any:
        symbols = self._symbols_of([s.shape for s in specs], numbers)
        made = tuple(Spec(evaluated(v.shape, symbols), OF_NUMPY[v.dtype]) for v in self.op_outputs)
        return made if len(made) > 1 else made[0]

    def _work(self, inputs: Sequence[Any], outputs: Sequence[Any], attrs: dict[str, Any]) -> int | None:
        """The sum over the ops inside."""
        if None in inputs:
            return None
        return traced_flops(self.outputs, self._symbols_of(inputs, attrs.get("numbers", ())))

    def _batch(
        self, m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
    ) -> Any:
        """Op by op, with the batch rules of the ops."""
        shapes = [tuple(x.shape)[b:] for x, b in zip(inputs, batched, strict=True)]
        symbols = self._symbols_of(shapes, attrs.get("numbers", ()))
        known = dict(zip(self.inputs, inputs, strict=True))
        flags = dict(zip(self.inputs, batched, strict=True))
        made = by_ops(m, self.outputs, known, symbols, size, flags)
        lowered = self.forward.outputs[len(self.outputs) :]
        if lowered:
            made += by_ops(m, lowered, known, symbols, size, flags)
        whole = [x if flags.get(v) else m.expand(x, shape=(size, *x.shape))
                 for v, x in zip([*self.outputs, *lowered], made, strict=True)]  # fmt: skip
        return tuple(whole) if len(whole) > 1 else whole[0]


def _before_moves(grad: Value) -> Value:
    """What a gradient is made of by moving numbers, whatever the sizes of a call are."""
    while grad.step.op is not None and grad.step.op.family == "movement" and len(grad.step.inputs) == 1:
        if symbols_in(grad.step.attrs):
            break
        grad = grad.step.inputs[0]
    return grad


def _finish(found: Value, grad: Value) -> Callable[[Array], Any] | None:
    """What makes a gradient from a product or a sum of rows; None if it is that."""

    def finish(array: Array) -> Any:
        backend = BACKENDS.get(array.__class__)
        return by_ops(raw_ops if backend is None else backend.ops, [grad], {found: array}, ())[0]

    return None if found is grad else finish


def by_ops(
    m: Any,
    values: Sequence[Value],
    known: dict[Value, Any],
    symbols: Any,
    size: int = 0,
    batched: dict[Value, bool] | None = None,
) -> list[Any]:
    """Compute values op by op with `m`; with `batched`, for a whole batch, and values that become batched are added
    there."""
    for step in in_order(values, {id(v.step) for v in known}):
        if all(v in known for v in step.outputs):
            continue
        if step.op is None:
            what = step.data
            array = np.asarray(value_of(formula_of(what), symbols), step.outputs[0].dtype)
            # The op that uses it converts it to its own type of operand.
            known[step.outputs[0]] = array if step.name == "number" else what
            continue
        # The gradient of a slice is sparse, but what computes with it wants an array.
        inputs = tuple(x.dense() if x.__class__ is Rows else x for x in [known[v] for v in step.inputs])
        flags = tuple(bool(batched and batched.get(v)) for v in step.inputs)
        attrs = evaluated(step.attrs, symbols)
        if step.op is STOP:
            made = inputs[0].detach() if hasattr(inputs[0], "detach") else inputs[0]
        elif any(flags):
            made = step.op.batch(m, size, inputs, flags, attrs)
        else:
            made = getattr(m, step.op.name)(*inputs, **attrs)
        several = isinstance(made, (tuple, list))
        for v, x in zip(step.outputs, made if several else (made,), strict=True):
            known[v] = x
            if batched is not None:
                batched[v] = any(flags)
    return [known[v] for v in values]


def _zeros(v: Value, symbols: Sequence[Any], beside: Sequence[Any]) -> Any:
    """Zeros in the place of a gradient, on the device of the others."""
    made = np.broadcast_to(np.zeros((), v.dtype), evaluated(v.shape, symbols))
    there = next((g for g in beside if g.__class__ in BACKENDS), None)
    return made if there is None else BACKENDS[there.__class__].constant(made, device_of(there))


def _shared(outputs: Sequence[Value], inputs: Sequence[Value], hidden: Sequence[Value]) -> list[int]:
    """The outputs that share memory with an input, a constant or another output: they are copied."""
    seen = {*inputs, *hidden}
    found = []
    for i, v in enumerate(outputs):
        while v.step.op is not None and v.step.op.view:
            v = v.step.inputs[0]
        if v in seen or v.step.op is None:
            found.append(i)
        seen.add(v)
    return found
