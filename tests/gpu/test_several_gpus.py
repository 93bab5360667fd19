"""Two GPUs: everything stays on the one it is on, though the other is the current one."""

import copy
import warnings

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn

F = nn.functional
SECOND = "cuda:1"


pytestmark = pytest.mark.usefixtures("two_gpus")


def _devices(tensors):
    return {str(t.device) for t in tensors}


@pytest.mark.parametrize("compiled", [False, True])
def test_training_on_the_second(cuda, compiled):
    losses = []
    for device in ("cpu", SECOND):
        wf.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 3)).to(device)
        optimiser = wf.optim.AdamW(model.parameters(), lr=0.05)
        x, y = wf.randn(5, 6).to(device), (wf.arange(5) % 3).to(device)

        def step(x, y, model=model, optimiser=optimiser):
            loss = F.cross_entropy(model(x), y)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimiser.step()
            return loss

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compiling so little may not pay
            run = wf.compile(step) if compiled else step
            losses.append([run(x, y).item() for _ in range(6)])
        parameters = list(model.parameters())
        states = [state["exp_avg"] for state in optimiser.state.values()]
        assert _devices([*parameters, *[p.grad for p in parameters], *states]) == {device}
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)


def test_a_model_on_both(cuda):
    first, second = nn.Linear(4, 4).to("cuda:0"), nn.Linear(4, 2).to(SECOND)
    parameters = [*first.parameters(), *second.parameters()]
    before = [p.detach().clone() for p in parameters]
    optimiser = wf.optim.Adam(parameters, lr=0.1)
    loss = second(first(wf.ones(3, 4, device="cuda:0")).to(SECOND)).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimiser.step()
    assert all(p.grad.device == p.device and not wf.equal(p, b) for p, b in zip(parameters, before, strict=True))
    assert _devices(copy.deepcopy(second).parameters()) == {SECOND}


def test_writes_and_their_gradients(cuda):
    x = wf.zeros(3, device=SECOND)
    x.add_(1)[0] = 5
    x[x > 2] = 7
    x.clamp_(max=6)
    assert x.tolist() == [6, 1, 1]
    x.copy_(wf.ones(3, device="cuda:0"))
    w = wf.zeros(3, device=SECOND, requires_grad=True)
    y = w * 1
    y[1:] = wf.ones(2, device="cuda:0")
    y.sum().backward()
    assert w.grad.tolist() == [1, 0, 0] and _devices([x, y, w.grad]) == {SECOND}


def test_gradients_of_gradients_and_layers(cuda):
    w = wf.zeros(3, device=SECOND, requires_grad=True)
    (g,) = wf.autograd.grad((w.exp() * w).sum(), w, create_graph=True)
    g.sum().backward()
    assert _devices([g, w.grad]) == {SECOND} and w.grad.tolist() == [2, 2, 2]
    for layer, given in (
        (nn.Embedding(5, 2), wf.tensor([1, 1])), (nn.LSTM(2, 3), wf.ones(2, 1, 2)),
        (nn.Conv1d(2, 3, 1), wf.ones(1, 2, 4)),
    ):  # fmt: skip
        out = layer.to(SECOND)(given.to(SECOND))
        (out[0] if isinstance(out, tuple) else out).sum().backward()
        assert _devices([p.grad for p in layer.parameters()]) == {SECOND}


def _of_maps(function, examples, parameters):
    """What a map gives along recorded paths, in groups and as a loop, with the gradients of parameters."""
    found = []
    for batch in (True, False):
        for _ in range(9 if batch else 1):
            for p in parameters:
                p.grad = None
            made = wf.map(function, examples, batch=batch)
            if batch:
                stats = wf.batching.last()
            sum((k + 1) * t.sum() for k, t in enumerate(made)).backward()
        assert _devices([*made, *[p.grad for p in parameters]]) == {SECOND}
        found.append([t.detach().cpu().numpy() for t in (*made, *[p.grad for p in parameters])])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    return stats


def test_recorded_paths_on_the_second(cuda):
    wf.manual_seed(0)
    cell, halt = nn.GRUCell(4, 4).to(SECOND), nn.Linear(4, 1).to(SECOND)

    def ponder(x):
        h, total = x, 0.0
        while total < 1:
            h = cell(x, h)
            total = total + halt(h).sigmoid()
        return h * total

    examples = [3 * wf.randn(4).to(SECOND) for _ in range(10)]
    stats = _of_maps(ponder, examples, [*cell.parameters(), *halt.parameters()])
    assert stats.paths.examples == 10 and stats.paths.failed is None, str(stats)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_sequences_on_the_second(cuda, kind):
    wf.manual_seed(0)
    cell = getattr(nn, kind)(3, 4).to(SECOND)

    def read(sequence):
        state = None
        for x in sequence:
            state = cell(x, state)
        return state[0] if isinstance(state, tuple) else state

    _of_maps(read, [wf.randn(n, 3).to(SECOND) for n in (5, 1, 4, 2)], [*cell.parameters()])
