"""Each optimiser is its formula; a group is one native call, and whatever changes between steps is honoured."""

import numpy as np
import pytest

import wayfare as wf
from tests.optim.reference import CLASSES, reference
from wayfare.codegen.runtime import kernel
from wayfare.core.counters import counted

SHAPES = [(4, 3), (5,), (), (2, 0)]
CASES = [
    ("SGD", {}), ("SGD", {"weight_decay": 0.1, "maximize": True}), ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "dampening": 0.4, "weight_decay": 0.1}), ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {}), ("Adam", {"amsgrad": True, "weight_decay": 0.1}), ("Adam", {"betas": (0.5, 0.6), "maximize": True}),
    ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True}), ("AdamW", {}), ("AdamW", {"amsgrad": True}),
    ("NAdam", {}), ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}), ("NAdam", {"maximize": True}),
    ("RAdam", {"betas": (0.9, 0.9)}), ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adamax", {}), ("Adamax", {"weight_decay": 0.1}), ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1}),
    ("Adagrad", {"initial_accumulator_value": 0.5}), ("Adadelta", {"weight_decay": 0.1}),
    ("Adadelta", {"rho": 0.5, "maximize": True}), ("RMSprop", {}), ("RMSprop", {"momentum": 0.9, "alpha": 0.5}),
    ("RMSprop", {"centered": True, "momentum": 0.5, "weight_decay": 0.1}), ("RMSprop", {"centered": True}),
]  # fmt: skip


def parameters(rng, shapes=SHAPES, dtype=wf.float64):
    return [wf.tensor(rng.normal(size=s), dtype=dtype).requires_grad_() for s in shapes]


def give_gradients(rng, params, missing=()):
    """Random gradients, None for those that are missing; as arrays too."""
    grads = [None if i in missing else rng.normal(size=tuple(p.shape)) for i, p in enumerate(params)]
    for p, g in zip(params, grads, strict=True):
        p.grad = None if g is None else wf.tensor(g, dtype=p.dtype)
    return grads


def values(params):
    return [p.detach().numpy().copy() for p in params]


def close(params, wanted):
    for p, w in zip(params, wanted, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), w, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_it_is_its_formula(name, options):
    rng = np.random.default_rng(0)
    params = parameters(rng)
    wanted, references = values(params), [reference(name, 0.05, options) for _ in params]
    optimizer = getattr(wf.optim, name)(params, lr=0.05, **options)
    for turn in range(12):
        grads = give_gradients(rng, params, missing=(turn % 5,))
        optimizer.step()
        wanted = [w if g is None else r.step(w, g) for r, w, g in zip(references, wanted, grads, strict=True)]
    close(params, wanted)


@pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")
@pytest.mark.parametrize("name", CLASSES)
def test_a_group_is_one_native_call(name):
    rng = np.random.default_rng(1)
    params = parameters(rng, [(3, 4), (5,), (2, 2), (1,)])
    optimizer = getattr(wf.optim, name)(params)
    for missing, calls in [((), 1), ((), 1), ((0,), 1), ((), 1 if name == "SGD" else 2)]:
        give_gradients(rng, params, missing)
        with counted() as counts:
            optimizer.step()
        assert counts.kernels_run == calls, missing


def test_a_parameter_without_a_gradient_keeps_its_step():
    rng = np.random.default_rng(2)
    params = parameters(rng, [(2,), (3,)])
    optimizer = wf.optim.Adam(params)
    for missing in [(), (0,), (0,)]:
        give_gradients(rng, params, missing)
        optimizer.step()
    assert [optimizer.state[p]["step"] for p in params] == [1, 3]


@pytest.mark.parametrize("name", CLASSES)
def test_no_gradient_at_all_changes_nothing(name):
    params = parameters(np.random.default_rng(3))
    before = values(params)
    getattr(wf.optim, name)(params).step()
    close(params, before)


def test_rates_groups_and_parameters_may_change_between_steps():
    rng = np.random.default_rng(4)
    params = parameters(rng, [(3,), (2, 2)])
    optimizer = wf.optim.Adam([{"params": params[:1], "lr": 0.1}, {"params": params[1:], "weight_decay": 0.1}])
    references = [reference("Adam", 0.1, {}), reference("Adam", 1e-3, {"weight_decay": 0.1})]
    wanted = values(params)

    def steps(count):
        nonlocal wanted
        for _ in range(count):
            grads = give_gradients(rng, params)
            optimizer.step()
            wanted = [r.step(w, g) for r, w, g in zip(references, wanted, grads, strict=True)]
        close(params, wanted)

    steps(2)
    optimizer.param_groups[0]["lr"] = references[0].lr = 0.01
    optimizer.param_groups[1]["maximize"] = references[1].maximize = True
    steps(2)
    params.append(wf.tensor(rng.normal(size=4)).requires_grad_())
    optimizer.add_param_group({"params": params[2:]})
    references.append(reference("Adam", 1e-3, {}))
    wanted.append(params[2].detach().numpy().copy())
    steps(2)
    # Another tensor in the place of a parameter begins anew, also where it was put there by hand.
    params[0] = wf.tensor(rng.normal(size=3)).requires_grad_()
    optimizer.param_groups[0]["params"][0] = params[0]
    references[0], wanted[0] = reference("Adam", 0.01, {}), params[0].detach().numpy().copy()
    steps(2)
    # Other memory for the same parameter.
    params[1].data = wf.tensor(wanted[1].copy())
    steps(2)


