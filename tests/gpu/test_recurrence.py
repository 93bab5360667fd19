"""Recurrent layers on a device: values, gradients, and how many launches they take."""

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from wayfare import nn

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def arrays_of(kind, sizes, hidden, dtype):
    rng = np.random.default_rng(0)
    width, states = GATES[kind] * hidden, 2 if kind == "lstm" else 1
    shapes = [(sum(sizes), 5), *[(max(sizes) + 1, hidden)] * states, (width, 5), (width, hidden), (width,), (width,)]
    return [rng.standard_normal(shape).astype(dtype.numpy) for shape in shapes]


def outputs(kind, tensors, sizes, reverse):
    made = getattr(F, f"{kind}_sequence")(*tensors, batch_sizes=sizes, reverse=reverse)
    return [*made, F.recurrent.lstm_states(*tensors, batch_sizes=sizes)[1]] if kind == "lstm" else list(made)


@pytest.mark.parametrize("used", ["rows", "finals", "all"])
@pytest.mark.parametrize("reverse", [False, True], ids=["ahead", "back"])
@pytest.mark.parametrize("sizes", [(3, 3, 2, 1, 1), (4, 4, 4), (5, 1), (1,)], ids=str)
@pytest.mark.parametrize("kind", sorted(GATES))
def test_values_and_gradients_are_those_of_the_cpu(cuda, kind, sizes, reverse, used):
    for hidden, dtype, tolerance in ((4, wf.float64, 1e-9), (3, wf.float64, 1e-9), (4, wf.float32, 1e-4)):
        found = []
        for place in ("cpu", "cuda"):
            tensors = [wf.tensor(a).to(place).requires_grad_() for a in arrays_of(kind, sizes, hidden, dtype)]
            made = outputs(kind, tensors, sizes, reverse)
            chosen = {"rows": made[:1], "finals": made[1:], "all": made}[used]
            sum((k + 1) * (t * t).sum() for k, t in enumerate(chosen)).backward()
            assert made[0].device.type == place
            found.append([t.detach().cpu().numpy() for t in (*made, *[t.grad for t in tensors])])
        for mine, theirs in zip(*found, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [wf.float16, wf.bfloat16], ids=str)
@pytest.mark.parametrize("kind", sorted(GATES))
def test_short_floats_are_computed_in_float32(cuda, kind, dtype):
    found = []
    for place in ("cpu", "cuda"):
        tensors = [wf.tensor(a).to(place).to(dtype).requires_grad_() for a in arrays_of(kind, (3, 2), 4, wf.float32)]
        made = outputs(kind, tensors, (3, 2), False)
        assert made[0].dtype is dtype
        sum(t.float().sum() for t in made).backward()
        found.append([t.detach().cpu().float().numpy() for t in (*made, *[t.grad for t in tensors])])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_gradient_of_a_gradient(cuda, kind):
    found = []
    for place in ("cpu", "cuda"):
        wf.manual_seed(0)
        layer = getattr(nn, kind)(3, 4).to(place, wf.float64)
        x = wf.tensor(np.random.default_rng(1).standard_normal((4, 2, 3))).to(place).requires_grad_()
        (g,) = wf.autograd.grad(layer(x)[0].square().sum(), [x], create_graph=True)
        g.square().sum().backward()
        found.append(x.grad.cpu().numpy())
    np.testing.assert_allclose(*found, rtol=1e-8)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_step_is_two_launches_in_each_direction(cuda, launched, kind, products):
    """A product, and one kernel for all that the gates compute."""
    layer = getattr(nn, kind)(8, 8).to("cuda")
    of_steps = []
    for length in (5, 25):
        lists = [[wf.randn(n, 8, device="cuda") for n in (length, 3, length - 1)] for _ in range(2)]
        layer(lists[0])[0][0].sum().backward()
        launched.clear()
        products.clear()
        out = layer(lists[1])[0]
        ahead = len(launched), len(products)
        sum(t.sum() for t in out).backward()
        of_steps.append((*ahead, len(launched), len(products)))
    ahead, products_ahead, whole, products_whole = [b - a for a, b in zip(*of_steps, strict=True)]
    assert (ahead, products_ahead, products_whole) == (20, 20, 40)
    assert 40 <= whole < 45  # sums over many rows take a launch more


@pytest.fixture
def products(cuda, monkeypatch):
    """The products that ran."""
    found, gemm = [], cuda.launcher.gemm
    monkeypatch.setattr(cuda.launcher, "gemm", lambda call, *places: found.append(call) or gemm(call, *places))
    return found
