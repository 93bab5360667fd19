"""What does not depend on the arguments is computed once, when a plan is made, and not at every replay."""

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.checks import check, numbers
from wayfare.codegen.runtime import kernel

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


def plan_of(function, *args):
    """Counts of the plan that a function has after some calls."""
    compiled = wf.compile(function)
    for _ in range(3):
        compiled(*args)
    (kind,) = compiled.explain().data["signatures"]
    root = kind["variants"][0]["tree"]
    return root["plan"]


def masked(x):
    n = x.shape[-1]
    hidden = wf.ones(n, n).triu(1).bool()
    places = wf.sin(wf.arange(n).flip(0) * 0.3).clone()
    return (x + places).masked_fill(hidden, 0.0)


@pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")
def test_masks_and_tables_of_places_are_no_steps():
    plan = plan_of(masked, numbers(2, 6, 6))
    assert (plan["kernels"], plan["python_steps"]) == (1, 0)


@pytest.mark.parametrize("grad", [False, True])
def test_the_results_are_those_of_python(grad):
    check(masked, lambda call: numbers(2, 6, 6, seed=call, grad=grad))
    check(lambda x: x * wf.arange(6).reshape(2, 3).t()[::2].sum(), lambda call: numbers(3, seed=call, grad=grad))


def test_an_op_with_several_results():
    def f(x):
        found = wf.tensor([3.0, 1.0, 2.0]).sort()
        return x[found.indices] * found.values

    assert plan_of(f, numbers(3))["python_steps"] == 1
    check(f, lambda call: numbers(3, seed=call))


def test_a_constant_result_belongs_to_the_caller():
    f = wf.compile(lambda x: (x + 1, wf.arange(3) * 2, wf.ones(2) + 1))
    for _ in range(4):
        _, table, twos = f(numbers(2))
        assert table.tolist() == [0, 2, 4] and twos.tolist() == [2, 2]
        table.add_(5)
        twos.zero_()


def test_what_would_be_much_larger_is_computed_at_each_run():
    def f(x):
        n = x.shape[0]
        return wf.where(wf.arange(n)[:, None] >= wf.arange(n), x, 0.0)

    if kernel.available():
        assert plan_of(f, numbers(200, 200))["kernels"] == 1
    check(f, lambda call: numbers(200, 200, seed=call))


def test_a_number_stretched_is_no_reason_to_keep_what_is_computed_from_it():
    f = wf.compile(lambda x: x + (wf.zeros(200, 200, dtype=wf.float64) + wf.arange(200)))
    for call in range(3):
        x = numbers(200, 200, seed=call)
        assert wf.equal(f(x), x + wf.arange(200))
    ((entry,),) = f._cache.entries.values()
    assert sum(constant.nbytes for constant in entry.tree.root.plan.constants) < 4096


def test_random_numbers_are_drawn_at_each_call():
    f = wf.compile(lambda x: x + wf.bernoulli(wf.full((50,), 0.5)))
    x = wf.zeros(50)
    drawn = {f(x).numpy().tobytes() for _ in range(5)}
    assert len(drawn) == 5


def test_constants_that_python_changes_are_seen():
    scale = [2.0]
    f = wf.compile(lambda x: x * (wf.arange(3) * scale[0]).sum())
    for value in (2.0, 2.0, 3.0, 3.0):
        scale[0] = value
        assert np.allclose(f(wf.ones(2)).numpy(), 3 * value)


def test_gradients_of_leaves_made_inside():
    def f(x):
        w = wf.arange(3).float().requires_grad_()
        (w.exp() * 2).sum().backward()
        return x * w.grad

    check(f, lambda call: numbers(3, seed=call))
