"""grad, vjp, jvp, jacrev, jacfwd, hessian, vmap: against formulas, against each other, nested."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import OperationError, ShapeError
from wayfare.func import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap


def vector(*values):
    return wf.tensor(values, dtype=wf.float64)


def f(x):
    return (x * x * x).sum() + (x.exp() * x.tanh()).sum()


def test_grad_nests():
    x = wf.tensor(2.0, dtype=wf.float64)
    assert grad(lambda t: t**4)(x).item() == pytest.approx(32.0)
    assert grad(grad(lambda t: t**4))(x).item() == pytest.approx(48.0)
    assert grad(grad(grad(lambda t: t**4)))(x).item() == pytest.approx(48.0)


def test_results_are_cut_from_the_graph_unless_something_outside_is_in_it():
    assert not grad(f)(vector(1.0, 2.0)).requires_grad
    w = wf.tensor(3.0, dtype=wf.float64, requires_grad=True)
    g = grad(lambda t: (w * t * t).sum())(vector(1.0, 2.0))
    assert g.requires_grad
    g.sum().backward()
    assert w.grad.item() == pytest.approx(6.0)


def test_argnums_aux_and_structures():
    a, b = vector(1.0, 2.0), vector(3.0, 4.0)
    ga, gb = grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(a, b)
    assert ga.tolist() == b.tolist() and gb.tolist() == a.tolist()
    g, aux = grad(lambda a: ((a * a).sum(), "note"), has_aux=True)(a)
    assert g.tolist() == [2.0, 4.0] and aux == "note"
    g, value = grad_and_value(lambda p: (p["w"] * p["b"]).sum())({"w": a, "b": b})
    assert value.item() == 11.0 and g["w"].tolist() == b.tolist()


def test_grad_of_more_than_one_number_is_a_clear_error():
    with pytest.raises(ShapeError, match="jacrev"):
        grad(lambda t: t * 2)(vector(1.0, 2.0))


def test_vjp_and_jvp_agree_with_the_jacobian():
    x = vector(0.3, -0.7, 1.1)
    function = lambda t: t.exp() * t.sum()
    want = np.diag(np.exp(x.numpy())) * x.numpy().sum() + np.exp(x.numpy())[:, None]
    out, pull = vjp(function, x)
    v = vector(1.0, 2.0, 3.0)
    np.testing.assert_allclose(out.numpy(), np.exp(x.numpy()) * x.numpy().sum())
    np.testing.assert_allclose(pull(v)[0].numpy(), v.numpy() @ want)
    _, pushed = jvp(function, (x,), (v,))
    np.testing.assert_allclose(pushed.numpy(), want @ v.numpy())
    np.testing.assert_allclose(jacrev(function)(x).numpy(), want)
    np.testing.assert_allclose(jacfwd(function)(x).numpy(), want)


def test_hessian():
    x = vector(0.3, -0.7)
    want = hessian(lambda t: (t * t * t).sum() + t.prod())(x).numpy()
    np.testing.assert_allclose(want, [[6 * 0.3, 1.0], [1.0, 6 * -0.7]])


def test_autograd_functional():
    x = vector(0.3, -0.7)
    from wayfare.autograd import functional

    np.testing.assert_allclose(functional.jacobian(lambda t: t * t, x).numpy(), np.diag(2 * x.numpy()))
    np.testing.assert_allclose(functional.hessian(lambda t: (t**3).sum(), x).numpy(), np.diag(6 * x.numpy()))
    _, product = functional.hvp(lambda t: (t**3).sum(), x, vector(1.0, 2.0))
    np.testing.assert_allclose(product.numpy(), 6 * x.numpy() * [1.0, 2.0])
    _, other_side = functional.vhp(lambda t: (t**3).sum(), x, vector(1.0, 2.0))
    np.testing.assert_allclose(other_side.numpy(), product.numpy())
    (a, b) = functional.jacobian(lambda a, b: a * b, (x, x + 1))
    np.testing.assert_allclose(a.numpy(), np.diag(x.numpy() + 1))
    np.testing.assert_allclose(b.numpy(), np.diag(x.numpy()))


def test_vmap_equals_a_loop():
    rng = np.random.default_rng(0)
    x, w = wf.tensor(rng.normal(size=(5, 3))), wf.tensor(rng.normal(size=(3, 2)))
    model = lambda row, w: (row @ w).tanh().sum() * row.max()
    got = vmap(model, in_dims=(0, None))(x, w)
    want = [model(row, w).item() for row in x]
    np.testing.assert_allclose(got.numpy(), want)


def test_vmap_dims_structures_and_chunks():
    x = wf.tensor(np.arange(24.0).reshape(2, 3, 4))
    both = lambda d: {"double": d["x"] * 2, "sum": d["x"].sum()}
    out = vmap(both, in_dims=({"x": 1},), out_dims={"double": 2, "sum": 0})({"x": x})
    np.testing.assert_allclose(out["double"].numpy(), np.moveaxis(x.numpy(), 1, 2) * 2)
    np.testing.assert_allclose(out["sum"].numpy(), x.numpy().sum((0, 2)))
    chunked = vmap(lambda r: r * 2, chunk_size=2)(wf.tensor(np.arange(10.0).reshape(5, 2)))
    np.testing.assert_allclose(chunked.numpy(), np.arange(10.0).reshape(5, 2) * 2)


def test_per_example_gradients():
    rng = np.random.default_rng(0)
    x, w = wf.tensor(rng.normal(size=(4, 3))), wf.tensor(rng.normal(size=3))
    loss = lambda w, row: (row * w).sum().tanh()
    got = vmap(grad(loss), in_dims=(None, 0))(w, x)
    want = np.stack([grad(loss)(w, row).numpy() for row in x])
    np.testing.assert_allclose(got.numpy(), want)


@pytest.mark.parametrize("transform", [jacrev, jacfwd, hessian], ids=["jacrev", "jacfwd", "hessian"])
def test_transforms_inside_vmap(transform):
    x = wf.tensor(np.random.default_rng(1).normal(size=(3, 2)))
    function = (lambda r: (r * r * r).sum()) if transform is hessian else (lambda r: r.exp() * r.sum())
    got = vmap(transform(function))(x)
    want = np.stack([transform(function)(row).numpy() for row in x])
    np.testing.assert_allclose(got.numpy(), want)


def test_nested_vmap_and_backward_through_it():
    a = wf.tensor([1.0, 2.0, 3.0], requires_grad=True)
    b = wf.tensor([10.0, 20.0])
    table = vmap(vmap(lambda x, y: x * y, in_dims=(0, None)), in_dims=(None, 0))(a, b)
    np.testing.assert_allclose(table.detach().numpy(), np.outer([10, 20], [1, 2, 3]))
    table.sum().backward()
    assert a.grad.tolist() == [30.0, 30.0, 30.0]


def test_looking_at_a_value_inside_vmap_is_refused_with_the_way_out():
    with pytest.raises(OperationError, match=r"wf.where"):
        vmap(lambda r: r if r.sum() > 0 else -r)(wf.ones(3, 2))


def test_batch_sizes_that_differ():
    with pytest.raises(ShapeError, match=r"\[2, 3\]"):
        vmap(lambda a, b: a + b)(wf.ones(2), wf.ones(3))


def test_randomness_inside_vmap():
    with pytest.raises(OperationError, match="randomness"):
        vmap(lambda r: r + wf.rand(2))(wf.zeros(3, 2))
    different = vmap(lambda r: r + wf.rand(2), randomness="different")(wf.zeros(3, 2)).numpy()
    assert len({tuple(row) for row in different.tolist()}) == 3
    same = vmap(lambda r: r + wf.rand(2), randomness="same")(wf.zeros(3, 2)).numpy()
    assert len({tuple(row) for row in same.tolist()}) == 1


def test_gradcheck_finds_a_wrong_gradient():
    class Wrong(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3

    x = vector(1.0, 2.0).requires_grad_()
    with pytest.raises(RuntimeError, match="off by up to 1"):
        wf.testing.gradcheck(Wrong.apply, x)
    assert wf.testing.gradcheck(lambda t: t.exp() * t, x)
