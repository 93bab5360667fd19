"""Every learning-rate scheduler side by side with PyTorch's: rates and momentum over 100 steps, and resumed halfway."""

import copy
import json
import math

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

import torch

import wayfare as wf

STEPS = 100


def pair(adam=False):
    """Two optimisers with two groups each: Wayfare's and PyTorch's."""
    options = {"lr": 0.1, **({"betas": (0.8, 0.99)} if adam else {"momentum": 0.7})}
    ours = [{"params": [wf.zeros(1, requires_grad=True)], "lr": lr} for lr in (0.5, 0.03)]
    theirs = [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in (0.5, 0.03)]
    mine, other = (wf.optim.Adam, torch.optim.Adam) if adam else (wf.optim.SGD, torch.optim.SGD)
    return (wf.optim.lr_scheduler, mine(ours, **options)), (torch.optim.lr_scheduler, other(theirs, **options))


def values(optimizer):
    """What schedulers change, in all groups."""
    found = []
    for group in optimizer.param_groups:
        found += [group["lr"], *group.get("betas", ()), group.get("momentum", 0.0)]
    return found


def run(optimizer, scheduler, steps):
    found = [values(optimizer)]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        found.append([*values(optimizer), *scheduler.get_last_lr()])
    return found


CASES = {
    "LambdaLR": lambda m, o: m.LambdaLR(o, lambda t: 1 / (1 + t)),
    "LambdaLR per group": lambda m, o: m.LambdaLR(o, [lambda t: 0.9**t, lambda t: 1 + t]),
    "MultiplicativeLR": lambda m, o: m.MultiplicativeLR(o, lambda t: 0.99 if t % 2 else 1.0),
    "MultiplicativeLR per group": lambda m, o: m.MultiplicativeLR(o, [lambda t: 0.9, lambda t: 1.1]),
    "StepLR": lambda m, o: m.StepLR(o, 7),
    "StepLR gamma": lambda m, o: m.StepLR(o, step_size=1, gamma=0.97),
    "MultiStepLR": lambda m, o: m.MultiStepLR(o, [10, 30, 30, 80]),
    "MultiStepLR gamma": lambda m, o: m.MultiStepLR(o, milestones=[0, 5], gamma=0.5),
    "MultiStepLR none": lambda m, o: m.MultiStepLR(o, []),
    "ConstantLR": lambda m, o: m.ConstantLR(o),
    "ConstantLR long": lambda m, o: m.ConstantLR(o, 0.1, 60),
    "ConstantLR never": lambda m, o: m.ConstantLR(o, 0.5, 0),
    "LinearLR": lambda m, o: m.LinearLR(o),
    "LinearLR down": lambda m, o: m.LinearLR(o, 1.0, 0.0, 50),
    "LinearLR never": lambda m, o: m.LinearLR(o, 0.5, 1.0, 0),
    "ExponentialLR": lambda m, o: m.ExponentialLR(o, 0.93),
    "PolynomialLR": lambda m, o: m.PolynomialLR(o),
    "PolynomialLR power": lambda m, o: m.PolynomialLR(o, 70, 2.5),
    "CosineAnnealingLR": lambda m, o: m.CosineAnnealingLR(o, 50),
    "CosineAnnealingLR waves": lambda m, o: m.CosineAnnealingLR(o, 7, 0.01),
    "CosineAnnealingLR shortest": lambda m, o: m.CosineAnnealingLR(o, 1),
    "WarmRestarts": lambda m, o: m.CosineAnnealingWarmRestarts(o, 10),
    "WarmRestarts longer": lambda m, o: m.CosineAnnealingWarmRestarts(o, 3, 2, 0.001),
    "CyclicLR": lambda m, o: m.CyclicLR(o, 0.01, 0.4, 10),
    "CyclicLR triangular2": lambda m, o: m.CyclicLR(o, [0.01, 0.1], [0.4, 0.5], 5, 15, "triangular2"),
    "CyclicLR exp_range": lambda m, o: m.CyclicLR(o, 0.01, 0.4, 10, mode="exp_range", gamma=0.98),
    "CyclicLR scale_fn": lambda m, o: m.CyclicLR(o, 0.01, 0.4, 10, scale_fn=lambda x: 1 / x),
    "CyclicLR iterations": lambda m, o: m.CyclicLR(
        o, 0.01, 0.4, 8, scale_fn=lambda x: 0.95**x, scale_mode="iterations", base_momentum=0.5, max_momentum=0.99
    ),
    "CyclicLR still momentum": lambda m, o: m.CyclicLR(o, 0.01, 0.4, 10, cycle_momentum=False),
    "OneCycleLR": lambda m, o: m.OneCycleLR(o, 1.0, total_steps=STEPS),
    "OneCycleLR linear": lambda m, o: m.OneCycleLR(
        o, [1.0, 0.2], epochs=11, steps_per_epoch=10, anneal_strategy="linear"
    ),
    "OneCycleLR three phases": lambda m, o: m.OneCycleLR(o, 1.0, 101, three_phase=True, pct_start=0.4),
    "OneCycleLR factors": lambda m, o: m.OneCycleLR(
        o, 1.0, STEPS, pct_start=0.0, div_factor=4.0, final_div_factor=7.0, base_momentum=[0.1, 0.2]
    ),
    "OneCycleLR still momentum": lambda m, o: m.OneCycleLR(o, 1.0, STEPS, cycle_momentum=False, three_phase=True),
    "SequentialLR": lambda m, o: m.SequentialLR(o, [m.LinearLR(o, 0.1, 1.0, 10), m.ExponentialLR(o, 0.95)], [10]),
    "SequentialLR many": lambda m, o: m.SequentialLR(
        o,
        [m.ConstantLR(o, 0.1, 5), m.CosineAnnealingLR(o, 9), m.CosineAnnealingWarmRestarts(o, 5, 2), m.StepLR(o, 4)],
        [7, 30, 60],
    ),
    "SequentialLR at once": lambda m, o: m.SequentialLR(
        o, [m.ConstantLR(o), m.PolynomialLR(o, 50), m.LinearLR(o)], [0, 40]
    ),
    "SequentialLR of functions": lambda m, o: m.SequentialLR(
        o,
        [m.LambdaLR(o, lambda t: 0.1 * (t + 1)), m.MultiplicativeLR(o, lambda t: 0.9), m.MultiStepLR(o, [3, 8])],
        [10, 50],
    ),
    "ChainedScheduler": lambda m, o: m.ChainedScheduler([m.ConstantLR(o, 0.1, 20), m.ExponentialLR(o, 0.97)]),
    "ChainedScheduler many": lambda m, o: m.ChainedScheduler(
        [m.LinearLR(o, 0.2, 0.9, 30), m.StepLR(o, 9, 0.7), m.MultiplicativeLR(o, lambda t: 1.1), m.PolynomialLR(o, 99)],
        o,
    ),
    "ChainedScheduler cosine": lambda m, o: m.ChainedScheduler([m.CosineAnnealingLR(o, 20), m.ExponentialLR(o, 0.99)]),
}  # fmt: skip


