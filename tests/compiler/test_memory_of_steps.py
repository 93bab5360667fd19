"""What a compiled training step needs: gradients of large weights do not wait for the end, Python's buffers go."""

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.codegen.runtime import kernel
from wayfare.compiler.costs import Timings
from wayfare.core import buffer_pool

pytestmark = pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")


def trained(model, *, calls, check=False):
    optimizer = wf.optim.Adam(model.parameters(), lr=1e-4)

    @wf.compile(check=check)
    def step(x):
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(calls):
        step(wf.ones(16, 512))
    return step


def plan_of(step):
    (entries,) = step._cache.entries.values()
    return entries[0].tree.root.plan


def test_large_weights_are_updated_when_their_gradients_are_there():
    wf.manual_seed(0)
    layers, weight = 6, 4 * 512 * 512
    plan = plan_of(trained(nn.Sequential(*[nn.Linear(512, 512) for _ in range(layers)]), calls=4))
    updates = [title for title, *_ in plan.parts() if title.startswith("update")]
    assert updates == [*["update adam of 1 sets"] * layers, f"update adam of {layers} sets"]
    assert plan.arena_bytes < 2 * weight  # not that of all gradients


def test_small_weights_are_updated_together():
    plan = plan_of(trained(nn.Sequential(nn.Linear(512, 8), nn.Linear(8, 8)), calls=4))
    assert [title for title, *_ in plan.parts() if title.startswith("update")] == ["update adam of 4 sets"]


def test_early_updates_give_the_same_weights():
    def weights(compiled):
        wf.manual_seed(0)
        model = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 4))
        optimizer = wf.optim.Adam(model.parameters(), lr=1e-4)

        def step(x):
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = wf.compile(step, check=False) if compiled else step
        for seed in range(6):
            wf.manual_seed(seed)
            run(wf.randn(16, 512))
        return [p.detach() for p in model.parameters()]

    for mine, theirs in zip(weights(True), weights(False), strict=True):
        wf.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_the_result_of_a_normalisation_is_not_kept_beside_what_it_was_made_from():
    """Its gradient centers the input once more: as one value with that of the forward pass."""
    layers, rows, width = 4, 1024, 512

    def loss_of(x, weights):
        for weight in weights:
            x = nn.functional.layer_norm(x + x @ weight, (width,), scale, shift)
        return (x**2).mean()

    scale, shift = wf.ones(width), wf.zeros(width)
    weights = [wf.ones(width, width).requires_grad_() for _ in range(layers)]
    step = wf.compile(lambda x: wf.autograd.grad(loss_of(x, weights), weights), check=False)
    for _ in range(4):
        step(wf.ones(rows, width))
    kept = 4 * rows * width  # one array for each layer, and few besides
    assert plan_of(step).arena_bytes < (layers + 3) * kept


def test_buffers_of_a_self_check_are_given_back(monkeypatch):
    monkeypatch.setattr(Timings, "loses", lambda self: None)
    wf.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)])
    step = trained(model, calls=6, check=None)  # the last one is checked
    assert step._checked == 3
    assert buffer_pool.stats().free == 0
