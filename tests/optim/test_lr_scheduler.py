"""Learning-rate schedulers against closed formulas, their state, and what they say about bad arguments."""

import json
import math
import warnings

import pytest

import wayfare as wf
from wayfare.optim import lr_scheduler as schedulers
from wayfare.optim.optimizer import Optimizer


class Still(Optimizer):
    """An optimiser that changes nothing, with the options schedulers look at."""

    def __init__(self, groups, **defaults):
        super().__init__(groups, defaults)

    def step(self, closure=None):
        return None


def optimizer(*lrs, **defaults):
    """An optimiser with a group for each learning rate."""
    options = {"momentum": 0.9, **defaults} if "betas" not in defaults else defaults
    groups = [{"params": [wf.zeros(1, requires_grad=True)], "lr": lr} for lr in (lrs or (0.5,))]
    return Still(groups, lr=0.1, **options)


def rates(opt, scheduler, steps):
    """The learning rates of all groups over some steps, the first before any."""
    found = [[group["lr"] for group in opt.param_groups]]
    for _ in range(steps):
        opt.step()
        scheduler.step()
        found.append([group["lr"] for group in opt.param_groups])
        assert scheduler.get_last_lr() == found[-1]
    return found


def up_and_down(t, up=4, down=6):
    """A triangle: its height at time t, and the number of its cycle from 1."""
    part = t % (up + down)
    return (part / up if part <= up else 1 - (part - up) / down), t // (up + down) + 1


def half_wave(part):
    return (1 + math.cos(math.pi * part)) / 2


