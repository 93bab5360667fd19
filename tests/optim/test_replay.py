"""A step inside a recorded call: Python's part runs again at every replay, and says when it would be another step."""

import numpy as np
import pytest

import wayfare as wf
from tests.optim.fake_recorder import GaveUp, recording
from tests.optim.test_formulas import CASES, SHAPES, parameters, values
from wayfare.api.fused_update import fused_update
from wayfare.core.executor import StaleCall


def filled(rng, params):
    """New numbers in the gradients that are there, so that what was recorded sees them."""
    for p in params:
        g = rng.normal(size=tuple(p.shape))
        if p.grad is None:
            p.grad = wf.tensor(g, dtype=p.dtype)
        else:
            p.grad.copy_(wf.tensor(g, dtype=p.dtype))


def state_of(optimizer):
    """Every number of the states, in order."""
    found = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            for _, value in sorted(optimizer.state[p].items()):
                found.append(value.numpy().copy() if isinstance(value, wf.Tensor) else value)
    return found


def agree(one, other):
    for a, b in zip(values(one[0]) + state_of(one[1]), values(other[0]) + state_of(other[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def two(name, **options):
    """The same parameters and optimiser twice, each with its own gradients."""
    made = []
    for _ in range(2):
        params = parameters(np.random.default_rng(0))
        made.append((params, getattr(wf.optim, name)(params, **options)))
    return made


def replayed_steps(pair, turns, also=lambda optimizer: None, start=0):
    """The first of a pair steps plainly, the second by recordings and their replays; how many recordings it took."""
    (params, plain), (recorded_params, recorded) = pair
    rngs = [np.random.default_rng(start), np.random.default_rng(start)]
    made, recordings = None, 0
    for _ in range(turns):
        for rng, which in zip(rngs, (params, recorded_params), strict=True):
            filled(rng, which)
        plain.step()
        if made is not None and all([call.ready() for call in made.calls]):
            made.replay()
        else:
            recordings += 1
            with recording() as made:
                recorded.step()
        also(plain)
        also(recorded)
        agree(*pair)
    return recordings


@pytest.mark.parametrize(("name", "options"), [*CASES, ("SparseAdam", {}), ("SparseAdam", {"maximize": True})], ids=str)
def test_replayed_steps_are_steps(name, options):
    pair = two(name, lr=0.05, **options)
    # RAdam turns to its second formula once; nobody else changes.
    assert replayed_steps(pair, 10) == (2 if name == "RAdam" else 1)


def test_a_sparse_adam_leaves_rows_without_a_gradient_alone():
    pair = two("SparseAdam", lr=0.05)
    for params, _ in pair:
        for p in params:
            p.grad = wf.zeros_like(p)
            if p.ndim == 2 and p.numel():
                p.grad[1] = 1.0
    before = values(pair[1][0])
    pair[0][1].step()
    with recording() as made:
        pair[1][1].step()
    pair[0][1].step()
    made.replay()
    agree(*pair)
    np.testing.assert_array_equal(before[0][0], values(pair[1][0])[0][0])
    assert (before[0][1] != values(pair[1][0])[0][1]).all()


def test_options_that_change_between_replays_are_honoured():
    def change(optimizer):
        group = optimizer.param_groups[0]
        group["lr"] *= 0.8
        group["betas"] = (group["betas"][0] * 0.9, 0.99)

    assert replayed_steps(two("AdamW", lr=0.05), 10, change) == 1


def test_another_formula_is_recorded_anew():
    (_, plain), (_, recorded) = pair = two("Adam", lr=0.05)
    made, recordings = None, []
    for turn, decay in enumerate([0.0, 0.1, 0.2, 0.0, 0.0]):
        for which, optimizer in pair:
            filled(np.random.default_rng(turn), which)
            optimizer.param_groups[0]["weight_decay"] = decay
        plain.step()
        if made is not None and made.calls[0].ready():
            made.replay()
        else:
            recordings.append(turn)
            with recording() as made:
                recorded.step()
        agree(*pair)
    assert recordings == [0, 1, 3]


def test_a_learning_rate_in_a_tensor():
    pair = two("Adam", lr=0.05)
    for _, optimizer in pair:
        optimizer.param_groups[0]["lr"] = wf.tensor(0.05, dtype=wf.float64)
    assert replayed_steps(pair, 6, lambda optimizer: optimizer.param_groups[0]["lr"].mul_(0.5)) == 1


def test_groups_and_parameters_at_different_steps():
    pair = []
    for _ in range(2):
        params = parameters(np.random.default_rng(0))
        optimizer = wf.optim.NAdam([{"params": params[:3], "lr": 0.1}, {"params": params[3:]}])
        filled(np.random.default_rng(1), params[:1])
        optimizer.step()
        pair.append((params, optimizer))
    assert replayed_steps(pair, 5) == 1


@pytest.mark.parametrize("make", [
    lambda o: wf.optim.lr_scheduler.StepLR(o, 2, 0.5),
    lambda o: wf.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    lambda o: wf.optim.lr_scheduler.SequentialLR(
        o, [wf.optim.lr_scheduler.LinearLR(o), wf.optim.lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    lambda o: wf.optim.lr_scheduler.LambdaLR(o, lambda epoch: 1 / (epoch + 1)),
], ids=["StepLR", "OneCycleLR", "SequentialLR", "LambdaLR"])  # fmt: skip
@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.filterwarnings("ignore:lr_scheduler.step")
def test_a_schedule_goes_on(make, before):
    pair = two("Adam", lr=0.05)
    schedulers = [make(optimizer) for _, optimizer in pair]
    rng = np.random.default_rng(0)
    made, state = None, rng.bit_generator.state
    for _ in range(10):
        for (params, optimizer), scheduler in zip(pair, schedulers, strict=True):
            rng.bit_generator.state = state
            filled(rng, params)

            def step(optimizer=optimizer, scheduler=scheduler):
                if before:
                    scheduler.step()
                optimizer.step()
                if not before:
                    scheduler.step()

            if scheduler is schedulers[0]:
                step()
            elif made is None:
                with recording() as made:
                    step()
            else:
                made.replay()
        state = rng.bit_generator.state
        agree(*pair)
        assert schedulers[0].state_dict().keys() == schedulers[1].state_dict().keys()
        assert schedulers[0].get_last_lr() == schedulers[1].get_last_lr()
        assert schedulers[0].last_epoch == schedulers[1].last_epoch
    assert len(made.calls) == 2


def test_two_steps_in_one_call_count_both_though_ready_was_asked_first():
    (params, plain), (other, recorded) = pair = two("Adam", lr=0.05)
    for which in (params, other):
        filled(np.random.default_rng(0), which)
    with recording() as made:
        recorded.step()
        recorded.step()
    plain.step()
    plain.step()
    for _ in range(3):
        plain.step()
        plain.step()
        assert all([call.ready() for call in made.calls])
        numbers = [call.run() for call in made.calls]
        for (_, update, written, read, _), given in zip(made.updates, numbers, strict=True):
            update([t._array for t in written], [t._array for t in read], given[0])
        agree(*pair)


def test_a_formula_that_another_call_out_makes_stale_is_noticed_in_time():
    params = parameters(np.random.default_rng(0))
    filled(np.random.default_rng(0), params)
    optimizer = wf.optim.SGD(params, lr=0.1, momentum=0.9)
    with recording() as made:
        optimizer.step()
        optimizer.step()
    first, second = made.calls
    assert first.ready() and second.ready()
    first.run()
    optimizer.param_groups[0]["momentum"] = 0.0
    with pytest.raises(StaleCall, match="another formula"):
        second.run()


def test_a_run_can_be_undone():
    params = parameters(np.random.default_rng(0))
    filled(np.random.default_rng(0), params)
    optimizer = wf.optim.NAdam(params, lr=0.1)
    rate = wf.tensor(0.1, dtype=wf.float64)
    optimizer.param_groups[0]["lr"] = rate
    inner = wf.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    chained = wf.optim.lr_scheduler.ChainedScheduler([inner])
    with recording() as made:
        optimizer.step()
        chained.step()

    def shown():
        return state_of(optimizer)[-2:], rate.item(), inner.state_dict(), chained.state_dict()

    before = shown()
    numbers = [call.ready() and call.run() for call in made.calls]
    assert shown()[1] == 0.5 * before[1] and shown()[2] != before[2] and shown()[0] != before[0]
    for call in reversed(made.calls):
        call.undo()
    assert shown() == before and optimizer.param_groups[0]["lr"] is rate
    assert [call.ready() and call.run() for call in made.calls] == numbers


CHANGES = {
    "hooks": lambda o: o.register_step_post_hook(lambda *_: None),
    "parameter groups": lambda o: o.add_param_group({"params": [wf.zeros(2).requires_grad_()]}),
    "other parameters": lambda o: o.param_groups[0]["params"].pop(),
    "other parameters (a new list)": lambda o: o.param_groups[0].update(params=list(o.param_groups[0]["params"])),
    "other states": lambda o: o.load_state_dict(o.state_dict()),
    "other states (cleared)": lambda o: o.state.clear(),
    "another exp_avg_sq": lambda o: o.state[o.param_groups[0]["params"][2]].update(exp_avg_sq=wf.zeros(())),
    "lost its 'step'": lambda o: o.state[o.param_groups[0]["params"][0]].pop("step"),
    "at the same step": lambda o: o.state[o.param_groups[0]["params"][0]].update(step=7),
    "do not work": lambda o: o.param_groups[0].pop("eps"),
    "another formula": lambda o: o.param_groups[0].update(weight_decay=0.1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_makes_another_step_of_it_is_noticed(change):
    params = parameters(np.random.default_rng(0))
    filled(np.random.default_rng(0), params)
    optimizer = wf.optim.Adam(params)
    with recording() as made:
        optimizer.step()
    (call,) = made.calls
    assert call.ready() and call.reason == ""
    CHANGES[change](optimizer)
    if change == "other parameters":
        assert len(params) == 4 and len(optimizer.param_groups[0]["params"]) == 3
    assert not call.ready()
    assert change.split(" (")[0] in call.reason


def test_what_cannot_be_replayed_is_given_up():
    params = parameters(np.random.default_rng(0))
    filled(np.random.default_rng(0), params)

    class OwnStep(wf.optim.Optimizer):
        def step(self, closure=None):
            raise AssertionError("is not reached")

    class OwnUpdate(wf.optim.Adam):
        def update(self, group, lists, *counts):
            return super().update(group, lists, *counts)

    hooked = wf.optim.SGD(params)
    hooked.register_step_pre_hook(lambda *_: None)
    plateau = wf.optim.lr_scheduler.ReduceLROnPlateau(wf.optim.SGD(params))
    quasi_newton, state = wf.optim.LBFGS(params), wf.get_rng_state()
    for reason, act in [
        ("looks at the loss", lambda: quasi_newton.step(lambda: wf.zeros(()))),
        ("Python of its own", OwnStep(params, {}).step),
        ("Python of its own", OwnUpdate(params).step),
        ("has hooks", hooked.step),
        ("the value of a tensor", lambda: plateau.step(wf.zeros(()))),
        ("made inside", lambda: wf.optim.SGD(params)),
        ("made inside", lambda: wf.optim.lr_scheduler.StepLR(hooked, 1)),
        ("manual_seed", lambda: wf.manual_seed(0)),
        ("made inside", wf.Generator),
        ("from outside", lambda: wf.set_rng_state(state)),
    ]:
        with pytest.raises(GaveUp, match=reason), recording():
            act()


def test_a_measured_number_is_noted_again():
    optimizer = wf.optim.SGD(parameters(np.random.default_rng(0)), lr=1.0)
    plateau = wf.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    with recording() as made:
        plateau.step(1.0)
    made.replay()
    made.replay()
    assert optimizer.param_groups[0]["lr"] == 0.25 and plateau.last_epoch == 3


@fused_update(writes=("p",))
def _towards(m, p, g, *, rate):
    return p - g * rate


def test_an_update_of_ones_own_is_handed_to_the_recorder():
    p, g = wf.ones(3, 2), wf.ones(3, 2)
    with recording() as made:
        _towards([p], [g], rate=0.5)
        _towards.at_rows(wf.tensor([2, 0]), p, g[:2], rate=0.25)
    assert [numbers for *_, numbers in made.updates] == [(0.5,), (0.25,)]
    assert made.updates[0][0] is None and made.updates[0][2] == [p] and made.updates[0][3] == [g]
    np.testing.assert_array_equal(p.numpy(), [[0.25] * 2, [0.5] * 2, [0.25] * 2])


@pytest.mark.parametrize("order", [2.0, 1.0, float("inf"), 3.0])
@pytest.mark.parametrize("limit", [0.5, 100.0])
@pytest.mark.parametrize("dtype", [wf.float16, wf.float32, wf.float64], ids=str)
def test_clipping_looks_at_no_value(order, limit, dtype):
    plain, recorded = (parameters(np.random.default_rng(0), SHAPES, dtype) for _ in range(2))
    filled(np.random.default_rng(1), plain)
    filled(np.random.default_rng(1), recorded)
    norm = wf.nn.utils.clip_grad_norm_(plain, limit, order)
    wf.nn.utils.clip_grad_value_(plain, 0.3)
    with recording():
        found = wf.nn.utils.clip_grad_norm_(recorded, limit, order)
        wf.nn.utils.clip_grad_value_(recorded, 0.3)
    few = {wf.float16: 2e-3, wf.float32: 1e-6, wf.float64: 1e-13}[dtype]
    assert found.dtype is norm.dtype and found.item() == pytest.approx(norm.item(), rel=few)
    for a, b in zip(plain, recorded, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=few)


def test_clipping_by_a_norm_that_is_none():
    params = parameters(np.random.default_rng(0))
    filled(np.random.default_rng(1), params)
    params[1].grad[0] = float("nan")
    with recording():
        norm = wf.nn.utils.clip_grad_norm_(params, 1.0)
    assert norm.isnan() and params[0].grad.isnan().all()
    with pytest.raises(AssertionError, match="looks at a value"), recording():
        wf.nn.utils.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)


def test_draws_are_announced_also_from_inside_a_vmap():
    own = wf.Generator().manual_seed(3)
    with recording() as made:
        wf.rand(2)
        wf.rand(2, generator=own)
        wf.vmap(lambda x: x + wf.rand(()), randomness="same")(wf.zeros(3))
    assert [generator for generator, _ in made.draws] == [wf.default_generator, own, wf.default_generator]
    assert made.draws[1][1] == (3, 0)
    assert made.draws[2][1] == (made.draws[0][1][0], made.draws[0][1][1] + 1)


def test_a_state_taken_inside_may_be_put_back():
    with recording() as made:
        state = wf.get_rng_state()
        first = wf.rand(2)
        wf.set_rng_state(state)
        second = wf.rand(2)
    assert made.draws[0] == made.draws[1] and first.tolist() == second.tolist()


def test_a_batch_norm_keeps_its_statistics_without_a_look():
    for momentum in (0.1, None):
        plain, recorded = (wf.nn.BatchNorm1d(3, momentum=momentum) for _ in range(2))
        for turn in range(3):
            x = wf.tensor(np.random.default_rng(turn).normal(size=(5, 3)), dtype=wf.float32)
            plain(x)
            with recording():
                recorded(x)
        np.testing.assert_allclose(plain.running_mean.numpy(), recorded.running_mean.numpy(), rtol=1e-6)
        np.testing.assert_allclose(plain.running_var.numpy(), recorded.running_var.numpy(), rtol=1e-6)
        assert recorded.num_batches_tracked.item() == 3
