"""ONNX rules that compute what ONNX has no operator for: special functions, divisors, matrices. Where they could go
wrong: far out, near poles, at the joints of their pieces, with pivots that are zero, and at other sizes."""

import numpy as np
import pytest

from tests.exporters.onnx.alone import single
from wayfare.core.op import REGISTRY

RNG = np.random.default_rng(0)
JOINTS = [1.0, 2.0, 1.999999, 8.0, 7.999999, 8.000001]
POSITIVE = np.concatenate([np.geomspace(1e-8, 1e4, 400), np.linspace(0.01, 20, 400), JOINTS])
BOTH = np.concatenate([-POSITIVE[::-1], POSITIVE])
# Off the poles at the negative integers, near which a relative error says nothing.
BETWEEN = np.concatenate([POSITIVE, np.linspace(-20, 0, 400, endpoint=False) + 0.021])
RANGES = {
    "lgamma": BETWEEN, "digamma": BETWEEN, "erfcx": np.linspace(-25, 60, 700), "log_ndtr": np.linspace(-200, 30, 700),
    "erfinv": np.concatenate([np.linspace(-0.999, 0.999, 501), 1 - np.geomspace(1e-16, 1e-3, 50)]),
    "ndtri": np.concatenate([np.geomspace(1e-300, 0.5, 300), 1 - np.geomspace(1e-15, 0.5, 90)]),
    "airy_ai": np.linspace(-300, 30, 900),
    **dict.fromkeys(("i0", "i1"), np.linspace(-600, 600, 801)), **dict.fromkeys(("i0e", "i1e", "j0", "j1"), BOTH),
    **dict.fromkeys(("k0", "k1", "y0", "y1", "k0e", "k1e"), POSITIVE),
}  # fmt: skip


def _near(got, want, what, rtol=2e-8, atol=1e-9):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=what)


@pytest.mark.parametrize("name", RANGES)
def test_a_special_function_everywhere(name):
    x = RANGES[name]
    with np.errstate(all="ignore"):
        want = REGISTRY[name].forward(x)
    _near(single(REGISTRY[name], [x])[0], want, name)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5])
def test_slopes_of_the_gamma_function(n):
    x = np.concatenate([np.geomspace(1e-2, 1e3, 100), np.linspace(-9, 0, 60, endpoint=False) + 0.07])
    want = REGISTRY["polygamma"].forward(x, n=n)
    _near(single(REGISTRY["polygamma"], [x], {"n": n})[0], want, str(n), rtol=1e-7)


def test_shares_of_gamma_distributions():
    a, x = np.meshgrid(np.concatenate([np.geomspace(1e-3, 3e3, 24), [1, 2.5]]), np.geomspace(1e-4, 4e3, 30))
    for name in ("gammainc", "gammaincc"):
        _near(single(REGISTRY[name], [a, x])[0], REGISTRY[name].forward(a, x), name)


def test_sums_of_inverse_powers():
    x, q = np.meshgrid([1.0001, 1.5, 2, 3.7, 10, 50, 120], [1e-3, 0.5, 1, 3.3, 8.9, 20, 77, 1e3])
    _near(single(REGISTRY["zeta"], [x, q])[0], REGISTRY["zeta"].forward(x, q), "zeta", atol=0)
    x, q = np.meshgrid([2.0, 3, 8], [-0.5, -7.25, -60.9])
    _near(single(REGISTRY["zeta"], [x, q])[0], REGISTRY["zeta"].forward(x, q), "zeta", atol=0)


def test_gamma_at_its_poles():
    x = np.array([0.0, -1.0, -7.0])
    assert single(REGISTRY["lgamma"], [x])[0].tolist() == [np.inf] * 3
    assert np.isnan(single(REGISTRY["digamma"], [x])[0][1:]).all()


