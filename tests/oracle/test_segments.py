"""Segments and ragged tensors against PyTorch's segment_reduce and its loop over rows, gradients included."""

from __future__ import annotations

import numpy as np
import pytest

import wayfare as wf

torch = pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

LENGTHS = [3, 1, 40, 7, 2, 90]
OFFSETS = np.cumsum([0, *LENGTHS])


def both(dtype, tail=(5,)):
    numbers = np.random.default_rng(0).normal(size=(OFFSETS[-1], *tail)).astype(dtype)
    return wf.tensor(numbers, requires_grad=True), torch.tensor(numbers, requires_grad=True)


def compare(ours, theirs, x, t):
    weights = np.cos(np.arange(theirs.numel())).reshape(tuple(theirs.shape))
    (ours * wf.tensor(weights).to(ours.dtype)).sum().backward()
    (theirs * torch.tensor(weights).to(theirs.dtype)).sum().backward()
    close = {"rtol": 1e-4, "atol": 1e-5} if ours.dtype is wf.float32 else {"rtol": 1e-11, "atol": 1e-12}
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), **close)
    np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), **close)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("how", ["sum", "mean", "max", "min"])
def test_reductions(how, dtype):
    x, t = both(dtype)
    theirs = torch.segment_reduce(t, how, offsets=torch.tensor(OFFSETS))
    compare(getattr(wf, f"segment_{how}")(x, wf.tensor(OFFSETS)), theirs, x, t)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(name, dtype):
    x, t = both(dtype)
    theirs = torch.cat([getattr(row, name)(0) for row in t.split(LENGTHS)])
    compare(getattr(wf, f"segment_{name}")(x, wf.tensor(OFFSETS)), theirs, x, t)


@pytest.mark.parametrize("name", ["logsumexp", "var", "std", "argmax", "argmin"])
def test_rows_of_ragged_tensors(name):
    x, t = both("float64")
    chosen = [0, 2, 3, 4, 5]
    theirs = torch.stack([getattr(t.split(LENGTHS)[k], name)(0) for k in chosen])
    ours = getattr(wf.Ragged.from_lengths(x, LENGTHS)[chosen], name)(1)
    if name.startswith("arg"):
        assert ours.tolist() == theirs.tolist()
    else:
        compare(ours, theirs, x, t)


def test_empty_rows_are_what_pytorch_says_of_nothing():
    r, nothing = wf.Ragged([[1.0], []]), torch.empty(0)
    assert r.sum(1)[1].item() == nothing.sum().item()
    assert np.isnan(r.mean(1)[1].item()) and np.isnan(nothing.mean().item())
    assert r.logsumexp(1)[1].item() == nothing.logsumexp(0).item()
    assert (r.bool().any(1)[1].item(), r.bool().all(1)[1].item()) == (nothing.any().item(), nothing.all().item())
