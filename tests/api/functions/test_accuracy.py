"""How exact long sums, scans and spreads are: errors against float64 stay at a few roundings of the result.

The figures of more functions, beside PyTorch's, are in docs/accuracy.md; `python -m benchmarks accuracy` makes them.
"""

import numpy as np
import pytest

import wayfare as wf
from wayfare.codegen.routines import scans
from wayfare.codegen.runtime import kernel, work_split
from wayfare.core.config import settings


@pytest.fixture(params=["native", "numpy"])
def way(request, monkeypatch):
    """Scans in native code whatever the size, or in NumPy."""
    if request.param == "numpy":
        monkeypatch.setattr(scans, "NATIVE_FROM", 1 << 60)
    else:
        if not kernel.available():
            pytest.skip("no llvmlite here")
        monkeypatch.setattr(scans, "NATIVE_FROM", 0)
        monkeypatch.setattr(work_split, "_SPLIT", -1)
        monkeypatch.setattr(settings, "num_threads", 2)


# -- scans ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_a_running_count_goes_on_past_where_float32_stops_counting(way, compiled):
    count = 1 << 10
    x = wf.full((count,), 0.1).index_fill(0, wf.tensor([0]), 2.0**24)
    scan = (lambda t: t.cumsum(0)) if not compiled else wf.compile(lambda t: t.cumsum(0))
    wanted = np.cumsum(x.numpy().astype(np.float64))
    np.testing.assert_array_equal(scan(x).numpy(), wanted.astype(np.float32))
    assert scan(x)[-1].item() > 2.0**24


def test_half_precision_counts_past_2048(way):
    assert wf.ones(4000, dtype=wf.float16).cumsum(0)[-1].item() == 4000
    assert wf.ones(40, 100, dtype=wf.float16).reshape(-1).cumsum(0)[2999].item() == 3000


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_a_scan_is_rounded_once(way, name, dtype, dim):
    rng = np.random.default_rng(0)
    x = (1 + rng.normal(size=(5, 67, 23)) / 50).astype(dtype)
    carried = np.float32 if dtype == "float16" else np.float64
    fold = np.add if name == "cumsum" else np.multiply
    for array in (x, np.ascontiguousarray(x.transpose(2, 1, 0)).transpose(2, 1, 0), x[:, ::-1]):
        wanted = fold.accumulate(array.astype(carried), axis=dim).astype(dtype)
        np.testing.assert_array_equal(getattr(wf.tensor(array), name)(dim).numpy(), wanted)


def test_the_gradients_of_scans_are_rounded_once_too(way):
    x = wf.full((3000,), 1.0, requires_grad=True)
    g = wf.full((3000,), 0.1).index_fill(0, wf.tensor([2999]), 2.0**24)
    (found,) = wf.autograd.grad(x.cumsum(0), x, g)
    wanted = np.cumsum(g.numpy().astype(np.float64)[::-1])[::-1]
    np.testing.assert_array_equal(found.numpy(), wanted.astype(np.float32))
    (found,) = wf.autograd.grad(x.cumprod(0), x, g)
    np.testing.assert_array_equal(found.numpy(), wanted.astype(np.float32))


def test_a_linear_scan_is_carried_in_double_precision(way):
    from wayfare.core.op import REGISTRY

    rng = np.random.default_rng(1)
    a, b = (rng.uniform(0.9, 1.0, (3, 50, 4)).astype(np.float32) for _ in range(2))
    forward = REGISTRY["linear_scan"].forward
    for dim in range(3):
        for reverse in (False, True):
            wanted = forward(a.astype(np.float64), b.astype(np.float64), dim=dim, reverse=reverse)
            found = forward(a, b, dim=dim, reverse=reverse)
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, wanted.astype(np.float32))


def test_the_first_element_of_a_scan_is_itself(way):
    from wayfare.core.op import REGISTRY

    x = np.array([-0.0, 1.0], np.float32)
    assert np.signbit(wf.tensor(x).cumsum(0).numpy()[0])
    # The first factor has nothing to act on, be it infinite.
    out = REGISTRY["linear_scan"].forward(np.array([np.inf, 2.0]), np.array([0.0, 1.0]), dim=0, reverse=False)
    np.testing.assert_array_equal(out, [0.0, 1.0])


