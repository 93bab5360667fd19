"""Linear algebra beyond the records' own tests: identities, symmetric gradients, singular matrices, errors."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wayfare as wf
from wayfare.errors import ArgumentError, DTypeError, LinAlgError, ShapeError
from wayfare.testing import gradcheck, gradgradcheck

SHAPES = st.tuples(st.lists(st.integers(0, 2), max_size=1), st.integers(0, 4), st.integers(0, 4))


def array(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def tensor(*shape, seed=0):
    return wf.from_numpy(array(*shape, seed=seed))


def positive(*shape, seed=0):
    x = array(*shape, seed=seed)
    return wf.from_numpy(x @ x.swapaxes(-1, -2) + np.eye(shape[-1]))


def close(got, want, tolerance=1e-9):
    got = got.detach().numpy() if isinstance(got, wf.Tensor) else got
    want = want.detach().numpy() if isinstance(want, wf.Tensor) else want
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=tolerance, rtol=tolerance)


class TestIdentities:
    @given(SHAPES)
    def test_qr(self, drawn):
        lead, rows, columns = drawn
        a = tensor(*lead, rows, columns)
        for mode in ("reduced", "complete"):
            q, r = wf.linalg.qr(a, mode)
            assert q.shape[-1] == (rows if mode == "complete" else min(rows, columns))
            close(q @ r, a)
            close(q.mT @ q, np.broadcast_to(np.eye(q.shape[-1]), (*lead, q.shape[-1], q.shape[-1])))
            close(wf.tril(r, -1), np.zeros(tuple(r.shape)))
        assert wf.linalg.qr(a, "r").Q.shape == (0,)
        close(wf.linalg.qr(a, "r").R, wf.linalg.qr(a).R)

    @given(SHAPES, st.booleans())
    def test_svd(self, drawn, full):
        lead, rows, columns = drawn
        a, k = tensor(*lead, rows, columns), min(rows, columns)
        u, s, vh = wf.linalg.svd(a, full_matrices=full)
        assert u.shape[-1] == (rows if full else k)
        assert vh.shape[-2] == (columns if full else k)
        close((u[..., :, :k] * s.unsqueeze(-2)) @ vh[..., :k, :], a)
        close(wf.linalg.svdvals(a), s)

    @given(SHAPES)
    def test_lu(self, drawn):
        lead, rows, columns = drawn
        a = tensor(*lead, rows, columns)
        p, l, u = wf.linalg.lu(a)
        close(p @ l @ u, a)
        packed, pivots = wf.linalg.lu_factor(a)
        assert pivots.dtype is wf.int32
        for one, other in zip(wf.lu_unpack(packed, pivots), (p, l, u), strict=True):
            close(one, other)

    def test_eigh_reads_one_triangle(self):
        a = positive(4, 4)
        for uplo, triangle in (("L", wf.tril), ("U", wf.triu)):
            values, vectors = wf.linalg.eigh(triangle(a), uplo)
            close((vectors * values) @ vectors.mT, a)
            close(wf.linalg.eigvalsh(triangle(a), uplo), values)

    def test_cholesky_and_what_is_solved_with_it(self):
        a, b = positive(2, 3, 3), tensor(2, 3, 2)
        for upper in (False, True):
            factor = wf.linalg.cholesky(a, upper=upper)
            close(factor.mT @ factor if upper else factor @ factor.mT, a)
            close(a @ wf.cholesky_solve(b, factor, upper), b)
            close(wf.cholesky_inverse(factor, upper), wf.linalg.inv(a))
        close(wf.linalg.cholesky(wf.tril(a)), wf.linalg.cholesky(a))

    def test_householder_product_and_ormqr_undo_geqrf(self):
        a, other = tensor(2, 4, 3), tensor(2, 4, 2)
        packed, tau = wf.geqrf(a)
        q, r = wf.linalg.qr(a)
        close(wf.linalg.householder_product(packed, tau), q)
        close(wf.triu(packed)[..., :3, :], r)
        full = wf.linalg.qr(a, "complete").Q
        close(wf.ormqr(packed, tau, other), full @ other)
        close(wf.ormqr(packed, tau, other, transpose=True), full.mT @ other)
        close(wf.ormqr(packed, tau, other.mT, left=False), other.mT @ full)

    @pytest.mark.parametrize("left", [True, False])
    @pytest.mark.parametrize("adjoint", [True, False])
    def test_lu_solve(self, left, adjoint):
        a, b = tensor(2, 3, 3), tensor(2, 3, 3, seed=1)
        x = wf.linalg.lu_solve(*wf.linalg.lu_factor(a), b, left=left, adjoint=adjoint)
        matrix = a.mT if adjoint else a
        close(matrix @ x if left else x @ matrix, b)

    def test_solve_takes_vectors_stacks_and_either_side(self):
        a = tensor(2, 3, 3)
        for b in (tensor(3), tensor(2, 3), tensor(3, 4), tensor(5, 1, 3, 4)):
            x = wf.linalg.solve(a, b)
            if b.ndim == 1:
                close((a @ x.unsqueeze(-1)).squeeze(-1), np.broadcast_to(b.numpy(), (2, 3)))
            elif tuple(b.shape) == (2, 3):
                close((a @ x.unsqueeze(-1)).squeeze(-1), b)
            else:
                close(a @ x, np.broadcast_to(b.numpy(), x.shape))
        b = tensor(2, 4, 3)
        close(wf.linalg.solve(a, b, left=False) @ a, b)

    def test_solve_triangular_reads_only_its_triangle(self):
        a, b = tensor(3, 3) + 3 * wf.eye(3, dtype=wf.float64), tensor(3, 2)
        close(wf.triu(a) @ wf.linalg.solve_triangular(a, b, upper=True), b)
        close(wf.linalg.solve_triangular(a, b.mT, upper=False, left=False) @ wf.tril(a), b.mT)
        unit = wf.tril(a, -1) + wf.eye(3, dtype=wf.float64)
        close(unit @ wf.linalg.solve_triangular(a, b, upper=False, unitriangular=True), b)

    def test_tensors_as_matrices(self):
        a = tensor(2, 3, 6)
        close(wf.tensordot(wf.linalg.tensorinv(a), a, 2), np.eye(6))
        b = tensor(2, 3)
        close(wf.tensordot(a, wf.linalg.tensorsolve(a, b), 1), b)

    @pytest.mark.parametrize("power", [-2, -1, 0, 1, 5])
    def test_matrix_power(self, power):
        a = tensor(2, 3, 3)
        close(wf.linalg.matrix_power(a, power), np.linalg.matrix_power(a.numpy(), power), 1e-7)

    def test_float32_stays_float32(self):
        a = wf.from_numpy((array(3, 3) + 3 * np.eye(3)).astype(np.float32))
        found = [
            wf.det(a), wf.inverse(a), *wf.slogdet(a), *wf.linalg.svd(a), *wf.linalg.qr(a), *wf.linalg.lu(a),
            *wf.linalg.eigh(a), wf.linalg.pinv(a), wf.matrix_exp(a), wf.linalg.cond(a), wf.linalg.norm(a, 2),
            wf.linalg.lstsq(a, a).solution, wf.linalg.solve(a, a), wf.linalg.cholesky(a @ a.T),
        ]  # fmt: skip
        assert {t.dtype for t in found} == {wf.float32}


class TestGradients:
    """By way of a matrix that is symmetric whatever its source: so finite differences stay among such matrices."""

    @pytest.mark.parametrize("function", [
        lambda a: wf.linalg.cholesky(a),
        lambda a: wf.linalg.cholesky(a, upper=True),
        lambda a: wf.linalg.eigvalsh(a),
        lambda a: wf.linalg.eigh(a),
        lambda a: wf.linalg.pinv(a, hermitian=True),
        lambda a: wf.logdet(a),
    ])  # fmt: skip
    @pytest.mark.parametrize("shape", [(3, 3), (2, 2, 2)])
    def test_of_symmetric_matrices(self, function, shape):
        eye = wf.eye(shape[-1], dtype=wf.float64)

        def of_source(x):
            return function(x @ x.mT + eye)

        source = tensor(*shape).requires_grad_()
        assert gradcheck(of_source, source)
        assert gradgradcheck(of_source, source)

    def test_the_gradient_of_a_symmetric_matrix_is_symmetric(self):
        a = positive(3, 3).requires_grad_()
        wf.linalg.cholesky(a).sum().backward()
        close(a.grad, a.grad.T)

    def test_of_least_squares_for_tall_and_wide(self):
        for rows, columns in ((4, 2), (2, 4)):
            a, b = tensor(rows, columns).requires_grad_(), tensor(rows, 2, seed=1).requires_grad_()
            assert gradcheck(lambda a, b: wf.linalg.lstsq(a, b).solution, (a, b))

    def test_of_the_determinant_of_singular_matrices(self):
        rank_one = np.outer([1.0, 2.0, 3.0], [1.0, -1.0, 2.0])
        rank_two = rank_one + np.outer([0.0, 1.0, 1.0], [3.0, 1.0, 0.0])
        for matrix in (rank_one, rank_two, np.zeros((3, 3)), np.diag([0.0, 2.0, 3.0])):
            a = wf.from_numpy(matrix).requires_grad_()
            wf.det(a).backward()
            want = np.array([[_cofactor(matrix, i, j) for j in range(3)] for i in range(3)])
            close(a.grad, want)

    def test_of_composed_functions(self):
        a = tensor(3, 2).requires_grad_()
        packed, tau = (t.requires_grad_() for t in wf.geqrf(tensor(3, 2)))
        assert gradcheck(wf.linalg.householder_product, (packed, tau))
        assert gradcheck(lambda a: wf.linalg.cond(a), a)
        assert gradcheck(lambda a: wf.linalg.norm(a, "nuc"), a)
        assert gradcheck(lambda a: wf.linalg.vander(a[:, 0], 4), a)
        square = (tensor(3, 3) + 3 * wf.eye(3, dtype=wf.float64)).requires_grad_()
        assert gradcheck(lambda a: wf.linalg.cond(a, 1), square)
        assert gradcheck(lambda a: wf.linalg.lu_solve(*wf.linalg.lu_factor(a), a.mT), square)

    def test_the_singular_values_alone_have_a_gradient_where_two_are_equal(self):
        a = wf.eye(2, dtype=wf.float64).requires_grad_()
        wf.linalg.svdvals(a).sum().backward()
        close(a.grad, np.eye(2))

    def test_qr_that_has_no_gradient_says_so(self):
        a = tensor(3, 2).requires_grad_()
        q = wf.linalg.qr(a, "complete").Q
        with pytest.raises(RuntimeError, match=r"qr: mode='complete' has no gradient.*Use mode='reduced'"):
            q.sum().backward()


def _cofactor(matrix, i, j):
    minor = np.delete(np.delete(matrix, i, 0), j, 1)
    return (-1) ** (i + j) * (minor[0, 0] * minor[1, 1] - minor[0, 1] * minor[1, 0])


class TestErrors:
    def test_singular_matrices_are_named_by_their_place(self):
        stack = np.stack([np.eye(2), np.eye(2), np.ones((2, 2))])
        for call in (wf.linalg.inv, lambda a: wf.linalg.solve(a, a)):
            with pytest.raises(LinAlgError, match=r"the matrix at batch index \[2\] of f64\[3,2,2\] is singular"):
                call(wf.from_numpy(stack))
        with pytest.raises(RuntimeError, match=r"inv: the matrix of f64\[2,2\] is singular \(test_linalg.py:\d+\)"):
            wf.linalg.inv(wf.from_numpy(np.ones((2, 2))))

    def test_a_matrix_that_is_not_positive_definite(self):
        stack = np.stack([np.eye(2), -np.eye(2)])
        with pytest.raises(LinAlgError, match=r"cholesky: the matrix at batch index \[1\] .* not positive definite"):
            wf.linalg.cholesky(wf.from_numpy(stack))

    @pytest.mark.parametrize("function", [
        wf.linalg.inv, wf.det, wf.slogdet, wf.linalg.cholesky, wf.linalg.eigh, wf.linalg.eigvalsh, wf.matrix_exp,
        lambda a: wf.linalg.matrix_power(a, 2),
    ])  # fmt: skip
    def test_a_matrix_that_is_not_square(self, function):
        with pytest.raises(ShapeError, match=r"must be square, not .*f64\[2,3\]"):
            function(tensor(2, 3))

    @pytest.mark.parametrize("function", [
        wf.linalg.inv, wf.det, wf.linalg.svd, wf.linalg.qr, wf.linalg.lu, wf.linalg.pinv, wf.linalg.matrix_rank,
    ])  # fmt: skip
    def test_dtypes_without_linear_algebra_and_vectors(self, function):
        with pytest.raises(DTypeError, match=r"needs a floating-point matrix, not i64\[2,2\]"):
            function(wf.from_numpy(np.eye(2, dtype=np.int64)))
        with pytest.raises(DTypeError, match=r"float16 has no linear algebra.*Convert it with \.float"):
            function(wf.from_numpy(np.eye(2, dtype=np.float16)))
        with pytest.raises(ShapeError, match=r"needs a matrix or a stack of matrices, not f64\[3\]"):
            function(tensor(3))

    def test_nan_is_named(self):
        bad = np.full((2, 2), np.nan)
        with pytest.raises(LinAlgError, match=r"svdvals: the matrix of .* NaN or infinite elements"):
            wf.linalg.svdvals(wf.from_numpy(bad))

    def test_general_eigenvalues_are_complex(self):
        with pytest.raises(AttributeError, match=r"complex numbers.*use wf\.linalg\.eigh\."):
            wf.linalg.eig
        with pytest.raises(AttributeError, match=r"use wf\.linalg\.eigvalsh\."):
            wf.linalg.eigvals

    def test_arguments(self):
        a = tensor(2, 2)
        with pytest.raises(ArgumentError, match="UPLO must be 'L' or 'U'"):
            wf.linalg.eigh(a, "X")
        with pytest.raises(ArgumentError, match="mode must be"):
            wf.linalg.qr(a, "full")
        with pytest.raises(ArgumentError, match="ord must be 'fro'"):
            wf.linalg.matrix_norm(a, 3)
        with pytest.raises(ShapeError, match=r"solve: the sides have different numbers of rows"):
            wf.linalg.solve(a, tensor(3, 2))
        with pytest.raises(TypeError, match="inv: expected a tensor, not list"):
            wf.linalg.inv([[1.0]])

    def test_the_forms_that_report_instead_of_raising(self):
        stack = wf.from_numpy(np.stack([2 * np.eye(2), np.ones((2, 2)), np.zeros((2, 2))]))
        inverse, info = wf.linalg.inv_ex(stack)
        assert info.tolist() == [0, 2, 1]
        close(inverse[0], 0.5 * np.eye(2))
        with pytest.raises(LinAlgError):
            wf.linalg.inv_ex(stack, check_errors=True)
        assert wf.linalg.solve_ex(stack, stack).info.tolist() == [0, 2, 1]
        factor, info = wf.linalg.cholesky_ex(stack)
        assert info.tolist() == [0, 2, 1]
        close(factor[0], math.sqrt(2) * np.eye(2))
        assert wf.linalg.lu_factor_ex(stack).info.tolist() == [0, 2, 1]


class TestNumbersOfAMatrix:
    def test_determinants_and_their_signs(self):
        a = wf.from_numpy(np.stack([np.diag([2.0, 3.0]), np.diag([-2.0, 3.0]), np.diag([0.0, 1.0])]))
        assert wf.det(a).tolist() == [6.0, -6.0, 0.0]
        sign, log = a.slogdet()
        assert sign.tolist() == [1.0, -1.0, 0.0]
        close(log, np.array([np.log(6), np.log(6), -np.inf]))
        found = a.logdet()
        assert found[0].item() == pytest.approx(np.log(6))
        assert math.isnan(found[1].item())
        assert found[2].item() == -math.inf

    @pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
    def test_matrix_norms(self, order):
        a = tensor(3, 2, 4)
        for dim in ((1, 2), (0, 2), (-1, 0)):
            for keepdim in (False, True):
                want = np.linalg.norm(a.numpy(), order, axis=dim, keepdims=keepdim)
                close(wf.linalg.matrix_norm(a, order, dim, keepdim), want)
                close(wf.linalg.norm(a, order, dim, keepdim), want)

    def test_norms_of_vectors_and_of_everything(self):
        a = tensor(2, 3)
        assert wf.linalg.norm(a).item() == pytest.approx(np.sqrt((a.numpy() ** 2).sum()))
        close(wf.linalg.norm(a, 3, 1), np.linalg.norm(a.numpy(), 3, axis=1))
        close(wf.norm(a, 1, 0, keepdim=True), np.abs(a.numpy()).sum(0, keepdims=True))
        assert a.norm().item() == pytest.approx(np.linalg.norm(a.numpy()))
        with pytest.raises(ShapeError, match="needs a vector or a matrix"):
            wf.linalg.norm(tensor(2, 2, 2), 1)

    def test_condition_rank_and_trace(self):
        a = wf.from_numpy(np.diag([4.0, 2.0, 0.0]))
        assert wf.linalg.cond(a).item() == math.inf
        assert wf.linalg.cond(a, 1).item() == math.inf
        assert wf.linalg.cond(a[:2, :2]).item() == 2
        assert wf.linalg.matrix_rank(a).item() == 2
        assert wf.linalg.matrix_rank(a, atol=3.0).item() == 1
        assert wf.linalg.matrix_rank(a, hermitian=True).item() == 2
        assert a.trace().item() == 6
        assert wf.trace(wf.from_numpy(np.eye(3, dtype=np.int32))).dtype is wf.int64

    def test_least_squares_as_numpy_has_it(self):
        a, b = array(5, 3), array(5, 2)
        solution, residuals, rank, values = wf.linalg.lstsq(wf.from_numpy(a), wf.from_numpy(b), driver="gelsd")
        want = np.linalg.lstsq(a, b, rcond=None)
        close(solution, want[0])
        close(residuals, want[1])
        assert rank.item() == want[2]
        close(values, want[3])

    def test_cross_products(self):
        a, b = array(2, 3), array(2, 3, seed=1)
        close(wf.linalg.cross(wf.from_numpy(a), wf.from_numpy(b)), np.cross(a, b))
        close(wf.cross(wf.from_numpy(a.T.copy()), wf.from_numpy(b.T.copy())), np.cross(a, b).T)
        with pytest.raises(ShapeError, match=r"no dimension of f64\[2,2\] has size 3"):
            wf.cross(tensor(2, 2), tensor(2, 2))


def test_vmap_runs_the_stacked_form():
    a, b = positive(4, 3, 3), tensor(4, 3)
    close(wf.vmap(wf.linalg.solve)(a, b), np.linalg.solve(a.numpy(), b.numpy()[..., None])[..., 0])
    close(wf.vmap(lambda x: wf.linalg.cholesky(x))(a), np.linalg.cholesky(a.numpy()))
    close(wf.vmap(lambda x: wf.linalg.svd(x).S)(a), np.linalg.svd(a.numpy())[1])


def test_methods_are_the_functions():
    a = positive(3, 3)
    close(a.inverse(), wf.linalg.inv(a))
    close(a.det(), wf.linalg.det(a))
    close(a.cholesky(), wf.linalg.cholesky(a))
    close(a.matrix_power(2), a @ a)
    close(a.pinverse(), wf.linalg.inv(a))
    u, s, v = a.svd()
    close((u * s) @ v.mT, a)
    q, r = a.qr()
    close(q @ r, a)


A, B = [[0.0, 0, 0], [1, 2, 3], [1, 3, -3]], [[0.0, 0, 0], [2, 1, 2], [1, 2, 3], [-1, -1, 1]]


@pytest.mark.parametrize("repeat", [1, 40])
def test_each_of_several_largest_differences_has_the_whole_slope_of_cdist(repeat):
    a = wf.tensor(np.tile(A, (repeat, 1)), requires_grad=True)
    b = wf.tensor(np.tile(B, (repeat, 1)), requires_grad=True)
    apart = a.detach().numpy()[:, None] - b.detach().numpy()
    weights = np.arange(float(len(a) * len(b))).reshape(len(a), len(b))
    slope = weights[:, :, None] * np.sign(apart) * (np.abs(apart) == np.abs(apart).max(-1, keepdims=True))
    for distance in (wf.cdist, wf.compile(wf.cdist, check=False)):
        a.grad = b.grad = None
        (distance(a, b, p=math.inf) * wf.tensor(weights)).sum().backward()
        np.testing.assert_allclose(a.grad.numpy(), slope.sum(1))
        np.testing.assert_allclose(b.grad.numpy(), -slope.sum(0))


def test_rows_of_no_numbers_are_not_apart():
    for p in (0, 1, 2, math.inf):
        assert wf.cdist(wf.zeros(2, 0), wf.zeros(1, 0), p=p).tolist() == [[0], [0]]
        assert wf.nn.functional.pdist(wf.zeros(2, 0), p=p).tolist() == [0]


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf])
def test_slopes_of_distances_at_ties_and_at_zero_as_pytorch(p):
    torch = pytest.importorskip("torch")
    forms = {
        "cdist": lambda m, a, b: m.cdist(a, b, p=p),
        "itself": lambda m, a, b: m.cdist(a, a, p=p) + 0 * b.sum(),
        "pdist": lambda m, a, b: m.nn.functional.pdist(m.cat([a, b]), p=p),
    }
    for name, form in forms.items():
        found = []
        for m in (torch, wf):
            a, b = m.tensor(A, requires_grad=True), m.tensor(B, requires_grad=True)
            out = form(m, a, b)
            (out * m.arange(1.0, out.numel() + 1).reshape(out.shape)).sum().backward()
            found.append([out.detach().numpy(), a.grad.numpy(), b.grad.numpy()])
        for want, got in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=name)


def test_cdist_of_many_rows_goes_by_products_and_agrees():
    rng = np.random.default_rng(0)
    a, b = wf.tensor(rng.normal(size=(40, 4)), requires_grad=True), wf.tensor(rng.normal(size=(3, 4)))
    with wf.no_grad():
        a[0] = b[1]  # the same point: distance 0, no slope
    direct = wf.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    quick = wf.cdist(a, b)
    np.testing.assert_allclose(quick.detach().numpy(), direct.detach().numpy(), atol=1e-7)
    quick.sum().backward()
    assert np.isfinite(a.grad.numpy()).all()
    assert "matmul" in [node.op.name for node in wf.graph(quick)]
