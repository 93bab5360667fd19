"""Reductions and extremes: dtypes, dims, errors, edges, and agreement with NumPy on any shape."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare.codegen.routines.short_reductions import max_along, min_along, total
from wayfare.errors import ArgumentTypeError, DTypeError, IndexRangeError, OperationError, ShapeError

NAN = float("nan")


@st.composite
def arrays_and_dims(draw, least=0):
    shape = tuple(draw(st.lists(st.integers(least, 4), max_size=4)))
    seed = draw(st.integers(0, 2**16))
    x = np.random.default_rng(seed).normal(size=shape)
    dims = draw(st.lists(st.integers(0, max(len(shape) - 1, 0)), max_size=len(shape), unique=True)) if shape else []
    signed = [d - len(shape) if draw(st.booleans()) else d for d in dims]
    return x, signed


class TestAgainstNumPy:
    @given(arrays_and_dims(), st.booleans())
    @settings(max_examples=60, deadline=None)
    def test_sum_over_any_dims(self, case, keepdim):
        x, dims = case
        got = wf.sum(wf.from_numpy(x), dims, keepdim)
        axis = tuple(dims) if dims else None
        np.testing.assert_allclose(got.numpy(), np.sum(x, axis=axis, keepdims=keepdim), atol=1e-12)

    @given(arrays_and_dims(least=1), st.booleans())
    @settings(max_examples=60, deadline=None)
    def test_extremes_means_and_spreads(self, case, keepdim):
        x, dims = case
        axis = tuple(dims) if dims else None
        t = wf.from_numpy(x)
        np.testing.assert_array_equal(wf.amax(t, dims, keepdim).numpy(), np.max(x, axis=axis, keepdims=keepdim))
        np.testing.assert_array_equal(wf.amin(t, dims, keepdim).numpy(), np.min(x, axis=axis, keepdims=keepdim))
        np.testing.assert_allclose(wf.mean(t, dims, keepdim).numpy(), np.mean(x, axis=axis, keepdims=keepdim))
        got = wf.var(t, dims, keepdim=keepdim, correction=0).numpy()
        np.testing.assert_allclose(got, np.var(x, axis=axis, keepdims=keepdim), atol=1e-12)

    @given(arrays_and_dims(least=1))
    @settings(max_examples=40, deadline=None)
    def test_places_along_each_dim(self, case):
        x, _ = case
        t = wf.from_numpy(x)
        for d in range(x.ndim):
            np.testing.assert_array_equal(wf.argmax(t, d).numpy(), np.argmax(x, axis=d))
            values, indices = wf.min(t, d)
            np.testing.assert_array_equal(values.numpy(), np.min(x, axis=d))
            np.testing.assert_array_equal(indices.numpy(), np.argmin(x, axis=d))


class TestFold:
    """The sums and extremes underneath, in the sizes where they take another way than NumPy."""

    @pytest.mark.parametrize("shape", [(700, 3), (3, 700), (2, 600, 5), (40, 20), (30, 2, 25), (5000, 4), (4, 5000)])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
    def test_large_arrays(self, shape, dtype):
        x = np.random.default_rng(0).normal(size=shape).astype(dtype)
        exact = x.astype(np.float64)
        close = {"rtol": 2e-2, "atol": 0.3} if dtype == np.float16 else {"rtol": 1e-5, "atol": 1e-4}
        for count in range(len(shape) + 1):
            for axis in itertools.combinations(range(len(shape)), count):
                for keep, layout in itertools.product((False, True), (x, np.asfortranarray(x))):
                    got = total(layout, axis, keep)
                    assert got.dtype == dtype
                    np.testing.assert_allclose(got, exact.sum(axis=axis, keepdims=keep), **close)
                    np.testing.assert_array_equal(max_along(layout, axis, keep), x.max(axis=axis, keepdims=keep))
                    np.testing.assert_array_equal(min_along(layout, axis, keep), x.min(axis=axis, keepdims=keep))

    def test_rounding_does_not_pile_up_along_the_first_axis(self):
        x = np.full((100_000, 3), 0.1, np.float32)
        exact = float(np.float32(0.1)) * 100_000
        np.testing.assert_allclose(total(x, (0,)), exact, rtol=1e-6)
        assert abs(np.add.reduce(x, axis=0)[0] - exact) > 1e-5 * exact

    def test_nan_wins_in_rows_of_every_length(self):
        for size in (10, 100):
            x = np.zeros((80, size), np.float32)
            x[3, size // 2] = NAN
            assert np.isnan(max_along(x, (1,))[3]) and np.isnan(min_along(x, (1,))[3])
            assert np.isnan(max_along(x, (1,))).sum() == 1


class TestDTypes:
    @pytest.mark.parametrize("dtype", [wf.bool, wf.uint8, wf.int8, wf.int32, wf.int64])
    def test_integers_add_up_in_int64(self, dtype):
        x = wf.ones(300, dtype=dtype)
        for function in (wf.sum, wf.prod):
            assert function(x).dtype is wf.int64
        assert x.sum().item() == 300
        assert x.cumsum(0).dtype is wf.int64

    def test_dtype_casts_before_adding(self):
        x = wf.full((3,), 60000.0, dtype=wf.float16)
        assert x.sum(dtype=wf.float32).item() == 180000
        assert wf.tensor([1.6, 1.6]).sum(dtype=wf.int64).item() == 2
        assert wf.tensor([1, 2]).mean(dtype=wf.float64).item() == 1.5

    def test_half_precision_sums_in_single(self):
        x = wf.full((4096,), 1.0, dtype=wf.float16)
        assert x.sum().item() == 4096
        assert x.mean().item() == 1

    def test_truth_of_uint8_stays_uint8(self):
        assert wf.tensor([0, 3], dtype=wf.uint8).any().dtype is wf.uint8
        assert wf.tensor([0, 3]).any().dtype is wf.bool

    @pytest.mark.parametrize("name", ["mean", "var", "std", "nanmean"])
    def test_means_of_integers_are_refused(self, name):
        with pytest.raises(DTypeError, match=rf"{name}: needs floating-point numbers, this is i64\[3\].*\.float\(\)"):
            getattr(wf, name)(wf.tensor([1, 2, 3]))


class TestEdges:
    def test_of_nothing(self):
        empty = wf.zeros(0)
        assert empty.sum().item() == 0
        assert empty.prod().item() == 1
        assert math.isnan(empty.mean().item())
        assert not empty.any() and empty.all()
        assert wf.zeros(2, 0).amax(0).shape == (0,)

    @pytest.mark.parametrize("name", ["max", "min", "amax", "amin", "argmax", "argmin"])
    def test_there_is_no_extreme_of_nothing(self, name):
        with pytest.raises(OperationError, match=rf"{name}: .*f32\[0\]"):
            getattr(wf, name)(wf.zeros(0))
        with pytest.raises(IndexRangeError, match=rf"{name}: dimension 1 of f32\[2,0\] is empty"):
            getattr(wf, name)(wf.zeros(2, 0), 1)

    def test_zero_dimensions(self):
        x = wf.tensor(2.0, requires_grad=True)
        for out in (x.sum(0), x.max(0).values, x.cumsum(0), x.sort(0).values, x.softmax(0) * 2, x.logsumexp(-1)):
            assert out.shape == () and out.item() == 2
        assert x.argmax(0).item() == 0

    def test_nan(self):
        x = wf.tensor([1.0, NAN, 3.0])
        assert math.isnan(x.max().item()) and x.argmax().item() == 1 and x.max(0).indices.item() == 1
        assert x.nansum().item() == 4 and x.nanmean().item() == 2

    def test_no_dims_of_a_sum_are_all_and_of_any_none(self):
        x = wf.ones(2, 3)
        assert x.sum(()).shape == () and x.amax(()).shape == ()
        assert x.any(()).shape == (2, 3)

    def test_max_of_two_tensors(self):
        a, b = wf.tensor([1.0, 5.0]), wf.tensor([3, 2])
        assert wf.max(a, b).tolist() == [3, 5]
        assert a.min(other=b).tolist() == [1, 2]

    def test_named_results(self):
        out = wf.tensor([[1.0, 5.0], [7.0, 2.0]]).max(1, keepdim=True)
        assert out.values.tolist() == [[5], [7]] and out.indices.tolist() == [[1], [0]]
        smallest_and_largest = wf.aminmax(wf.tensor([2.0, 1.0]))
        assert smallest_and_largest.min.item() == 1 and smallest_and_largest.max.item() == 2

    def test_logsumexp_is_stable(self):
        assert wf.tensor([1000.0, 1000.0]).logsumexp(0).item() == pytest.approx(1000 + math.log(2))
        assert wf.full((3,), -math.inf).logsumexp(0).item() == -math.inf
        assert wf.tensor([math.inf, 1.0]).logsumexp(0).item() == math.inf

    def test_spread_of_one(self):
        assert math.isnan(wf.tensor([1.0]).var().item())
        assert wf.tensor([1.0]).var(correction=0).item() == 0
        assert wf.tensor([1.0, 3.0]).std(unbiased=False).item() == 1
        assert wf.tensor([1.0, 3.0]).var(False).item() == 1


class TestGradients:
    def grad(self, function, values):
        x = wf.tensor(values, dtype=wf.float64, requires_grad=True)
        function(x).sum().backward()
        return x.grad.tolist()

    def test_ties(self):
        assert self.grad(lambda x: x.amax(), [2.0, 1.0, 2.0]) == [0.5, 0, 0.5]
        assert self.grad(lambda x: x.max(), [2.0, 1.0, 2.0]) == [0.5, 0, 0.5]
        assert self.grad(lambda x: x.max(0).values, [2.0, 1.0, 2.0]) == [1, 0, 0]

    @pytest.mark.parametrize("size", [5, 3000])
    @pytest.mark.parametrize("name", ["max", "min"])
    def test_an_extreme_of_all_that_is_nan_gives_its_gradient_to_the_nans(self, name, size):
        values = np.arange(float(size))
        values[[1, 3]] = NAN
        want = np.where(np.isnan(values), 1.5, 0.0).tolist()
        assert self.grad(lambda x: getattr(x, name)() * 3, values) == want
        assert self.grad(wf.fused(lambda x: getattr(x, name)() * 3), values) == want
        compiled = wf.compile(lambda x: getattr(x, name)() * 3, check=False)
        assert [self.grad(compiled, values) for _ in range(3)] == [want] * 3
        rows = wf.vmap(lambda x: getattr(x, name)() * 3)
        assert self.grad(lambda x: rows(x.unsqueeze(0).expand(2, size)), values) == [2 * v for v in want]

    def test_beside_a_nan_the_largest_norm_has_no_slope(self):
        norm = wf.linalg.vector_norm
        assert self.grad(lambda x: norm(x, math.inf, 1), [[1.0, NAN], [1.0, -2.0]]) == [[0, 0], [0, -1]]
        assert self.grad(lambda x: norm(x, -math.inf), [1.0, NAN, 3.0]) == [0, 0, 0]

    @pytest.mark.parametrize("name", ["max", "min", "amax", "amin", "median", "nanmedian", "max at", "min at"])
    @pytest.mark.parametrize("values", [[[1.0, NAN, 3.0], [NAN, 2.0, NAN]], [[2.0, 1.0, 2.0], [1.0, 1.0, 2.0]]])
    def test_as_pytorch_with_nan_and_ties(self, name, values):
        torch = pytest.importorskip("torch")
        found = []
        for m in (torch, wf):
            x = m.tensor(values, requires_grad=True)
            y = getattr(x, name.split()[0])(1).values if name.endswith("at") else getattr(x, name)()
            y.sum().backward()
            found.append((y.detach().numpy(), x.grad.numpy()))
        for want, got in zip(*found, strict=True):
            np.testing.assert_allclose(got, want)

    def test_product_with_zeros(self):
        assert self.grad(lambda x: x.prod(), [2.0, 0.0, 3.0]) == [0, 6, 0]
        assert self.grad(lambda x: x.prod(), [2.0, 0.0, 0.0]) == [0, 0, 0]
        assert self.grad(lambda x: x.cumprod(0), [2.0, 0.0, 3.0]) == [1, 8, 0]

    def test_where_the_slope_does_not_exist_it_is_zero(self):
        assert self.grad(lambda x: x.std(), [1.0, 1.0]) == [0, 0]
        assert self.grad(lambda x: x.norm(), [0.0, 0.0]) == [0, 0]

    def test_float32_stays_float32(self):
        x = wf.ones(3, 4, requires_grad=True)
        for out in (x.amax(1), x.var(0), x.std(), x.prod(1), x.mean(), x.logsumexp(0), x.norm(), x.norm(3.0)):
            assert out.dtype is wf.float32
            (grad,) = wf.autograd.grad(out.sum(), x)
            assert grad.dtype is wf.float32 and grad.shape == (3, 4)


class TestErrors:
    def test_a_dim_that_is_not_there(self):
        with pytest.raises(IndexRangeError, match=r"sum: dim 2 is out of range .*test_reduce\.py:\d+.* from -2 to 1"):
            wf.ones(2, 3).sum(2)

    def test_a_dim_named_twice(self):
        with pytest.raises(ShapeError, match=r"sum: a dimension is named twice in dim=\(0, -2\)"):
            wf.ones(2, 3).sum((0, -2))

    def test_not_a_tensor(self):
        with pytest.raises(ArgumentTypeError, match=r"sum: expected a tensor, not list.*wf\.tensor"):
            wf.sum([1, 2])

    def test_two_ways_to_say_it(self):
        with pytest.raises(ArgumentTypeError, match="var: unbiased and correction mean the same"):
            wf.ones(2).var(unbiased=True, correction=1)

    def test_sum_to_size(self):
        assert wf.ones(2, 3).sum_to_size(1, 3).tolist() == [[2, 2, 2]]
        with pytest.raises(ShapeError, match=r"sum_to_size: shapes \[2\] and \[2, 3\] do not broadcast"):
            wf.ones(2, 3).sum_to_size(2)
        with pytest.raises(OperationError, match=r"sum_to_size: \[4, 2, 3\] cannot be broadcast to the shape of f32"):
            wf.ones(2, 3).sum_to_size(4, 2, 3)