@pytest.mark.parametrize("adam", [False, True], ids=["momentum", "betas"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_rates(name, adam):
    (ours, our_optimizer), (theirs, their_optimizer) = pair(adam)
    found = run(our_optimizer, CASES[name](ours, our_optimizer), STEPS)
    expected = run(their_optimizer, CASES[name](theirs, their_optimizer), STEPS)
    for t, (mine, other) in enumerate(zip(found, expected, strict=True)):
        assert mine == pytest.approx(other, rel=1e-9, abs=1e-13), t


@pytest.mark.parametrize("halfway", [1, 37])
@pytest.mark.parametrize("name", CASES)
def test_resumed_halfway_the_rates_are_the_same(name, halfway):
    (ours, optimizer), (theirs, their_optimizer) = pair()
    expected = run(their_optimizer, CASES[name](theirs, their_optimizer), STEPS)
    scheduler = CASES[name](ours, optimizer)
    run(optimizer, scheduler, halfway)
    state = json.loads(json.dumps(scheduler.state_dict(), allow_nan=False))
    groups = [{k: copy.deepcopy(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]

    (ours, optimizer), _ = pair()
    scheduler = CASES[name](ours, optimizer)
    for group, old in zip(optimizer.param_groups, groups, strict=True):
        group.update(old)
    scheduler.load_state_dict(state)
    found = run(optimizer, scheduler, STEPS - halfway)
    assert len(found) == len(expected[halfway:])
    for t, (mine, other) in enumerate(zip(found[1:], expected[halfway + 1 :], strict=True), halfway + 1):
        assert mine == pytest.approx(other, rel=1e-9, abs=1e-13), t


CLOSED = [
    "LambdaLR", "StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR power",
    "CosineAnnealingLR waves", "WarmRestarts", "WarmRestarts longer", "CyclicLR", "OneCycleLR",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CLOSED)
def test_the_same_at_a_given_epoch(name):
    (ours, our_optimizer), (theirs, their_optimizer) = pair()
    mine, other = CASES[name](ours, our_optimizer), CASES[name](theirs, their_optimizer)
    for epoch in (4, 61, 5, 0, 33, None, None):
        mine.step(epoch)
        other.step(epoch)
        assert values(our_optimizer) == pytest.approx(values(their_optimizer), rel=1e-9, abs=1e-13), epoch
        assert mine.last_epoch == other.last_epoch


@pytest.mark.parametrize("name", ["StepLR", "LinearLR", "ExponentialLR", "LambdaLR", "PolynomialLR power",
                                  "CosineAnnealingLR waves", "MultiplicativeLR", "WarmRestarts longer"])  # fmt: skip
def test_the_same_from_a_later_epoch_on(name):
    make = {
        "StepLR": lambda m, o: m.StepLR(o, 7, last_epoch=6),
        "LinearLR": lambda m, o: m.LinearLR(o, total_iters=30, last_epoch=6),
        "ExponentialLR": lambda m, o: m.ExponentialLR(o, 0.9, last_epoch=6),
        "LambdaLR": lambda m, o: m.LambdaLR(o, lambda t: 0.9**t, last_epoch=6),
        "PolynomialLR power": lambda m, o: m.PolynomialLR(o, 70, 2.5, last_epoch=6),
        "CosineAnnealingLR waves": lambda m, o: m.CosineAnnealingLR(o, 9, 0.01, last_epoch=6),
        "MultiplicativeLR": lambda m, o: m.MultiplicativeLR(o, lambda t: 0.9, last_epoch=6),
        "WarmRestarts longer": lambda m, o: m.CosineAnnealingWarmRestarts(o, 10, 2, last_epoch=6),
    }[name]
    results = []
    for module, optimizer in pair():
        for group in optimizer.param_groups:
            group["initial_lr"] = 2 * group["lr"]
        results.append(run(optimizer, make(module, optimizer), 40))
    for mine, other in zip(*results, strict=True):
        assert mine == pytest.approx(other, rel=1e-9, abs=1e-13)


PLATEAUS = {
    "plain": {},
    "quick": {"patience": 1, "factor": 0.5},
    "larger": {"mode": "max", "patience": 2},
    "absolute": {"patience": 2, "threshold": 0.05, "threshold_mode": "abs"},
    "largest by far": {"mode": "max", "patience": 1, "threshold": 0.05, "threshold_mode": "abs"},
    "cooling": {"patience": 1, "cooldown": 3, "factor": 0.7},
    "limited": {"patience": 0, "min_lr": [0.01, 0.02], "factor": 0.6},
    "limited alike": {"patience": 0, "min_lr": 0.015, "factor": 0.6},
    "coarse": {"patience": 0, "eps": 1e-3},
}


@pytest.mark.parametrize("name", PLATEAUS)
def test_plateaus(name):
    measured = [math.sin(t * 1.3) * 2 / (1 + t / 5) + 3 + (t % 7 == 0) * 0.3 for t in range(STEPS)]
    (ours, our_optimizer), (theirs, their_optimizer) = pair()
    mine = ours.ReduceLROnPlateau(our_optimizer, **PLATEAUS[name])
    other = theirs.ReduceLROnPlateau(their_optimizer, **PLATEAUS[name])
    for t, value in enumerate(measured):
        if t == STEPS // 2:
            state = json.loads(json.dumps(mine.state_dict(), allow_nan=False))
            mine = ours.ReduceLROnPlateau(our_optimizer)
            mine.load_state_dict(state)
        mine.step(value)
        other.step(value)
        assert values(our_optimizer) == pytest.approx(values(their_optimizer), rel=1e-9), t
        assert (mine.best, mine.num_bad_epochs) == (other.best, other.num_bad_epochs), t
        assert mine.in_cooldown == other.in_cooldown, t


@pytest.mark.parametrize("name", ["StepLR", "MultiStepLR", "CosineAnnealingLR", "WarmRestarts", "LambdaLR",
                                  "SequentialLR"])  # fmt: skip
def test_a_state_of_pytorchs_can_be_loaded(name):
    (ours, our_optimizer), (theirs, their_optimizer) = pair()
    other = CASES[name](theirs, their_optimizer)
    run(their_optimizer, other, 20)
    mine = CASES[name](ours, our_optimizer)
    mine.load_state_dict(other.state_dict())
    for group, old in zip(our_optimizer.param_groups, their_optimizer.param_groups, strict=True):
        group["lr"] = old["lr"]
    found, expected = run(our_optimizer, mine, 30), run(their_optimizer, other, 30)
    for after, before in zip(found, expected, strict=True):
        assert after == pytest.approx(before, rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_the_same_public_attributes(name):
    (ours, our_optimizer), (theirs, their_optimizer) = pair()
    mine, other = CASES[name](ours, our_optimizer), CASES[name](theirs, their_optimizer)
    for attribute, value in vars(other).items():
        if not attribute.startswith("_") and not callable(value) and attribute not in ("optimizer", "lr_lambdas"):
            assert getattr(mine, attribute) == value, attribute
