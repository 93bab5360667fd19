"""The backward pass of a call if only some results have a gradient, or only some inputs need one.

The recorded backward pass begins from all results. Steps that depend only on results without a gradient are removed, as
the engine does not visit them either. Zeros instead would turn gradients that are None into zeros, and make NaN of zero
times infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.compiler.record.backward import ARRIVES, LEAVES
from wayfare.core.errors import WayfareError
from wayfare.core.op import REGISTRY, VALUE
from wayfare.ir.graph import Step, Value, in_order, leaf, run
from wayfare.ir.vjp import rule_of, vjp_inputs, vjp_op

_ADD = REGISTRY["add"]


class PartialBackward:
    """The part of a backward pass that starts from some seeds and is needed for some targets.

    `values` are the new targets, None where no gradient arrives; `steps` the ids of the recorded steps that remain,
    last first.
    """

    def __init__(
        self, seeds: Sequence[Value], arrived: Sequence[bool], targets: Sequence[Value], needs: Sequence[bool]
    ) -> None:
        # For each value that depends on seeds: is there a gradient?
        self._there: dict[Value, bool] = dict(zip(seeds, arrived, strict=True))
        order = in_order(targets)
        for step in order:
            self._follow(step)
        there = [need and self._there.get(v, True) for v, need in zip(targets, needs, strict=True)]
        self._live: set[Value] = {v for v, here in zip(targets, there, strict=True) if here}
        self.steps: dict[int, None] = {}
        for step in reversed(order):
            self._mark_needed(step)
        self._new: dict[Value, Value] = {}
        for step in order:
            if id(step) in self.steps:
                self._rebuild(step)
        self.values = [self._now(v) if here else None for v, here in zip(targets, there, strict=True)]

    def _now(self, value: Value) -> Value:
        return self._new.get(value, value)

    # -- which gradients exist

    def _follow(self, step: Step) -> None:
        """Find out which outputs of a step have a gradient."""
        if step.op is None or not any(v in self._there for v in step.inputs):
            return
        there = [self._there.get(v, True) for v in step.inputs]
        if step.op is ARRIVES:
            here = True  # zeros, if there is no gradient but the Function is called
        elif step.op is LEAVES:
            here = any(there[1:])
        elif step.op.family == "vjp":
            came = there[: sum(rule_of(step.op).arrived)]
            given = range(len(step.outputs)) if all(came) else _given(step, came) if any(came) else ()
            self._there.update((v, v.position in given) for v in step.outputs)
            return
        else:
            here = any(there[i] for i, v in enumerate(step.inputs) if v in self._there)
        self._there.update((v, here) for v in step.outputs)

    # -- which steps are needed

    def _mark_needed(self, step: Step) -> None:
        """If an output of a step is needed, so are its inputs."""
        if step.op is None or not any(v in self._live for v in step.outputs):
            return
        if not any(v in self._there for v in step.inputs):
            return  # a step of the forward pass, or of a custom Function on its values
        self.steps[id(step)] = None
        inputs = step.inputs
        if step.op.family == "vjp":
            inputs = tuple(step.inputs[i] for i in self._narrowed(step)[1])
        self._live.update(v for v in inputs if self._there.get(v))

    def _narrowed(self, step: Step) -> tuple[Any, list[int], list[int]]:
        """A vjp step reduced to the gradients that exist and those that are needed: its op, and the numbers of the
        inputs and outputs that it keeps."""
        assert step.op is not None
        rule = rule_of(step.op)
        numbers = iter(range(len(step.inputs)))
        grads = [next(numbers) if there else None for there in rule.arrived]
        made: list[int | None] = [None] * len(rule.outputs)
        if rule.of_output == VALUE:
            for i in rule.read:
                made[i] = next(numbers)
        taken = [next(numbers) if how == VALUE else None for how in rule.of_inputs]
        grads = [None if i is None or not self._there.get(step.inputs[i], True) else i for i in grads]
        wanted = [v.position for v in step.outputs if v in self._live]
        given = tuple(rule.given[i] for i in wanted)
        needs = tuple(i in given for i in range(len(rule.needs)))
        if given == rule.given and all(self._there.get(v, True) for v in step.inputs):
            return step.op, list(range(len(step.inputs))), wanted
        op = vjp_op(rule.op, needs, tuple(i is not None for i in grads), given, rule.outputs, rule.inputs)
        return op, vjp_inputs(rule.op, needs, grads, made, taken), wanted

    # -- the remaining steps

    def _rebuild(self, step: Step) -> None:
        inputs = step.inputs
        op: Any = step.op
        if op is ARRIVES:
            self._new[step.outputs[0]] = self._now(inputs[0]) if self._there.get(inputs[0], True) else _zeros(inputs[0])
            return
        if op is LEAVES:
            self._new[step.outputs[0]] = self._now(inputs[0])
            return
        outputs = list(range(len(step.outputs)))
        if op.family == "vjp":
            op, numbers, outputs = self._narrowed(step)
            inputs = tuple(inputs[i] for i in numbers)
        elif not all(self._there.get(v, True) for v in inputs):
            present = [v for v in inputs if self._there.get(v, True)]
            if op is _ADD:
                self._new[step.outputs[0]] = self._now(present[0])
                return
            inputs = tuple(v if self._there.get(v, True) else _zeros(v) for v in inputs)
        now = tuple(self._now(v) for v in inputs)
        if op is step.op and all(a is b for a, b in zip(now, step.inputs, strict=True)):
            return
        copy = Step(op, now, step.attrs)
        old = [step.outputs[i] for i in outputs]
        copy.outputs = tuple([Value(copy, i, v.shape, v.dtype) for i, v in enumerate(old)])
        self._new.update(zip(old, copy.outputs, strict=True))


def _given(step: Step, came: Sequence[bool]) -> Sequence[int]:
    """The outputs of a vjp step for which its rule returns a gradient if only some gradients exist."""
    assert step.op is not None
    rule = rule_of(step.op)
    everything = range(len(rule.given))
    if not rule.op.takes_none:
        return everything
    there = iter(came)
    arrived = tuple([a and next(there) for a in rule.arrived])
    try:
        found = rule_of(vjp_op(rule.op, rule.needs, arrived, rule.given, rule.outputs, rule.inputs)).traced(step.attrs)
    except (WayfareError, NotImplementedError, TypeError, AttributeError, IndexError, ValueError):
        return everything  # the rule reads numbers, which a trace does not have
    return [position for position, i in enumerate(rule.given) if found[i] is not None]


def _zeros(v: Value) -> Value:
    return run("expand", leaf("number", 0, (), v.dtype), shape=v.shape)  # type: ignore[no-any-return]
