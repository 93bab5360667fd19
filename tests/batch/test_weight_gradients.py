"""Gradients of weights that several groups share: one product each, also where only some rows of a weight are used."""

import pytest

import wayfare as wf
from tests.batch.checks import vectors
from wayfare import nn
from wayfare.batch.record.memory import HOST, HostMemory
from wayfare.nn.functional import linear


class Gates(nn.Module):
    """Leaves use some rows of a weight, inner nodes all of them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(wf.randn(9, 3, dtype=wf.float64) * 0.3)
        self.bias = nn.Parameter(wf.randn(9, dtype=wf.float64) * 0.3)

    def some(self, x):
        return linear(x, self.weight[:6], self.bias[:6]).view(2, 3).prod(0).tanh()

    def other(self, x):
        return linear(x, self.weight[3:], self.bias[3:]).view(2, 3).prod(0).sin()

    def every(self, x):
        return linear(x, self.weight, self.bias).view(3, 3).prod(0).tanh()

    def turned(self, x):
        return (x.sin() @ self.weight.t()[:, 2:5]).tanh() * x


@pytest.fixture
def products(monkeypatch):
    """The shapes of the products of factors that were made."""
    found, matmul = [], HOST.matmul

    def counted(a, b):
        made = matmul(a, b)
        found.append(made.shape)
        return made

    monkeypatch.setattr(HostMemory, "matmul", staticmethod(counted))
    return found


@pytest.mark.parametrize("names", [("some",), ("some", "every"), ("some", "other"), ("every", "some", "other"),
                                   ("turned",), ("turned", "every")], ids="-".join)  # fmt: skip
def test_rows_of_a_weight(names, products):
    model = Gates()

    def program(x):
        for _ in range(3):
            for name in names:
                x = getattr(model, name)(x * 2)
        return x

    for _ in range(5):  # so often that groups run natively
        xs = vectors(6)
        found = []
        for batch in (False, True):
            model.zero_grad()
            products.clear()
            sum([y.sum() for y in wf.map(program, xs, batch=batch)]).backward()
            found.append([p.grad for p in model.parameters() if p.grad is not None])
        for mine, theirs in zip(found[1], found[0], strict=True):
            wf.testing.assert_close(mine, theirs)
    # One for each way in which the weight is used, though each was a group of its own at every step.
    assert len(products) == len(names)


def test_leaves_of_the_librarys_tree_cells_compute_no_gate_that_they_do_not_use(products):
    for kind, call in ((nn.BinaryTreeLSTMCell, "leaf"), (nn.ChildSumTreeLSTMCell, "forward")):
        cell = kind(3, 2).double()
        products.clear()
        sum([getattr(cell, call)(x)[0].sum() for x in vectors(4)]).backward()
        wanted, cell.weight_ih.grad = cell.weight_ih.grad, None
        wf.stack([h for h, _ in wf.map(getattr(cell, call), vectors(4), batch=True)]).sum().backward()
        assert (8, 3) not in products  # 2 of the rows are those of the forget gate
        wf.testing.assert_close(cell.weight_ih.grad, wanted)
        assert not cell.weight_ih.grad[6:].any()
