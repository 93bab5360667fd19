"""Faults inside a compiled function: the error on the user's line, everything left as plain Python leaves it, and the
next call works."""

import signal
import threading
import warnings

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.checks import CALLS, check, equal, numbers, x_of
from wayfare import nn
from wayfare.codegen.llvm.machine import machine
from wayfare.codegen.runtime import kernel
from wayfare.core.config import settings
from wayfare.errors import IndexRangeError, ShapeError, WayfareError

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


class Training:
    """A model and its optimiser, with all their numbers to look at."""

    def __init__(self):
        wf.manual_seed(0)
        # No bias: the statistics take it out again, so its gradient would be rounding noise, which Adam scales up.
        self.model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 2)).double()
        self.optimizer = wf.optim.Adam(self.model.parameters(), lr=0.05)
        self.log = []

    def numbers(self):
        """Parameters, statistics, gradients and the optimiser's state."""
        moments = [value for entry in self.optimizer.state.values() for value in entry.values()]
        grads = [p.grad for p in self.model.parameters()]
        return [[t.detach().clone() for t in found if isinstance(t, wf.Tensor)]
                for found in (self.model.state_dict().values(), moments, grads)]  # fmt: skip


def both(step, schedule):
    """Run the same calls plainly and compiled; errors and everything left behind must agree after each of them."""
    plain, mine = Training(), Training()
    compiled = wf.compile(lambda *args: step(mine, *args))
    for number, args in enumerate(schedule):
        errors, results = [], []
        for call in (lambda *a: step(plain, *a), compiled):
            wf.manual_seed(number)
            try:
                results.append(call(*args()))
                errors.append(None)
            except Exception as error:
                errors.append(error)
        assert type(errors[0]) is type(errors[1]), (number, errors)
        assert str(errors[0]) == str(errors[1])
        if errors[0] is None:
            equal(results[1], results[0])
        equal(mine.numbers(), plain.numbers())
    return errors


def good(seed=0, size=5):
    return lambda: (numbers(size, 4, seed=seed),)


def bad():
    return (numbers(5, 3),)


# -- errors of ops -----------------------------------------------------------------------------------------------------


def test_a_shape_error_names_the_users_line():
    def f(x, w):
        h = x * 2
        return h @ w  # this line

    compiled = wf.compile(f)
    line = f.__code__.co_firstlineno + 2
    for size in (4, 4, 4, 3, 4, 3, 3, 4):
        x, w = numbers(2, size), numbers(4, 2)
        if size == 4:
            equal(compiled(x, w), f(x, w))
        else:
            with pytest.raises(ShapeError, match=rf"matmul: inner sizes differ.*test_faults.py:{line}\)"):
                compiled(x, w)


def test_an_error_in_the_middle_of_a_step_leaves_what_plain_python_leaves():
    def step(own, x):
        own.optimizer.zero_grad()
        loss = own.model[:2](x)
        loss = own.model[2](loss).square().sum()
        loss.backward()
        own.optimizer.step()
        return loss

    both(step, [good(0), good(1), good(2), bad, good(3), bad, bad, good(4), good(5)])


