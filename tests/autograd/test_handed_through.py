"""A custom Function that returns its argument, or a view: the memory is the argument's, the gradient the Function's."""

import pytest

import wayfare as wf
from wayfare.errors import InPlaceError

VIEWS = [lambda x: x, lambda x: x[:2], lambda x: x.view(3, 1)]


def passing(show):
    class Passing(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return show(x)

        @staticmethod
        def backward(ctx, g):
            return 7 * g

    return Passing


def leaf():
    return wf.tensor([1.0, 2.0, 3.0], dtype=wf.float64, requires_grad=True)


@pytest.mark.parametrize("show", VIEWS)
def test_a_write_while_recording_would_lose_the_gradient_of_the_function(show):
    h = leaf() * 1
    y = passing(show).apply(h)
    for write in (lambda: y.mul_(2), lambda: y[0].mul_(2), lambda: y.__setitem__(0, 5.0), lambda: y.detach_()):
        with pytest.raises(InPlaceError, match=r"Passing|detach_"):
            write()
    assert h.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("show", VIEWS)
def test_without_recording_a_write_reaches_the_argument(show):
    for make in (lambda y: y, lambda y: y.detach(), lambda y: y.data):
        h = leaf() * 1
        y = passing(show).apply(h)
        with wf.no_grad():
            make(y).mul_(2)
        assert h.tolist()[0] == 2.0 and y.detach().reshape(-1).tolist()[0] == 2.0


@pytest.mark.parametrize("show", VIEWS)
@pytest.mark.parametrize("target", ["argument", "result"])
def test_what_was_written_since_is_used_no_more(show, target):
    h = leaf() * 1
    y = passing(show).apply(h)
    part = y[0]
    with wf.no_grad():
        (h if target == "argument" else y).mul_(2)
    uses = (lambda: y * 2, lambda: y.sum(), lambda: part * 2, lambda: passing(show).apply(y), lambda: y.backward(y))
    for use in uses:
        with pytest.raises(InPlaceError, match="written in place since"):
            use()
    with wf.no_grad():
        assert (y * 2).reshape(-1)[0].item() == 4.0


def test_an_argument_cut_from_the_graph_in_forward_is_an_ordinary_result():
    x = leaf()
    y = passing(lambda t: t.detach()).apply(x)
    y.mul_(2)
    y.sum().backward()
    assert x.tolist() == [2.0, 4.0, 6.0] and x.grad.tolist() == [14.0] * 3


def test_a_returned_argument_marked_as_not_differentiable_has_no_gradient():
    class Constant(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_non_differentiable(x)
            return x

    assert not Constant.apply(leaf() * 1).requires_grad


class Assign(wf.autograd.Function):
    """Fills a part of a table that was handed through before: what adaptive solvers of differential equations do."""

    @staticmethod
    def forward(ctx, table, value, index):
        ctx.index = index
        table.data[index] = value
        return table

    @staticmethod
    def backward(ctx, g):
        return g, g[ctx.index], None


@pytest.mark.parametrize("compiled", [False, True])
def test_a_table_of_stages_filled_step_by_step(compiled):
    def step(y):
        stages = Assign.apply(wf.empty(2, 3, dtype=wf.float64), y.sin(), (..., 0))
        for i in (1, 2):
            stages = Assign.apply(stages, (y + 0.1 * stages[..., :i].sum(-1)).sin(), (..., i))
        return y + stages.sum(-1)

    def plain(y):
        found = [y.sin()]
        for _ in (1, 2):
            found.append((y + 0.1 * sum(found)).sin())
        return y + sum(found)

    run = wf.compile(step) if compiled else step
    for start in (0.3, 0.5, 0.8, 1.1):
        y, other = (wf.tensor([start, 2.0], dtype=wf.float64, requires_grad=True) for _ in range(2))
        run(y).sum().backward()
        plain(other).sum().backward()
        wf.testing.assert_close(y.grad, other.grad)
