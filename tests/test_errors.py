"""Errors are sentences: op, shapes, the user's own line, the way out; never NumPy's words."""

from pathlib import Path

import pytest

import wayfare as wf
from wayfare.errors import WayfareError

x = wf.ones(2, 3)
CASES = {
    "add": lambda: x + wf.ones(4),
    "matmul": lambda: x @ x,
    "matmul of dtypes": lambda: x @ wf.ones(3, 2, dtype=wf.float64),
    "cat": lambda: wf.cat([x, wf.ones(2, 4)], dim=0),
    "cat of nothing": lambda: wf.cat([]),
    "stack": lambda: wf.stack([x, wf.ones(3, 2)]),
    "reshape": lambda: x.reshape(4, 2),
    "view": lambda: x.T.view(6),
    "sum dim": lambda: x.sum(dim=5),
    "index": lambda: x[5],
    "index too many": lambda: x[0, 0, 0],
    "expand": lambda: x.expand(4, 3),
    "squeeze": lambda: x.squeeze(7),
    "permute": lambda: x.permute(0),
    "gather": lambda: x.gather(1, wf.tensor([[9]])),
    "mean of ints": lambda: wf.tensor([1, 2]).mean(),
    "argmax of nothing": lambda: wf.zeros(0).argmax(),
    "ragged list": lambda: wf.tensor([[1, 2], [3]]),
    "string": lambda: wf.tensor("text"),
    "unknown dtype": lambda: wf.zeros(2, dtype="float99"),
    "complex": lambda: wf.tensor(1j),
    "in place shape": lambda: wf.ones(3).add_(wf.ones(2, 3)),
    "in place dtype": lambda: wf.tensor([1]).add_(1.5),
    "leaf in place": lambda: wf.ones(2, requires_grad=True).add_(1),
    "inverse of singular": lambda: wf.zeros(2, 2).inverse(),
    "inverse of oblong": lambda: x.inverse(),
    "einsum": lambda: wf.einsum("ij,jk->ik", x, x),
    "embedding range": lambda: wf.nn.functional.embedding(wf.tensor([7]), x),
    "cross entropy range": lambda: wf.nn.functional.cross_entropy(x, wf.tensor([0, 9])),
    "operand type": lambda: wf.add(x, "two"),
    "linspace": lambda: wf.linspace(0, 1, -1),
    "randint": lambda: wf.randint(5, 5, (2,)),
    "topk": lambda: x.topk(9),
    "conv": lambda: wf.nn.functional.conv2d(wf.ones(1, 3, 8, 8), wf.ones(4, 2, 3, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_every_error_is_a_sentence_with_the_users_line(name):
    with pytest.raises(WayfareError) as caught:
        CASES[name]()
    text = str(caught.value)
    assert "test_errors.py:" in text, text
    assert len(text.splitlines()) == 1 and text.endswith((".", "?")), text
    for foreign in ("numpy", "ufunc", "operands could not", "axes don't match", "array_", "ValueError"):
        assert foreign not in text, text


def test_errors_are_the_built_ins_that_pytorch_raises():
    for make, kind in ((CASES["add"], RuntimeError), (CASES["index"], IndexError), (CASES["operand type"], TypeError)):
        with pytest.raises(kind):
            make()


@pytest.mark.parametrize("call, words", [
    (lambda: wf.cumsum(None, 0), "cumsum: .* not NoneType"),
    (lambda: wf.permute([1, 2], (0,)), "permute: input must be a Tensor, not list"),
    (lambda: wf.sum(x, axis=0), r"sum: there is no argument 'axis' .* Use dim="),
    (lambda: wf.sum(x, dims=0), r"sum: there is no argument 'dims' .* Its arguments are \(input"),
    (lambda: wf.cumsum(x), r"cumsum: missing a required argument: 'dim'"),
])  # fmt: skip
def test_an_argument_of_the_wrong_kind_is_named(call, words):
    with pytest.raises(TypeError, match=words):
        call()


def test_what_is_not_there_says_so():
    with pytest.raises(AttributeError, match="has no attribute 'optimiser'"):
        wf.optimiser
    assert not wf.cuda.is_available() and wf.cuda.device_count() == 0


def test_the_page_lists_every_class():
    page = (Path(__file__).resolve().parents[1] / "docs" / "errors.md").read_text(encoding="utf-8")
    classes = [c for c in vars(wf.errors).values() if isinstance(c, type) and issubclass(c, wf.errors.WayfareError)]
    missing = [c.__name__ for c in classes if c is not wf.errors.WayfareError and f"| `{c.__name__}` |" not in page]
    assert len(classes) > 10 and not missing
