"""Messages have the words people search for: those of PyTorch's message for the same mistake."""

import copy

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn


def leaf(*shape):
    return wf.ones(*shape, requires_grad=True)


def write_row():
    x = leaf(2, 2)
    x[0].add_(1)


def write_element():
    x = leaf(2)
    x[0] = 1


def written_since():
    y = leaf(2).exp()
    y.add_(1)
    y.sum().backward()


def carried(make, steps, state=None):
    """Train a recurrent layer whose state goes on to the next step without a `.detach()`."""
    layer = make(2, 3)
    for _ in range(2):
        out = layer(wf.ones(*steps, 2), state)
        state = out if make is nn.LSTMCell else out[1] if isinstance(out, tuple) else out
        (out[0] if isinstance(out, tuple) else out).sum().backward()


def carried_by_compiled():
    cell = nn.RNNCell(2, 3)
    step = wf.compile(lambda x, h: cell(x, h))
    h = wf.zeros(1, 3)
    for _ in range(9):
        h = step(wf.ones(1, 2), h)
        h.sum().backward()


def carried_by_map():
    w = leaf(3)
    h = [wf.ones(3), wf.ones(3)]
    for _ in range(2):
        h = wf.map(lambda x: (x * w).tanh(), h)
        sum(x.sum() for x in h).backward()


class Squared(wf.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


def carried_by_function():
    x = leaf(3)
    for _ in range(2):
        x = Squared.apply(x)
        x.sum().backward()


STATE = ("graph a second time", ".detach()", "retain_graph=True")
CASES = {
    "second backward": (lambda: [y.backward() for y in [(leaf(2) ** 2).sum()] * 2], STATE),
    "state of an RNN cell": (lambda: carried(nn.RNNCell, (1,)), STATE),
    "state of an LSTM cell": (lambda: carried(nn.LSTMCell, (1,)), STATE),
    "state of an LSTM": (lambda: carried(nn.LSTM, (4, 1)), STATE),
    "state of a GRU": (lambda: carried(nn.GRU, (4, 1)), STATE),
    "state of a compiled cell": (carried_by_compiled, STATE),
    "state of a map": (carried_by_map, STATE),
    "state of a custom function": (carried_by_function, STATE),
    "backward of a vector": (lambda: (leaf(2) * 2).backward(), ("scalar", "implicitly")),
    "grad of a vector": (lambda: wf.autograd.grad(leaf(2) * 2, leaf(2)), ("scalar", "implicitly")),
    "a leaf": (lambda: leaf(2).add_(1), ("leaf variable", "requires grad", "in-place operation", "no_grad")),
    "a leaf by index": (write_element, ("leaf variable", "requires grad", "in-place operation")),
    "a row of a leaf": (write_row, ("view of a leaf variable", "requires grad", "in-place operation")),
    "a saved tensor": (written_since, ("modified by an in-place operation", "version 1", "version 0", ".clone()")),
    "view": (lambda: wf.ones(2, 3).T.view(6), ("non-contiguous", ".reshape(", ".contiguous()")),
    "view of a step": (lambda: wf.ones(6)[::2].view(3, 1).view(-1, 3).T[:, ::2].expand(3, 2).view(6),
                       ("non-contiguous", ".reshape(")),
    "frozen result": (lambda: (leaf(2) * 2).requires_grad_(False), ("leaf variable", ".detach()")),
    "deepcopy": (lambda: copy.deepcopy(leaf(2) * 2), ("leaf variable", "deepcopy", ".detach().clone()")),
    "no grad_fn": (lambda: wf.ones(2).sum().backward(), ("does not require grad", "grad_fn")),
    "item": (lambda: wf.ones(2).item(), ("scalar", ".tolist()")),
    "float": (lambda: float(wf.ones(2)), ("one-element", "Python scalar")),
    "int": (lambda: int(wf.ones(2)), ("one-element", "Python scalar")),
    "bool": (lambda: bool(wf.ones(2)), ("ambiguous", "more than one value", ".any()")),
    "numpy": (lambda: leaf(2).numpy(), ("requires grad", ".detach().numpy()")),
    "array": (lambda: np.array(leaf(2)), ("requires grad", ".detach().numpy()")),
    "unused": (lambda: wf.autograd.grad(leaf(2).sum(), leaf(2)), ("not used in the graph", "allow_unused=True")),
    "matmul": (lambda: wf.ones(2, 3) @ wf.ones(2, 3), ("matmul", "f32[2,3]")),
    "iterate": (lambda: list(wf.tensor(1.0)), ("scalar", "0-d")),
    "int gradient": (lambda: wf.tensor([1], requires_grad=True), ("floating-point", "require gradients")),
    "index": (lambda: wf.ones(2)[3], ("out of range", "dimension 0", "size 2")),
    "dim": (lambda: wf.ones(2).sum(3), ("out of range", "dim 3")),
    "too large": (lambda: wf.ones(1 << 30, 1 << 14), ("not enough memory", "ones")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_words_are_there(name):
    wrong, words = CASES[name]
    with pytest.raises((RuntimeError, TypeError, ValueError, IndexError)) as caught:
        wrong()
    text = str(caught.value)
    assert not [word for word in words if word not in text], text


def test_numbers_of_long_tensors_are_value_errors():
    """As in PyTorch: float() and int() of several elements are a ValueError, item() is a RuntimeError."""
    for wrong, kind in ((float, ValueError), (int, ValueError), (complex, ValueError), (wf.Tensor.item, RuntimeError)):
        with pytest.raises(kind):
            wrong(wf.ones(3))
