"""A value that is stored late, and that an earlier loop computes for itself, is computed by every loop before that."""

import pytest

import wayfare as wf

W = wf.tensor(0.9, dtype=wf.float64)


def first(x):
    return x[0].sin() * x[1].sin() + x.sum().sin() * (W * 1)


def second(x):
    return x[0] ** 2 * x[1] ** 3 * W + x.sum().pow(3) * W.exp()


@pytest.mark.parametrize("function", [first, second])
def test_a_replay_reads_nothing_before_it_is_there(function):
    def columns(x):
        push = lambda t: wf.func.jvp(function, (x,), (t,))[1]
        return wf.vmap(push)(wf.ones(2, 2, dtype=wf.float64))

    run = wf.compile(columns, check=False)
    for start in (0.7, 0.5, 0.9, -0.3):
        x = wf.tensor([start, -0.4], dtype=wf.float64, requires_grad=True)
        y, want = run(x), columns(x)
        wf.testing.assert_close(y, want)
        # The gradient from outside makes W * 1 something to be kept, and writes to the memory of the plan.
        wf.testing.assert_close(wf.autograd.grad(y.sum(), x), wf.autograd.grad(want.sum(), x))
