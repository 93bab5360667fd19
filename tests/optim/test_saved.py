"""The state of an optimiser of another class is refused; names that schedulers, users and versions add are not."""

import pytest

import wayfare as wf
from tests.optim.reference import CLASSES
from tests.optim.test_optimizer import leaves, trained, with_gradients
from wayfare.optim import SGD
from wayfare.optim.saved import MARKS


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    ("theirs", "ours", "names"),
    [
        ("Adam", "SGD", "betas, eps, amsgrad"), ("SGD", "Adam", "momentum, dampening, nesterov"),
        ("Adam", "RAdam", "amsgrad"), ("Adam", "Adamax", "amsgrad"), ("NAdam", "Adam", "momentum_decay"),
        ("RMSprop", "SGD", "alpha, eps, centered"), ("SGD", "RMSprop", "dampening, nesterov"),
        ("Adagrad", "Adadelta", "lr_decay, initial_accumulator_value"), ("LBFGS", "SGD", "max_iter, max_eval"),
        ("AdamW", "LBFGS", "betas, eps, weight_decay, amsgrad"),
    ],
)  # fmt: skip
def test_the_state_of_another_class_is_refused(theirs, ours, names, steps):
    params = with_gradients(leaves(3))
    one = getattr(wf.optim, theirs)(params, lr=0.25)
    for _ in range(steps):
        one.step(lambda: (params[0] * params[0]).sum())
    other = getattr(wf.optim, ours)(params, lr=0.5)
    group, state = dict(other.param_groups[0]), {p: dict(s) for p, s in other.state.items()}
    with pytest.raises(ValueError, match=rf"this is the state of another optimiser \(it has {names}.*same class"):
        other.load_state_dict(one.state_dict())
    assert other.param_groups[0] == group and list(other.state) == list(state)
    assert all(s.keys() == state[p].keys() for p, s in other.state.items())


def test_another_class_shows_in_its_values_too_and_beside_other_faults():
    params = leaves(3)
    saved = trained("Adam", params).state_dict()
    with pytest.raises(ValueError, match=r"another optimiser \(it has step, exp_avg, exp_avg_sq\)"):
        SGD(params).load_state_dict({"state": saved["state"], "param_groups": [{"lr": 1.0, "params": [0]}]})
    with pytest.raises(ValueError, match="another optimiser.*; group 0 has 1 parameters and the optimiser's 2"):
        SGD(leaves(3, 2)).load_state_dict(saved)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("extra", ["none", "alone", "schedule", "mine"])
def test_names_that_others_add_are_loaded(name, extra):
    names = {
        "none": {}, "alone": {"name": "head", "foreach": None, "fused": None, "capturable": False},
        "schedule": {"initial_lr": 1.0, "max_lr": 2.0, "base_momentum": 0.8, "max_momentum": 0.9, "min_lr": 0.1},
        "mine": {"alpha": 0.3} if name != "RMSprop" else {"rho": 0.3},
    }[extra]  # fmt: skip
    params = leaves(3)
    saved = trained(name, params).state_dict()
    saved["state"].setdefault(0, {})["ema"] = wf.ones(3)
    saved["param_groups"][0].update(names, lr=0.125)
    other = getattr(wf.optim, name)(params)
    other.load_state_dict(saved)
    assert {"lr": 0.125, **names}.items() <= other.param_groups[0].items()
    assert other.state[params[0]]["ema"].tolist() == [1, 1, 1]


def test_a_velocity_kept_without_momentum_and_a_class_of_ones_own():
    class Averaged(SGD):
        pass

    params = leaves(3)
    saved = trained("SGD", params, momentum=0.9).state_dict()
    saved["param_groups"][0]["momentum"] = 0
    saved["state"][0]["exp_avg"] = wf.zeros(3)
    for kind in (SGD, Averaged):
        other = kind(params)
        other.load_state_dict(saved)
        assert {"momentum_buffer", "exp_avg"} <= other.state[params[0]].keys()
    with pytest.raises(ValueError, match="another optimiser"):
        Averaged(params).load_state_dict(trained("Adam", params).state_dict())


def test_the_marks_of_all_classes_are_what_they_have():
    everywhere = {"lr", "maximize", "foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay"}
    for name in CLASSES:
        params = leaves(3)
        optimizer = trained(name, params)
        options, values = MARKS[name]
        assert options == optimizer.defaults.keys() - everywhere, name
        assert values - optimizer.state[params[0]].keys() <= {"momentum_buffer"}, name


def test_an_option_that_the_groups_were_made_with_is_no_strange_one():
    params = leaves(3)
    saved = wf.optim.SparseAdam([{"params": params, "weight_decay": 0.5}]).state_dict()
    other = wf.optim.SparseAdam([{"params": params, "weight_decay": 0.0}])
    other.load_state_dict(saved)
    assert other.param_groups[0]["weight_decay"] == 0.5
