"""Identity, Linear and Bilinear against NumPy, and what they say of inputs that do not fit."""

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError


def test_identity_gives_back_the_object_itself():
    x = wf.ones(2)
    assert nn.Identity(3, anything="goes")(x) is x


def test_linear_is_a_product_and_a_bias():
    layer = nn.Linear(4, 3, dtype=wf.float64)
    x = np.random.default_rng(0).normal(size=(2, 5, 4))
    wanted = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    np.testing.assert_allclose(layer(wf.from_numpy(x)).detach().numpy(), wanted, rtol=1e-12)


def test_gradients_of_a_linear_layer():
    layer = nn.Linear(4, 3, dtype=wf.float64)
    x, g = np.random.default_rng(0).normal(size=(2, 5, 4)), np.random.default_rng(1).normal(size=(2, 5, 3))
    given = wf.from_numpy(x).requires_grad_()
    layer(given).backward(wf.from_numpy(g))
    np.testing.assert_allclose(given.grad.numpy(), g @ layer.weight.detach().numpy())
    np.testing.assert_allclose(layer.weight.grad.numpy(), np.einsum("abo,abi->oi", g, x))
    np.testing.assert_allclose(layer.bias.grad.numpy(), g.sum((0, 1)))


@pytest.mark.parametrize("frozen", [("weight",), ("bias",), ("weight", "bias")])
def test_only_what_is_not_frozen_gets_a_gradient(frozen):
    layer = nn.Linear(4, 3)
    for name in frozen:
        getattr(layer, name).requires_grad_(False)
    x = wf.ones(2, 4, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    for name, parameter in layer.named_parameters():
        assert (parameter.grad is None) == (name in frozen)


def test_a_linear_layer_keeps_its_node_and_its_gradient_of_gradients():
    layer = nn.Linear(3, 2, dtype=wf.float64)
    x = wf.randn(2, 3, dtype=wf.float64, requires_grad=True)
    assert layer(x).grad_fn.name() == "AddmmBackward0"
    assert wf.testing.gradgradcheck(lambda x, w, b: nn.functional.linear(x, w, b).sin(), (x, layer.weight, layer.bias))


def test_without_recording_there_is_no_node():
    layer, x = nn.Linear(3, 2), wf.ones(2, 3)
    with wf.no_grad():
        out = layer(x)
    assert out.grad_fn is None and not out.requires_grad
    with wf.inference_mode():
        assert layer(x).is_inference()
    layer.requires_grad_(False)
    assert layer(x).grad_fn is None


def test_a_linear_layer_under_vmap_and_grad():
    layer = nn.Linear(3, 2)
    x = wf.randn(5, 3)
    np.testing.assert_allclose(wf.func.vmap(layer)(x).detach().numpy(), layer(x).detach().numpy(), rtol=1e-6)
    slope = wf.func.grad(lambda x: layer(x).sum())(x[0])
    np.testing.assert_allclose(slope.detach().numpy(), layer.weight.detach().numpy().sum(0), rtol=1e-6)


def test_first_values_of_a_linear_layer_are_within_the_bound():
    layer = nn.Linear(100, 50)
    for values in (layer.weight, layer.bias):
        assert 0.05 < values.abs().max().item() <= 0.1
    with pytest.warns(UserWarning, match="no elements"):
        assert nn.Linear(0, 3).bias.tolist() == [0, 0, 0]


def test_bilinear_by_a_loop():
    layer = nn.Bilinear(3, 2, 4, dtype=wf.float64)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    wanted = [[a[n] @ weight[o] @ b[n] + bias[o] for o in range(4)] for n in range(5)]
    np.testing.assert_allclose(layer(wf.from_numpy(a), wf.from_numpy(b)).detach().numpy(), wanted)


REFUSED = {
    "features": (lambda: nn.Linear(4, 3)(wf.ones(2, 5)), ShapeError,
                 r"f32\[2,5\] has 5 features .* the weight f32\[3,4\] takes 4, in Linear\(in_features=4"),
    "integers": (lambda: nn.Linear(4, 3)(wf.ones(2, 4, dtype=wf.int64)), DTypeError,
                 r"i64\[2,4\] and the weight f32\[3,4\] must have one dtype.*\.to\(wf\.float32\)"),
    "an array": (lambda: nn.Linear(4, 3)(np.ones((2, 4))), ArgumentTypeError, "expected a tensor, not ndarray"),
    "no dimension": (lambda: nn.Linear(4, 3)(wf.tensor(1.0)), ShapeError, "at least 1 dimension"),
    "two inputs": (lambda: nn.Bilinear(4, 3, 2)(wf.ones(2, 4), wf.ones(2, 4)), ShapeError, "do not fit a weight"),
    "no features": (lambda: nn.Bilinear(0, 3, 2), ArgumentError, "in1_features must be positive, it is 0"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_an_error_names_the_way_to_the_layer():
    net = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(10, 2)))
    with pytest.raises(ShapeError, match=r"in 1\.0 = Linear\(in_features=10, out_features=2, bias=True\)"):
        net(wf.ones(2, 3, 4))