def test_an_option_switched_on_later():
    rng = np.random.default_rng(5)
    (p,) = parameters(rng, [(3,)])
    optimizer = wf.optim.Adam([p])
    give_gradients(rng, [p])
    optimizer.step()
    optimizer.param_groups[0]["amsgrad"] = True
    optimizer.step()
    assert optimizer.state[p].keys() == {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}


@pytest.mark.parametrize("layout", ["transposed", "sliced", "shared"])
def test_parameters_of_any_layout(layout):
    rng = np.random.default_rng(6)
    base = wf.tensor(rng.normal(size=(4, 6)))
    p = {"transposed": base.t(), "sliced": base[::2, 1:4], "shared": base[1]}[layout].requires_grad_()
    start, g = p.detach().numpy().copy(), rng.normal(size=tuple(p.shape))
    p.grad = wf.tensor(g)
    wf.optim.Adam([p], lr=0.1).step()
    np.testing.assert_allclose(p.detach().numpy(), reference("Adam", 0.1, {}).step(start, g), rtol=1e-12)


@pytest.mark.parametrize("dtype", [wf.float16, wf.float32])
def test_states_have_the_dtype_of_their_parameter(dtype):
    rng = np.random.default_rng(7)
    params = parameters(rng, [(3,), (2,)], dtype) + parameters(rng, [(3,)])
    optimizer = wf.optim.Adam(params, lr=0.1, eps=1e-3)
    wanted, references = values(params), [reference("Adam", 0.1, {"eps": 1e-3}) for _ in params]
    for _ in range(3):
        give_gradients(rng, params)
        grads = [p.grad.numpy().astype(np.float64) for p in params]
        optimizer.step()
        wanted = [r.step(w.astype(np.float64), g) for r, w, g in zip(references, wanted, grads, strict=True)]
    for p, w in zip(params, wanted, strict=True):
        assert optimizer.state[p]["exp_avg"].dtype is p.dtype
        tolerance = {wf.float16: 1e-2, wf.float32: 1e-5, wf.float64: 1e-12}[p.dtype]
        np.testing.assert_allclose(p.detach().numpy(), w, tolerance, tolerance)


def test_an_infinite_gradient_stays_where_it_is():
    for name, options in CASES:
        p = wf.tensor([1.0, 1.0], requires_grad=True)
        p.grad = wf.tensor([np.inf, 1.0])
        getattr(wf.optim, name)([p], **options).step()
        assert np.isfinite(p.detach().numpy()[1]), name


def test_a_closure_is_called_while_recording():
    p = wf.tensor([1.0, 2.0], requires_grad=True)
    optimizer = wf.optim.SGD([p], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with wf.no_grad():
        assert optimizer.step(closure).item() == 5.0
    assert p.tolist() == [0.0, 0.0]


def test_a_graph_that_kept_a_parameter_notices_the_step():
    p = wf.tensor([1.0, 2.0], requires_grad=True)
    loss = (p * p).sum()
    p.grad = wf.ones(2)
    wf.optim.SGD([p]).step()
    with pytest.raises(wf.errors.InPlaceError):
        loss.backward()


@pytest.mark.parametrize("name", [*CLASSES, "LBFGS"])
def test_it_finds_the_bottom_of_a_bowl(name):
    wanted = np.array([1.0, -2.0, 0.5])
    x = wf.zeros(3, dtype=wf.float64, requires_grad=True)
    rate = {"SGD": 0.1, "Adadelta": 10.0, "Adagrad": 1.0, "LBFGS": 0.5}.get(name, 0.05)
    optimizer = getattr(wf.optim, name)([x], lr=rate)

    def closure():
        optimizer.zero_grad()
        loss = ((x - wf.tensor(wanted)) ** 2).sum()
        loss.backward()
        return loss

    for _ in range(300 if name != "LBFGS" else 5):
        optimizer.step(closure)
    np.testing.assert_allclose(x.detach().numpy(), wanted, atol=0.06)