def test_scans_of_nothing(way):
    for shape in ((0,), (3, 0), (0, 3)):
        for dim in range(len(shape)):
            assert tuple(wf.zeros(shape).cumsum(dim).shape) == shape


# -- spreads ----------------------------------------------------------------------------------------------------------


def _far(shape, offset):
    return (np.random.default_rng(2).normal(size=shape) + offset).astype(np.float32)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("offset", [1e2, 1e4, 1e5, 1e6])
@pytest.mark.parametrize("shape", [(6, 20), (40, 300)])
def test_a_variance_far_from_zero(shape, offset, compiled):
    x = _far(shape, offset)
    run = wf.compile if compiled else lambda f: f
    for axis in (0, 1, (0, 1)):
        wanted = x.astype(np.float64).var(axis=axis, ddof=1)
        for array in (x, np.asfortranarray(x)):
            found = run(lambda t: (t.var(axis), t.std(axis), wf.var_mean(t, axis)[0]))(wf.tensor(array))  # noqa: B023
            for value, right in zip(found, (wanted, np.sqrt(wanted), wanted), strict=True):
                np.testing.assert_allclose(value.numpy(), right, rtol=1e-6)


def test_a_variance_over_dimensions_with_another_between():
    x = _far((4, 3, 50), 1e5)
    wanted = x.astype(np.float64).var(axis=(0, 2), ddof=1)
    np.testing.assert_allclose(wf.tensor(x).var((0, 2)).numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize("value", [0.1, 1e5 + 0.3, -7e-9])
@pytest.mark.parametrize("count", [7, 1000])
def test_equal_numbers_have_no_variance(value, count):
    x = wf.full((3, count), value)
    assert x.var(1).max().item() <= 1e-13 * value * value and x.std(1).isfinite().all()


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6])
@pytest.mark.parametrize("shape", [(2, 8, 5), (8, 16, 40)])
def test_normalisation_far_from_zero(shape, offset):
    x = _far(shape, offset)
    t, f = wf.tensor(x), wf.nn.functional
    wide = x.astype(np.float64)

    def standard(axis):
        return (wide - wide.mean(axis, keepdims=True)) / np.sqrt(wide.var(axis, keepdims=True) + 1e-5)

    ones, zeros = wf.ones(shape[-1]), wf.zeros(shape[-1])
    channels, none = wf.ones(shape[1]), wf.zeros(shape[1])
    grouped = wide.reshape(shape[0], 4, -1)
    groups = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    for found, wanted in (
        (f.layer_norm(t, shape[-1:]), standard(-1)),
        (f.layer_norm(t, shape[-1:], ones, zeros), standard(-1)),
        (f.batch_norm(t, None, None, training=True), standard((0, 2))),
        (f.batch_norm(t, None, None, channels, none, training=True), standard((0, 2))),
        (f.instance_norm(t), standard(-1)),
        (f.group_norm(t, 4), groups.reshape(shape)),
        (f.group_norm(t, 4, channels, none), groups.reshape(shape)),
    ):
        np.testing.assert_allclose(found.numpy(), wanted, atol=3e-6)


def test_covariance_far_from_zero():
    x = _far((3, 400), 1e5)
    weights = np.random.default_rng(5).integers(1, 4, 400)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(wf.cov(wf.tensor(x)).numpy(), np.cov(wide), atol=1e-6)
    np.testing.assert_allclose(wf.corrcoef(wf.tensor(x)).numpy(), np.corrcoef(wide), atol=1e-6)
    found = wf.cov(wf.tensor(x), fweights=wf.tensor(weights)).numpy()
    np.testing.assert_allclose(found, np.cov(wide, fweights=weights), atol=1e-6)


# -- distances --------------------------------------------------------------------------------------------------------


def test_distances_of_many_rows_far_from_zero():
    x = _far((70, 30), 1e5)
    wide = x.astype(np.float64)
    wanted = np.sqrt(((wide[:30, None] - wide[None, 30:]) ** 2).sum(-1))
    a, b = wf.tensor(x[:30], requires_grad=True), wf.tensor(x[30:])
    found = wf.cdist(a, b)
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-5)
    found.sum().backward()
    slopes = ((wide[:30, None] - wide[None, 30:]) / wanted[..., None]).sum(1)
    np.testing.assert_allclose(a.grad.numpy(), slopes, rtol=1e-4, atol=1e-4)


