"""Every op record, checked from the record itself (see wayfare.api.testing.every_op)."""

import inspect

import numpy as np
import pytest

import wayfare  # noqa: F401 - fills the registry
from wayfare.api.testing import every_op
from wayfare.core.dispatch import tensor_ops
from wayfare.core.op import REGISTRY, Op, Sample, joint, raw_ops, register
from wayfare.ops._define import elementwise

ALL = sorted(REGISTRY)
DETERMINISTIC = [name for name in ALL if not REGISTRY[name].random]
DIFFERENTIABLE = [name for name in DETERMINISTIC if REGISTRY[name].vjp is not None]


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_value_agrees_with_the_reference(name):
    every_op.check_values(REGISTRY[name])


@pytest.mark.parametrize("name", ALL)
def test_shape_and_dtype_rule_agrees_with_what_comes_out(name):
    every_op.check_shape_rule(REGISTRY[name])


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_first_gradient_agrees_with_finite_differences(name):
    every_op.check_gradient(REGISTRY[name])


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_second_gradient_agrees_with_finite_differences_of_the_first(name):
    every_op.check_second_gradient(REGISTRY[name])


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_batch_rule_agrees_with_a_loop(name):
    every_op.check_batch_rule(REGISTRY[name])


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_rules_have_a_parameter_per_output_and_input(name):
    op = REGISTRY[name]
    op.keeps((True,) * len(next(every_op.samples_of(op)).inputs))
    rules = [op.vjp.rule] if isinstance(op.vjp, joint) else [r for r in op.vjp if r is not None]
    for rule in rules:
        assert next(iter(inspect.signature(rule).parameters)) == "m"


def test_raw_and_tensor_namespaces_offer_every_op():
    for name in ALL:
        assert callable(getattr(raw_ops, name))
        assert callable(getattr(tensor_ops, name))


def test_an_incomplete_record_is_refused_by_name():
    with pytest.raises(ValueError, match="'half_done' lacks infer, reference"):
        register(Op("half_done", "other", forward=abs, infer=None, vjp=None, batch=abs, samples=abs, reference=None))


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="'add' is registered twice"):
        elementwise("add", arity=2, reference=max)


@pytest.fixture
def wrong_op():
    """A record with every claim wrong in a way a check must find."""
    op = elementwise(
        "wrong_for_the_tests", formula=lambda m, x: x * x * x, reference=lambda x: x * x,
        vjp=lambda m, g, _y, x: g * (3 * x),
    )  # fmt: skip
    yield op
    del REGISTRY[op.name]


@pytest.mark.parametrize("check", ["check_values", "check_gradient"])
def test_the_checks_can_fail(wrong_op, check):
    with pytest.raises(AssertionError):
        getattr(every_op, check)(wrong_op)


def test_the_second_gradient_check_can_fail(wrong_op):
    # Right on raw arrays, wrong on tensors: the recorded gradient misses a dependency on x.
    wrong_op.vjp = (lambda m, g, _y, x: g * (3 * x * x if not m.differentiable else (3 * x * x).detach()),)
    with pytest.raises(AssertionError):
        every_op.check_second_gradient(wrong_op)


def test_the_batch_and_shape_checks_can_fail(wrong_op):
    wrong_op.batch = lambda m, size, inputs, batched, attrs: m.mul(inputs[0], inputs[0])
    with pytest.raises(AssertionError):
        every_op.check_batch_rule(wrong_op)
    wrong_op.infer = lambda x: x.__class__((7,), x.dtype)
    with pytest.raises(AssertionError):
        every_op.check_shape_rule(wrong_op)


def test_a_record_without_samples_is_found(wrong_op):
    wrong_op.samples = lambda rng: []
    with pytest.raises(AssertionError, match="no samples"):
        every_op.check_values(wrong_op)


def test_samples_are_the_same_each_time():
    first = [s.inputs for s in every_op.samples_of(REGISTRY["mul"])]
    second = [s.inputs for s in every_op.samples_of(REGISTRY["mul"])]
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert isinstance(next(every_op.samples_of(REGISTRY["mul"])), Sample)
