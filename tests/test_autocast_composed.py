"""wf.autocast in functions that are made of several ops, and in recurrences that are given their own states back."""

import pytest

import wayfare as wf
from wayfare import nn

B, F32 = wf.bfloat16, wf.float32


def _matrix(dtype):
    wf.manual_seed(0)
    return (wf.randn(3, 3) + 3 * wf.eye(3)).to(dtype)


FUNCTIONS = {
    "lstsq": lambda a: wf.linalg.lstsq(a, a[:, :1]).solution, "pinv": lambda a: wf.linalg.pinv(a),
    "cholesky_inverse": lambda a: wf.cholesky_inverse(a), "inv": lambda a: wf.linalg.inv(a),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("given", ["float32", "bfloat16", "float16"])
def test_linear_algebra_computes_in_float32(name, given):
    a = _matrix(getattr(wf, given))
    with wf.autocast("cpu"):
        out = FUNCTIONS[name](a)
    assert out.dtype is F32
    wf.testing.assert_close(out, FUNCTIONS[name](a.float()))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["lstsq", "pinv", "matrix_rank"])
def test_without_autocast_narrow_dtypes_are_refused_in_a_sentence(name, dtype):
    a = _matrix(getattr(wf, dtype))
    with pytest.raises(RuntimeError, match=rf"{dtype} has no linear algebra.*\.float\(\)"):
        wf.linalg.lstsq(a, a) if name == "lstsq" else getattr(wf.linalg, name)(a)
    with wf.autocast("cpu"):
        assert wf.linalg.matrix_rank(a).item() == 3


def test_products_that_pytorch_leaves_in_float32_on_the_cpu():
    a, b = wf.randn(3, 3), wf.randn(3)
    with wf.autocast("cpu"):
        left = [wf.addmv(b, a, b), wf.addr(a, b, b), wf.inner(b, b), wf.einsum("ij->ji", a)]
        lowered = [wf.inner(a, a), wf.einsum("ij,jk->ik", a, a), wf.addmm(a, a, a)]
        assert wf.linalg.cross(a.to(B), a.to(B)).dtype is B
    assert {t.dtype for t in left} == {F32} and {t.dtype for t in lowered} == {B}
    assert wf.equal(left[2], b @ b)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU", "LSTM with a projection", "two layers"])
def test_a_state_that_was_returned_is_given_again(kind):
    """As in truncated backpropagation: the state is in bfloat16, the next input in float32."""
    wf.manual_seed(0)
    layer = {
        "LSTM with a projection": lambda: nn.LSTM(4, 6, proj_size=3), "two layers": lambda: nn.LSTM(4, 6, 2),
    }.get(kind, lambda: getattr(nn, kind)(4, 6))()  # fmt: skip
    x, state = wf.randn(5, 2, 4), None
    detached = []
    for _ in range(3):
        with wf.autocast("cpu"):
            out, state = layer(x, state)
        out.float().square().sum().backward()
        state = tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
        detached.append(out.detach())
    assert detached[-1].dtype is B and layer.weight_hh_l0.grad.dtype is F32
    plain = None
    for _ in range(3):
        again, plain = layer(x, plain)
    wf.testing.assert_close(detached[-1].float(), again, rtol=0.05, atol=0.03)
    with pytest.raises(RuntimeError, match="Convert one of them"):
        layer(x, state)


def test_a_program_from_a_file_keeps_its_dtypes(tmp_path):
    layer, x = nn.Linear(3, 2), wf.randn(4, 3)

    def lowered(x):
        with wf.autocast("cpu"):
            return layer(x)

    for function, dtype in ((layer, F32), (lowered, B)):
        wf.export(function, [(x,)], tmp_path / "layer.wf")
        program = wf.load_program(tmp_path / "layer.wf")
        plain = program(x)
        with wf.autocast("cpu"):
            inside = program(x)
        assert plain.dtype is inside.dtype is dtype and wf.equal(plain, inside)
