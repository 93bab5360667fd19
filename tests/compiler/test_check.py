"""`check=True`: every replayed call is made twice, by its plan and by Python, and only Python's stays."""

import re

import pytest

import wayfare as wf
from tests.compiler.checks import equal, numbers, spoil
from wayfare import nn
from wayfare.errors import CheckError


def training(way):
    """A step with everything a step has: dropout, statistics, clipping, an optimiser and its schedule."""
    wf.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)).double()
    optimizer = wf.optim.Adam(model.parameters(), lr=0.05)
    schedule = wf.optim.lr_scheduler.StepLR(optimizer, 3)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean() + model[0].weight.sum() * 0.1
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.detach()

    return way(step), model, optimizer


def test_a_checked_training_step_trains_like_plain_python():
    step, model, optimizer = training(wf.compile(check=True))
    losses = [step(numbers(6, 4, seed=call)).item() for call in range(6)]
    grads = [p.grad for p in model.parameters()]
    assert step.explain().data["replayed"] >= 3
    plain, twin, other = training(lambda f: f)
    assert losses == pytest.approx([plain(numbers(6, 4, seed=call)).item() for call in range(6)], rel=1e-9)
    equal(dict(model.state_dict()), dict(twin.state_dict()))
    equal(grads, [p.grad for p in twin.parameters()])
    assert optimizer.param_groups[0]["lr"] == other.param_groups[0]["lr"]
    steps = [state["step"] for state in optimizer.state.values()]
    equal(steps, [state["step"] for state in other.state.values()])


def test_structures_gradients_and_writes_pass_the_check():
    counts = wf.zeros(3, dtype=wf.int64)
    weight = numbers(3, grad=True)

    @wf.compile(check=True)
    def f(x, options):
        counts.add_(1)
        x.mul_(2)
        (weight * x).sum().backward()
        return {"a": [x * options["k"], x[0]], "n": options["k"], "grad": weight.grad}

    for call in range(5):
        x = numbers(3, seed=call)
        found = f(x, {"k": 3})
        equal(x, numbers(3, seed=call) * 2)
        equal(found["a"][0], x * 3)
        assert found["grad"] is weight.grad
    assert counts.tolist() == [5, 5, 5]
    equal(weight.grad, sum(numbers(3, seed=call) * 2 for call in range(5)))


def test_a_wrong_result_is_named_with_its_size():
    f = wf.compile(lambda x: {"left": x * 2, "right": x + 1}, check=True)
    for _ in range(3):
        f(wf.ones(4))

    def wrong(arrays, made):
        made[1][2] += 0.5

    spoil(f, wrong)
    with pytest.raises(CheckError, match=r"the result\['right'\]: 1 of 4 elements differ, by up to 0\.5") as error:
        f(wf.ones(4))
    assert re.search(r"test_check.py:\d+", str(error.value))


def test_wrong_memory_and_wrong_gradients_are_named_and_python_is_what_stays():
    step, model, _ = training(wf.compile(check=True))
    for call in range(4):
        step(numbers(6, 4, seed=call))

    def wrong(arrays, made):
        for array in arrays:
            if array.shape == (8, 4):
                array += 0.25

    spoil(step, wrong)
    with pytest.raises(CheckError, match=r"the memory of .*`?model\[0\].weight.* differ"):
        step(numbers(6, 4, seed=4))
    plain, twin, _ = training(lambda f: f)
    for call in range(5):
        plain(numbers(6, 4, seed=call))
    equal(dict(model.state_dict()), dict(twin.state_dict()))


def test_a_result_of_another_shape_or_kind_is_a_difference():
    class Sly:
        __slots__ = ()

        def __call__(self):
            return next(turns)

    turns = iter([wf.ones(2), wf.ones(2), wf.ones(3), wf.ones(3)])
    sly = Sly()
    f = wf.compile(lambda x: x.sum() * sly(), check=True)
    try:
        shapes = [tuple(f(wf.ones(1)).shape) for _ in range(4)]
    except CheckError as error:
        assert "float32[3]" in str(error)
    else:
        assert shapes == [(2,), (2,), (3,), (3,)]


def test_whether_a_gradient_is_required_is_compared():
    f = wf.compile(lambda x: x * 2, check=True)
    for _ in range(3):
        f(wf.ones(2, requires_grad=True))
    for entries in f._cache.entries.values():
        for root in (entries[0].tree.root,):
            root.recording.seeds, root.recording.dead = [], False  # results without a history
    with pytest.raises(CheckError, match="requires_grad is False there and True in Python"):
        f(wf.ones(2, requires_grad=True))
