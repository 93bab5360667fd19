"""The self-check of compiled functions that compute in half precision and give float32: only real differences count."""

import warnings

import pytest

import wayfare as wf
from tests.compiler.checks import spoil
from wayfare import nn
from wayfare.errors import CheckError

F = nn.functional


def network(dtype=wf.float32):
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(dtype)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("how", ["autocast", "bfloat16", "float16"])
def test_a_training_step_is_replayed(how, seed):
    """The loss is float32, but differs by rounding steps of what it is made of: that was a false alarm."""
    wf.manual_seed(seed)
    dtype = wf.float32 if how == "autocast" else getattr(wf, how)
    model = network(dtype)
    optimizer = wf.optim.SGD(model.parameters(), lr=0.05)

    @wf.compile(check=True)
    def step(x, y):
        with wf.autocast("cpu", dtype=wf.bfloat16, enabled=how == "autocast"):
            loss = F.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            step(wf.randn(16, 8).to(dtype), wf.randint(0, 4, (16,)))
    assert step.explain().data["replayed"] > 10


@pytest.mark.parametrize("seed", range(3))
def test_gradients_from_outside_are_compared_as_coarsely(seed):
    wf.manual_seed(seed)
    model = network()

    @wf.compile(check=True)
    def loss_of(x, y):
        with wf.autocast("cpu", dtype=wf.bfloat16):
            return F.cross_entropy(model(x).float(), y)

    for _ in range(12):
        loss_of(wf.randn(16, 8), wf.randint(0, 4, (16,))).backward()
    assert loss_of.explain().data["replayed"] > 6


def test_a_real_difference_is_found():
    model = network()

    @wf.compile(check=True)
    def scores(x):
        with wf.autocast("cpu", dtype=wf.bfloat16):
            return model(x).float()

    def wrong(arrays, made):
        made[0][1] += 0.25

    for _ in range(4):
        scores(wf.ones(16, 8))
    spoil(scores, wrong)
    with pytest.raises(CheckError, match="the result"):
        scores(wf.ones(16, 8))
