"""What eager takes, a program takes: arguments in every form that functions accept, and what both refuse."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import DTypeError, ExportError, ShapeError

F = wf.nn.functional
X, I, B = (wf.rand(3, 4), wf.randint(0, 4, (3, 4)), wf.rand(3, 4) > 0.5)

_KEEPING = [
    "sum", "mean", "amax", "amin", "all", "any", "argmax", "argmin", "logsumexp", "max", "min", "median", "mode",
    "nanmean", "nanmedian", "nansum", "prod", "std", "var", "norm", "cummax",
]  # fmt: skip

CASES = {
    "pinv": (lambda x: wf.linalg.pinv(x), X),
    "pinv of float64": (lambda x: wf.linalg.pinv(x), X.double()),
    "pinv, hermitian": (lambda x: wf.linalg.pinv(x @ x.mT, hermitian=True, atol=1e-3), X),
    "matrix_rank": (lambda x: wf.linalg.matrix_rank(x), X),
    "take": (lambda x, i: x.take(i), X, I),
    "put": (lambda x, i: x.put(i, wf.ones(3, 4), accumulate=1), X, I),
    "take_along_dim": (lambda x, i: x.take_along_dim(i), X, I),
    "as_strided_scatter": (lambda x: x.as_strided_scatter(wf.ones(2), (2,), (3,)), X),
    "index_add of a number": (lambda x: x.sum().index_add(0, wf.tensor([0]), wf.ones(1)), X),
    "sum_to_size of bools": (lambda x: x.sum_to_size(()), B),
    "sum_to_size of int8": (lambda x: x.to(wf.int8).sum_to_size((3, 1)), I),
    "pad of bools": (lambda x: F.pad(x, (1, 1)), B),
    "pad of bools with True": (lambda x: F.pad(x, (1, 1), value=True), B),
    "where with a bool": (lambda x: wf.where(x > 0.5, x, True), X),
    "full of a bool": (lambda x: x * wf.full((3, 4), True), X),
    "softmax of a bool dim": (lambda x: x.softmax(True), X),
    "flags as numbers": (lambda x: wf.cumsum(x.sort(1, 1)[0], np.int64(1)), X),
    "topk": (lambda x: x.topk(2, 1, 0, 1), X),
    "gelu": (lambda x: F.layer_norm(F.gelu(x), [np.int64(4)], eps=1), X),
    "avg_pool of ints": (lambda x: F.avg_pool1d(x, 2), I),
    "adaptive_avg_pool of nothing": (lambda x: F.adaptive_avg_pool1d(x, 0), X),
    **{f"{name}, keepdim=1": (lambda x, name=name: getattr(x, name)(0, True)
                              if name in ("std", "var", "norm") else x.cummax(True) if name == "cummax"
                              else getattr(x, name)(0, 1), X) for name in _KEEPING},
    "std, keepdim=1": (lambda x: x.std(0, unbiased=1, keepdim=1), X),
    "norm, keepdim=1": (lambda x: x.norm(2, 0, 1), X),
    "aminmax": (lambda x: x.aminmax(dim=0, keepdim=1), X),
    "count": (lambda x: x.argsort(0, 1), X),
    "triangular": (lambda x: wf.linalg.solve_triangular(x[:, :3].triu() + 2 * wf.eye(3), x, upper=1), X),
}  # fmt: skip


def _listed(made):
    return list(made) if isinstance(made, tuple) else [made]


@pytest.mark.parametrize("name", CASES)
def test_a_program_takes_what_eager_takes(name, tmp_path):
    f, *given = CASES[name]
    wf.export(f, tuple(given), tmp_path / "a.wf")
    made = wf.load_program(tmp_path / "a.wf", compiled=False)(*given)
    for a, b in zip(_listed(made), _listed(f(*given)), strict=True):
        assert a.dtype is b.dtype
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("f", [
    lambda: F.soft_margin_loss(I, I), lambda: F.multilabel_soft_margin_loss(I, I), lambda: F.gaussian_nll_loss(I, I, I),
    lambda: F.adaptive_avg_pool1d(I, 1), lambda: F.adaptive_avg_pool1d(I, 2), lambda: F.avg_pool1d(B, 1),
    lambda: F.adaptive_avg_pool2d(I[None], 2),
])  # fmt: skip
def test_whole_numbers_are_refused_where_they_give_nothing_right(f):
    with pytest.raises(DTypeError):
        f()


@pytest.mark.parametrize("f", [
    lambda: wf.cholesky_solve(wf.rand(5), wf.rand(5)), lambda: wf.cholesky_solve(wf.rand(5), wf.eye(5)),
    lambda: wf.cholesky_inverse(wf.rand(5)), lambda: wf.cholesky_solve(wf.rand(5, 2), wf.rand(5)),
])  # fmt: skip
def test_cholesky_solve_takes_matrices(f):
    with pytest.raises(ShapeError):
        f()


@pytest.mark.parametrize("f", [
    lambda x: F.hardshrink(x, (0,)), lambda x: wf.nan_to_num(x, (0,)), lambda x: wf.nan_to_num(x, x),
    lambda x: F.elu(x, x),
])  # fmt: skip
def test_what_a_file_cannot_hold_is_no_damaged_file(f, tmp_path):
    try:
        f(X)
    except wf.errors.WayfareError:
        return
    with pytest.raises(ExportError):
        wf.export(f, (X,), tmp_path / "a.wf")
    assert not (tmp_path / "a.wf").exists()