FORMULAS = {
    "lambda": (lambda m, o: m.LambdaLR(o, lambda t: 0.9**t), lambda lr, t: lr * 0.9**t),
    "multiplicative": (lambda m, o: m.MultiplicativeLR(o, lambda t: 0.8), lambda lr, t: lr * 0.8**t),
    "step": (lambda m, o: m.StepLR(o, 7, 0.3), lambda lr, t: lr * 0.3 ** (t // 7)),
    "milestones": (
        lambda m, o: m.MultiStepLR(o, [3, 3, 20], 0.5),
        lambda lr, t: lr * 0.5 ** (2 * (t >= 3) + (t >= 20)),
    ),
    "constant": (lambda m, o: m.ConstantLR(o, 0.25, 6), lambda lr, t: lr * (0.25 if t < 6 else 1)),
    "constant from nothing": (lambda m, o: m.ConstantLR(o, 0.0, 6), lambda lr, t: lr * (t >= 6)),
    "exponential": (lambda m, o: m.ExponentialLR(o, 0.95), lambda lr, t: lr * 0.95**t),
    "linear": (lambda m, o: m.LinearLR(o, 0.1, 0.7, 12), lambda lr, t: lr * (0.1 + 0.6 * min(t, 12) / 12)),
    "polynomial": (lambda m, o: m.PolynomialLR(o, 15, 2.0), lambda lr, t: lr * (1 - min(t, 15) / 15) ** 2),
    "cosine": (lambda m, o: m.CosineAnnealingLR(o, 9, 0.01), lambda lr, t: 0.01 + (lr - 0.01) * half_wave(t / 9)),
    "restarts": (
        lambda m, o: m.CosineAnnealingWarmRestarts(o, 5, 1, 0.01),
        lambda lr, t: 0.01 + (lr - 0.01) * half_wave(t % 5 / 5),
    ),
    "cycles": (
        lambda m, o: m.CyclicLR(o, 0.1, 0.9, 4, 6, mode="triangular2"),
        lambda lr, t: 0.1 + 0.8 * up_and_down(t)[0] / 2 ** (up_and_down(t)[1] - 1),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_rates_follow_the_formula(name):
    make, formula = FORMULAS[name]
    opt = optimizer(0.5, 0.02)
    for t, found in enumerate(rates(opt, make(schedulers, opt), 40)):
        assert found == pytest.approx([formula(0.5, t), formula(0.02, t)], rel=1e-9, abs=1e-12), t


def test_restarts_grow_longer():
    opt = optimizer(1.0)
    found = rates(opt, schedulers.CosineAnnealingWarmRestarts(opt, 3, 2), 21)
    assert [t for t, (lr,) in enumerate(found) if lr == 1.0] == [0, 3, 9, 21]


def test_restarts_at_any_point_in_time():
    opt = optimizer(1.0)
    scheduler = schedulers.CosineAnnealingWarmRestarts(opt, 3, 3)
    for epoch, part in ((0.5, 0.5 / 3), (3, 0), (7.5, 4.5 / 9), (12, 0), (120, 0), (2.25, 0.75)):
        scheduler.step(epoch)
        assert opt.param_groups[0]["lr"] == pytest.approx(half_wave(part))
        assert scheduler.last_epoch == math.floor(epoch)


def test_one_cycle_goes_through_its_points():
    opt = optimizer(7.0, 7.0)
    scheduler = schedulers.OneCycleLR(opt, [1.0, 0.1], total_steps=101, pct_start=0.5, anneal_strategy="linear")
    found = rates(opt, scheduler, 100)
    assert found[0] == pytest.approx([1 / 25, 0.1 / 25])
    assert found[100] == pytest.approx([1 / 25e4, 0.1 / 25e4])
    peak = 0.5 * 101 - 1
    assert found[10] == pytest.approx([1 / 25 + (1 - 1 / 25) * 10 / peak, 0.1 / 25 + (0.1 - 0.1 / 25) * 10 / peak])
    assert max(lr for lr, _ in found) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("kind", ["momentum", "betas"])
def test_momentum_goes_against_the_rate(kind):
    opt = optimizer(0.5, **({"betas": (0.9, 0.999)} if kind == "betas" else {}))
    scheduler = schedulers.OneCycleLR(opt, 1.0, total_steps=21, pct_start=0.5, anneal_strategy="linear")
    group = opt.param_groups[0]
    for _ in range(20):
        momentum = group["betas"][0] if kind == "betas" else group["momentum"]
        height = (group["lr"] - 0.04) / 0.96
        if scheduler.last_epoch <= 0.5 * 21 - 1:
            assert momentum == pytest.approx(0.95 - 0.1 * height)
        opt.step()
        scheduler.step()
    momentum = group["betas"][0] if kind == "betas" else group["momentum"]
    assert momentum == pytest.approx(0.95)
    assert kind == "momentum" or group["betas"][1] == 0.999


def test_one_cycle_without_a_rise():
    opt = optimizer(0.5)
    found = rates(opt, schedulers.OneCycleLR(opt, 1.0, total_steps=10, pct_start=0.1), 9)
    assert found[0] == [1.0]


def test_one_cycle_ends():
    opt = optimizer(0.5)
    scheduler = schedulers.OneCycleLR(opt, 1.0, epochs=2, steps_per_epoch=3)
    rates(opt, scheduler, 6)
    with pytest.raises(ValueError, match="the cycle has 6 steps"):
        scheduler.step()


# -- plateaus ------------------------------------------------------------------------------------------------


def test_plateau_waits_reduces_and_cools_down():
    opt = optimizer(1.0, 0.05)
    scheduler = schedulers.ReduceLROnPlateau(opt, factor=0.5, patience=2, cooldown=1, min_lr=[0.0, 0.04])
    seen = []
    for value in [5, 4, 4, 4, 4, 4, 4, 4, 4, 3]:
        scheduler.step(wf.tensor(float(value)))
        seen.append(scheduler.get_last_lr())
    halves = [lr for lr, _ in seen]
    # The third bad epoch is one too many; the next one is spent cooling down.
    assert halves == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]
    assert [lr for _, lr in seen][4:] == [0.04] * 6


@pytest.mark.parametrize(
    ("mode", "threshold_mode", "better"),
    [("min", "rel", 8.9), ("min", "abs", 9.8), ("max", "rel", 11.1), ("max", "abs", 10.2)],
)
def test_plateau_knows_better(mode, threshold_mode, better):
    scheduler = schedulers.ReduceLROnPlateau(optimizer(), mode, threshold=0.1, threshold_mode=threshold_mode)
    scheduler.step(10.0)
    scheduler.step((better + 10.0) / 2)
    assert (scheduler.best, scheduler.num_bad_epochs) == (10.0, 1) or threshold_mode == "abs"
    scheduler.step(better)
    assert (scheduler.best, scheduler.num_bad_epochs) == (better, 0)
    scheduler.step(math.nan)
    assert scheduler.num_bad_epochs == 1


# -- combinations --------------------------------------------------------------------------------------------


def test_one_after_the_other():
    opt = optimizer(0.5)
    parts = [schedulers.ConstantLR(opt, 0.1, 100), schedulers.ExponentialLR(opt, 0.9), schedulers.StepLR(opt, 2, 0.5)]
    found = rates(opt, schedulers.SequentialLR(opt, parts, [4, 8]), 12)
    expected = [0.05] * 4 + [0.5 * 0.9**t for t in range(4)] + [0.5, 0.5, 0.25, 0.25, 0.125]
    assert [lr for (lr,) in found] == pytest.approx(expected)


def test_all_at_once():
    opt = optimizer(0.5, 2.0)
    parts = [schedulers.ConstantLR(opt, 0.1, 3), schedulers.ExponentialLR(opt, 0.9)]
    found = rates(opt, schedulers.ChainedScheduler(parts), 6)
    for t, (first, second) in enumerate(found):
        factor = 0.9**t * (0.1 if t < 3 else 1)
        assert (first, second) == pytest.approx((0.5 * factor, 2 * factor))


def test_a_chain_comes_first():
    opt = optimizer(1.0)
    chain = schedulers.ChainedScheduler([schedulers.ConstantLR(opt, 0.5, 2), schedulers.ExponentialLR(opt, 0.9)])
    sequence = schedulers.SequentialLR(opt, [chain, schedulers.ConstantLR(opt, 0.1, 9)], [4])
    expected = [0.5, 0.45, 0.81, 0.729, 0.1, 0.1]
    assert [lr for (lr,) in rates(opt, sequence, 5)] == pytest.approx(expected)


def test_combinations_of_combinations():
    opt = optimizer(1.0)
    chained = schedulers.ChainedScheduler([schedulers.ConstantLR(opt, 0.5, 2), schedulers.ExponentialLR(opt, 0.9)])
    inner = schedulers.SequentialLR(opt, [schedulers.ExponentialLR(opt, 0.5), chained], [2])
    outer = schedulers.SequentialLR(opt, [schedulers.ConstantLR(opt, 0.25, 9), inner], [3])
    expected = [0.25] * 3 + [1, 0.5] + [0.5, 0.45, 0.81, 0.729]
    assert [lr for (lr,) in rates(opt, outer, 8)] == pytest.approx(expected)


# -- state ---------------------------------------------------------------------------------------------------

STATES = {name: make for name, (make, _) in FORMULAS.items()} | {
    "one cycle": lambda m, o: m.OneCycleLR(o, 1.0, total_steps=50),
    "sequence": lambda m, o: m.SequentialLR(o, [m.LinearLR(o), m.MultiStepLR(o, [3, 5])], [8]),
    "chain": lambda m, o: m.ChainedScheduler([m.LinearLR(o), m.CyclicLR(o, 0.1, 0.2, 5)]),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_goes_through_json_and_on(name):
    opt = optimizer(0.5, 0.02)
    scheduler = STATES[name](schedulers, opt)
    rates(opt, scheduler, 13)
    saved = json.dumps([scheduler.state_dict(), [{**g, "params": None} for g in opt.param_groups]], allow_nan=False)
    expected = rates(opt, scheduler, 20)

    state, groups = json.loads(saved)
    again = optimizer(0.5, 0.02)
    resumed = STATES[name](schedulers, again)
    for group, old in zip(again.param_groups, groups, strict=True):
        group.update({key: value for key, value in old.items() if key != "params"})
    resumed.load_state_dict(state)
    assert rates(again, resumed, 20) == expected


def test_a_plateau_is_saved_before_it_saw_a_value():
    scheduler = schedulers.ReduceLROnPlateau(optimizer(), "max", patience=1)
    state = json.loads(json.dumps(scheduler.state_dict(), allow_nan=False))
    other = schedulers.ReduceLROnPlateau(optimizer(), "min", patience=5)
    other.load_state_dict(state)
    assert (other.mode, other.patience, other.best) == ("max", 1, -math.inf)
    other.step(3.0)
    assert other.best == 3.0


def test_a_state_does_not_change_later():
    opt = optimizer(0.5)
    scheduler = schedulers.ExponentialLR(opt, 0.5)
    state = scheduler.state_dict()
    rates(opt, scheduler, 3)
    assert state["_last_lr"] == [0.5] and state["last_epoch"] == 0
    state["base_lrs"].append(7.0)
    assert scheduler.base_lrs == [0.5]


class Decay:
    """A callable object, whose attributes are part of the state."""

    def __init__(self, base):
        self.base = base

    def __call__(self, epoch):
        return self.base**epoch


def test_functions_are_left_out_of_the_state_and_objects_kept():
    scheduler = schedulers.LambdaLR(optimizer(0.1, 0.2, 0.3), [lambda t: 1, Decay(0.5), math.sqrt])
    state = scheduler.state_dict()
    assert state["lr_lambdas"] == [None, {"base": 0.5}, None]
    other = schedulers.LambdaLR(optimizer(0.1, 0.2, 0.3), [lambda t: 1, Decay(0.9), math.sqrt])
    other.load_state_dict(state)
    assert other.lr_lambdas[1].base == 0.5
    custom = schedulers.CyclicLR(optimizer(0.1), 0.1, 0.2, scale_fn=Decay(0.5))
    assert custom.state_dict()["_scale_fn_custom"] == {"base": 0.5}


def test_a_state_of_another_scheduler_is_refused_whole():
    scheduler = schedulers.StepLR(optimizer(), 3)
    before = scheduler.state_dict()
    with pytest.raises(ValueError, match=r"lacks 'gamma', 'step_size' and has 'step'"):
        state = {key: value for key, value in before.items() if key not in ("step_size", "gamma")}
        scheduler.load_state_dict(state | {"step": None})
    assert scheduler.state_dict() == before


def test_a_training_run_goes_on_at_an_epoch():
    opt = optimizer(0.5)
    with pytest.raises(ValueError, match="param_groups\\[0\\] has no 'initial_lr'"):
        schedulers.StepLR(opt, 3, 0.1, last_epoch=4)
    opt.param_groups[0]["initial_lr"] = 2.0
    scheduler = schedulers.LambdaLR(opt, lambda t: 0.5**t, last_epoch=1)
    assert (scheduler.last_epoch, scheduler.base_lrs, scheduler.get_last_lr()) == (2, [2.0], [0.5])


# -- users' own, tensors, warnings, errors -------------------------------------------------------------------


def test_a_scheduler_of_ones_own():
    class Halving(schedulers.LRScheduler):
        def get_lr(self):
            return [lr / (1 + self.last_epoch) for lr in self.base_lrs]

    opt = optimizer(1.0)
    assert [lr for (lr,) in rates(opt, Halving(opt), 3)] == [1, 1 / 2, 1 / 3, 1 / 4]
    with pytest.raises(NotImplementedError, match="must define get_lr"):
        schedulers.LRScheduler(optimizer())


def test_a_rate_in_a_tensor_stays_there():
    opt = optimizer(1.0)
    held = opt.param_groups[0]["lr"] = wf.tensor(0.5)
    scheduler = schedulers.ExponentialLR(opt, 0.5)
    opt.step()
    scheduler.step()
    assert opt.param_groups[0]["lr"] is held and held.item() == 0.25
    json.dumps(scheduler.state_dict())


def test_the_wrong_order_warns_once():
    scheduler = schedulers.StepLR(optimizer(), 3)
    with pytest.warns(UserWarning, match=r"before optimizer\.step") as caught:
        scheduler.step()
        scheduler.step()
    assert len(caught) == 1 and caught[0].filename == __file__


def test_the_right_order_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt = optimizer()
        first = schedulers.StepLR(opt, 3)
        rates(opt, first, 3)
        # The optimiser has stepped since it got its first scheduler; a second one may step at once.
        schedulers.ExponentialLR(opt, 0.5).step()


def test_epochs_given_and_rates_asked_for_outside_of_steps_warn():
    opt = optimizer(1.0)
    scheduler = schedulers.ExponentialLR(opt, 0.5)
    opt.step()
    with pytest.warns(UserWarning, match="deprecated"):
        scheduler.step(3)
    assert scheduler.get_last_lr() == [0.125]
    with pytest.warns(UserWarning, match=r"use get_last_lr\(\)"):
        scheduler.get_lr()


BAD = [
    (lambda m, o: m.StepLR(object(), 3), TypeError, "object is not an Optimizer"),
    (lambda m, o: m.StepLR(o, 0), ValueError, "step_size must be a positive integer"),
    (lambda m, o: m.LambdaLR(o, [lambda t: 1] * 3), ValueError, "3 values for 1 parameter groups"),
    (lambda m, o: m.MultiplicativeLR(o, 0.5), TypeError, "must be a function of the epoch, not float"),
    (lambda m, o: m.ConstantLR(o, 1.5), ValueError, "between 0 and 1"),
    (lambda m, o: m.LinearLR(o, 0.0), ValueError, "start_factor must be above 0"),
    (lambda m, o: m.LinearLR(o, 0.5, 1.1), ValueError, "end_factor must lie between"),
    (lambda m, o: m.CosineAnnealingLR(o, 0), ValueError, "T_max must be a number above 0"),
    (lambda m, o: m.CosineAnnealingLR(o, "9"), ValueError, "it is '9'"),
    (lambda m, o: m.CosineAnnealingWarmRestarts(o, 0), ValueError, "T_0 must be a positive integer"),
    (lambda m, o: m.CosineAnnealingWarmRestarts(o, 3, 1.5), ValueError, "T_mult must be a positive integer"),
    (lambda m, o: m.CosineAnnealingWarmRestarts(o, 3).step(-1), ValueError, "at least 0"),
    (lambda m, o: m.CyclicLR(o, [0.1, 0.2], 1.0), ValueError, "base_lr has 2 values for 1"),
    (lambda m, o: m.CyclicLR(o, 0.1, 1.0, mode="square"), ValueError, "mode must be 'triangular'"),
    (lambda m, o: m.CyclicLR(o, 0.1, 1.0, 0), ValueError, "step_size_up must be above 0"),
    (lambda m, o: m.OneCycleLR(o, 0.1), ValueError, "needs total_steps, or epochs and steps_per_epoch"),
    (lambda m, o: m.OneCycleLR(o, 0.1, total_steps=-1), ValueError, "total_steps must be a positive integer"),
    (lambda m, o: m.OneCycleLR(o, 0.1, 10, pct_start=2.0), ValueError, "pct_start must be a float"),
    (lambda m, o: m.OneCycleLR(o, 0.1, 10, anneal_strategy="exp"), ValueError, "'cos' or 'linear'"),
    (lambda m, o: m.ReduceLROnPlateau(o, factor=1.0), ValueError, "factor must be below 1"),
    (lambda m, o: m.ReduceLROnPlateau(o, "low"), ValueError, "mode must be 'min' or 'max'"),
    (lambda m, o: m.ReduceLROnPlateau(o, threshold_mode="x"), ValueError, "threshold_mode must be"),
    (lambda m, o: m.ReduceLROnPlateau(o, min_lr=[1, 2]), ValueError, "min_lr has 2 values for 1"),
    (lambda m, o: m.ReduceLROnPlateau(o).step("low"), TypeError, "step: takes the measured value, not str"),
    (lambda m, o: m.ReduceLROnPlateau(o).step(wf.ones(2)), ValueError, r"one number, it is f32\[2\]"),
    (lambda m, o: m.MultiStepLR(o, 5), TypeError, r"milestones must be a list of epochs, not int.*\[5\]"),
    (lambda m, o: m.SequentialLR(o, [], []), ValueError, "at least one scheduler"),
    (lambda m, o: m.SequentialLR(o, [m.StepLR(o, 3)], [3]), ValueError, "1 schedulers need 0 milestones"),
    (lambda m, o: m.SequentialLR(o, [m.StepLR(o, 3)] * 3, [5, 3]), ValueError, "must rise"),
    (lambda m, o: m.ChainedScheduler([m.ReduceLROnPlateau(o)]), ValueError, "needs a measured value"),
    (lambda m, o: m.ChainedScheduler([m.StepLR(o, 3), m.StepLR(optimizer(), 3)]), ValueError, "another optimizer"),
    (lambda m, o: m.ChainedScheduler([o]), TypeError, "is a Still, not a scheduler"),
]


@pytest.mark.parametrize(("make", "kind", "sentence"), BAD)
def test_bad_arguments_are_named(make, kind, sentence):
    with pytest.raises(kind, match=sentence) as raised:
        make(schedulers, optimizer())
    assert "test_lr_scheduler.py" in str(raised.value)


def test_momentum_that_is_not_there():
    bare = Still([wf.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(ValueError, match="Still has neither momentum nor betas"):
        schedulers.OneCycleLR(bare, 0.1, 10)
    schedulers.OneCycleLR(bare, 0.1, 10, cycle_momentum=False)


def test_a_group_added_later_is_noticed():
    opt = optimizer(0.5)
    scheduler = schedulers.StepLR(opt, 3)
    functions = [schedulers.LambdaLR(opt, lambda t: 1.0), schedulers.MultiplicativeLR(opt, lambda t: 1.0)]
    opt.add_param_group({"params": [wf.zeros(1, requires_grad=True)], "lr": 3.0})
    opt.step()
    scheduler.step()  # it multiplies what is there, so a new group is welcome
    for scheduler in functions:
        with pytest.raises(ValueError, match="1 learning rates for 2 parameter groups"):
            scheduler.step()