def test_an_error_after_statistics_were_updated():
    def step(own, x):
        h = own.model[:2](x)  # the statistics of the batch norm are updated here
        own.optimizer.zero_grad()
        loss = own.model[2](h)[:, : x.shape[0] // 3].square().sum()
        loss = loss / wf.ones(x.shape[0] - 5)[0]  # of size 0 when there are five rows
        loss.backward()
        own.optimizer.step()
        return loss

    both(step, [good(0, 6), good(1, 6), good(2, 6), good(3, 6), good(4, 5), good(5, 6), good(6, 5), good(7, 6)])


def test_an_index_out_of_range_that_values_decide():
    table = numbers(5, 3, seed=3, grad=True)
    embed = nn.Embedding(5, 3).double()

    def step(own, x, index):
        own.optimizer.zero_grad()
        rows = wf.cat([table[index], embed(index.abs())], -1)
        loss = own.model(x).square().sum() * rows.square().sum()
        loss.backward()
        own.optimizer.step()
        return loss

    def call(*index):
        return lambda: (numbers(5, 4), wf.tensor(index))

    fine, wrong = call(0, 3, 4), call(0, 5, 1)
    both(step, [fine, call(1, 1, 2), fine, fine, wrong, fine, wrong, call(-6, 0, 0), fine])
    compiled = wf.compile(lambda i: table[i])
    for _ in range(CALLS):
        compiled(wf.tensor([0, 1]))
    with pytest.raises(IndexRangeError, match=r"index.*test_faults.py:\d+"):
        compiled(wf.tensor([0, 9]))


def test_an_error_inside_backward():
    class Touchy(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            if float(x.max()) > 100:
                raise ValueError("too large to differentiate")
            return g * 2

    def step(own, x):
        own.optimizer.zero_grad()
        loss = Touchy.apply(own.model[0](x)).sum()
        loss.backward()
        own.optimizer.step()
        return loss

    large = lambda: (numbers(5, 4) * 1e4,)
    both(step, [good(0), good(1), good(2), large, good(3), large, large, good(4)])


def test_a_linear_algebra_error_that_values_decide():
    def f(x):
        return wf.linalg.cholesky(x @ x.T - 0.1 * wf.eye(3, dtype=x.dtype)).sum()

    compiled = wf.compile(f)
    for scale in (1.0, 1.0, 1.0, 0.0, 1.0, 0.0):
        x = numbers(3, 5, seed=4) * scale
        if scale:
            equal(compiled(x), f(x))
        else:
            with pytest.raises(WayfareError, match="cholesky"):
                compiled(x)


# -- errors of Python --------------------------------------------------------------------------------------------------


class OwnError(Exception):
    pass


def test_an_exception_of_the_users_own_in_the_fifth_call():
    def step(own, x, number):
        own.optimizer.zero_grad()
        loss = own.model(x).square().sum()
        loss.backward()
        if number == 4:
            raise OwnError("the fifth call")
        own.optimizer.step()
        return loss

    both(step, [lambda n=n: (numbers(5, 4, seed=n), n) for n in (0, 0, 0, 1, 4, 0, 4, 1)])


def test_an_exception_that_a_value_decides():
    def step(own, x):
        own.optimizer.zero_grad()
        loss = own.model(x).square().sum()
        loss.backward()
        if loss > 1e6:
            raise OwnError(f"the loss is {loss.item():.3e}")
        assert bool(wf.isfinite(loss)), "not finite"
        own.optimizer.step()
        return loss

    spoilt = lambda: (wf.full((5, 4), float("nan"), dtype=wf.float64),)

    def large():
        return (numbers(5, 4) * 1e30,)

    both(step, [good(0), good(1), good(2), spoilt, good(3), large, good(4), spoilt, good(5)])


def test_an_exception_caught_inside():
    def f(x):
        try:
            h = x @ wf.ones(x.shape[1] + 1)
        except RuntimeError as error:
            return x * 2, str(error).split(",")[0]
        return h

    check(f, x_of)


def test_cleanup_code_runs():
    log = []

    def f(x):
        try:
            return x @ wf.ones(4, dtype=wf.float64)
        finally:
            log.append(x.shape)

    compiled = wf.compile(f)
    for size in (4, 4, 4, 3, 4):
        try:
            compiled(numbers(2, size))
        except ShapeError:
            assert size == 3
    assert [tuple(s) for s in log] == [(2, 4), (2, 4), (2, 4), (2, 3), (2, 4)]


def test_modes_are_restored_after_an_error():
    @wf.compile
    def f(x, fail):
        with wf.no_grad():
            h = x * 2
            if fail:
                raise OwnError
        return h

    for fail in (False, False, False, True, False, True):
        try:
            f(x_of(0), fail)
        except OwnError:
            assert fail
        assert wf.is_grad_enabled() and (x_of(0) * 2).requires_grad


# -- interrupts --------------------------------------------------------------------------------------------------------


def interrupting(after):
    """A function that raises KeyboardInterrupt at the given call."""
    count = [0]

    def maybe():
        count[0] += 1
        if count[0] == after:
            raise KeyboardInterrupt

    return maybe


@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupt_while_it_is_recorded(at):
    maybe = interrupting(at)

    class Nervous(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            maybe()
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g

    w = numbers(4, grad=True)

    def step(x):
        loss = Nervous.apply((x * w).sin()).sum()
        loss.backward()
        with wf.no_grad():
            w.sub_(w.grad, alpha=0.1)
        w.grad = None
        return loss.detach()

    compiled, interrupted = wf.compile(step), 0
    for call in range(6):
        before = w.detach().clone()
        try:
            got = compiled(numbers(4, seed=call))
        except KeyboardInterrupt:
            interrupted += 1
            equal(w.detach(), before)
            assert wf.is_grad_enabled() and (w * 2).requires_grad and (wf.ones(2) * 2).tolist() == [2.0, 2.0]
            w.grad = None
            continue
        want = (numbers(4, seed=call) * before).sin().sum()
        equal(got, want)
    assert interrupted == 1


def test_interrupts_at_any_moment():
    """A timer presses Ctrl-C again and again, whatever is going on: recording, planning, running."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("only the main thread hears Ctrl-C")
    wf.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()

    def f(x):
        h = model(x)
        return h * 2 if h.sum() > 0 else h.softmax(-1)

    def press(signum, frame):
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, press)
    rng, interrupted = np.random.default_rng(0), 0
    try:
        for _ in range(25):
            compiled = wf.compile(f)
            for call in range(6):
                x = numbers(3 + call % 2, 4, seed=call)
                try:
                    signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-4, 4e-3)))
                    got = compiled(x)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    interrupted += 1
                    got = compiled(x)
                assert wf.is_grad_enabled()
                equal(got, f(x))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


# -- kernels that cannot be built --------------------------------------------------------------------------------------


@pytest.mark.skipif(not kernel.available(), reason="nothing is built without llvmlite")
@pytest.mark.parametrize("culprit", ["object_code", "load", "address"])
def test_a_kernel_that_cannot_be_built(monkeypatch, culprit):
    def fails(*args, **kwargs):
        raise RuntimeError("LLVM has a bad day")

    def f(x, w):
        h = (x @ w).tanh() * 0.731 + x.cos().sum(1, keepdim=True) * 1.137
        return h.softmax(-1) - 0.5173

    monkeypatch.setattr(type(machine()), culprit, fails)
    monkeypatch.setattr(settings, "cache_folder", None)
    monkeypatch.setattr(kernel, "_kernels", {})  # what is broken here must not stay broken
    monkeypatch.setattr(kernel, "_warned", set())
    compiled, told = wf.compile(f), []
    for call in range(6):
        found = []
        for way in (compiled, f):
            x, w = x_of(call), numbers(4, 2, seed=1, grad=True)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                out = way(x, w)
                out.square().sum().backward()
            told += [str(w.message) for w in caught]
            found.append([out, x.grad, w.grad])
        equal(*found)
    assert len(told) == len(set(told)), "the same warning twice"
    assert all("LLVM has a bad day" in text for text in told)


def test_an_error_before_gradients_are_dropped_leaves_them():
    """The function drops the old gradients after its forward pass: where that fails they are still there."""

    def step(own, x, labels):
        loss = nn.functional.cross_entropy(own.model(x), labels)
        own.optimizer.zero_grad()
        loss.backward()
        own.optimizer.step()
        return loss

    def call(*labels):
        return lambda: (numbers(5, 4), wf.tensor(labels))

    fine, wrong = call(0, 1, 0, 1, 0), call(0, 1, 9, 1, 0)
    both(step, [fine, fine, fine, wrong, wrong])
