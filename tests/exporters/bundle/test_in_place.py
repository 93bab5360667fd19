"""Programs of functions that write in place: to what they made themselves, through views, to their own inputs."""

import numpy as np
import pytest

import wayfare as wf

F = wf.nn.functional


def _then_more(x):
    y = x * 2
    y += 1
    y[0] = 3
    return y


def _through_a_view(x):
    y = x.clone()
    y[1:3].mul_(2)
    return y


def _view_seen_after(x):
    y = x * 1
    part = y[1:3]
    y.add_(5)
    part.mul_(2)
    return y, part


def _to_an_input(x):
    x.add_(1)
    return x * 2


def _in_a_loop(x):
    total = wf.zeros(5)
    for row in x.expand(3, 5):
        total += row
        total[0] = row[1]
    return total


def _under_no_grad(x):
    y = x * 3
    with wf.no_grad():
        y.clamp_(0.2, 1.0)
    return y


def _filled(x):
    y = wf.empty(5)
    y.fill_(2.0)
    y.copy_(x)
    return y.index_fill_(0, wf.tensor([1]), 7.0)


CASES = {
    "tanh_": lambda x: (x * 1).tanh_(),
    "then more": _then_more,
    "a view": _through_a_view,
    "a view seen after": _view_seen_after,
    "an input": _to_an_input,
    "a view of an input": lambda x: x.view(5).mul_(2),
    "relu of an input": lambda x: F.relu(x, inplace=True),
    "in a loop": _in_a_loop,
    "no_grad": _under_no_grad,
    "filled": _filled,
    "reversed": lambda x: (x * 1).flip(0).sub_(0.25).neg_(),
    "transposed": lambda x: (x.expand(5, 5) * 1).t().triu_(),
}


def _listed(made):
    return list(made) if isinstance(made, tuple) else [made]


@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_the_function_gives(name, tmp_path):
    f, x = CASES[name], wf.rand(5)
    program = wf.export(f, (x.clone(),), tmp_path / "a.wf")
    again = wf.load_program(tmp_path / "a.wf", compiled=False)
    for t in (x, wf.rand(5) - 0.5):
        want = _listed(f(t.clone()))
        for made in (program(t.clone()), again(t.clone())):
            for a, b in zip(_listed(made), want, strict=True):
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)


def test_modules_in_place(tmp_path):
    net = wf.nn.Sequential(wf.nn.Linear(5, 5), wf.nn.ReLU(inplace=True), wf.nn.Linear(5, 2), wf.nn.Hardswish(True))
    program = wf.export(net, (wf.rand(5),), tmp_path / "a.wf")
    x = wf.randn(5)
    np.testing.assert_allclose(program(x).numpy(), net(x).detach().numpy(), rtol=1e-6)


def test_gradients_go_through_what_was_written(tmp_path):
    program = wf.export(_then_more, (wf.rand(5),), tmp_path / "a.wf")
    x, y = wf.ones(5, requires_grad=True), wf.ones(5, requires_grad=True)
    program(x).sum().backward()
    _then_more(y).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.grad.numpy())
