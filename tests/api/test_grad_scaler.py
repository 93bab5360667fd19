"""GradScaler: the scale, steps that are left out, and what is saved."""

import warnings

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
    loss = wf.ones(())
    scaler.scale(loss)
    with pytest.raises(RuntimeError, match="no parameter of this optimizer has a gradient"):
        scaler.step(opt)
    with pytest.raises(RuntimeError, match="no gradients were looked at"):
        scaler.update()
    half = nn.Linear(2, 2).half()
    half.weight.grad = wf.ones(2, 2, dtype=wf.float16)
    with pytest.raises(ValueError, match="float16 cannot be scaled back"):
        scaler.unscale_(wf.optim.SGD(half.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="growth_factor"):
        GradScaler("cpu", growth_factor=1.0)


def test_gradients_of_a_loss_that_was_not_scaled_are_not_divided():
    model, opt, scaler = _parts()
    before = model.weight.detach().clone()
    model(wf.ones(1, 3)).sum().backward()
    for call in (scaler.unscale_, scaler.step):
        with pytest.raises(RuntimeError, match="no loss was scaled so far"):
            call(opt)
    assert model.bias.grad.tolist() == [1.0, 1.0] and wf.equal(model.weight, before)


def test_the_scale_stays_finite():
    model, opt, _ = _parts()
    scaler = GradScaler("cpu", init_scale=2.0**126, growth_interval=1)
    for _ in range(3):
        opt.zero_grad()
        scaler.scale((model(wf.ones(1, 3)) * 0).sum()).backward()
        scaler.step(opt)
        scaler.update()
    assert scaler.get_scale() == 2.0**127 and scaler.scale(wf.tensor(1.0)).isfinite()


def test_without_a_gpu_a_scaler_for_gpus_is_off():
    if wf.cuda.is_available():
        pytest.skip("there is a GPU")
    for make in (GradScaler, lambda: GradScaler("cuda")):
        with pytest.warns(UserWarning, match=r"there is no GPU, so it is off.*GradScaler\('cpu'\)") as seen:
            scaler = make()
        assert seen[0].filename == __file__ and not scaler.is_enabled() and scaler.state_dict() == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GradScaler(enabled=False)
    with pytest.raises(TypeError, match="must be 'cpu' or 'cuda', not 'tpu'"):
        GradScaler("tpu")


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


def test_a_state_that_lacks_entries_and_a_scale_that_is_no_number_are_named():
    _, _, scaler = _parts()
    with pytest.raises(KeyError, match=r"the saved state has no growth_factor, .*GradScaler\.state_dict"):
        scaler.load_state_dict({"scale": 2.0})
    with pytest.raises(TypeError, match="update: new_scale must be a number, not str"):
        scaler.update("x")
