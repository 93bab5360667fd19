"""The base of all optimisers: groups, names, hooks, states saved and loaded, and wrong arguments."""

import copy
import gc
import tracemalloc

import numpy as np
import pytest

import wayfare as wf
from tests.optim.reference import CLASSES
from wayfare.core.write_clock import memories_with_history
from wayfare.optim import SGD, Adam, Optimizer


def leaves(*shapes):
    rng = np.random.default_rng(0)
    return [wf.tensor(rng.normal(size=s)).requires_grad_() for s in shapes]


def with_gradients(params):
    for p in params:
        p.grad = wf.ones_like(p.detach())
    return params


# -- groups ------------------------------------------------------------------------------------------------------------


def test_groups_get_the_defaults():
    a, b, c = leaves(2, 3, 4)
    optimizer = Adam([{"params": [a, b], "lr": 0.1}, {"params": c, "betas": (0.5, 0.6)}], eps=1e-4)
    assert [g["lr"] for g in optimizer.param_groups] == [0.1, 1e-3]
    assert [g["betas"] for g in optimizer.param_groups] == [(0.9, 0.999), (0.5, 0.6)]
    assert [g["eps"] for g in optimizer.param_groups] == [1e-4, 1e-4]
    assert optimizer.param_groups[1]["params"] == [c]


def test_a_group_stays_the_users_dictionary():
    group = {"params": leaves(2), "lr": 0.1}
    optimizer = SGD([group])
    group["lr"] = 0.5
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_names_of_parameters():
    a, b = leaves(2, 3)
    optimizer = SGD([("weight", a), ("bias", b)], lr=0.1)
    assert optimizer.param_groups[0]["params"] == [a, b]
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    with pytest.raises(ValueError, match="some parameter groups have names"):
        optimizer.add_param_group({"params": leaves(2)})
    with pytest.raises(ValueError, match="some parameters have names"):
        SGD([("weight", a), b])


def test_repr():
    text = repr(SGD([{"params": leaves(2), "lr": 0.5}, {"params": leaves(3)}], lr=0.1))
    assert text.startswith("SGD (\nParameter Group 0\n    dampening: 0\n    differentiable: False\n    foreach: None\n")
    assert "    lr: 0.5\n" in text and "Parameter Group 1\n" in text and text.endswith("    weight_decay: 0\n)")


class Model:
    """Something with parameters."""

    def parameters(self):
        return iter(leaves(2))


