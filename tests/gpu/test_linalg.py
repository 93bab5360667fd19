"""Linear algebra on a device: matrices stay there, and singular ones are told as on the CPU."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import LinAlgError

REGULAR = [[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]]
SINGULAR = [[1.0, 2.0], [2.0, 4.0]]
FUNCTIONS = {
    "cholesky": wf.linalg.cholesky, "eigh": lambda x: wf.linalg.eigh(x).eigenvalues, "qr": lambda x: wf.linalg.qr(x)[1],
    "eigvalsh": wf.linalg.eigvalsh, "svdvals": wf.linalg.svdvals, "inv": wf.linalg.inv, "det": wf.linalg.det,
    "slogdet": lambda x: wf.linalg.slogdet(x)[1], "pinv": wf.linalg.pinv, "matrix_exp": wf.linalg.matrix_exp,
    "solve": lambda x: wf.linalg.solve(x, x[..., :2]), "lu": lambda x: wf.linalg.lu(x)[2],
    "lstsq": lambda x: wf.linalg.lstsq(x, x[..., :1]).solution, "rank": lambda x: wf.linalg.matrix_rank(x).float(),
    "triangular": lambda x: wf.linalg.solve_triangular(x.tril(), x, upper=False),
    "cholesky_solve": lambda x: wf.cholesky_solve(x, wf.linalg.cholesky(x)), "cond": wf.linalg.cond,
}  # fmt: skip


@pytest.mark.parametrize("stacked", [False, True], ids=["matrix", "stack"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_agrees_with_the_cpu(cuda, name, stacked):
    values = np.array([REGULAR, np.multiply(REGULAR, 0.3)] if stacked else REGULAR, np.float32)
    found = []
    for place in ("cuda", "cpu"):
        x = wf.tensor(values).to(place).requires_grad_()
        y = FUNCTIONS[name](x)
        assert y.device == x.device
        grads = [] if name == "rank" else [wf.autograd.grad((y * y).sum(), x)[0]]
        found.append([t.detach().cpu().numpy() for t in (y, *grads)])
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-4)


def test_no_matrix_is_copied(cuda, counts):
    x = wf.tensor(REGULAR, device="cuda", requires_grad=True)
    (wf.linalg.solve(x, x) + wf.linalg.inv(x) + wf.linalg.cholesky(x)).sum().backward()
    assert counts.largest == 1


def test_singular_matrices_are_told_as_on_the_cpu(cuda):
    stack = [[[2.0, 0.0], [0.0, 2.0]], SINGULAR]
    for function, values in ((wf.linalg.inv, SINGULAR), (wf.linalg.inv, stack), (wf.linalg.cholesky, SINGULAR),
                             (lambda x: wf.linalg.solve(x, x), stack)):  # fmt: skip
        said = []
        for place in ("cpu", "cuda"):
            with pytest.raises(LinAlgError) as caught:
                function(wf.tensor(values, device=place) - 1e-30)
            said.append(str(caught.value))
        assert said[0] == said[1]
    x = wf.tensor(stack, device="cuda")
    inverse, info = wf.linalg.inv_ex(x)
    assert info.tolist() == [0, 2] and inverse[0].tolist() == [[0.5, 0.0], [0.0, 0.5]] and inverse.is_cuda
    assert wf.linalg.det(x).tolist() == [4.0, 0.0] and wf.linalg.cholesky_ex(x)[1].tolist() == [0, 2]
    assert wf.linalg.lu_factor_ex(x)[2].tolist() == [0, 2]


def test_nan_is_told_as_on_the_cpu(cuda):
    x = wf.full((2, 2), float("nan"), device="cuda")
    for function in (wf.linalg.svdvals, wf.linalg.svd):
        with pytest.raises(LinAlgError, match="NaN or infinite"):
            function(x)
    assert wf.linalg.solve(x, x).isnan().all()
