"""What lasts and what does not: results, caches, memory, kernels, and what is told about them."""

import gc
import sys
import weakref

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.checks import CALLS, equal, numbers, x_of
from wayfare import nn
from wayfare.core.counters import counted
from wayfare.nn import functional as F

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


def test_results_that_are_kept_never_change():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).double()
    compiled = wf.compile(lambda x: (model(x), x.sum(0), x[0] * 2))
    kept = []
    for call in range(30):
        got = compiled(numbers(3 + call % 2, 4, seed=call))
        kept.append((got, [t.detach().numpy().copy() for t in got]))
    for got, before in kept:
        for t, array in zip(got, before, strict=True):
            np.testing.assert_array_equal(t.detach().numpy(), array)


def test_a_result_fed_back_in_is_right():
    def f(h, x):
        return (h * 0.5 + x).tanh()

    compiled = wf.compile(f)
    mine = plain = numbers(4)
    for call in range(20):
        x = numbers(4, seed=call)
        mine, plain = compiled(mine, x), f(plain, x)
        equal(mine, plain)


def test_gradients_that_are_kept_never_change():
    w = numbers(4, 2, grad=True)

    @wf.compile
    def step(x):
        w.grad = None
        (x @ w).square().sum().backward()

    kept = []
    for call in range(12):
        step(numbers(3, 4, seed=call))
        kept.append((w.grad, w.grad.numpy().copy()))
    for got, before in kept:
        np.testing.assert_array_equal(got.numpy(), before)


def test_printing_happens_while_it_is_traced(capsys):
    @wf.compile
    def f(x):
        print("here")
        return x * 2

    for _ in range(10):
        f(wf.ones(2))
    printed = capsys.readouterr().out.count("here")
    assert 1 <= printed < 10


def test_python_is_not_run_again_once_a_path_is_planned():
    model = nn.Linear(4, 2)
    optimizer = wf.optim.Adam(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled, ran = wf.compile(step), []

    def watch(frame, event, argument):
        if event == "call" and frame.f_code is step.__code__:
            ran.append(1)

    for _ in range(CALLS):
        compiled(wf.ones(3, 4))
    sys.setprofile(watch)
    try:
        for _ in range(10):
            compiled(wf.ones(3, 4))
    finally:
        sys.setprofile(None)
    assert not ran


def test_no_kernel_is_built_after_the_first_few_lengths():
    wf.manual_seed(0)
    model = nn.LSTMCell(4, 8)
    head = nn.Linear(8, 2)
    optimizer = wf.optim.Adam([*model.parameters(), *head.parameters()])

    @wf.compile
    def step(x, y):
        optimizer.zero_grad()
        state = None
        for t in range(len(x)):
            state = model(x[t], state)
        loss = F.cross_entropy(head(state[0]), y)
        loss.backward()
        optimizer.step()
        return loss

    lengths = np.random.default_rng(0).permutation(np.repeat(np.arange(2, 14), 3)).tolist()
    target = wf.tensor([0, 1, 1])
    for length in [3, 3, 3, 5, 5, 5]:
        step(wf.randn(length, 3, 4), target)
    with counted() as during:
        for length in lengths:
            step(wf.randn(length, 3, 4), target)
    assert during.kernels_built + during.kernels_loaded <= 4


def kernels_for(compiled, sizes):
    """How many kernels came to be, by building or from the disk, for inputs of these widths."""
    with counted() as during:
        for size in sizes:
            x = wf.randn(4, size)
            for _ in range(3):
                assert compiled(x).shape == x.shape
    return during.kernels_built + during.kernels_loaded


def test_a_hundred_sizes_share_a_few_kernels():
    compiled = wf.compile(lambda x: F.layer_norm(x.tanh() * 2 + 1, x.shape[-1:]).softmax(-1))
    # Very short rows, short ones and long ones are laid out differently.
    assert kernels_for(compiled, [2, 5, 9, 90]) <= 8
    assert kernels_for(compiled, range(3, 103)) <= 2


def grown(call, first, more):
    """How many objects there are more after some further calls."""
    for number in range(first):
        call(number)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(first, first + more):
        call(number)
    gc.collect()
    return len(gc.get_objects()) - before


def test_sizes_do_not_fill_a_cache_without_end():
    compiled = wf.compile(lambda x: (x * 2).sin().sum())

    def call(number):
        for _ in range(2):
            compiled(wf.ones(number + 1))

    assert grown(call, 1300, 300) < 2000
    assert compiled(wf.ones(2)).item() == pytest.approx(2 * np.sin(2))


def test_python_arguments_do_not_fill_a_cache_without_end():
    compiled = wf.compile(lambda x, k: x * k)

    def call(number):
        assert compiled(wf.ones(1), number).item() == number

    assert grown(call, 1300, 300) < 2000


def test_outcomes_do_not_fill_a_tree_without_end():
    compiled = wf.compile(lambda x: x * x.sum().item())

    def call(number):
        assert compiled(wf.full((1,), float(number))).item() == float(number) ** 2

    assert grown(call, 1300, 300) < 2000


def test_states_of_captured_things_do_not_fill_a_cache_without_end():
    state = {"scale": 0}
    compiled = wf.compile(lambda x: x * state["scale"])

    def call(number):
        state["scale"] = number
        assert compiled(wf.ones(1)).item() == number

    assert grown(call, 1300, 300) < 2000


def test_a_compiled_function_and_what_it_captured_are_freed():
    def make():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).double()
        optimizer = wf.optim.Adam(model.parameters())

        @wf.compile
        def step(x):
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            return loss

        for call in range(CALLS):
            step(numbers(3, 4, seed=call))
        return step, weakref.ref(model), weakref.ref(model[0].weight)

    step, model, weight = make()
    assert model() is not None
    del step
    gc.collect()
    assert model() is None and weight() is None


def test_arguments_and_results_are_not_kept_alive(no_cycle_collector):
    compiled = wf.compile(lambda x: (x * 2).tanh())
    for call in range(6):
        x = x_of(call)
        out = compiled(x)
        dead = weakref.ref(x), weakref.ref(out)
        del x, out
        if call > 2:
            assert dead[1]() is None and dead[0]() is None


def test_many_calls_leave_no_objects_behind():
    model = nn.Linear(4, 2).double()
    optimizer = wf.optim.SGD(model.parameters(), lr=0.01)

    @wf.compile
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    for call in range(10):
        step(numbers(3, 4, seed=call))
    gc.collect()
    before = len(gc.get_objects())
    for call in range(300):
        step(numbers(3, 4, seed=call))
    gc.collect()
    assert len(gc.get_objects()) - before < 100


# -- what it tells -----------------------------------------------------------------------------------------------------


def test_explain_as_text_and_as_data():
    @wf.compile
    def f(x, k):
        if x.sum() > 0:
            return x * k
        return x - k

    for value in (1.0, 1.0, 1.0, -1.0, -1.0):
        f(wf.full((3,), value), 2)
    told = f.explain()
    assert isinstance(told.data, dict) and told.data
    assert "test_lifetime.py" in str(told)
    before = str(told)
    f(wf.ones(5), 2)
    assert str(f.explain()) != before


def test_check_compares_each_call_with_plain_python():
    state = {"scale": 1.0}

    @wf.compile(check=True)
    def honest(x):
        return x * state["scale"]

    for scale in (1.0, 1.0, 1.0, 2.0, 2.0):
        state["scale"] = scale
        assert honest(wf.ones(1)).item() == scale