USED = iter(leaves(2))
list(USED)
P = leaves(2)[0]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: SGD([]), ValueError, "empty list of parameters.*the model has none: .* use nn.ModuleList"),
        (lambda: SGD({"weight": P}), TypeError, r"list of parameters, not one dict.*Give model.parameters\(\)"),
        (lambda: SGD(USED), ValueError, "can be used once only"),
        (lambda: SGD(Model()), TypeError, r"takes parameters, not a Model.*model.parameters\(\)"),
        (lambda: SGD(P), TypeError, "not a tensor"),
        (lambda: SGD({"params": [P]}), TypeError, r"not one dict.*Give \[group\]"),
        (lambda: SGD(3), TypeError, "iterable of parameters, not a int"),
        (lambda: SGD({P}), TypeError, "a set has no order"),
        (lambda: SGD([P, P]), ValueError, "more than once"),
        (lambda: SGD([{"params": [P]}, {"params": [P]}]), ValueError, "more than once"),
        (lambda: SGD([P, 3.0]), TypeError, "one of the parameters is a float"),
        (lambda: SGD([P * 2]), ValueError, "is no leaf"),
        (lambda: SGD([{"lr": 1.0}]), ValueError, 'no "params"'),
        (lambda: SGD([P]).add_param_group([P]), TypeError, "a parameter group is a dict, not a list"),
        (lambda: SGD([P], lr=-1), ValueError, "SGD: lr must be at least 0, it is -1"),
        (lambda: SGD([P], lr=float("nan")), ValueError, "lr must be at least 0, it is nan"),
        (lambda: SGD([P], lr="fast"), TypeError, "lr must be a number, not str"),
        (lambda: SGD([P], lr="0.1"), TypeError, "lr must be a number, not str"),
        (lambda: SGD([P]).step(wf.ones(1)), TypeError, "step: closure must be a function, not Tensor"),
        (lambda: wf.optim.LBFGS([P]).step(wf.ones(1)), TypeError, "step: closure must be a function, not Tensor"),
        (lambda: SGD([P], lr=wf.ones(2)), ValueError, "lr must be one number"),
        (lambda: SGD([{"params": [P], "lr": -2}]), ValueError, "lr must be at least 0, it is -2"),
        (lambda: SGD([P], momentum=-0.1), ValueError, "momentum must be at least 0"),
        (lambda: SGD([P], weight_decay=-0.1), ValueError, "weight_decay must be at least 0"),
        (lambda: SGD([P], nesterov=True), ValueError, "nesterov needs a momentum"),
        (lambda: SGD([P], momentum=0.9, dampening=0.1, nesterov=True), ValueError, "nesterov needs a momentum"),
        (lambda: SGD([P], differentiable=True), RuntimeError, "differentiable=True is not supported"),
        (lambda: Adam([P], fused=True, foreach=True), RuntimeError, "cannot both be True"),
        (lambda: Adam([P], betas=(1.0, 0.9)), ValueError, r"betas\[0\] must be at least 0 and less than 1, it is 1"),
        (lambda: Adam([P], betas=(0.9, -0.1)), ValueError, r"betas\[1\]"),
        (lambda: Adam([P], betas=0.9), ValueError, "betas must be two numbers"),
        (lambda: Adam([P], eps=-1), ValueError, "Adam: eps"),
        (lambda: wf.optim.AdamW([P], eps=-1), ValueError, "AdamW: eps"),
        (lambda: wf.optim.Adadelta([P], rho=1.1), ValueError, "rho must be at least 0 and at most 1, it is 1.1"),
        (lambda: wf.optim.SparseAdam([P], lr=0), ValueError, "lr must be more than 0, it is 0"),
        (lambda: wf.optim.LBFGS([P], line_search_fn="golden"), ValueError, "no line search 'golden'"),
        (lambda: wf.optim.LBFGS([P]).add_param_group({"params": leaves(1)}), ValueError, "one parameter group only"),
        (lambda: wf.optim.LBFGS([P]).step(), TypeError, "needs a closure"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(make, error, words):
    with pytest.raises(error, match=words) as caught:
        make()
    assert isinstance(caught.value, wf.errors.WayfareError)


def test_a_group_that_is_refused_leaves_nothing_behind():
    a, b = leaves(2, 3)
    optimizer = SGD([a])
    for group in ({"params": [b, a]}, {"params": [b], "lr": -1}):
        with pytest.raises(ValueError):
            optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [b]})
    assert len(optimizer.param_groups) == 2


# -- gradients ---------------------------------------------------------------------------------------------------------


def test_zero_grad():
    params = with_gradients(leaves(2, 3))
    optimizer = SGD(params)
    kept = params[0].grad
    optimizer.zero_grad(set_to_none=False)
    assert params[0].grad.tolist() == [0, 0] and kept.tolist() == [0, 0]
    optimizer.zero_grad()
    assert params[0].grad is None and params[1].grad is None


def test_zero_grad_cuts_a_gradient_that_was_recorded():
    (p,) = leaves(2)
    (p * p * p).sum().backward(create_graph=True)
    assert p.grad.requires_grad
    SGD([p]).zero_grad(set_to_none=False)
    assert not p.grad.requires_grad and p.grad.tolist() == [0, 0]


# -- hooks and optimisers of one's own ---------------------------------------------------------------------------------


def test_hooks_run_around_a_step():
    (p,) = with_gradients(leaves(2))
    optimizer, seen = SGD([p], lr=1.0), []
    before = optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append(("before", o is args[0], p.tolist())))
    after = optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append(("after", o is args[0], p.tolist())))
    start = p.tolist()
    optimizer.step()
    assert seen == [("before", True, start), ("after", True, [x - 1 for x in start])]
    before.remove()
    optimizer.step()
    after.remove()
    optimizer.step()
    assert [name for name, _, _ in seen] == ["before", "after", "after"]


def test_a_hook_may_change_the_arguments():
    (p,) = with_gradients(leaves(2))
    optimizer = SGD([p])
    optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o, lambda: "from the hook"), {}))
    assert optimizer.step() == "from the hook"
    optimizer.register_step_pre_hook(lambda o, args, kwargs: 3)
    with pytest.raises(RuntimeError, match="must return None or"):
        optimizer.step()