def test_one_infinite_row_spoils_its_own_distances_only():
    x = _far((40, 3), 0.0)
    x[5] = np.inf
    found = wf.cdist(wf.tensor(x), wf.tensor(x[:30])).numpy()
    assert np.isfinite(np.delete(np.delete(found, 5, 0), 5, 1)).all() and not np.isfinite(found[5]).any()
    x[5] = np.nan
    found = wf.cdist(wf.tensor(x), wf.tensor(x[:30])).numpy()
    assert np.isfinite(np.delete(np.delete(found, 5, 0), 5, 1)).all() and np.isnan(found[5]).all()


# -- half precision ----------------------------------------------------------------------------------------------------


def test_a_mean_of_more_halves_than_a_half_can_count():
    x = wf.ones(300, 400, dtype=wf.float16, requires_grad=True)
    for mean in (wf.mean, wf.nanmean):
        out = mean(x)
        assert out.dtype is wf.float16 and out.item() == 1
        (slope,) = wf.autograd.grad(out, x)
        np.testing.assert_allclose(slope.numpy(), 1 / 120_000, rtol=5e-3)


def test_halves_and_a_number_they_cannot_hold():
    x = wf.tensor([1e-3, 0.5], dtype=wf.float16, requires_grad=True)
    rounded = x.detach().numpy().astype(np.float32)
    for found, wanted in ((x * 1e5, rounded * 1e5), (x / 1e5, rounded / 1e5), (0.1 * x, np.float32(0.1) * rounded)):
        assert found.dtype is wf.float16
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(found.detach().numpy(), wanted.astype(np.float16))
    (slope,) = wf.autograd.grad((x / 1e5).sum(), x)
    np.testing.assert_array_equal(slope.numpy(), np.float32(1e-5).astype(np.float16))


def test_a_product_of_halves_is_multiplied_up_in_single_precision():
    x = np.full(200, 1.01, np.float16)
    wanted = np.prod(x.astype(np.float64))
    assert wf.tensor(x).prod().item() == pytest.approx(wanted, rel=1e-3)
    assert wf.tensor(np.stack([x, x], 1)).prod(0)[1].item() == pytest.approx(wanted, rel=1e-3)


def test_halves_added_at_one_place_are_counted_past_2048():
    count = 5000
    ones, places = wf.ones(count, dtype=wf.float16), wf.zeros(count, dtype=wf.int64)
    nothing = wf.zeros(3, dtype=wf.float16)
    assert nothing.index_add(0, places, ones).tolist() == [count, 0, 0]
    assert nothing.scatter_add(0, places, ones).tolist() == [count, 0, 0]
    assert nothing.index_put((places,), ones, accumulate=True).tolist() == [count, 0, 0]
    assert wf.zeros(2, 1, dtype=wf.float16).index_add(0, places, ones.reshape(-1, 1)).tolist() == [[count], [0]]
    looks = (lambda w: wf.nn.functional.embedding(places, w), lambda w: w[places], lambda w: w.index_select(0, places))
    for look in looks:
        weight = wf.ones(2, 3, dtype=wf.float16, requires_grad=True)
        look(weight).sum().backward()
        assert weight.grad.tolist() == [[count] * 3, [0] * 3]


@pytest.mark.parametrize("dtype", [wf.float16, wf.float32])
def test_the_mean_of_a_long_window(dtype):
    x = wf.full((1, 1, 5000), 100.0, dtype=dtype, requires_grad=True)
    out = wf.nn.functional.avg_pool1d(x, 5000)
    assert out.dtype is dtype and out.item() == 100
    out.backward(wf.ones_like(out))
    np.testing.assert_allclose(x.grad.numpy(), 1 / 5000, rtol=1e-3)
    far = _far((1, 1, 4000), 1e4)
    found = wf.nn.functional.avg_pool1d(wf.tensor(far), 4000).item()
    assert found == pytest.approx(far.astype(np.float64).mean(), rel=1e-7)
