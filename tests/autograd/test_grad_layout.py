"""A first gradient is stored in the layout of its tensor, as PyTorch promises: `.grad.view(-1)` works where the
parameter's own does."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import wayfare as wf


def _transposed() -> Any:
    return wf.ones(3, 2).T.detach().requires_grad_()


def _permuted() -> Any:
    return wf.ones(4, 2, 3).permute(2, 0, 1).detach().requires_grad_()


def _spread() -> Any:
    return wf.ones(4, 6)[:, ::2].detach().requires_grad_()


def _plain() -> Any:
    return wf.ones(3, 2, requires_grad=True)


def _strides(t: Any) -> tuple[int, ...]:
    return tuple(t.stride())


def test_the_gradient_of_a_transposed_product_can_be_viewed() -> None:
    w = _plain()
    (wf.ones(4, 2) @ w.T).sum().backward()
    assert _strides(w.grad) == (2, 1)
    assert w.grad.view(-1).tolist() == [4.0] * 6


def _turned(w: Any) -> Any:
    turned = w.movedim(0, -1).contiguous()
    return (turned * wf.arange(float(w.numel())).view(turned.shape)).sum()


LOSSES = {
    "itself": lambda w: (w * w).sum(),
    "turned": _turned,
    "stretched": lambda w: w.sum(),
    "twice": lambda w: (w.movedim(0, -1) * 2).sum() + (w * 3).sum(),
    "hooked": lambda w: (w.register_hook(lambda g: g.movedim(0, -1).contiguous().movedim(-1, 0)), (w * w).sum())[1],
}
MAKERS = {"plain": _plain, "transposed": _transposed, "permuted": _permuted, "spread": _spread}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_first_gradient_has_the_layout_of_its_leaf(maker: str, loss: str, create_graph: bool) -> None:
    torch = pytest.importorskip("torch")
    w = MAKERS[maker]()
    LOSSES[loss](w).backward(create_graph=create_graph)
    dense = maker != "spread"
    expected = _strides(w) if dense else _strides(wf.ones(*w.shape))
    assert _strides(w.grad) == expected
    # The same in PyTorch: dense tensors give their strides, others a row-major gradient.
    theirs = torch.empty_strided(tuple(w.shape), _strides(w)).fill_(1).requires_grad_()
    (theirs * theirs).sum().backward()
    assert _strides(theirs.grad) == expected
    values = np.asarray(wf.autograd.grad(LOSSES[loss](v := w.detach().clone().requires_grad_()), v)[0].detach())
    np.testing.assert_array_equal(w.grad.detach().numpy(), values)


def test_a_gradient_given_back_stays_as_it_is() -> None:
    w = _plain()
    (g,) = wf.autograd.grad((wf.ones(4, 2) @ w.T).sum(), w)
    assert g.tolist() == [[4.0, 4.0]] * 3


def test_rows_become_whole_in_the_layout_of_their_leaf() -> None:
    w = wf.ones(3, 5).T.detach().requires_grad_()
    w[wf.tensor([0, 2, 2])].sum().backward()
    assert _strides(w.grad) == _strides(w)
    assert w.grad.tolist() == [[1.0] * 3, [0.0] * 3, [2.0] * 3, [0.0] * 3, [0.0] * 3]


def test_the_gradient_in_a_compiled_step_has_the_layout_of_its_leaf() -> None:
    w, x = _plain(), wf.ones(4, 2)

    @wf.compile(check=False)
    def step(x: Any) -> Any:
        w.grad = None
        loss = (x @ w.T).sum()
        loss.backward()
        return loss

    for _ in range(4):
        step(x)
        assert _strides(w.grad) == (2, 1)
        assert w.grad.view(-1).tolist() == [4.0] * 6
    assert step.explain().data["replayed"] > 0

    t = _transposed()

    @wf.compile(check=False)
    def other(x: Any) -> Any:
        t.grad = None
        loss = (x @ t).square().sum()
        loss.backward()
        return loss

    for _ in range(4):
        other(x)
        assert _strides(t.grad) == _strides(t)


def test_the_gradient_behind_a_compiled_or_fused_function_has_the_layout_of_its_leaf() -> None:
    def product(w: Any, x: Any) -> Any:
        return x @ w.T

    @wf.fused
    def turned(w: Any) -> Any:
        return w.T * 2

    compiled = wf.compile(product)
    w, x = _plain(), wf.ones(4, 2)
    for _ in range(4):
        for loss in (compiled(w, x).sum(), (turned(w) * wf.ones(2, 3)).sum()):
            w.grad = None
            loss.backward()
            assert _strides(w.grad) == (2, 1)


def test_the_gradient_of_a_map_has_the_layout_of_its_leaf() -> None:
    w = _plain()
    results = wf.map(lambda x: (x @ w.T).sum(), [wf.ones(4, 2), wf.ones(4, 2), wf.ones(3, 2)])
    wf.stack(results).sum().backward()
    assert _strides(w.grad) == (2, 1)
    assert w.grad.view(-1).tolist() == [11.0] * 6


def test_layers_with_transposed_weights_train_alike() -> None:
    """An optimiser that looks at memory in order (fused updates) gives the same numbers whatever the layout."""
    wf.manual_seed(0)
    a = wf.nn.Linear(3, 4)
    b = copy.deepcopy(a)
    b.weight.data = b.weight.data.T.contiguous().T
    x = wf.randn(5, 3)
    for m in (a, b):
        opt = wf.optim.Adam(m.parameters(), lr=0.1)
        for _ in range(3):
            opt.zero_grad()
            m(x).square().sum().backward()
            opt.step()
    np.testing.assert_allclose(a.weight.detach().numpy(), b.weight.detach().numpy(), rtol=1e-5, atol=1e-6)