class Signs(Optimizer):
    """An optimiser as a user writes it."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @wf.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["step"] = state.get("step", 0) + 1
                    p.sub_(p.grad.sign(), alpha=group["lr"])


class Louder(Signs):
    def step(self, closure=None):
        super().step(closure)
        super().step(closure)


def test_an_optimiser_of_ones_own():
    (p,) = with_gradients(leaves(2))
    start, seen = p.tolist(), []
    optimizer = Louder([p], lr=0.5)
    optimizer.register_step_post_hook(lambda *args: seen.append(1))
    optimizer.step()
    assert p.tolist() == [x - 1 for x in start]
    assert seen == [1]
    saved = optimizer.state_dict()
    assert saved["state"][0]["step"].item() == 2
    other = Louder([p], lr=0.1)
    other.load_state_dict(saved)
    assert other.state[p]["step"] == 2 and other.param_groups[0]["lr"] == 0.5


def test_the_base_has_no_step():
    with pytest.raises(NotImplementedError):
        Optimizer(leaves(2), {}).step()


def test_an_option_without_a_default():
    from wayfare.optim.optimizer import required

    with pytest.raises(ValueError, match="gives no lr"):
        Optimizer(leaves(2), {"lr": required})
    assert Optimizer([{"params": leaves(2), "lr": 1}], {"lr": required}).param_groups[0]["lr"] == 1


# -- saving and loading ------------------------------------------------------------------------------------------------


def trained(name, params, steps=3, **options):
    optimizer = getattr(wf.optim, name)(params, **options)
    rng = np.random.default_rng(1)
    for _ in range(steps):
        for p in params:
            p.grad = wf.tensor(rng.normal(size=tuple(p.shape)))
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("name", CLASSES)
def test_a_loaded_optimiser_goes_on_to_the_same_bits(name):
    first = leaves((3, 2), 4)
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    optimizer = trained(name, first, **options)
    second = [p.detach().clone().requires_grad_() for p in first]
    other = getattr(wf.optim, name)(second, lr=7.0, **options)
    other.load_state_dict(optimizer.state_dict())
    for params, one in ((first, optimizer), (second, other)):
        for _ in range(3):
            with_gradients(params)
            one.step()
    for p, q in zip(first, second, strict=True):
        assert p.detach().numpy().tobytes() == q.detach().numpy().tobytes()


def test_loaded_values_are_copies():
    params = leaves(3)
    optimizer = trained("Adam", params)
    other = Adam([p.detach().clone().requires_grad_() for p in params])
    other.load_state_dict(optimizer.state_dict())
    before = optimizer.state[params[0]]["exp_avg"].tolist()
    other.state[other.param_groups[0]["params"][0]]["exp_avg"].zero_()
    other.param_groups[0]["lr"] = 5.0
    assert optimizer.state[params[0]]["exp_avg"].tolist() == before and optimizer.param_groups[0]["lr"] == 1e-3


def test_plain_formats_are_understood():
    params = leaves(3)
    optimizer = trained("Adam", params)
    saved = optimizer.state_dict()
    state = {str(n): {k: np.asarray(v.numpy()) for k, v in s.items()} for n, s in saved["state"].items()}
    group = {**saved["param_groups"][0], "betas": [0.9, 0.999], "lr": np.array(0.25)}
    other = Adam(params)
    other.load_state_dict({"state": state, "param_groups": [group]})
    assert other.param_groups[0]["betas"] == (0.9, 0.999) and other.param_groups[0]["lr"] == 0.25
    assert other.state[params[0]]["step"] == 3
    assert other.state[params[0]]["exp_avg"].tolist() == optimizer.state[params[0]]["exp_avg"].tolist()


def test_states_take_the_dtype_of_the_parameter():
    params = leaves(3)
    saved = trained("Adam", params).state_dict()
    (half,) = [p.detach().to(wf.float32).requires_grad_() for p in params]
    other = Adam([half])
    other.load_state_dict(saved)
    assert other.state[half]["exp_avg"].dtype is wf.float32


def broken(change, *shapes, name="Adam"):
    saved = trained("Adam", leaves(*(shapes or ((3, 2), 4)))).state_dict()
    saved = {"state": {k: dict(v) for k, v in saved["state"].items()}, "param_groups": saved["param_groups"]}
    change(saved)
    return saved


@pytest.mark.parametrize(
    ("saved", "error", "words"),
    [
        ({}, TypeError, 'a dict with "state" and "param_groups"'),
        (None, TypeError, "a dict with"),
        (broken(lambda s: s["param_groups"].append(s["param_groups"][0])), ValueError, "2 parameter groups and the"),
        (broken(lambda s: None, 4), ValueError, "group 0 has 1 parameters and the optimiser's 2"),
        (broken(lambda s: None, (3, 3), (2,)), ValueError,
         r"parameter 0 \[3, 2\]: its exp_avg has shape \[3, 3\].*exp_avg_sq.*parameter 1 \[4\]: its exp_avg has"),
        (broken(lambda s: s["state"][1].pop("exp_avg_sq")), ValueError, "parameter 1.*it has no exp_avg_sq"),
        (broken(lambda s: s["state"].update({7: {}})), ValueError, "parameter 7, which is in no group"),
        (broken(lambda s: s["param_groups"][0].update(lr=-1.0)), ValueError, "group 0: Adam: lr must be at least 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_not_loaded(saved, error, words):
    params = leaves((3, 2), 4)
    optimizer = trained("Adam", params)
    before, group = copy.deepcopy(dict(optimizer.state)), dict(optimizer.param_groups[0])
    with pytest.raises(error, match=words):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0] == group
    for state, old in zip(optimizer.state.values(), before.values(), strict=True):
        assert state["step"] == old["step"] and state["exp_avg"].tolist() == old["exp_avg"].tolist()


def test_lbfgs_is_saved_and_loaded():
    def run(x, optimizer, times):
        def closure():
            optimizer.zero_grad()
            loss = ((x - 1) ** 4).sum() + (x * x).sum()
            loss.backward()
            return loss

        for _ in range(times):
            optimizer.step(closure)

    x, y = (wf.full((3,), 3.0, dtype=wf.float64, requires_grad=True) for _ in range(2))
    whole = wf.optim.LBFGS([x], max_iter=2, lr=0.1)
    run(x, whole, 4)
    first = wf.optim.LBFGS([y], max_iter=2, lr=0.1)
    run(y, first, 2)
    second = wf.optim.LBFGS([y])
    second.load_state_dict(first.state_dict())
    run(y, second, 2)
    assert x.tolist() == y.tolist()
    with pytest.raises(ValueError, match="directions of 3 numbers for 2"):
        wf.optim.LBFGS(leaves(2)).load_state_dict(first.state_dict())


def test_a_deep_copy_is_another_optimiser():
    params = leaves(3)
    optimizer = trained("Adam", params)
    other = copy.deepcopy(optimizer)
    (p,) = other.param_groups[0]["params"]
    assert p is not params[0] and other.state[p]["step"] == 3
    with_gradients([p])
    other.step()
    assert optimizer.state[params[0]]["step"] == 3


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SGD", "Adam", "NAdam"])
def test_a_thousand_steps_hold_no_more_memory_than_a_hundred(name):
    params = leaves((20, 10), 10)
    optimizer = getattr(wf.optim, name)(params)

    def steps(count):
        for turn in range(count):
            with_gradients(params if turn % 3 else params[:1])
            optimizer.step()
            optimizer.zero_grad()
        gc.collect()

    steps(100)
    tracemalloc.start()
    try:
        held = tracemalloc.get_traced_memory()[0]
        steps(1000)
        assert tracemalloc.get_traced_memory()[0] - held < 20_000
    finally:
        tracemalloc.stop()


def test_nothing_keeps_a_model_alive():
    def train():
        params = with_gradients(leaves((20, 10), 10))
        optimizer = Adam(params)
        for _ in range(3):
            optimizer.step()

    train()
    gc.collect()
    before = memories_with_history()
    for _ in range(5):
        train()
    gc.collect()
    assert memories_with_history() <= before


def test_lbfgs_in_float16_passes_over_changes_whose_square_is_0():
    """The gradient's change of 1e-4 times the step of 1e-2 is a number, its square is 0."""
    p = wf.zeros(1, dtype=wf.float16, requires_grad=True)
    optimizer = wf.optim.LBFGS([p], lr=10.0, tolerance_grad=0.0, tolerance_change=0.0)
    slopes = iter([1e-3, 9e-4, 8e-4])

    def closure():
        p.grad = wf.full((1,), next(slopes, 0.0), dtype=wf.float16)
        return wf.tensor(1.0)

    optimizer.step(closure)
    assert bool(p.isfinite().all())
