"""GradScaler: the scale, steps that are left out, and what is saved."""

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.amp import GradScaler


def _parts(**options):
    wf.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, wf.optim.SGD(model.parameters(), lr=0.1), GradScaler("cpu", init_scale=8.0, **options)


def test_a_scaled_step_is_the_plain_one():
    results = []
    for enabled in (True, False):
        model, opt, scaler = _parts(enabled=enabled)
        loss = model(wf.ones(4, 3)).square().sum()
        scaled = scaler.scale(loss)
        assert scaled.item() == pytest.approx(loss.item() * (8 if enabled else 1))
        scaled.backward()
        scaler.step(opt)
        scaler.update()
        results.append(model.weight.detach().clone())
    wf.testing.assert_close(*results)


def test_a_gradient_that_is_not_finite_leaves_the_step_out_and_halves_the_scale():
    model, opt, scaler = _parts(growth_interval=2)
    before = model.weight.detach().clone()
    scaler.scale(model(wf.tensor([[float("inf"), 1.0, 1.0]])).sum()).backward()
    assert scaler.step(opt) is None
    scaler.update()
    assert wf.equal(model.weight, before) and scaler.get_scale() == 4.0
    for scale in (4.0, 8.0, 8.0):  # it grows after two good steps
        opt.zero_grad()
        scaler.scale(model(wf.ones(1, 3)).sum()).backward()
        scaler.step(opt)
        scaler.update()
        assert scaler.get_scale() == scale
    assert not wf.equal(model.weight, before)


def test_unscaled_gradients_can_be_clipped():
    model, opt, scaler = _parts()
    scaler.scale(model(wf.ones(4, 3)).sum()).backward()
    scaler.unscale_(opt)
    assert model.bias.grad.tolist() == [4.0, 4.0]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    clipped = model.bias.grad.clone()
    scaler.step(opt)
    assert wf.equal(model.bias.grad, clipped)
    with pytest.raises(RuntimeError, match="since the last update"):
        scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match="since the last update"):
        scaler.step(opt)
    scaler.update()


def test_mistakes_are_named():
    _, opt, scaler = _parts()
    with pytest.raises(RuntimeError, match="no parameter of this optimizer has a gradient"):
        scaler.step(opt)
    with pytest.raises(RuntimeError, match="no gradients were looked at"):
        scaler.update()
    half = nn.Linear(2, 2).half()
    half.weight.grad = wf.ones(2, 2, dtype=wf.float16)
    with pytest.raises(ValueError, match="float16 cannot be scaled back"):
        GradScaler("cpu").unscale_(wf.optim.SGD(half.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="growth_factor"):
        GradScaler("cpu", growth_factor=1.0)


def test_several_losses_and_two_optimisers():
    model, opt, scaler = _parts()
    other = nn.Linear(2, 1)
    second = wf.optim.SGD(other.parameters(), lr=0.1)
    first, last = scaler.scale((model(wf.ones(1, 3)).sum(), other(wf.ones(1, 2)).sum()))
    (first + last).backward()
    other.weight.grad[0, 0] = float("nan")
    before = model.weight.detach().clone(), other.weight.detach().clone()
    scaler.step(opt)
    scaler.step(second)
    scaler.update()
    assert not wf.equal(model.weight, before[0]) and wf.equal(other.weight, before[1])
    assert scaler.get_scale() == 4.0


def test_the_state_is_saved(tmp_path):
    _, _, scaler = _parts()
    scaler.update(32.0)
    wf.save(scaler.state_dict(), tmp_path / "s")
    _, _, other = _parts()
    other.load_state_dict(wf.load(tmp_path / "s"))
    assert other.state_dict() == scaler.state_dict() and other.get_scale() == 32.0
    off = GradScaler("cpu", enabled=False)
    assert off.state_dict() == {} and off.get_scale() == 1.0 and not off.is_enabled()
    off.update()