def _all_kinds(dtype):
    limits = np.finfo(dtype)
    edges = [0, -0.0, 1, -1, 0.5, 2, limits.max, -limits.max, limits.tiny, limits.smallest_subnormal, np.inf, np.nan]
    spread = np.ldexp(RNG.uniform(-1, 1, 300), RNG.integers(limits.minexp // 2, limits.maxexp // 2, 300))
    return np.concatenate([np.array(edges, dtype), spread.astype(dtype), -np.ldexp(0.5, range(-9, 9)).astype(dtype)])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_number_is_taken_apart_exactly(dtype):
    x = _all_kinds(dtype)
    fraction, exponent = single(REGISTRY["frexp"], [x])
    want = np.frexp(x)
    np.testing.assert_array_equal(fraction, want[0])
    finite = np.isfinite(x)
    np.testing.assert_array_equal(exponent[finite], want[1][finite])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_neighbour_of_a_number_is_exact(dtype):
    x = _all_kinds(dtype)
    for y in (x[::-1].copy(), np.full_like(x, np.inf), np.full_like(x, -np.inf), np.zeros_like(x), x):
        with np.errstate(over="ignore"):
            want = np.nextafter(x, y)
        np.testing.assert_array_equal(single(REGISTRY["nextafter"], [x, y])[0], want)


# -- whole numbers ----------------------------------------------------------------------------------------------------


def test_divisors_of_large_numbers():
    a, b = RNG.integers(-(10**12), 10**12, (2, 200))
    a[:5], b[3:8] = 0, 0
    assert single(REGISTRY["gcd"], [a, b])[0].tolist() == np.gcd(a, b).tolist()
    small = a % 10**6, b % 10**6
    assert single(REGISTRY["lcm"], [*small])[0].tolist() == np.lcm(*small).tolist()


def test_polynomials_of_mixed_degree():
    x, n = RNG.uniform(-1, 1, (4, 12)), np.arange(-1.0, 11)
    for name in ("chebyshev_polynomial_t", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"):
        _near(single(REGISTRY[name], [x, n])[0], REGISTRY[name].forward(x, n), name)


def test_the_commonest_value():
    op = REGISTRY["mode"]
    x = RNG.integers(0, 4, (5, 9, 3)).astype(np.float32)
    x[0, :4] = np.nan
    for dim, keepdim in ((0, False), (1, True), (2, False)):
        for got, want in zip(single(op, [x], {"dim": dim, "keepdim": keepdim}), op.forward(x, dim=dim, keepdim=keepdim),
                             strict=True):  # fmt: skip
            np.testing.assert_array_equal(got, want)
    values, places = single(op, [np.array([2, 5, 5, 2, 0], np.uint8)], {"dim": 0, "keepdim": False})
    assert (values, places) == (2, 3)


# -- matrices ---------------------------------------------------------------------------------------------------------


def _exported(name, *arrays, **attrs):
    return single(REGISTRY[name], [*arrays], attrs)


def test_systems_that_need_their_rows_exchanged():
    a = np.array([[0.0, 2, 1], [1, 1e-9, 3], [4, 1, 0]])
    right = RNG.normal(size=(3, 2))
    _near(_exported("solve", a, right, strict=True)[0], np.linalg.solve(a, right), "solve")
    _near(_exported("inv", a, strict=True)[0], np.linalg.inv(a), "inv")
    for got, want in zip(_exported("slogdet", a), np.linalg.slogdet(a), strict=True):
        _near(got, want, "slogdet")
    for got, want in zip(_exported("lu_factor", a), REGISTRY["lu_factor"].forward(a), strict=True):
        _near(got, want, "lu_factor")


def test_larger_matrices_in_stacks():
    x = RNG.normal(size=(3, 2, 24, 24))
    symmetric = x @ x.swapaxes(-1, -2) + np.eye(24)
    triangle = np.tril(x) + 5 * np.eye(24)
    calls = [
        ("inv", (x,), {"strict": True}), ("slogdet", (x,), {}), ("lu_factor", (x,), {}), ("matrix_exp", (x,), {}),
        ("cholesky", (symmetric,), {"strict": True}), ("qr", (x[..., :9],), {"mode": "reduced"}),
        ("qr", (x[..., :9, :],), {"mode": "complete"}), ("solve", (x, x[..., :5]), {"strict": True}),
        ("solve_triangular", (triangle, x), {"upper": False, "unitriangular": False}),
    ]  # fmt: skip
    for name, arrays, attrs in calls:
        made = REGISTRY[name].forward(*arrays, **attrs)
        want = made if isinstance(made, tuple) else (made,)
        for got, expected in zip(_exported(name, *arrays, **attrs), want, strict=True):
            _near(got, expected, name, atol=1e-8 * np.abs(expected).max())


def test_what_a_matrix_does_not_have_is_not_finite():
    singular = np.array([[[1.0, 2], [2, 4]], [[2, 0], [0, 2]]])
    made = _exported("inv", singular, strict=False)[0]
    assert not np.isfinite(made[0]).any()
    _near(made[1], np.eye(2) / 2, "the other one")
    sign, log = _exported("slogdet", singular)
    assert sign.tolist() == [0, 1] and log[0] == -np.inf
    indefinite = np.array([[[1.0, 2], [2, 1]], [[4, 0], [0, 9]]])
    factor = _exported("cholesky", indefinite, strict=False)[0]
    assert np.isnan(factor[0]).all() and factor[1].tolist() == [[2, 0], [0, 3]]
    assert _exported("cholesky_info", indefinite)[0].tolist() == [2, 0]


def test_singular_values_of_difficult_matrices():
    graded = RNG.normal(size=(9, 9)) * np.geomspace(1, 1e-6, 9)
    defective = np.outer(RNG.normal(size=9), RNG.normal(size=9))
    swapping = np.fliplr(np.eye(9))
    for x in (graded, defective, swapping, np.zeros((9, 9)), np.ones((9, 9)), RNG.normal(size=(40, 31))):
        for each in (x, x[:5], x[:, :4]):
            want = np.linalg.svd(each, compute_uv=False)
            _near(_exported("svdvals", each)[0], want, "svdvals", rtol=1e-9, atol=1e-12)
    for x in (graded, swapping, RNG.normal(size=(3, 12, 12))):
        for uplo in "LU":
            _near(_exported("eigvalsh", x, uplo=uplo)[0], np.linalg.eigvalsh(x, UPLO=uplo), "eigvalsh", atol=1e-11)
    for x in (RNG.normal(size=(2, 20, 6)), RNG.normal(size=(5, 8)), defective):
        tolerance = np.zeros(x.shape[:-2]), np.full(x.shape[:-2], 1e-10)
        want = np.linalg.pinv(x, rcond=1e-10)
        _near(_exported("pinv", x, *tolerance, hermitian=False)[0], want, "pinv", atol=1e-10)


def test_exponentials_of_large_and_of_zero_matrices():
    generator = np.array([[0.0, -40], [40, 0]])
    _near(_exported("matrix_exp", generator)[0], REGISTRY["matrix_exp"].forward(generator), "turned often", rtol=1e-6)
    assert _exported("matrix_exp", np.zeros((2, 2)))[0].tolist() == [[1, 0], [0, 1]]
